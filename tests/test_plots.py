from __future__ import annotations

import sys

import pytest

from scale_disco import DiscreteBasis
from scale_disco.plots import plot_basis, plot_errors, plot_sizes, save_figure
from tests.conftest import ROOT_2


def test_basis_is_drawn_scale_by_scale():
    pytest.importorskip("matplotlib")
    figure = plot_basis(DiscreteBasis(3, ROOT_2))
    assert len(figure.axes) == 3 * 9 + 1
    assert "dilation 2" in figure.axes[2 * 9].get_ylabel()
    assert len(plot_basis(DiscreteBasis(5, ROOT_2, spatial_dims=1)).axes) == 3 * 5 + 1
    with pytest.raises(ValueError, match="1 or 2 spatial axes can be drawn, got 3"):
        plot_basis(DiscreteBasis(2, ROOT_2, spatial_dims=3))


def test_errors_are_bars_and_exact_bases_have_none(tmp_path):
    pytest.importorskip("matplotlib")
    errors = {"DISCO": {"photos": 0.01, "digits": 0.02}, "Hermite": {"photos": 0.1, "digits": 0.3}, "exact": {}}
    figure = plot_errors(errors, {"DISCO": 67, "Hermite": 83, "exact": 27}, "errors")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.0, 0.1, 0.01, 0.0, 0.3, 0.02]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [27, 83, 67]
    assert "dark: photos, light: digits" in figure.get_suptitle()
    save_figure(figure, tmp_path / "errors.svg")
    assert (tmp_path / "errors.svg").read_text().startswith("<?xml")


def test_sizes_are_drawn_in_octaves_over_the_first():
    pytest.importorskip("matplotlib")
    figure = plot_sizes(
        {"walk": {"truth": [8, 16, 4], "ours": [3, 3, 6]}, "static": {"truth": [2, 2]}}, "truth", "ours"
    )
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[0, 1, -1], [0, 0, 1]]
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [[0, 0]]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["truth", "ours"]


@pytest.mark.parametrize("name", ["errors", "errors.txt", "folder"])
def test_a_picture_that_cannot_be_drawn_is_refused(name, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    with pytest.raises((ValueError, OSError), match=r"cannot (draw|write)"):
        save_figure(plot_errors({"a": {"photos": 1.0}}, {"a": 9}, "errors"), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_matplotlib_is_answered_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[plot\]"'):
        plot_errors({"a": {"photos": 1.0}}, {"a": 9}, "errors")
