"""Pairs of crops of one object in a video: a template, and a search crop with a shift and a scale change."""

import random
from typing import NamedTuple

import torch
from torch import Tensor

from ...io.images import load_frame, luma
from ..crop import crops, exemplar_side, mean_color
from ..networks import EXEMPLAR, INSTANCE
from .sequences import Sequence

_MAX_DISTANCE = 100  # frames between the two crops
_JITTER = 0.05  # of brightness, contrast and saturation
_GRAY = 0.1  # probability


class CropPair(NamedTuple):
    """Frames of a video, and how they are cropped and augmented."""

    template: int  # number of the frame with the object in the center
    search: int
    shift: tuple[float, float]  # of the object to the right and down, in crop pixels
    octaves: float  # by which the object is larger than in the template
    mirrored: bool
    gray: bool
    colors: tuple[tuple[float, float, float], ...]  # factors of brightness, contrast and saturation, of either crop


def draw_pair(sequence: Sequence, seed: int, *, shift: float, zoom: float) -> CropPair:
    """Draw two frames with a box, at most 100 frames apart, and their augmentation.

    `shift` is the maximum along either axis in crop pixels, `zoom` the maximum scale change in octaves.
    """
    draw = random.Random(seed)
    boxed = (~sequence.boxes.isnan().any(1)).nonzero().flatten().tolist()
    template = draw.choice(boxed)
    factors = (1 - _JITTER, 1 + _JITTER)
    return CropPair(
        template,
        draw.choice([frame for frame in boxed if abs(frame - template) <= _MAX_DISTANCE]),
        (draw.uniform(-shift, shift), draw.uniform(-shift, shift)),
        draw.uniform(-zoom, zoom),
        draw.random() < 0.5,
        draw.random() < _GRAY,
        tuple((draw.uniform(*factors), draw.uniform(*factors), draw.uniform(*factors)) for _ in range(2)),
    )


def cut_pair(sequence: Sequence, pair: CropPair) -> Tensor:
    """Return the two crops of a pair, RGB from 0 to 255, as [6, 255, 255]."""
    right = -pair.shift[0] if pair.mirrored else pair.shift[0]
    template = _crop(sequence, pair.template, (0.0, 0.0), 0.0)
    search = _crop(sequence, pair.search, (right, pair.shift[1]), pair.octaves)
    jittered = zip((template, search), pair.colors, strict=True)
    both = torch.cat([_jitter(crop, *factors, gray=pair.gray) for crop, factors in jittered])
    return both.flip(-1) if pair.mirrored else both


def _crop(sequence: Sequence, number: int, shift: tuple[float, float], octaves: float) -> Tensor:
    """Crop a frame around the object, [3, 255, 255]."""
    image = load_frame(sequence.frames[number])
    x, y, width, height = sequence.boxes[number].tolist()
    side = exemplar_side(width, height) * INSTANCE / EXEMPLAR / 2**octaves
    pixel = side / INSTANCE
    center = (x + width / 2 - shift[0] * pixel, y + height / 2 - shift[1] * pixel)
    return crops(image, torch.tensor([center]), torch.tensor([side]), INSTANCE, mean_color(image))[0]


def _jitter(crop: Tensor, brightness: float, contrast: float, saturation: float, *, gray: bool) -> Tensor:
    """Change the colors of a crop, [3, H, W]."""
    crop = crop * brightness
    shade = luma(crop)
    if gray:
        crop = shade.expand(3, -1, -1)
    crop = shade + saturation * (crop - shade)
    mean = shade.mean()
    return (mean + contrast * (crop - mean)).clamp(0, 255)
