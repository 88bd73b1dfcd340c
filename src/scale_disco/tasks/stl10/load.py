"""Readers and builders of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .data import PARTS, SIDE, read_stl10
from .folder import read_folder
from .images import ImageSet

FORMATS = ("stl10", "folder")


def load_images(
    root: Path,
    format: str = "stl10",
    *,
    side: int = SIDE,
    fold: int | None = None,
    test_share: float | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, ImageSet]:
    """Train and test images of a folder, alike whatever its format.

    Args:
        root: Folder of the data.
        format: "stl10" (STL-10's binary files) or "folder" (pictures in a folder for each class).
        side: Of the images, in pixels; STL-10 has 96.
        fold: Of STL-10: one of its ten folds, 0 to 9, as the training part.
        test_share: Of a folder without parts: the share of every class that is for the test.
        cache: Of a folder: the file that keeps its decoded images.
        progress: Called with what is done and what there is in all, if it takes long.
    """
    if format == "folder":
        if fold is not None:
            raise ValueError(f"folds are those of stl10, got fold {fold} of a folder of pictures")
        return read_folder(root, side, test_share=test_share, cache=cache, progress=progress)
    if format != "stl10":
        raise ValueError(f"the format of images must be one of {', '.join(FORMATS)}, got {format!r}")
    if side != SIDE or test_share is not None:
        raise ValueError(f"stl10 has images of {SIDE} pixels and its own test part; other choices need --format folder")
    return {part: read_stl10(root, part, fold=fold if part == "train" else None, progress=progress) for part in PARTS}
