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
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    # mkstemp would make the file private; a result file should follow the user's umask.
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
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
