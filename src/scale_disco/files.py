"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well and removed when it does not.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with written_atomically(target) as draft:
        ...     _ = draft.write_text("done")
        >>> target.read_text()
        'done'
    """
    target = Path(path)
    check_writable(target)
    try:
        # mkstemp makes the file private; a result file should follow the user's umask, see below.
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise type(error)(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse early what could not be written late: a missing folder, or a folder where a file should be."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        missing = "is not a folder" if target.parent.exists() else "does not exist"
        raise FileNotFoundError(f"cannot write {target}: {target.parent} {missing}")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileExistsError(f"cannot make the folder {folder}: it is a file") from error
    except OSError as error:
        raise type(error)(f"cannot make the folder {folder}: {error.strerror}") from error


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with written_atomically(path) as draft:
        try:
            draft.write_bytes(content)
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder out of it; the lock ends with the process at the latest."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"{folder}: another process is at work in it") from error
        yield
    finally:
        os.close(handle)


def reason(error: BaseException) -> str:
    """What an error of another library says, in one line.

    Example:
        >>> reason(EOFError())
        'EOFError'
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__
