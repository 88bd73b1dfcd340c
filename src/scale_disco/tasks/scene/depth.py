"""Photos with the depth of their pixels, to compare scale fields with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..io.images import find_images, open_image, read_image

_DEPTH = "_depth_mm.png"


class DepthPair(NamedTuple):
    """A photo, uint8 [3, H, W], and the distance along the optical axis in meters, float32 [H, W], NaN if unknown."""

    name: str
    image: Tensor
    meters: Tensor


def find_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the files of all pairs NAME.jpg and NAME_depth_mm.png in a folder and below it, sorted by name.

    The photo may have another format than JPEG. Images without depth are ignored.
    """
    paths = find_images(folder, recursive=True)
    photos = {path.with_suffix(""): path for path in paths if not path.name.endswith(_DEPTH)}
    pairs = {}
    for path in paths:
        if path.name.endswith(_DEPTH):
            stem = path.with_name(path.name.removesuffix(_DEPTH))
            if stem not in photos:
                raise FileNotFoundError(f"depth: {path} has no photo next to it, such as {stem.name}.jpg")
            pairs[stem.relative_to(folder).as_posix()] = photos[stem], path
    if not pairs:
        raise FileNotFoundError(f"depth: no pairs of NAME.jpg and NAME{_DEPTH} in {folder} and below it")
    return dict(sorted(pairs.items()))


def read_pair(name: str, photo: Path, depth: Path) -> DepthPair:
    """Read a pair of files; the depth is a 16-bit PNG in millimeters, 0 where it is unknown."""
    image, meters = read_image(photo), read_depth(depth)
    if image.shape[1:] != meters.shape:
        (height, width), (rows, columns) = image.shape[1:], meters.shape
        raise ValueError(f"depth: {depth} has {columns} x {rows} pixels, its photo {width} x {height}")
    return DepthPair(name, image, meters)


def read_depth(path: Path) -> Tensor:
    """Read depth in meters, float32 [H, W], NaN where the file has zeros."""
    with open_image(path, ("PNG",)) as image:
        if image.mode[0] != "I":
            raise ValueError(f"expected gray values of 16 bits, got mode {image.mode}")
        millimeters = np.asarray(image).astype(np.float32)
    meters = torch.from_numpy(millimeters) / 1000
    return meters.where(meters > 0, math.nan)
