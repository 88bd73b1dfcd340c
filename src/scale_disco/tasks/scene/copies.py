"""Copies of pictures at known sizes, and what a frozen network sees of them: all that a read-out learns from.

The network sees whole copies and windows are taken from its maps: crops as small as a window would starve the large
scales, which then see little but padding. Copies are made by one of several filters and may be blurred a little or
compressed, so that nothing can be read from how they were resized.
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor

from ...files import make_folder, plain, reason, write
from ..io.images import UnreadableError, find_images, read_image, to_image, to_tensor
from ..stl10 import data as stl10
from .networks import CELL, WINDOW

if TYPE_CHECKING:
    from PIL.Image import Image

_LONGEST = 640  # pixels that the largest copy of a large picture has, about
_SHRUNK = 400  # pixels of a side from which a picture is large: its copy of size 1 is half of it, so that all are real
_SMALLEST = 16  # pixels of a side of a copy; those that would be smaller are of this size
_EDGE = 0.1  # part of a picture at each edge that has no centre of a window
_FILTERS = ("BILINEAR", "HAMMING", "BICUBIC", "LANCZOS")  # of Pillow, all with antialiasing
_BLURRED = _COMPRESSED = 0.5  # of the copies
_BLUR = (0.3, 0.8)  # deviation in pixels
_QUALITY = (60, 95)

Progress = Callable[[int, int], None]


class Network(Protocol):
    """What gives maps of images, such as a `Backbone`; `mark` tells it from others."""

    mark: str

    def __call__(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] in RGB from 0 to 255 -> [B, C, S, h, w]."""


@dataclass(frozen=True)
class ImageSource:
    """A picture that is read when it is needed: uint8 [3, H, W]. `mark` is a checksum of what it is read from.

    What is drawn for it depends on its number among those of the folder.
    """

    number: int
    name: str
    mark: str
    read: Callable[[], Tensor] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Sizes:
    """How copies are drawn.

    Args:
        copies: Of every picture.
        windows: Places of every picture that are looked at, the same in all its copies.
        span: Sizes are drawn evenly in octaves from -span to span; None for evenly from 0.5 to 2, as in the paper.
        jitter: Whether copies are made by several filters, blurred and compressed.
        seed: Of what is drawn.
    """

    copies: int = 6
    windows: int = 24
    span: float | None = None
    jitter: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("copies", self.copies, 2), ("windows", self.windows, 1)):
            if value < least:
                raise ValueError(f"scene: {name} must be at least {least}, got {value}")
        if self.span is not None and not 0 < self.span <= 2:
            raise ValueError(f"scene: span must be above 0 octaves and at most 2, got {self.span}")

    def draw(self, generator: np.random.Generator) -> float:
        """A size."""
        if self.span is None:
            return float(generator.uniform(0.5, 2))
        return float(2 ** generator.uniform(-self.span, self.span))


class Copies(NamedTuple):
    """A picture at several sizes: profiles of its windows, float16 [K, N, C, S], and log2 of the sizes [K]."""

    profiles: Tensor
    octaves: Tensor


def find(data: Path) -> list[ImageSource]:
    """The pictures of a folder and those below it, or the training images of STL-10's binary files."""
    if any((folder / "train_X.bin").is_file() for folder in (data, data / stl10.FOLDER)):
        images = stl10.read_stl10(data).images
        return [
            ImageSource(number, f"{number}", hashlib.sha256(image.tobytes()).hexdigest(), partial(_tensor, image))
            for number, image in enumerate(images)
        ]
    paths = find_images(data, recursive=True)
    return [
        ImageSource(
            number,
            path.relative_to(data).as_posix(),
            _digest(path),
            partial(read_image, path, _LONGEST),
        )
        for number, path in enumerate(paths)
    ]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image))


def read_copies(
    network: Network,
    pictures: Sequence[ImageSource],
    sizes: Sizes,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Copies]:
    """What a frozen network sees of copies of pictures; those that cannot be read are left out with a warning.

    Args:
        network: That gives maps.
        pictures: Of which the copies are.
        sizes: How they are drawn.
        cache: Folder that keeps what was seen of every picture, so that it is there the next time.
        progress: Called with pictures done and pictures in all.
    """
    if cache is not None:
        make_folder(cache)
    found: list[Copies] = []
    left_out: list[str] = []
    for done, picture in enumerate(pictures, 1):
        try:
            found.append(_kept(network, picture, sizes, cache))
        except UnreadableError as error:
            left_out.append(str(error))
        if progress is not None:
            progress(done, len(pictures))
    if not found:
        raise ValueError(f"scene: none of {len(pictures)} pictures can be read: {left_out[0]}")
    if left_out:
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        warnings.warn(f"scene: left out {left_out[0]}{more}", stacklevel=2)
    return found


def _kept(network: Network, picture: ImageSource, sizes: Sizes, cache: Path | None) -> Copies:
    """Copies of a picture from the cache, or seen and put there."""
    if cache is None:
        return see_copies(network, picture.read(), sizes, picture.number)
    key = hashlib.sha256(repr((network.mark, picture.mark, sizes, picture.number)).encode()).hexdigest()
    path = cache / f"copies-{key[:32]}.safetensors"
    if path.is_file():
        try:
            copies = Copies(**load_file(path))
            shapes = tuple(copies.profiles.shape[:2]), tuple(copies.octaves.shape)
            if shapes != ((sizes.copies, sizes.windows), (sizes.copies,)) or copies.profiles.ndim != 4:
                raise ValueError("it holds other copies")
            return copies
        except Exception as error:  # whatever a damaged file makes safetensors raise
            raise ValueError(f"{path}: damaged; delete it to see the picture anew ({plain(reason(error))})") from error
    copies = see_copies(network, picture.read(), sizes, picture.number)
    write(path, save(copies._asdict()))
    return copies


def see_copies(network: Network, picture: Tensor, sizes: Sizes, number: int = 0) -> Copies:
    """What a network sees of copies of one picture uint8 [3, H, W], of this number among others."""
    generator = np.random.default_rng([sizes.seed, number])
    whole = to_image(picture)
    unit = 0.5 if max(whole.size) >= _SHRUNK else 1.0
    places = generator.uniform(_EDGE, 1 - _EDGE, (sizes.windows, 2))
    profiles, octaves = [], []
    for _ in range(sizes.copies):
        size = max(sizes.draw(generator), _SMALLEST / (unit * min(whole.size)))
        copy = resized(whole, unit * size, generator if sizes.jitter else None)
        with torch.inference_mode():
            profiles.append(window_means(network(copy[None].float())[0], places).half())
        octaves.append(math.log2(size))
    return Copies(torch.stack(profiles), torch.tensor(octaves))


def resized(picture: Image, size: float, generator: np.random.Generator | None = None) -> Tensor:
    """A copy of a picture, uint8 [3, H, W]; with a generator by any filter, and blurred or compressed or neither."""
    from PIL import Image, ImageFilter

    method = "BICUBIC" if generator is None else _FILTERS[generator.integers(len(_FILTERS))]
    width, height = (max(1, round(side * size)) for side in picture.size)
    copy = picture.resize((width, height), Image.Resampling[method])
    if generator is not None and generator.random() < _BLURRED:
        copy = copy.filter(ImageFilter.GaussianBlur(generator.uniform(*_BLUR)))
    if generator is not None and generator.random() < _COMPRESSED:
        packed = io.BytesIO()
        copy.save(packed, "JPEG", quality=int(generator.integers(*_QUALITY)))
        with Image.open(packed) as opened:
            copy = opened.convert("RGB")
    return to_tensor(copy)


def window_means(maps: Tensor, places: np.ndarray) -> Tensor:
    """Means of maps [C, S, h, w] over windows around places (x, y) from 0 to 1, [N, 2], inside the maps: [N, C, S]."""
    height, width = maps.shape[2:]
    high, wide = min(WINDOW // CELL, height), min(WINDOW // CELL, width)
    means = F.avg_pool2d(maps.flatten(0, 1)[None], (high, wide), 1)[0]  # [C * S, rows, columns]
    left, top = (
        np.clip(np.round(places[:, axis] * length - side / 2), 0, length - side).astype(np.int64)
        for axis, (length, side) in enumerate(((width, wide), (height, high)))
    )
    return means[:, top, left].T.reshape(len(places), *maps.shape[:2])


class CopyPairs(NamedTuple):
    """Which windows of which copies are compared: numbers of pictures, of two copies and of windows, [B] each."""

    pictures: np.ndarray
    copies: np.ndarray
    others: np.ndarray
    windows: np.ndarray


def draw_pairs(copies: Sequence[Copies], count: int, generator: np.random.Generator) -> CopyPairs:
    """CopyPairs of two copies of one picture at one window."""
    kinds, windows = copies[0].profiles.shape[:2]
    first = generator.integers(kinds, size=count)
    other = (first + generator.integers(1, kinds, size=count)) % kinds
    return CopyPairs(generator.integers(len(copies), size=count), first, other, generator.integers(windows, size=count))


def ratio_loss(predicted: Tensor, octaves: Tensor) -> Tensor:
    """The paper's: squares of the differences of ratios, from predicted and true log2 of them, [B] -> a number."""
    return (predicted.clamp(-4, 4).exp2() - octaves.exp2()).square().mean()


def log_loss(predicted: Tensor, octaves: Tensor) -> Tensor:
    """Differences in octaves, which are the same for a ratio and its inverse; squares near zero, linear beyond."""
    return F.smooth_l1_loss(predicted, octaves, beta=0.25)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ratio": ratio_loss, "log": log_loss}
