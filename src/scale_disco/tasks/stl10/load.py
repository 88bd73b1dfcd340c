"""Images of STL-10 or of a folder, behind one function."""

from pathlib import Path

from ..io.progress import Progress
from .data import PARTS, read_stl10
from .folder import read_folder
from .images import ImageSet
from .options import FORMATS, SIDE


def load_images(
    root: Path,
    format: str = "stl10",
    *,
    side: int = SIDE,
    fold: int | None = None,
    test_share: float | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, ImageSet]:
    """Read the train and test images of a folder.

    `format` is "stl10" (STL-10's binary files; `fold` is as in `read_stl10`) or "folder" (a folder of images for each
    class; `side`, `test_share` and `cache` are as in `read_folder`).
    """
    if format == "folder":
        if fold is not None:
            raise ValueError(f"folds are those of stl10, got fold {fold} of an image folder")
        return read_folder(root, side, test_share=test_share, cache=cache, progress=progress)
    if format != "stl10":
        raise ValueError(f"the format of images must be one of {', '.join(FORMATS)}, got {format!r}")
    if side != SIDE or test_share is not None:
        raise ValueError(f"stl10 has images of {SIDE} pixels and its own test images; for others use --format folder")
    return {part: read_stl10(root, part, fold=fold if part == "train" else None, progress=progress) for part in PARTS}
