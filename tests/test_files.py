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
        pytest.raises(FileNotFoundError, match=r"a.txt: .*missing does not exist"),
        written_atomically(tmp_path / "missing" / "a.txt"),
    ):
        pass


def test_what_cannot_be_a_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(IsADirectoryError, match="it is a folder"), written_atomically(tmp_path / "folder"):
        pass
    with pytest.raises(FileNotFoundError, match="file is not a folder"), written_atomically(tmp_path / "file" / "a"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
