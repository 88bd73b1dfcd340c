from __future__ import annotations

import sys

import pytest

from scale_disco.tasks.io.figures import finish, new_figure, save_figure


@pytest.mark.parametrize("name", ["errors", "errors.txt", "folder"])
def test_invalid_figure_paths_raise(name, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    with pytest.raises((ValueError, OSError), match=r"cannot (draw|write)"):
        save_figure(new_figure(2, 1), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_missing_matplotlib_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[plot\]"'):
        new_figure(2, 1)


def test_axes_have_a_legend_if_there_are_labels():
    pytest.importorskip("matplotlib")
    left, right = new_figure(4, 2).subplots(1, 2)
    left.plot([1, 2], label="ours")
    finish(left, "title")
    finish(right)
    assert (left.get_title(), right.get_title()) == ("title", "")
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["ours"]
    assert right.get_legend() is None
