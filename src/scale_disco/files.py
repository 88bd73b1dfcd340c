"""Files written atomically, and untrusted files read within bounds.

A reader of our files never sees half of one. Files from elsewhere are read up to a size limit, run no code, and raise
ValueError if they are malformed.
"""

import errno
import json
import mmap
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MOST = 1 << 23  # default size limit of a text file in bytes; ours have a hundredth of it
_LONGEST = 400  # characters quoted in an error message
_WINDOWS = os.name == "nt"  # where open files can be neither locked with flock nor renamed
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # errors of the disk, not of the writer


@contextmanager
def written_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path`; move it there if the block succeeds, remove it otherwise.

    Drafts of a killed process are removed by the next one that writes the same file. The block must write to the draft
    itself; a new file in its place is unlocked and may be removed.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with written_atomically(target) as draft:
        ...     _ = draft.write_text("done")
        >>> target.read_text()
        'done'
    """
    target = Path(path)
    check_writable(target)
    try:
        _remove_stale_drafts(target)
        handle, draft = _draft(target)
    except OSError as error:
        raise type(error)(f"cannot write {target}: {error.strerror}") from error
    try:
        yield draft
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)  # a draft is private; the file follows the user's umask
        if handle is not None:
            os.fsync(handle)
        draft.replace(target)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise OSError(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        draft.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _draft(target: Path) -> tuple[int | None, Path]:
    """Create a file next to `target`, locked while it is open so that no other process removes it as stale."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=f".draft{target.suffix}", dir=target.parent)
        if _WINDOWS:
            os.close(handle)
            return None, Path(name)
        _lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # removed before it was locked


def _remove_stale_drafts(target: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(target.stem)}-[a-z0-9_]{{8}}\.draft{re.escape(target.suffix)}")  # mkstemp's
    for name in filter(pattern.fullmatch, os.listdir(target.parent)):
        with suppress(OSError):  # just finished, or not ours
            handle = os.open(target.parent / name, os.O_RDWR)
            try:
                if _lock(handle, wait=False):
                    os.unlink(target.parent / name)
            finally:
                os.close(handle)


def _lock(handle: int, *, wait: bool) -> bool | None:
    """Lock an open file or folder until it is closed. Return False if another process has it, None if unsupported."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on some network file systems
        return None
    return True


def is_draft(path: Path) -> bool:
    """Whether a file is the draft of another, unfinished or left by a killed process."""
    return path.name.startswith(".") and ".draft" in path.suffixes[-2:]


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if a file cannot be written, before the work that produces it."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        missing = "is not a folder" if target.parent.exists() else "does not exist"
        raise FileNotFoundError(f"cannot write {target}: {target.parent} {missing}")
    if not os.access(target.parent, os.W_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(target.parent).f_flag & os.ST_RDONLY
        raise PermissionError(f"cannot write {target}: {os.strerror(errno.EROFS if read_only else errno.EACCES)}")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise type(error)(f"cannot make the folder {folder}: {cause}") from error


def write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with written_atomically(path) as draft:
        draft.write_bytes(content)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that lock it; the lock ends with the process at the latest."""
    if _WINDOWS:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _lock(handle, wait=False) is False:
            raise BlockingIOError(f"{folder}: another process is at work in it")
        yield
    finally:
        os.close(handle)


def read_bytes(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """Return the content of a file of at most `most` bytes."""
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


@contextmanager
def mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """Map a file into memory for a library that trusts the lengths in it: it cannot read past the end."""
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the document in a JSON file."""
    return parse_json(read_bytes(path))


def parse_json(content: str | bytes) -> Any:
    """Return a JSON document, with ValueError instead of RecursionError if it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are.

    Example:
        >>> listed(["a", "b", "c", "d"]), listed(["a", "b"])
        ('a, b, c and 1 more', 'a, b')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def plain(words: object) -> str:
    r"""Return text from a file or another library as one short line without control characters.

    Example:
        >>> plain("two\nlines \x1b[2J")
        'two lines \\x1b[2J'
    """
    line = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in " ".join(str(words)[: 4 * _LONGEST].split())
    )
    return textwrap.shorten(line, _LONGEST, placeholder=" ...") if " " in line[:_LONGEST] else line[:_LONGEST]
