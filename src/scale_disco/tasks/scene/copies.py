"""Resized copies of images and their scale profiles: the training data of readouts.

The network runs on whole copies, and windows are averaged from its maps: with crops as small as a window, the large
scales would see little but padding. Copies are made with one of several filters and may be blurred or compressed, so
that a readout cannot detect the resampling itself.
"""

import hashlib
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...files import listed
from ..io.arrays import cached_tensors
from ..io.images import Image, UnreadableError, find_images, read_image, to_image, to_tensor
from ..io.progress import Progress
from ..io.weights import file_sha256
from ..stl10 import data as stl10
from .networks import WINDOW
from .options import CELL

_LONGEST = 640  # pixels of the longer side to which images are shrunk
_LARGE = 400  # pixels of a side from which a copy of size 1 is half of the image, so that none is enlarged
_SMALLEST = 16  # minimum side of a copy, in pixels
_EDGE = 0.1  # fraction of an image at each edge that contains no center of a window
_FILTERS = ("BILINEAR", "HAMMING", "BICUBIC", "LANCZOS")  # of Pillow, all with antialiasing
_BLURRED = _COMPRESSED = 0.5  # fractions of the copies
_BLUR = (0.3, 0.8)  # standard deviation in pixels
_QUALITY = (60, 95)


@dataclass(frozen=True)
class ImageSource:
    """An image that is read on demand, uint8 [3, H, W]."""

    number: int  # index in the folder, which seeds its copies
    name: str  # path in the folder
    fingerprint: str  # SHA-256 of the file or the pixels
    read: Callable[[], Tensor] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Sizes:
    """How copies are drawn."""

    copies: int = 6  # of every image
    windows: int = 24  # of every image, at the same places in all copies
    span: float | None = None  # sizes are log-uniform from -span to span octaves; None: uniform from 0.5 to 2 (paper)
    jitter: bool = True  # vary the filter, blur and compression of copies
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("copies", self.copies, 2), ("windows", self.windows, 1)):
            if value < least:
                raise ValueError(f"scene: {name} must be at least {least}, got {value}")
        if self.span is not None and not 0 < self.span <= 2:
            raise ValueError(f"scene: span must be above 0 octaves and at most 2, got {self.span}")

    def draw(self, generator: np.random.Generator) -> float:
        if self.span is None:
            return float(generator.uniform(0.5, 2))
        return float(2 ** generator.uniform(-self.span, self.span))


class Copies(NamedTuple):
    """An image at several sizes: scale profiles of its windows, float16 [K, N, C, S], and log2 of the sizes [K]."""

    profiles: Tensor
    octaves: Tensor


def find(data: Path) -> list[ImageSource]:
    """Return the images in a folder and below it, or the training images of STL-10's binary files."""
    if any((folder / "train_X.bin").is_file() for folder in (data, data / stl10.FOLDER)):
        images = stl10.read_stl10(data).images
        return [
            ImageSource(number, str(number), hashlib.sha256(image.tobytes()).hexdigest(), partial(torch.tensor, image))
            for number, image in enumerate(images)
        ]
    return [
        ImageSource(number, path.relative_to(data).as_posix(), file_sha256(path), partial(read_image, path, _LONGEST))
        for number, path in enumerate(find_images(data, recursive=True))
    ]


def read_copies(
    network: nn.Module,
    images: Sequence[ImageSource],
    sizes: Sizes,
    *,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Copies]:
    """Return the scale profiles of copies of images; skip unreadable images with a warning.

    The network computes feature maps [B, C, S, h, w] of RGB images from 0 to 255, and its `fingerprint` identifies its
    weights, such as a `Backbone`. `cache` is a folder that stores the profiles of every image for the next call.
    """
    copies: list[Copies] = []
    skipped: list[str] = []
    shapes = {"profiles": (sizes.copies, sizes.windows, None, None), "octaves": (sizes.copies,)}
    for done, image in enumerate(images, 1):
        key = (network.fingerprint, image.fingerprint, sizes, image.number)

        def compute(image: ImageSource = image) -> dict[str, Tensor]:
            return copy_profiles(network, image.read(), sizes, image.number, device)._asdict()

        try:
            copies.append(Copies(**cached_tensors(cache, "copies", key, shapes, compute)))
        except UnreadableError as error:
            skipped.append(str(error))
        if progress is not None:
            progress(done, len(images))
    if not copies:
        raise ValueError(f"scene: none of {len(images)} images can be read: {skipped[0]}")
    if skipped:
        warnings.warn(f"scene: skipped: {listed(skipped, 1)}", stacklevel=2)
    return copies


def copy_profiles(
    network: nn.Module, image: Tensor, sizes: Sizes, number: int = 0, device: torch.device | str = "cpu"
) -> Copies:
    """Compute the scale profiles of random copies of an image uint8 [3, H, W]; `number` adds to the seed."""
    generator = np.random.default_rng([sizes.seed, number])
    whole = to_image(image)
    unit = 0.5 if max(whole.size) >= _LARGE else 1.0
    places = generator.uniform(_EDGE, 1 - _EDGE, (sizes.windows, 2))
    profiles, octaves = [], []
    for _ in range(sizes.copies):
        size = max(sizes.draw(generator), _SMALLEST / (unit * min(whole.size)))
        copy = resized(whole, unit * size, generator if sizes.jitter else None)
        with torch.inference_mode():
            maps = network(copy[None].float().to(device)).cpu()
            profiles.append(window_means(maps[0], places).half())
        octaves.append(math.log2(size))
    return Copies(torch.stack(profiles), torch.tensor(octaves))


def resized(image: Image, size: float, generator: np.random.Generator | None = None) -> Tensor:
    """Return a resized copy, uint8 [3, H, W]; a generator chooses the filter, blur and compression at random."""
    from PIL import Image, ImageFilter

    method = "BICUBIC" if generator is None else _FILTERS[generator.integers(len(_FILTERS))]
    width, height = (max(1, round(side * size)) for side in image.size)
    copy = image.resize((width, height), Image.Resampling[method])
    if generator is not None and generator.random() < _BLURRED:
        copy = copy.filter(ImageFilter.GaussianBlur(generator.uniform(*_BLUR)))
    if generator is not None and generator.random() < _COMPRESSED:
        packed = io.BytesIO()
        copy.save(packed, "JPEG", quality=int(generator.integers(*_QUALITY)))
        with Image.open(packed) as opened:
            copy = opened.convert("RGB")
    return to_tensor(copy)


def window_means(maps: Tensor, places: np.ndarray) -> Tensor:
    """Average maps [C, S, h, w] over windows around places (x, y) from 0 to 1, [N, 2], moved inside: [N, C, S]."""
    height, width = maps.shape[2:]
    high, wide = min(WINDOW // CELL, height), min(WINDOW // CELL, width)
    means = F.avg_pool2d(maps.flatten(0, 1)[None], (high, wide), 1)[0]  # [C * S, rows, columns]
    left, top = (
        np.clip(np.round(places[:, axis] * length - side / 2), 0, length - side).astype(np.int64)
        for axis, (length, side) in enumerate(((width, wide), (height, high)))
    )
    return means[:, top, left].T.reshape(len(places), *maps.shape[:2])


class CopyPairs(NamedTuple):
    """Pairs of copies to compare: indices of images [B], of two copies [B, 2] and of a window [B]."""

    images: np.ndarray
    copies: np.ndarray
    windows: np.ndarray


def draw_pairs(copies: Sequence[Copies], count: int, generator: np.random.Generator) -> CopyPairs:
    """Draw random pairs of two copies of one image at one window."""
    kinds, windows = copies[0].profiles.shape[:2]
    first = generator.integers(kinds, size=count)
    other = (first + generator.integers(1, kinds, size=count)) % kinds
    both = np.stack([first, other], 1)
    return CopyPairs(generator.integers(len(copies), size=count), both, generator.integers(windows, size=count))


def ratio_loss(predicted: Tensor, octaves: Tensor) -> Tensor:
    """Return the paper's loss: the mean squared error of ratios, from predicted and true log2 ratios [B]."""
    return (predicted.clamp(-4, 4).exp2() - octaves.exp2()).square().mean()


def log_loss(predicted: Tensor, octaves: Tensor) -> Tensor:
    """Return the smooth L1 loss of octaves, which is the same for a ratio and its inverse."""
    return F.smooth_l1_loss(predicted, octaves, beta=0.25)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ratio": ratio_loss, "log": log_loss}
