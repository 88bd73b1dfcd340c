"""Trackers: two methods, `init` on the first frame and `update` on every one that follows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

Box = tuple[float, float, float, float]


class Found(NamedTuple):
    """Where an object is, [x, y, w, h] from 0 in pixels, and how sure that is."""

    box: Box
    score: float


class Tracker(Protocol):
    """What finds the object of the first frame again. Frames are bytes, RGB, [3, H, W]."""

    scale: float  # of the object, over its size in the first frame
    lost: bool

    def init(self, image: Tensor, box: Box) -> None:
        """See the object."""

    def update(self, image: Tensor) -> Found:
        """Find it in the next frame."""


class FrozenTracker:
    """The box of the first frame for ever: what every tracker has to beat.

    Example:
        >>> import torch
        >>> tracker = FrozenTracker()
        >>> tracker.init(torch.zeros(3, 8, 8, dtype=torch.uint8), (1, 2, 3, 4))
        >>> tracker.update(torch.zeros(3, 8, 8, dtype=torch.uint8)).box
        (1, 2, 3, 4)
    """

    scale = 1.0
    lost = False

    def init(self, image: Tensor, box: Box) -> None:
        """Keep the box."""
        self.box = box

    def update(self, image: Tensor) -> Found:
        """Give it back."""
        return Found(self.box, 1.0)
