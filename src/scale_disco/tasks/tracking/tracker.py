"""Trackers, with two methods: `init` on the first frame, `update` on every later one; and the loop that calls them."""

import copy
import math
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...export import bake
from ..io.video import Box, Frame
from .crop import crops, exemplar_side, mean_color
from .networks import EXEMPLAR, INSTANCE, STRIDE, Siamese, Template
from .options import MODES, MOTIONS, MotionParameters

_UPSAMPLING = 16  # of score maps
_CALIBRATION = (-0.5, -0.25, 0.0, 0.25, 0.5)  # magnifications of the first frame, in octaves
_MIN_STEP = 0.01  # between calibrated responses
_RANGE = (0.2, 5.0)  # of the scale
_LARGEST = 100  # first box over the frame
_SMALLEST = 10.0  # side of a box in pixels, unless the first was smaller
_LOST = 0.6  # fraction of the mean score below which the object is lost
_MOMENTUM = 0.05  # weight of a new score in the mean score


class TrackedBox(NamedTuple):
    """Box [x, y, w, h] in pixels counted from 0, and its score."""

    box: Box
    score: float


class Tracker(Protocol):
    """Follows the object of the first frame. Frames are uint8, RGB, [3, H, W]."""

    scale: float  # of the object, relative to the first frame
    lost: bool

    def init(self, image: Tensor, box: Box) -> None:
        """Start with the object in a box."""

    def update(self, image: Tensor) -> TrackedBox:
        """Return the box of the object in the next frame."""


class TrackedFrame(NamedTuple):
    """A frame with the output of a tracker on it, and the seconds that the tracker took."""

    frame: Frame
    image: Tensor  # of the frame, or of the last readable one
    box: Box
    score: float
    scale: float
    lost: bool
    seconds: float


def track(tracker: Tracker, frames: Iterable[Frame], box: Box) -> Iterator[TrackedFrame]:
    """Run a tracker over frames, of which the first shows the object in the box.

    An unreadable frame (`image` is None) keeps the last box and counts as lost, with a score of NaN.
    """
    tracked: TrackedFrame | None = None
    for frame in frames:
        if frame.image is None:
            if tracked is None:
                raise ValueError("track: the first frame cannot be read")
            tracked = tracked._replace(frame=frame, score=math.nan, lost=True, seconds=0.0)
        else:
            start = time.perf_counter()
            if tracked is None:
                tracker.init(frame.image, box)
                score, lost = 1.0, False
            else:
                box, score = tracker.update(frame.image)
                lost = tracker.lost
            seconds = time.perf_counter() - start
            tracked = TrackedFrame(frame, frame.image, box, score, tracker.scale, lost, seconds)
        yield tracked


class StaticBoxTracker:
    """Static-box baseline: returns the first box for every frame.

    Example:
        >>> tracker = StaticBoxTracker()
        >>> tracker.init(torch.zeros(3, 8, 8, dtype=torch.uint8), (1, 2, 3, 4))
        >>> tracker.update(torch.zeros(3, 8, 8, dtype=torch.uint8)).box
        (1.0, 2.0, 3.0, 4.0)
    """

    scale = 1.0
    lost = False

    def init(self, image: Tensor, box: Box) -> None:
        """Store the box."""
        self.box = checked_box("StaticBoxTracker", image, box)

    def update(self, image: Tensor) -> TrackedBox:
        """Return the stored box."""
        check_frame("StaticBoxTracker", image)
        return TrackedBox(self.box, 1.0)


class SiameseTracker:
    """Correlates features of the object in the first frame with those of a search crop around its last position.

    Args:
        network: From `create_model("track/...")`; a baked copy of it is used.
        mode: How the scale is estimated. "pyramid": three search crops of different sizes, as in the published code of
            the other trackers; "axis": one search crop, whose scales are compared with those of the template (networks
            with a scale axis only); "fixed": not at all. Default: "axis" if the network has a scale axis.
        motion: Motion hyper-parameters. Default: "axis" or "default" of `MOTIONS`.

    Example:
        >>> from scale_disco.models import create_model
        >>> tracker = SiameseTracker(create_model("track/siamfc+"))
        >>> frame = torch.randint(0, 255, (3, 120, 160), dtype=torch.uint8)
        >>> tracker.init(frame, (60, 40, 30, 20))
        >>> box, score = tracker.update(frame)
    """

    def __init__(self, network: Siamese, mode: str | None = None, motion: MotionParameters | None = None) -> None:
        mode = mode or ("axis" if network.template_octaves else "pyramid")
        if mode not in MODES:
            raise ValueError(f"SiameseTracker: mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "axis" and not network.template_octaves:
            raise ValueError('SiameseTracker: mode "axis" needs a network with scales, such as track/disco')
        self.network, self.mode = copy.deepcopy(network).eval(), mode
        self.network.features = bake(self.network.features)
        self.motion = motion or MOTIONS["axis" if mode == "axis" else "default"]
        self.scale, self.lost = 1.0, False
        self.template: Template | None = None

    @torch.inference_mode()
    def init(self, image: Tensor, box: Box) -> None:
        """Start with the object in a box."""
        x, y, width, height = checked_box("SiameseTracker", image, box)
        image = image.to(self.network.mean.device)
        self.first_size = (width, height)
        self.scale, self.lost, self.mean_score = 1.0, False, 0.0
        self.center = torch.tensor([x + width / 2, y + height / 2])
        self.side = exemplar_side(width, height) * INSTANCE / EXEMPLAR  # of a search crop at scale 1
        self.fill = mean_color(image)
        self.template = self.network.template(self._crops(image, [1.0]))
        cells = (INSTANCE - EXEMPLAR) // STRIDE + 1
        hann = torch.hann_window(cells * _UPSAMPLING, periodic=False, device=image.device)
        self.window = torch.outer(hann, hann) / hann.sum() ** 2
        if self.mode == "axis":
            self._calibrate(image)

    @torch.inference_mode()
    def update(self, image: Tensor) -> TrackedBox:
        """Return the box of the object in the next frame."""
        check_frame("SiameseTracker", image)
        if self.template is None:
            raise ValueError("SiameseTracker: update was called before init")
        image = image.to(self.fill.device)
        factor, displacement, score = (self._search_axis if self.mode == "axis" else self._search_pyramid)(image)
        if not math.isfinite(score):
            raise ValueError("SiameseTracker: non-finite scores: the weights of the network are damaged")
        self.lost = self.mean_score > 0 and score < _LOST * self.mean_score
        height, width = image.shape[1:]
        self.center += displacement * self.side * self.scale / INSTANCE
        self.center = torch.minimum(self.center.clamp_min(0), torch.tensor([width, height], dtype=torch.float32))
        if not self.lost:
            self.mean_score += (score - self.mean_score) * (_MOMENTUM if self.mean_score else 1)
            self.scale = min(max(self.scale * factor, _RANGE[0]), _RANGE[1])
        limits = zip(self.first_size, (width, height), strict=True)
        w, h = (min(max(side * self.scale, min(_SMALLEST, side)), most) for side, most in limits)
        x, y = self.center.tolist()
        return TrackedBox((x - w / 2, y - h / 2, w, h), score)

    def _search_pyramid(self, image: Tensor) -> tuple[float, Tensor, float]:
        """Scale factor, displacement in crop pixels and score, from one crop or three crops."""
        assert self.template is not None
        powers = (-1, 0, 1) if self.mode == "pyramid" else (0,)
        factors = [self.motion.step**power for power in powers]
        maps = self._features(self._crops(image, factors))
        scores = self.network.at_places(self.template, maps) - self.network.offset  # the penalty needs positive scores
        fine = _upsample(scores)
        penalties = scores.new_tensor([self.motion.penalty ** abs(power) for power in powers])
        best = int((fine.amax((1, 2)) * penalties).argmax())
        displacement, cell = self._peak(fine[best])
        score = self.network.cosine(self.template, maps[best : best + 1], *cell)
        return 1 + self.motion.rate * (factors[best] - 1), displacement, score

    def _features(self, search: Tensor) -> Tensor:
        # On CPUs, one crop after another is faster than allocating the maps of many scales and crops.
        single = bool(self.network.template_octaves) and search.device.type == "cpu"
        return torch.cat([self.network.embed(part) for part in torch.split(search, 1 if single else len(search))])

    def _search_axis(self, image: Tensor) -> tuple[float, Tensor, float]:
        """Return (scale factor, displacement, score) from one crop, by comparing its scales with the template's."""
        shifts = self._shifts(self._crops(image, [1.0]))
        fine = _upsample(shifts[0])
        penalties = fine.new_tensor([self.motion.penalty, 1.0, self.motion.penalty])
        displacement, cell = self._peak((fine * penalties[:, None, None]).amax(0))
        smaller, same, larger = shifts[0, :, cell[0], cell[1]].tolist()
        score = max(smaller, same, larger)
        # The less an object resembles the template, the less its scale is trusted: fully at 1, by a fifth at 0.6.
        similarity = max(score, 0.0) ** 2
        rate = self.motion.rate * similarity / (2 - similarity)
        return math.exp2(rate * self._octaves(larger - smaller)), displacement, score

    def _calibrate(self, image: Tensor) -> None:
        """Measure responses (cosine of a larger minus that of a smaller object) to magnified first frames."""
        search = self._crops(image, [2**-octaves for octaves in _CALIBRATION])
        shifts = torch.cat([self._shifts(crop[None]) for crop in search])  # one after another, to save memory
        middle = shifts.shape[-1] // 2
        self.responses: list[float] = (shifts[:, 2] - shifts[:, 0])[:, middle, middle].tolist()
        center = _CALIBRATION.index(0.0)
        for offset in range(1, center + 1):  # strictly ascending, even for an object without texture
            low, high = center - offset, center + offset
            self.responses[low] = min(self.responses[low], self.responses[low + 1] - _MIN_STEP)
            self.responses[high] = max(self.responses[high], self.responses[high - 1] + _MIN_STEP)

    def _shifts(self, crop: Tensor) -> Tensor:
        assert self.template is not None
        shifts = self.network.at_shifts(self.template, self.network.embed(crop))
        assert shifts is not None
        return shifts

    def _octaves(self, response: float) -> float:
        """Return the magnification of the first frame that has a response, by linear interpolation."""
        for (low, below), (high, above) in pairwise(zip(self.responses, _CALIBRATION, strict=True)):
            if response <= high:
                return below + max(0.0, (response - low) / (high - low)) * (above - below)
        return _CALIBRATION[-1]

    def _peak(self, scores: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the displacement of the best position of an upsampled map, x and y in crop pixels, and its cell."""
        evidence = scores - scores.min()
        evidence = evidence / evidence.sum().clamp_min(1e-12)
        weighted = torch.lerp(evidence, self.window, self.motion.window)
        last = scores.shape[0] // _UPSAMPLING - 1
        row, column = ((index + 0.5) / _UPSAMPLING - 0.5 for index in divmod(int(weighted.argmax()), scores.shape[1]))
        displacement = torch.tensor([column - last / 2, row - last / 2]) * STRIDE
        return displacement, (min(max(round(row), 0), last), min(max(round(column), 0), last))

    def _crops(self, image: Tensor, factors: list[float]) -> Tensor:
        sides = self.side * self.scale * torch.tensor(factors)
        return crops(image, self.center.expand(len(factors), 2), sides, INSTANCE, self.fill)


def checked_box(who: str, image: Tensor, box: Box) -> Box:
    """Return a box as four floats; ValueError if it is not a box in the frame."""
    check_frame(who, image)
    numbers = [float(number) for number in box]
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)) or min(numbers[2:]) <= 0:
        raise ValueError(f"{who}: expected a box x, y, w, h of finite numbers with w and h above 0, got {tuple(box)}")
    x, y, width, height = numbers
    size = f"the frame of {image.shape[2]} x {image.shape[1]} pixels"
    if max(width / image.shape[2], height / image.shape[1]) > _LARGEST:
        raise ValueError(f"{who}: the box {tuple(box)} is more than {_LARGEST} times as large as {size}")
    if x >= image.shape[2] or y >= image.shape[1] or x + width <= 0 or y + height <= 0:
        raise ValueError(f"{who}: the box {tuple(box)} is outside of {size}")
    return x, y, width, height


def check_frame(who: str, image: Tensor) -> None:
    """Raise ValueError unless an image is a frame."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        raise ValueError(f"{who}: expected a frame uint8 [3, H, W], got {image.dtype} {tuple(image.shape)}")


def _upsample(scores: Tensor) -> Tensor:
    """Interpolate score maps, [N, H, W] -> [N, 16 H, 16 W]."""
    fine: Tensor = F.interpolate(scores[:, None], scale_factor=_UPSAMPLING, mode="bicubic", align_corners=False)[:, 0]
    return fine
