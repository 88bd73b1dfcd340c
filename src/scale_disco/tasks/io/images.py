"""Photographs of all kinds, as cameras, scanners and the web have them: upright, in RGB, no larger than asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .photo import FORMATS, SUFFIXES, open_image

if TYPE_CHECKING:
    from PIL.Image import Image

SHORTEST = 32  # pixels of a side below which there is no telling how scale changes over a picture
_BAND = 64  # rows at a time
_GAP = 2  # decoders may shrink to this much more than is asked for, the rest is resampled


class UnreadableError(ValueError):
    """A file that is no picture, a damaged one, or one too small."""


def find_images(folder: Path, *, below: bool = False) -> list[Path]:
    """The pictures in a folder by their suffixes, sorted, without hidden ones.

    Args:
        folder: The folder.
        below: Also those in the folders in it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"scene: no folder {folder}")
    paths = sorted(path for path in _files(folder, below) if path.suffix.lower() in SUFFIXES)
    if not paths:
        where = f"{folder} and below it" if below else str(folder)
        raise FileNotFoundError(f"scene: no pictures in {where} (looked for {', '.join(SUFFIXES)})")
    return paths


def is_image(path: Path) -> bool:
    """Whether a file is a picture rather than a video: by its suffix, or by what is in it."""
    if path.suffix.lower() in SUFFIXES:
        return True
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on odd metadata
            with Image.open(path, formats=FORMATS):
                return True
    except UnidentifiedImageError:
        return False
    except Image.DecompressionBombError:
        return True


def read_image(path: Path, longest: int | None = None, *, shortest: int = SHORTEST) -> Tensor:
    """One picture, uint8 [3, H, W] in RGB, turned upright as its EXIF says.

    What is transparent shows white. Grey values of 16 bits are divided by 257; those of 32 bits, integer or floating,
    are stretched from the least to the greatest, unless they are of 16 bits after all. Of files with several pictures
    it is the first.

    Args:
        path: The file.
        longest: Pictures with a longer side are shrunk to it, with antialiasing.
        shortest: Pictures with a shorter side are refused, as they are after shrinking.
    """
    from PIL import ImageOps

    if not path.is_file():
        raise FileNotFoundError(f"scene: no file {path}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on odd metadata
            with open_image(path) as image:
                if longest is not None:
                    image.draft(None, (_GAP * longest, _GAP * longest))
                picture = _shrunk(_rgb(ImageOps.exif_transpose(image)), longest)
    except ValueError as error:
        raise UnreadableError(f"scene: cannot read {path}: {error}") from error
    if min(picture.size) < shortest:
        width, height = picture.size
        after = "" if longest is None or longest > max(picture.size) else f" after shrinking to {longest}"
        raise UnreadableError(
            f"scene: {path} is too small: {width} x {height} pixels{after}, needs {shortest} each way"
        )
    return _tensor(picture)


def shrink(pixels: Tensor, longest: int) -> Tensor:
    """An image uint8 [3, H, W] as `read_picture` shrinks it, for frames of a video.

    Example:
        >>> shrink(torch.zeros(3, 60, 100, dtype=torch.uint8), 50).shape
        torch.Size([3, 30, 50])
    """
    from PIL import Image

    if max(pixels.shape[1:]) <= longest:
        return pixels
    return _tensor(_shrunk(Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()), longest))


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a picture as it lies in its file, upright, for what `read_picture` has read."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on odd metadata
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # orientations that lie on a side
    return (height, width) if turned else (width, height)


def _files(folder: Path, below: bool) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file():
            yield path
        elif below and path.is_dir():
            yield from _files(path, below)


def _rgb(image: Image) -> Image:
    """Any picture in RGB, over white where it is transparent."""
    from PIL import Image

    if image.mode[0] in "IF":
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if "transparency" in image.info or image.mode[-1] in "Aa":
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Grey values of more than 8 bits as uint8: of 16 bits by their whole range, others from least to greatest."""
    bands = [values[start : start + _BAND] for start in range(0, len(values), _BAND)]  # a whole one may not fit twice
    known = [finite for band in bands if (finite := _extremes(band))]
    if not known:
        raise ValueError("it has no finite values")
    low, high = min(least for least, _ in known), max(greatest for _, greatest in known)
    if values.dtype.kind in "iu" and low >= 0 and high <= 0xFFFF:
        low, high = 0.0, float(0xFFFF)
    found = np.empty(values.shape, np.uint8)
    for start, band in zip(range(0, len(values), _BAND), bands, strict=True):
        filled = np.nan_to_num(band.astype(np.float64), nan=low, posinf=high, neginf=low)
        found[start : start + _BAND] = ((filled - low) * (255 / ((high - low) or 1))).round()
    return found


def _extremes(values: np.ndarray) -> tuple[float, float] | None:
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else None


def _shrunk(image: Image, longest: int | None) -> Image:
    from PIL import Image

    if longest is not None and max(image.size) > longest:
        factor = longest / max(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.LANCZOS)
    return image


def _tensor(image: Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
