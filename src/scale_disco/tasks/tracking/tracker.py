"""Trackers: two methods, `init` on the first frame and `update` on every one that follows."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...export import bake
from ..io.video import Box
from .crop import crops, exemplar_side, mean_color
from .networks import EXEMPLAR, INSTANCE, STRIDE, Siamese, Template

MODES = ("pyramid", "axis", "fixed")
_FINER = 16  # points of a map of scores from one cell to the next
_OFFERED = (-0.5, -0.25, 0.0, 0.25, 0.5)  # octaves by which the first frame is shown larger, to see how it answers
_SLOPE = 0.01  # from an offered size to the next, at least
_RANGE = (0.2, 5.0)  # of the size, over that in the first frame
_LARGEST = 100  # times the frame, of a first box
_SMALLEST = 10.0  # pixels of a side of a box, unless it began smaller
_LOST, _USUAL = 0.6, 0.05  # of the usual score; part that a new score has in it


class TrackedBox(NamedTuple):
    """Where an object is, [x, y, w, h] from 0 in pixels, and how sure that is."""

    box: Box
    score: float


class Tracker(Protocol):
    """What finds the object of the first frame again. Frames are bytes, RGB, [3, H, W]."""

    scale: float  # of the object, over its size in the first frame
    lost: bool

    def init(self, image: Tensor, box: Box) -> None:
        """See the object."""

    def update(self, image: Tensor) -> TrackedBox:
        """Find it in the next frame."""


class StaticBoxTracker:
    """The box of the first frame for ever: what every tracker has to beat.

    Example:
        >>> tracker = StaticBoxTracker()
        >>> tracker.init(torch.zeros(3, 8, 8, dtype=torch.uint8), (1, 2, 3, 4))
        >>> tracker.update(torch.zeros(3, 8, 8, dtype=torch.uint8)).box
        (1.0, 2.0, 3.0, 4.0)
    """

    scale = 1.0
    lost = False

    def init(self, image: Tensor, box: Box) -> None:
        """Keep the box."""
        self.box = checked_box("StaticBoxTracker", image, box)

    def update(self, image: Tensor) -> TrackedBox:
        """Give it back."""
        check_frame("StaticBoxTracker", image)
        return TrackedBox(self.box, 1.0)


@dataclass(frozen=True)
class MotionParameters:
    """How an object is expected to move; `MOTIONS` has the values that others found for their networks and benchmarks.

    Args:
        step: From a view of a pyramid to the next, as a factor.
        rate: Part of a change of size that is believed in a frame; in mode "axis", where the object looks just like it
            did in the first.
        penalty: Factor for a change of size by a step.
        window: Part that nearness to the last place has in the choice of a place.
    """

    step: float = 1.0375
    rate: float = 0.59
    penalty: float = 0.9745
    window: float = 0.35

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, low, high in (("step", 1, 2), ("rate", 0, 1), ("penalty", 0, 1), ("window", 0, 1)):
            if not low <= (value := getattr(self, name)) <= high:
                raise ValueError(f"MotionParameters: {name} must be from {low} to {high}, got {value}")


MOTIONS = {
    "default": MotionParameters(),
    "axis": MotionParameters(rate=1.0, penalty=0.98, window=0.3),
    "siamfc+-otb2013": MotionParameters(1.0482, 0.3629, 0.9997, 0.3896),
    "siamfc+-otb2015": MotionParameters(1.1897, 0.2226, 0.9370, 0.2897),
    "se-siamfc+-otb2013": MotionParameters(1.145, 0.08, 1.0, 0.3),
    "se-siamfc+-otb2015": MotionParameters(1.1633, 0.171, 0.9995, 0.251),
}


class SiameseTracker:
    """A tracker that slides the features of the first frame's object over those of a view around its last place.

    Args:
        network: Of `create_model("track/...")`; a baked copy of it is used.
        mode: How a change of size is found. "pyramid": three views of other sizes, as the authors of all five trackers
            do; "axis": one view, whose scales are compared with those of the template (networks with scales only);
            "fixed": not at all. By default "axis" where there are scales.
        motion: What is expected of the object; by default "axis" or "default" of `MOTIONS`.

    Example:
        >>> from scale_disco.models import create_model
        >>> tracker = SiameseTracker(create_model("track/siamfc+"))
        >>> frame = torch.randint(0, 255, (3, 120, 160), dtype=torch.uint8)
        >>> tracker.init(frame, (60, 40, 30, 20))
        >>> box, score = tracker.update(frame)
    """

    def __init__(self, network: Siamese, mode: str | None = None, motion: MotionParameters | None = None) -> None:
        mode = mode or ("axis" if network.steps else "pyramid")
        if mode not in MODES:
            raise ValueError(f"SiameseTracker: mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "axis" and not network.steps:
            raise ValueError('SiameseTracker: mode "axis" needs a network with scales, such as track/disco')
        self.network, self.mode = bake_features(network), mode
        self.motion = motion or MOTIONS["axis" if mode == "axis" else "default"]
        self.scale, self.lost = 1.0, False
        self.template: Template | None = None

    @torch.inference_mode()
    def init(self, image: Tensor, box: Box) -> None:
        """See the object."""
        x, y, width, height = checked_box("SiameseTracker", image, box)
        image = image.to(self.network.mean.device)
        self.first = (width, height)
        self.scale, self.lost, self.usual = 1.0, False, 0.0
        self.centre = torch.tensor([x + width / 2, y + height / 2])
        self.side = exemplar_side(width, height) * INSTANCE / EXEMPLAR  # of a view
        self.fill = mean_color(image)
        self.template = self.network.template(self._views(image, [1.0]))
        cells = (INSTANCE - EXEMPLAR) // STRIDE + 1
        line = torch.hann_window(cells * _FINER, periodic=False, device=image.device)
        self.window = torch.outer(line, line) / line.sum() ** 2
        if self.mode == "axis":
            self._see_sizes(image)

    @torch.inference_mode()
    def update(self, image: Tensor) -> TrackedBox:
        """Find it in the next frame."""
        check_frame("SiameseTracker", image)
        if self.template is None:
            raise ValueError("SiameseTracker: update came before init: show it the object in a first frame")
        image = image.to(self.fill.device)
        factor, displacement, score = self._seen_on_axis(image) if self.mode == "axis" else self._seen(image)
        if not math.isfinite(score):
            raise ValueError("SiameseTracker: the network's scores are not finite numbers: its weights are damaged")
        self.lost = self.usual > 0 and score < _LOST * self.usual
        height, width = image.shape[1:]
        self.centre += displacement * self.side * self.scale / INSTANCE
        self.centre = torch.minimum(self.centre.clamp_min(0), torch.tensor([width, height], dtype=torch.float32))
        if not self.lost:
            self.usual += (score - self.usual) * (_USUAL if self.usual else 1)
            self.scale = min(max(self.scale * factor, _RANGE[0]), _RANGE[1])
        return TrackedBox(self._box(width, height), score)

    def _seen(self, image: Tensor) -> tuple[float, Tensor, float]:
        """Change of size, displacement in pixels of a view, and score, from views of one or three sizes."""
        assert self.template is not None
        powers = (-1, 0, 1) if self.mode == "pyramid" else (0,)
        factors = [self.motion.step**power for power in powers]
        maps = self._embedded(self._views(image, factors))
        scores = self.network.at_places(self.template, maps) - self.network.offset  # a penalty is for positive scores
        finer = _finer(scores)
        penalties = scores.new_tensor([self.motion.penalty ** abs(power) for power in powers])
        best = int((finer.amax((1, 2)) * penalties).argmax())
        place, cell = self._place(finer[best])
        score = self.network.cosine(self.template, maps[best : best + 1], *cell)
        return 1 + self.motion.rate * (factors[best] - 1), place, score

    def _embedded(self, views: Tensor) -> Tensor:
        """Features of views. Maps of several scales of several views are so large that fresh memory for them takes
        longer than one view after the other, on CPUs."""
        alone = bool(self.network.steps) and views.device.type == "cpu"
        return torch.cat([self.network.embed(part) for part in torch.split(views, 1 if alone else len(views))])

    def _seen_on_axis(self, image: Tensor) -> tuple[float, Tensor, float]:
        """The same from one view: its scales are compared with those of the template, which has the size it had."""
        shifts = self._shifts(self._views(image, [1.0]))
        finer = _finer(shifts[0])
        penalties = finer.new_tensor([self.motion.penalty, 1.0, self.motion.penalty])
        place, cell = self._place((finer * penalties[:, None, None]).amax(0))
        smaller, same, larger = shifts[0, :, cell[0], cell[1]].tolist()
        score = max(smaller, same, larger)
        # What looks less like the template says less about its size: all is believed at 1, a fifth at 0.6.
        likeness = max(score, 0.0) ** 2
        believed = self.motion.rate * likeness / (2 - likeness)
        return math.exp2(believed * self._octaves(larger - smaller)), place, score

    def _see_sizes(self, image: Tensor) -> None:
        """How the scales answer when the object is larger or smaller: what they say of it in the first frame."""
        views = self._views(image, [2**-octaves for octaves in _OFFERED])
        shifts = torch.cat([self._shifts(view[None]) for view in views])  # one by one: memory of one view
        middle = shifts.shape[-1] // 2
        self.leaning: list[float] = (shifts[:, 2] - shifts[:, 0])[:, middle, middle].tolist()
        here = _OFFERED.index(0.0)
        for further in range(1, here + 1):  # more the further out, be it little for an object without texture
            low, high = here - further, here + further
            self.leaning[low] = min(self.leaning[low], self.leaning[low + 1] - _SLOPE)
            self.leaning[high] = max(self.leaning[high], self.leaning[high - 1] + _SLOPE)

    def _shifts(self, view: Tensor) -> Tensor:
        assert self.template is not None
        shifts = self.network.at_shifts(self.template, self.network.embed(view))
        assert shifts is not None
        return shifts

    def _octaves(self, leaning: float) -> float:
        """The size at which the first frame leans as much to larger scales."""
        known = self.leaning
        if leaning <= known[0]:
            return _OFFERED[0]
        for index in range(1, len(known)):
            if leaning <= known[index]:
                part = (leaning - known[index - 1]) / (known[index] - known[index - 1])
                return _OFFERED[index - 1] + part * (_OFFERED[index] - _OFFERED[index - 1])
        return _OFFERED[-1]

    def _place(self, scores: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The best place of a fine map: its displacement in pixels of a view, x and y, and its nearest cell."""
        evidence = scores - scores.min()
        evidence = evidence / evidence.sum().clamp_min(1e-12)
        weighed = torch.lerp(evidence, self.window, self.motion.window)
        row, column = divmod(int(weighed.argmax()), scores.shape[1])
        cells = [(index + 0.5) / _FINER - 0.5 for index in (row, column)]
        middle = (scores.shape[0] // _FINER - 1) / 2
        displacement = torch.tensor([cells[1] - middle, cells[0] - middle]) * STRIDE
        last = scores.shape[0] // _FINER - 1
        return displacement, (min(max(round(cells[0]), 0), last), min(max(round(cells[1]), 0), last))

    def _views(self, image: Tensor, factors: list[float]) -> Tensor:
        sides = self.side * self.scale * torch.tensor(factors)
        return crops(image, self.centre.expand(len(factors), 2), sides, INSTANCE, self.fill)

    def _box(self, width: int, height: int) -> Box:
        sizes = [
            min(max(side * self.scale, min(_SMALLEST, side)), whole)
            for side, whole in zip(self.first, (width, height), strict=True)
        ]
        x, y = self.centre.tolist()
        return x - sizes[0] / 2, y - sizes[1] / 2, sizes[0], sizes[1]


def bake_features(network: Siamese) -> Siamese:
    """A copy of a network for use, with its features baked."""
    used = copy.deepcopy(network).eval()
    used.features = bake(used.features)
    return used


def checked_box(who: str, image: Tensor, box: Box) -> Box:
    """A box as four floats, refused if nothing of it is in the frame."""
    check_frame(who, image)
    numbers = [float(number) for number in box]
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)) or min(numbers[2:]) <= 0:
        raise ValueError(f"{who}: expected a box x, y, w, h of finite numbers with w and h above 0, got {tuple(box)}")
    x, y, width, height = numbers
    if max(width / image.shape[2], height / image.shape[1]) > _LARGEST:
        raise ValueError(
            f"{who}: the box {tuple(box)} is more than {_LARGEST} times as large as the frame of {image.shape[2]} x "
            f"{image.shape[1]} pixels"
        )
    if x >= image.shape[2] or y >= image.shape[1] or x + width <= 0 or y + height <= 0:
        raise ValueError(
            f"{who}: the box {tuple(box)} is outside of the frame of {image.shape[2]} x {image.shape[1]} pixels"
        )
    return x, y, width, height


def check_frame(who: str, image: Tensor) -> None:
    """Refuse what is no frame."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise ValueError(f"{who}: expected a frame uint8 [3, H, W], got {image.dtype} {tuple(image.shape)}")


def _finer(scores: Tensor) -> Tensor:
    """Maps of scores with 16 points for every cell, [N, H, W] -> [N, 16 H, 16 W]."""
    fine: Tensor = F.interpolate(scores[:, None], scale_factor=_FINER, mode="bicubic", align_corners=False)[:, 0]
    return fine
