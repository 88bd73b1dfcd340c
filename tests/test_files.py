"""Files written atomically, and untrusted files read within bounds."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.files import parse_json, plain, read_bytes, read_json, reason, write, written_atomically


def test_a_failed_write_keeps_the_old_file_and_leaves_no_draft(tmp_path):
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


def test_folders_are_not_overwritten(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(IsADirectoryError, match="it is a folder"), written_atomically(tmp_path / "folder"):
        pass
    with pytest.raises(FileNotFoundError, match="file is not a folder"), written_atomically(tmp_path / "file" / "a"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


WRITER = """
import sys
from scale_disco.files import written_atomically
with written_atomically(sys.argv[1]) as draft:
    draft.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
    draft.write_text("whole")
"""


def writer(target):
    """A process in the middle of writing a file; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    return process


def drafts(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_drafts_of_a_killed_writer_are_removed_by_the_next(tmp_path):
    target, mine = tmp_path / "figures.txt", [tmp_path / ".figures-20260101.txt", tmp_path / ".figures-a.draft.txt"]
    for path in mine:
        path.write_text("a file of the user's own")
    killed = writer(target)
    killed.kill()
    killed.wait()
    killed.stdin.close()
    killed.stdout.close()
    assert len(drafts(tmp_path)) == 3
    write(target, b"new")
    assert target.read_text() == "new"
    assert sorted(drafts(tmp_path)) == [path.name for path in mine]


def test_a_draft_that_is_being_written_is_left_alone(tmp_path):
    target = tmp_path / "figures.txt"
    other = writer(target)
    write(target, b"mine")
    assert target.read_text() == "mine"
    assert len(drafts(tmp_path)) == 1
    other.communicate("")
    assert other.returncode == 0
    assert target.read_text() == "whole"
    assert drafts(tmp_path) == []


def test_many_writers_of_one_file_leave_one_whole_file(tmp_path):
    target, contents = tmp_path / "figures.bin", [bytes([n]) * 100_000 for n in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            list(threads.map(lambda content: write(target, content), contents))
            assert target.read_bytes() in contents
    assert drafts(tmp_path) == []


@pytest.mark.parametrize("kind", ["ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO"])
def test_disk_errors_name_the_file(kind, tmp_path):
    number = getattr(errno, kind)
    target = tmp_path / "figures.txt"
    target.write_text("old")
    with (
        pytest.raises(OSError, match=re.escape(f"cannot write {target}: {os.strerror(number)}")),
        written_atomically(target),
    ):
        raise OSError(number, os.strerror(number), "some draft")
    assert target.read_text() == "old"
    with pytest.raises(FileNotFoundError, match="other"), written_atomically(target):
        (tmp_path / "other").read_bytes()  # an error of another file is not reworded


def test_reading_stops_at_the_size_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"^it has more than 4 bytes$"):
        read_bytes(path, 4)
    assert read_json(path) == 12345


@pytest.mark.parametrize("start", ["[", '{"a":'])
def test_documents_nested_too_deeply_are_refused(start):
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        parse_json(start * 100_000)
    assert parse_json('{"a": [1, 2]}') == {"a": [1, 2]}


def test_reason_of_an_error_is_its_first_line_or_its_type():
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(EOFError()) == "EOFError"


@given(st.text() | st.text().map(lambda text: 300 * text))
def test_plain_text_is_one_short_line(text):
    line = plain(text)
    assert line.isprintable()
    assert len(line) <= 400
    if text.isprintable() and text.split() == text.split(" ") and len(text) <= 400:
        assert line == text
