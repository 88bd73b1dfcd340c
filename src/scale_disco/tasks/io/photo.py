"""Picture files, as Pillow opens them when anyone may have made them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...files import reason
from ...reading import mapped, plain

if TYPE_CHECKING:
    from PIL.Image import Image

# Those that decode without help; Pillow hands others, such as EPS, to programs that would run what is in them.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_MOST = 89_478_485  # pixels, from which on Pillow warns unless it was told otherwise


@contextmanager
def open_image(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image]:
    """A picture, to be decoded before it is closed; whatever goes wrong with it is a ValueError that says what."""
    from PIL import Image, UnidentifiedImageError

    many = f"more than {_MOST:,} pixels, so many that it may be meant to fill the memory"
    try:
        with mapped(path) as file, Image.open(file, formats=formats) as image:  # type: ignore[arg-type]
            if image.width * image.height > _MOST:
                raise ValueError(many)
            yield image
    except MemoryError:
        raise
    except UnidentifiedImageError as error:
        odd = f"not a picture of a kind that is read here ({', '.join(formats)}), or damaged at its start"
        raise ValueError(odd) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(many) from error
    except Exception as error:  # a damaged picture makes Pillow raise a dozen kinds
        raise ValueError(plain((isinstance(error, OSError) and error.strerror) or reason(error))) from error


def load_frame(path: Path) -> Tensor:
    """One frame, uint8 [3, H, W] in RGB."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on odd metadata
            with open_image(path) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits a pixel: mode {image.mode}")
                pixels = np.array(image.convert("RGB"))
    except ValueError as error:
        raise ValueError(f"otb: cannot read the frame {path}: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
