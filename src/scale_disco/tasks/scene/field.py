"""The scale field of a photograph: how large things look, place by place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.images import luma

_BUDGET = 1_300_000  # pixels that go through the network at a time, where strips of the picture allow it
_FLOOR = 4.0  # deviation of the luminance from its local mean, of 255, at which an answer counts half
_NEAR = 2  # cells around a cell that must have some detail, too
_LEAST = 1e-3  # weight of a window without confidence, so that places with no other have an answer

Progress = Callable[[int, int], None]


class Estimator(Protocol):
    """What reads scale from pictures, such as a `ScaleEstimator`.

    Attributes:
        cell: Pixels from a cell of the maps to the next.
        window: Pixels of a window's side that the read-out was made for.
        reach: Pixels around a place that its features may depend on.
    """

    cell: int
    window: int
    reach: int

    def maps(self, images: Tensor) -> Tensor:
        """Features of images [B, 3, H, W] in RGB from 0 to 255: [B, C, S, h, w], with h = ceil(H / cell)."""

    def read(self, profiles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """From means of maps over all windows of an image [N, C, S]: octaves [N] up to a constant, and how sharp they
        are, 0 to 1. Windows of more weight [N] have more contrast."""


class Field(NamedTuple):
    """Octaves [H, W] by which things look larger than at the median place, and how far to trust them, 0 to 1 [H, W].

    An octave more is twice as large: nearer, where the things are the same. Both are float32 and finite.
    """

    octaves: Tensor
    confidence: Tensor


def scale_field(
    estimator: Estimator,
    image: Tensor,
    *,
    window: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> Field:
    """The scale field of an image uint8 or float [3, H, W] in RGB from 0 to 255, of its size, on the CPU.

    The network sees the whole image, in strips where it is large; a read-out is made from means over windows, which
    overlap and are blended by Hann weights and their confidence. That is a product: contrast of the detail in the
    window, against noise; and how sharp the answer is along the scale axis. Places without detail around them have no
    more confidence than that. The median of octaves, weighted by
    confidence, is zero; without any confidence, as in an empty sky, all are.

    Args:
        estimator: On the device of the image.
        image: It may be smaller than a window.
        window: Pixels of a window's side, rounded to cells (default: what the estimator was made for).
        step: Pixels from a window to the next, rounded to cells (default: a quarter of the window).
        progress: Called with rows of the image done, and rows in all.
    """
    field = cell_field(estimator, image, window=window, step=step, progress=progress)
    return enlarged(field, estimator.cell, (image.shape[1], image.shape[2]))


def cell_field(
    estimator: Estimator,
    image: Tensor,
    *,
    window: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> Field:
    """What `scale_field` enlarges to the size of the image: one value for every cell, [h, w]."""
    if image.ndim != 3 or image.shape[0] != 3 or not min(image.shape):
        raise ValueError(f"scale_field: expected an image [3, H, W], got shape {tuple(image.shape)}")
    side, stride = _in_cells(estimator, window, step)
    rows, columns = (math.ceil(length / estimator.cell) for length in image.shape[1:])
    high, wide = min(side, rows), min(side, columns)
    lefts = _places(columns, wide, stride)
    detail = _detail(image, estimator.cell)[None, None]
    tops = _places(rows, high, stride)
    profiles, contrast = [], []
    with torch.no_grad():
        for top, band in _bands(_strips(estimator, image, progress), tops, high):
            profiles.append(_means(band, wide, lefts).permute(2, 0, 1))
            contrast.append(_contrast(_means(detail[:, :, top : top + high], wide, lefts)[0, 0]))
        sure = torch.cat(contrast)
        octaves, sharpness = estimator.read(torch.cat(profiles), sure)
    confidence = sure * sharpness.cpu().double().clamp(0, 1) * (len(sure) > 1)  # one window has nothing beside it
    blend = _Blend(rows, columns, high, wide)
    parts = [torch.split(values, len(lefts)) for values in (octaves.cpu().double(), confidence)]
    for top, some, trust in zip(tops, *parts, strict=True):
        blend.add(top, lefts, some, trust)
    return blend.field(_nearby(detail[0, 0]))


def enlarged(field: Field, cell: int, size: tuple[int, int]) -> Field:
    """A field of cells [h, w] at the size of its image, interpolated between the centres of cells.

    Example:
        >>> field = Field(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2))
        >>> enlarged(field, 4, (1, 7)).octaves
        tensor([[0.0000, 0.0000, 0.1250, 0.3750, 0.6250, 0.8750, 1.0000]])
    """
    stack = torch.stack(field)[None]
    whole = [cell * length for length in stack.shape[2:]]
    pixels = F.interpolate(stack, whole, mode="bilinear", align_corners=False)[0, :, : size[0], : size[1]]
    return Field(*pixels.contiguous())


def weighted_quantile(values: Tensor, weights: Tensor, part: float) -> float:
    """The value that has this part of the weights below it or at it; zero if there are no weights.

    Example:
        >>> weighted_quantile(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 8.0]), 0.5)
        2.0
    """
    order = values.flatten().argsort()
    below = weights.flatten()[order].double().cumsum(0)
    if not below[-1]:
        return 0.0
    place = torch.searchsorted(below, part * below[-1])
    return float(values.flatten()[order[place]])


def extent(field: Field) -> float:
    """Octaves on either side of zero that nearly all of the sure places are within, no less than half an octave.

    For the colours of a picture; a smaller extent would make noise look like a scene.

    Example:
        >>> extent(Field(torch.linspace(-1, 2, 301), torch.ones(301)))
        1.94
    """
    return max(0.5, round(weighted_quantile(field.octaves.abs(), field.confidence, 0.98), 2))


def _in_cells(estimator: Estimator, window: int | None, step: int | None) -> tuple[int, int]:
    """Side of a window and step to the next, in cells."""
    cell = estimator.cell
    window = estimator.window if window is None else window
    if window < 2 * cell:
        raise ValueError(f"scale_field: window must be at least two cells, {2 * cell} pixels, got {window}")
    side = round(window / cell)
    if step is None:
        return side, max(1, side // 4)
    if not 1 <= step <= window:
        raise ValueError(f"scale_field: step must be from 1 to the window, {window} pixels, got {step}")
    return side, min(max(1, round(step / cell)), side)


def _places(length: int, side: int, stride: int) -> list[int]:
    """Where windows begin, so that the first and the last reach the edges."""
    return [*range(0, length - side, stride), length - side]


def _strips(estimator: Estimator, image: Tensor, progress: Progress | None) -> Iterator[Tensor]:
    """The maps of an image from top to bottom, [C, S, rows, w] each, as they are in one piece.

    A strip goes through the network with a margin of what its features reach. It has at least as many rows as a
    margin, so that time stays in proportion to pixels.
    """
    _, height, width = image.shape
    cell = estimator.cell
    margin = math.ceil(estimator.reach / cell) * cell
    most = height if height * width <= _BUDGET else max(_BUDGET // width - 2 * margin, margin, cell)
    each = math.ceil(height / math.ceil(height / most) / cell) * cell  # strips alike
    for start in range(0, height, each):
        end, above = min(start + each, height), min(margin, start)
        strip = image[:, start - above : end + margin]
        maps = estimator.maps(strip[None].float())[0]
        yield maps[:, :, above // cell : above // cell + math.ceil((end - start) / cell)]
        if progress is not None:
            progress(end, height)


def _bands(strips: Iterator[Tensor], tops: list[int], high: int) -> Iterator[tuple[int, Tensor]]:
    """Rows of maps [C, S, high, w] from each of `tops` on; rows that no band needs any more are let go."""
    kept, first, waiting = None, 0, deque(tops)
    for strip in strips:
        kept = strip if kept is None else torch.cat([kept, strip], 2)
        while waiting and waiting[0] + high <= first + kept.shape[2]:
            top = waiting.popleft()
            yield top, kept[:, :, top - first : top - first + high]
        if waiting:
            kept, first = kept[:, :, waiting[0] - first :], waiting[0]


def _means(band: Tensor, wide: int, lefts: list[int]) -> Tensor:
    """Means over windows of a band of maps [C, S, rows, w]: [C, S, N]."""
    return band.mean(2).unfold(-1, wide, 1)[:, :, lefts].mean(-1)


def _detail(image: Tensor, cell: int) -> Tensor:
    """Mean squares over cells of what the luminance has beside its local mean: float64 [h, w] on the CPU."""
    luminance = luma(image.cpu().float())
    luminance = luminance - luminance.median()  # an even image is exactly zero
    around = F.avg_pool2d(luminance, 2 * cell + 1, 1, cell, count_include_pad=False)
    return F.avg_pool2d((luminance - around).square(), cell, ceil_mode=True)[0].double()


def _nearby(detail: Tensor) -> Tensor:
    """The contrast around every cell [h, w], so that a sky next to trees, in windows with them, is still a sky."""
    around = F.avg_pool2d(detail[None], 2 * _NEAR + 1, 1, _NEAR, count_include_pad=False)[0]
    return _contrast(around)


def _contrast(squares: Tensor) -> Tensor:
    """From 0 for an even window to 1, by the mean squares of its detail, [N]."""
    return squares / (squares + _FLOOR**2)


class _Blend:
    """Answers of windows that overlap, added up by Hann weights, which are positive everywhere."""

    def __init__(self, rows: int, columns: int, high: int, wide: int) -> None:
        self.down, self.across = _hann(high)[:, None], _hann(wide)
        self.sums = torch.zeros(4, rows, columns, dtype=torch.float64)

    def add(self, top: int, lefts: list[int], octaves: Tensor, confidence: Tensor) -> None:
        """The windows of a row, [N] each; an answer that is not a number is none."""
        known = octaves.isfinite() & confidence.isfinite()
        octaves, confidence = octaves.where(known, 0.0), confidence.where(known, 0.0)
        weights = confidence + _LEAST
        terms = torch.stack([weights * octaves, weights, confidence, torch.ones_like(weights)])
        places = torch.tensor(lefts)[:, None] + torch.arange(len(self.across))
        line = torch.zeros(4, self.sums.shape[2], dtype=torch.float64)
        line.index_add_(1, places.flatten(), (terms[:, :, None] * self.across).flatten(1))
        self.sums[:, top : top + len(self.down)] += self.down * line[:, None]

    def field(self, most: Tensor) -> Field:
        """The field of cells, with the median at zero and no more confidence than is given [h, w]."""
        weighted, weights, confidence, count = self.sums
        octaves, confidence = weighted / weights, torch.minimum(confidence / count, most)
        octaves = octaves - weighted_quantile(octaves, confidence, 0.5)
        return Field((octaves * (confidence.sum() > 0)).float(), confidence.clamp(0, 1).float())


def _hann(length: int) -> Tensor:
    """Between the zeros of the window, float64 [length]."""
    return torch.sin(math.pi * (torch.arange(length, dtype=torch.float64) + 0.5) / length).square()
