"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well and removed when it does not.

    What a process that was killed left there is removed by the next one that writes the same file. The block writes
    into the draft itself; another file in its place would be taken for one that was left.

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
        _sweep(target)
        handle, draft = _draft(target)
    except OSError as error:
        raise type(error)(f"cannot write {target}: {error.strerror}") from error
    try:
        yield draft
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)  # a draft is private; a result file should follow the user's umask
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


_WINDOWS = os.name == "nt"  # where open files can be neither locked as here nor renamed
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # what a disk answers, whoever writes


def _draft(target: Path) -> tuple[int | None, Path]:
    """A new file beside another, locked until it is closed so that nobody takes it for one that was left behind."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=f".draft{target.suffix}", dir=target.parent)
        if _WINDOWS:
            os.close(handle)
            return None, Path(name)
        _lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # swept away before it was locked


def _sweep(target: Path) -> None:
    """Remove drafts of a file whose writers are gone."""
    pattern = re.compile(rf"\.{re.escape(target.stem)}-[a-z0-9_]{{8}}\.draft{re.escape(target.suffix)}")  # mkstemp's
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name):
            with suppress(OSError):  # it has just been finished, or is not ours to touch
                handle = os.open(target.parent / name, os.O_RDWR)
                try:
                    if _lock(handle, wait=False):
                        os.unlink(target.parent / name)
                finally:
                    os.close(handle)


def _lock(handle: int, *, wait: bool) -> bool | None:
    """Lock an open file or folder until it is closed: whether nobody else has it; None where nothing can be locked."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on some network file systems
        return None
    return True


def is_draft(path: Path) -> bool:
    """Whether a file is one that is being written, or was when its writer was killed."""
    return path.name.startswith(".") and ".draft" in path.suffixes[-2:]


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse early what could not be written late: in a folder that is missing or closed, or where a folder is."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    if not target.parent.is_dir():
        missing = "is not a folder" if target.parent.exists() else "does not exist"
        raise FileNotFoundError(f"cannot write {target}: {target.parent} {missing}")
    if not os.access(target.parent, os.W_OK):
        closed = hasattr(os, "statvfs") and os.statvfs(target.parent).f_flag & os.ST_RDONLY
        raise PermissionError(f"cannot write {target}: {os.strerror(errno.EROFS if closed else errno.EACCES)}")


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
        draft.write_bytes(content)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder out of it; the lock ends with the process at the latest."""
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


def reason(error: BaseException) -> str:
    """What an error of another library says, in one line.

    Example:
        >>> reason(EOFError())
        'EOFError'
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__
