from __future__ import annotations

import os
import stat

import pytest

from scale_disco.files import written_atomically


def test_a_failure_keeps_the_old_file_and_leaves_no_draft(tmp_path):
    target = tmp_path / "figures.txt"
    target.write_text("old")

    def fail():
        with written_atomically(target) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["figures.txt"]


def test_files_follow_the_umask(tmp_path):
    with written_atomically(tmp_path / "a.txt") as draft:
        draft.write_text("x")
    (tmp_path / "b.txt").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes[0] == modes[1]


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"the folder .*missing does not exist"),
        written_atomically(tmp_path / "missing" / "a.txt"),
    ):
        pass
