"""KTH-TIPS (Fritz et al. 2004): ten materials photographed from nine distances, as a test of real changes of scale.

Neighboring distances differ by a factor of 2^(1/4). Files are `MATERIAL/N-scale_D_im_I_grey.png`, with the distance D
from 1, the nearest, to 9, and the condition I from 1 to 9: three poses times three illuminations.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..io.images import center_crop, find_images, read_image

DISTANCES = tuple(range(1, 10))
STEP = 2**0.25  # between neighboring distances
_NAME = re.compile(r"\d+-scale_(\d+)_im_(\d+)_(?:gr[ae]y|col)\.(?:png|jpg)")
_SMALLEST = 64  # side of an image, in pixels


class Materials(NamedTuple):
    """Images in RGB, uint8 [3, H, W] of several sizes; the material, distance and condition of each, int64 [N]."""

    images: list[Tensor]
    labels: np.ndarray
    distances: np.ndarray
    conditions: np.ndarray
    classes: tuple[str, ...]


def read_kth_tips(folder: Path, side: int = 160) -> Materials:
    """Read KTH-TIPS, gray or in color, from a folder with a subfolder of each material.

    Images larger than `side` are center-cropped to it; none is resized. Every material needs the same distances and
    conditions.
    """
    if side < _SMALLEST:
        raise ValueError(f"kth-tips: side must be at least {_SMALLEST}, got {side}")
    paths = find_images(folder, recursive=True)
    rows = []
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None or not 1 <= int(match[1]) <= len(DISTANCES):
            raise ValueError(f"kth-tips: {path} is not named MATERIAL/N-scale_D_im_I_grey.png with D from 1 to 9")
        rows.append((path.parent.name, int(match[1]), int(match[2])))
    classes = tuple(sorted({material for material, _, _ in rows}))
    if len(classes) < 2:
        raise ValueError(f"kth-tips: expected a subfolder of each material, got {', '.join(classes)} in {folder}")
    _check_grid(folder, rows, classes)
    images = [center_crop(read_image(path, shortest=_SMALLEST), side) for path in paths]
    labels = np.array([classes.index(material) for material, _, _ in rows])
    return Materials(images, labels, np.array([row[1] for row in rows]), np.array([row[2] for row in rows]), classes)


def _check_grid(folder: Path, rows: list[tuple[str, int, int]], classes: Iterable[str]) -> None:
    """Raise an error unless every material has an image of every distance in every condition."""
    expected = {(distance, condition) for distance in DISTANCES for condition in {row[2] for row in rows}}
    for material in classes:
        present = [row[1:] for row in rows if row[0] == material]
        if len(present) != len(set(present)):
            raise ValueError(f"kth-tips: {folder / material} has two images of the same distance and condition")
        missing = sorted(expected - set(present))
        if missing:
            distance, condition = missing[0]
            which = f"distance {distance}, condition {condition}"
            raise ValueError(f"kth-tips: {folder / material} has no image of {which}")
