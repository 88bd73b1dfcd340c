"""Photographs with the depth of their pixels, to compare scale fields with."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..io.images import find_images, read_image
from ..io.photo import open_image

_DEPTH = "_depth_mm.png"


class DepthPair(NamedTuple):
    """A photograph, uint8 [3, H, W], and the distance along the optical axis in metres, float32 [H, W].

    It is NaN where nothing was measured.
    """

    name: str
    image: Tensor
    metres: Tensor


def find_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Names of the pairs NAME.jpg and NAME_depth_mm.png in a folder and below it, sorted, with their files.

    The photograph may be of another kind than JPEG. Pictures without depth are left out.
    """
    paths = find_images(folder, below=True)
    photographs = {path.with_suffix(""): path for path in paths if not path.name.endswith(_DEPTH)}
    pairs = {}
    for path in paths:
        if path.name.endswith(_DEPTH):
            stem = path.with_name(path.name.removesuffix(_DEPTH))
            if stem not in photographs:
                raise FileNotFoundError(f"depth: {path} has no photograph beside it, such as {stem.name}.jpg")
            pairs[stem.relative_to(folder).as_posix()] = photographs[stem], path
    if not pairs:
        raise FileNotFoundError(f"depth: no pairs of NAME.jpg and NAME{_DEPTH} in {folder} and below it")
    return dict(sorted(pairs.items()))


def read_pair(name: str, photograph: Path, depth: Path) -> DepthPair:
    """A pair; the depth is a PNG of 16 bits in millimetres, 0 where there is none."""
    image, metres = read_image(photograph), read_depth(depth)
    if image.shape[1:] != metres.shape:
        (height, width), (rows, columns) = image.shape[1:], metres.shape
        raise ValueError(f"depth: {depth} has {columns} x {rows} pixels, its photograph {width} x {height}")
    return DepthPair(name, image, metres)


def read_depth(path: Path) -> Tensor:
    """Depth in metres, float32 [H, W], NaN where the file has zeros."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on odd metadata
            with open_image(path, ("PNG",)) as image:
                if image.mode[0] != "I":
                    raise ValueError(f"expected grey values of 16 bits, got mode {image.mode}")
                millimetres = np.asarray(image).astype(np.float32)
    except ValueError as error:
        raise ValueError(f"depth: cannot read {path}: {error}") from error
    metres = torch.from_numpy(millimetres) / 1000
    return metres.where(metres > 0, math.nan)
