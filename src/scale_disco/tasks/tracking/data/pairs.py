"""Pairs of views of one object out of a video: as a template, and somewhere else at another size."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from ...io.images import LUMA, load_frame
from ..crop import crops, exemplar_side, mean_color
from ..networks import EXEMPLAR, INSTANCE
from .sequences import Sequence

_APART = 100  # frames between the two views, at most
_COLOUR = 0.05  # by which part brightness, contrast and saturation change
_GREY = 0.1  # share of pairs without colour


class CropPair(NamedTuple):
    """Which frames of a video are seen, and how."""

    template: int  # frame in whose middle the object is, at its usual size
    search: int  # frame in which it is elsewhere
    shift: tuple[float, float]  # right and down from the middle, in pixels of the view
    octaves: float  # by which it looks larger there than usual
    mirrored: bool
    grey: bool
    colours: tuple[tuple[float, float, float], ...]  # factors of brightness, contrast and saturation, of either view


def draw_pair(sequence: Sequence, seed: int, *, shift: float, zoom: float) -> CropPair:
    """Choose two frames with a box, at most 100 frames apart, and how they are seen; the same for the same seed.

    Args:
        sequence: The video.
        seed: Of everything that is drawn.
        shift: Pixels of the view by which the object is off its middle, at most, along either axis.
        zoom: Octaves by which it is smaller or larger, at most.
    """
    draw = random.Random(seed)
    boxed = (~sequence.boxes.isnan().any(1)).nonzero().flatten().tolist()
    template = draw.choice(boxed)
    search = draw.choice([frame for frame in boxed if abs(frame - template) <= _APART])
    around = (1 - _COLOUR, 1 + _COLOUR)
    return CropPair(
        template,
        search,
        (draw.uniform(-shift, shift), draw.uniform(-shift, shift)),
        draw.uniform(-zoom, zoom),
        draw.random() < 0.5,
        draw.random() < _GREY,
        tuple((draw.uniform(*around), draw.uniform(*around), draw.uniform(*around)) for _ in range(2)),
    )


def cut_pair(sequence: Sequence, pair: CropPair) -> Tensor:
    """The two views of a pair, RGB from 0 to 255, one after the other: [6, 255, 255]."""
    right = -pair.shift[0] if pair.mirrored else pair.shift[0]
    template = _view(sequence, pair.template, (0.0, 0.0), 0.0)
    search = _view(sequence, pair.search, (right, pair.shift[1]), pair.octaves)
    views = [
        _coloured(view, *factors, grey=pair.grey)
        for view, factors in zip((template, search), pair.colours, strict=True)
    ]
    both = torch.cat(views)
    return both.flip(-1) if pair.mirrored else both


def _view(sequence: Sequence, frame: int, shift: tuple[float, float], octaves: float) -> Tensor:
    """The surroundings of the object in a frame, [3, 255, 255]."""
    image = load_frame(sequence.frames[frame])
    x, y, width, height = sequence.boxes[frame].tolist()
    side = exemplar_side(width, height) * INSTANCE / EXEMPLAR / 2**octaves
    pixel = side / INSTANCE
    centre = (x + width / 2 - shift[0] * pixel, y + height / 2 - shift[1] * pixel)
    return crops(image, torch.tensor([centre]), torch.tensor([side]), INSTANCE, mean_color(image))[0]


def _coloured(view: Tensor, brightness: float, contrast: float, saturation: float, *, grey: bool) -> Tensor:
    """A view with other colours, [3, H, W]."""
    view = view * brightness
    luma = (view * torch.tensor(LUMA)[:, None, None]).sum(0, keepdim=True)
    if grey:
        view = luma.expand(3, -1, -1)
    view = luma + saturation * (view - luma)
    middle = luma.mean()
    return (middle + contrast * (view - middle)).clamp(0, 255)
