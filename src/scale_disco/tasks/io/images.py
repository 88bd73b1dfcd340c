"""Image files: find, open and decode them, whoever made them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...files import mapped, plain, reason

if TYPE_CHECKING:
    import PIL.Image

Image: TypeAlias = "PIL.Image.Image"  # for annotations: Pillow is imported when an image is read
# Formats that Pillow decodes by itself; it hands others, such as EPS, to programs that would run what is in them.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LUMA = (0.299, 0.587, 0.114)  # weights of R, G and B (ITU-R BT.601)
SHORTEST = 32  # pixels: a smaller image has too few windows for a scale field
_MAX_PIXELS = 89_478_485  # Pillow's default threshold for decompression bombs
_BAND = 64  # rows converted at a time, so that memory holds no second copy of a large image
_DRAFT = 2  # decoders may shrink to this many times the requested size, the rest is resampled


class UnreadableError(ValueError):
    """Raised for a file that is damaged, too small, or not an image in a supported format."""


def list_images(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Return the images in a folder by suffix, sorted, without hidden files; with `recursive` also those below it."""

    def files(parent: Path) -> Iterator[Path]:
        for path in parent.iterdir():
            if path.name.startswith("."):
                continue
            if path.suffix.lower() in SUFFIXES and path.is_file():
                yield path
            elif recursive and path.is_dir():
                yield from files(path)

    return sorted(files(folder))


def find_images(folder: Path, *, recursive: bool = False) -> list[Path]:
    """Return the images in a folder like `list_images`; raise FileNotFoundError if there are none."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    paths = list_images(folder, recursive=recursive)
    if not paths:
        where = f"{folder} and below it" if recursive else str(folder)
        raise FileNotFoundError(f"no images in {where} (looked for {', '.join(SUFFIXES)})")
    return paths


def is_image(path: Path) -> bool:
    """Return whether a file is an image rather than a video, by its suffix or its content."""
    if path.suffix.lower() in SUFFIXES:
        return True
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS):
            return True
    except UnidentifiedImageError:
        return False
    except Image.DecompressionBombError:
        return True


@contextmanager
def open_image(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image]:
    """Open an image, which must be decoded inside the block.

    Whatever goes wrong in the block, including damaged content, becomes an `UnreadableError` that names the file.
    Pillow's warnings about odd metadata are ignored.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError('reading images needs pillow: pip install "scale-disco[plot]"') from error

    too_large = f"more than {_MAX_PIXELS:,} pixels, possibly a decompression bomb"
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            mapped(path) as file,
            Image.open(file, formats=formats) as image,  # type: ignore[arg-type]
        ):
            if image.width * image.height > _MAX_PIXELS:
                raise ValueError(too_large)
            yield image
    except MemoryError:
        raise
    except Exception as error:  # a damaged image makes Pillow raise a dozen kinds
        if isinstance(error, UnidentifiedImageError):
            why = f"not an image in a supported format ({', '.join(formats)}), or damaged at its start"
        elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
            why = too_large
        else:
            why = plain((isinstance(error, OSError) and error.strerror) or reason(error))
        raise UnreadableError(f"cannot read {path}: {why}") from error


def load_rgb(path: Path, *, upright: bool = True, longest: int | None = None) -> Image:
    """Decode an image of 8 bits per channel to RGB, turned `upright` as its EXIF orientation says.

    The decoder may shrink it, but not below the size `longest` of the longer side.
    """
    with open_image(path) as image:
        from PIL import ImageOps

        if image.mode[0] in "IF":
            raise ValueError(f"more than 8 bits per channel: mode {image.mode}")
        if longest is not None:
            image.draft("RGB", (longest, longest))
        return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")


def load_frame(path: Path) -> Tensor:
    """Return a video frame in RGB, uint8 [3, H, W]. EXIF orientation is ignored."""
    return to_tensor(load_rgb(path, upright=False))


def read_image(path: Path, longest: int | None = None, *, shortest: int = SHORTEST) -> Tensor:
    """Return an image of any pixel format in RGB, upright, uint8 [3, H, W].

    Transparent pixels are blended with white. Gray values of 16 bits are divided by 257; those of 32 bits, integer or
    floating, are stretched from minimum to maximum, unless all are within 16 bits. Of a file with several images the
    first is read.

    Args:
        path: The file.
        longest: Images with a longer side are shrunk to it, with antialiasing.
        shortest: Images with a shorter side are refused, after shrinking.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with open_image(path) as opened:
        from PIL import ImageOps

        if longest is not None:
            opened.draft(None, (_DRAFT * longest, _DRAFT * longest))
        image = _shrunk(_rgb(ImageOps.exif_transpose(opened)), longest)
    if min(image.size) < shortest:
        width, height = image.size
        after = "" if longest is None or longest > max(image.size) else f" after shrinking to {longest}"
        raise UnreadableError(f"{path} is too small: {width} x {height} pixels{after}, needs {shortest} each way")
    return to_tensor(image)


def shrink(pixels: Tensor, longest: int) -> Tensor:
    """Shrink an image uint8 [3, H, W] like `read_image` does, for frames of a video.

    Example:
        >>> shrink(torch.zeros(3, 60, 100, dtype=torch.uint8), 50).shape
        torch.Size([3, 30, 50])
    """
    return pixels if max(pixels.shape[1:]) <= longest else to_tensor(_shrunk(to_image(pixels), longest))


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a readable image, upright, from its header."""
    from PIL import Image

    with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as image:
        width, height = image.size
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # orientations that lie on a side
    return (height, width) if turned else (width, height)


def luma(images: Tensor) -> Tensor:
    """Return the luma of RGB images, [..., 3, H, W] -> [..., 1, H, W]."""
    return (images * torch.tensor(LUMA, device=images.device)[:, None, None]).sum(-3, keepdim=True)


def center_crop(image: Tensor, side: int) -> Tensor:
    """Crop the middle of an image [..., H, W] to at most `side` pixels along each axis."""
    top, left = (max(0, length - side) // 2 for length in image.shape[-2:])
    return image[..., top : top + side, left : left + side]


def mirrored(length: int, before: int, after: int, device: torch.device) -> Tensor:
    """Return the indices of an axis that is mirrored at both ends, as often as needed."""
    places = torch.arange(-before, length + after, device=device) % (2 * length)
    return torch.minimum(places, 2 * length - 1 - places)


def to_image(pixels: Tensor) -> Image:
    """Convert uint8 [3, H, W] to a Pillow image."""
    from PIL import Image

    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def to_tensor(image: Image) -> Tensor:
    """Convert a Pillow image in RGB to uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _rgb(image: Image) -> Image:
    """Convert any image to RGB, over white where it is transparent."""
    from PIL import Image

    if image.mode[0] in "IF":
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if "transparency" in image.info or image.mode[-1] in "Aa":
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Convert gray values to uint8: 16 bits by their whole range, others from minimum to maximum."""
    bands = [values[start : start + _BAND] for start in range(0, len(values), _BAND)]
    known = (band[np.isfinite(band)] for band in bands)
    extremes = [float(value) for finite in known if finite.size for value in (finite.min(), finite.max())]
    if not extremes:
        raise ValueError("it has no finite values")
    low, high = min(extremes), max(extremes)
    if values.dtype.kind in "iu" and low >= 0 and high <= 0xFFFF:
        low, high = 0.0, float(0xFFFF)
    eight = np.empty(values.shape, np.uint8)
    for start, band in zip(range(0, len(values), _BAND), bands, strict=True):
        filled = np.nan_to_num(band.astype(np.float64), nan=low, posinf=high, neginf=low)
        eight[start : start + _BAND] = ((filled - low) * (255 / ((high - low) or 1))).round()
    return eight


def _shrunk(image: Image, longest: int | None) -> Image:
    from PIL import Image

    if longest is not None and max(image.size) > longest:
        factor = longest / max(image.size)
        width, height = (max(1, round(side * factor)) for side in image.size)
        return image.resize((width, height), Image.Resampling.LANCZOS)
    return image
