"""Scale fields: the apparent scale at every pixel of an image."""

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.images import luma
from ..io.progress import Progress
from .networks import ScaleEstimator

_BUDGET = 1_300_000  # pixels per forward pass, as far as strips of the image allow
_FLOOR = 4.0  # standard deviation of the luma around its local mean, of 255, for a contrast of one half
_DIRECTED = 0.9  # fraction of the contrast that edges and lines lose: they are no texture, and alike at all scales
_NEAR = 2  # radius in cells over which the contrast around a cell is averaged
_EPS = 1e-6
_MIN_WEIGHT = 1e-3  # weight of a window without confidence, so that places with no other window have a value


class Field(NamedTuple):
    """Apparent scale relative to its median, in octaves, and its confidence from 0 to 1; float32 [H, W], finite.

    One octave more looks twice as large.
    """

    octaves: Tensor
    confidence: Tensor


class Windows(NamedTuple):
    """Overlapping windows that cover the feature maps of an image, in cells: their size and where they start."""

    rows: int
    columns: int
    height: int
    width: int
    tops: list[int]
    lefts: list[int]

    @classmethod
    def of(cls, estimator: ScaleEstimator, image: Tensor, window: int | None, step: int | None) -> "Windows":
        """Return the windows of an image [3, H, W]; arguments as in `scale_field`."""
        if image.ndim != 3 or image.shape[0] != 3 or not min(image.shape):
            raise ValueError(f"scale_field: expected an image [3, H, W], got shape {tuple(image.shape)}")
        cell = estimator.cell
        window = estimator.window if window is None else window
        if window < 2 * cell:
            raise ValueError(f"scale_field: window must be at least two cells, {2 * cell} pixels, got {window}")
        if step is not None and not 1 <= step <= window:
            raise ValueError(f"scale_field: step must be from 1 to the window, {window} pixels, got {step}")
        side = round(window / cell)
        stride = max(1, side // 4) if step is None else min(max(1, round(step / cell)), side)
        rows, columns = (math.ceil(length / cell) for length in image.shape[1:])
        height, width = min(side, rows), min(side, columns)
        tops, lefts = (  # the last window reaches the edge
            [*range(0, length - extent, stride), length - extent]
            for length, extent in ((rows, height), (columns, width))
        )
        return cls(rows, columns, height, width, tops, lefts)


def scale_field(
    estimator: ScaleEstimator,
    image: Tensor,
    *,
    window: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> Field:
    """Compute the scale field of an RGB image uint8 or float [3, H, W] from 0 to 255, [H, W] on the CPU.

    The image may be smaller than a window. The network runs on the whole image, in strips if it is large. Its maps are
    averaged over overlapping windows, read by the readout, and blended by Hann weights times confidence. Confidence is
    the product of the contrast in a window and the sharpness of the readout, and at most the contrast around a place.
    Edges and lines have little, since they look the same at all scales.
    The median of octaves, weighted by confidence, is zero; without any confidence, as in an empty sky, all octaves are
    zero.

    Args:
        window: Side of a window in pixels, rounded to cells (default: that of the estimator).
        step: Pixels between windows, rounded to cells (default: a quarter of the window).
        progress: Called with the number of rows done and in total.
    """
    field = cell_field(estimator, image, window=window, step=step, progress=progress)
    return enlarged(field, estimator.cell, (image.shape[1], image.shape[2]))


def cell_field(
    estimator: ScaleEstimator,
    image: Tensor,
    *,
    window: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> Field:
    """Compute the scale field at the resolution of the feature maps, [h, w]; arguments as in `scale_field`."""
    windows = Windows.of(estimator, image, window, step)
    return blended_field(estimator, image, window_profiles(estimator, image, windows, progress), windows)


@torch.no_grad()
def window_profiles(
    estimator: ScaleEstimator, image: Tensor, windows: Windows | None = None, progress: Progress | None = None
) -> Tensor:
    """Average the feature maps of an image [3, H, W] over windows: [N, C, S], row by row."""
    windows = windows or Windows.of(estimator, image, None, None)
    bands = _bands(_strips(estimator, image, progress), windows.tops, windows.height)
    return torch.cat([_means(band, windows).permute(2, 0, 1) for band in bands])


@torch.no_grad()
def blended_field(estimator: ScaleEstimator, image: Tensor, profiles: Tensor, windows: Windows | None = None) -> Field:
    """Read the scale profiles of the windows of an image, [N, C, S], and blend the octaves to a field of cells."""
    windows = windows or Windows.of(estimator, image, None, None)
    detail = _detail(image, estimator.cell)
    bands = [detail[:, None, top : top + windows.height] for top in windows.tops]
    contrast = torch.cat([_contrast(_means(band, windows)[:, 0]) for band in bands])
    octaves, sharpness = estimator.read(profiles, contrast)
    # a single window has nothing to compare it with
    confidence = contrast * sharpness.cpu().double().clamp(0, 1) * (len(contrast) > 1)
    nearby = F.avg_pool2d(detail[None], 2 * _NEAR + 1, 1, _NEAR, count_include_pad=False)[0]
    return _blended(windows, octaves.cpu().double(), confidence, _contrast(nearby))


def enlarged(field: Field, cell: int, size: tuple[int, int]) -> Field:
    """Interpolate a field of cells [h, w] to the size of its image.

    Example:
        >>> field = Field(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2))
        >>> enlarged(field, 4, (1, 7)).octaves
        tensor([[0.0000, 0.0000, 0.1250, 0.3750, 0.6250, 0.8750, 1.0000]])
    """
    stack = torch.stack(field)[None]
    full = [cell * length for length in stack.shape[2:]]
    pixels = F.interpolate(stack, full, mode="bilinear", align_corners=False)[0, :, : size[0], : size[1]]
    return Field(*pixels.contiguous())


def weighted_quantile(values: Tensor, weights: Tensor, fraction: float) -> float:
    """Return the value that has this fraction of the weights at or below it; zero if all weights are zero.

    Example:
        >>> weighted_quantile(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 8.0]), 0.5)
        2.0
    """
    order = values.flatten().argsort()
    below = weights.flatten()[order].double().cumsum(0)
    if not below[-1]:
        return 0.0
    place = torch.searchsorted(below, fraction * below[-1])
    return float(values.flatten()[order[place]])


def color_range(field: Field) -> float:
    """Return the octaves on either side of zero that contain 98 % of the confidence, at least half an octave.

    This is the color range of plots; a smaller one would make noise look like a scene.

    Example:
        >>> color_range(Field(torch.linspace(-1, 2, 301), torch.ones(301)))
        1.94
    """
    return max(0.5, round(weighted_quantile(field.octaves.abs(), field.confidence, 0.98), 2))


def _strips(estimator: ScaleEstimator, image: Tensor, progress: Progress | None) -> Iterator[Tensor]:
    """Yield the feature maps of an image from top to bottom, [C, S, rows, w] each, as if computed in one piece.

    Every strip gets a margin of the receptive field. It has at least as many rows as the margin, so that time grows
    linearly with pixels.
    """
    _, height, width = image.shape
    cell = estimator.cell
    margin = math.ceil(estimator.reach / cell) * cell
    most = height if height * width <= _BUDGET else max(_BUDGET // width - 2 * margin, margin, cell)
    each = math.ceil(height / math.ceil(height / most) / cell) * cell  # strips of equal height
    for start in range(0, height, each):
        end, above = min(start + each, height), min(margin, start)
        strip = image[:, start - above : end + margin]
        maps = estimator.maps(strip[None].float())[0]
        yield maps[:, :, above // cell : above // cell + math.ceil((end - start) / cell)]
        if progress is not None:
            progress(end, height)


def _bands(strips: Iterator[Tensor], tops: list[int], height: int) -> Iterator[Tensor]:
    """Yield rows of maps [C, S, height, w] from each of `tops` on; rows that are no longer needed are freed."""
    rows, first, waiting = None, 0, deque(tops)
    for strip in strips:
        rows = strip if rows is None else torch.cat([rows, strip], 2)
        while waiting and waiting[0] + height <= first + rows.shape[2]:
            top = waiting.popleft() - first
            yield rows[:, :, top : top + height]
        if waiting:
            rows, first = rows[:, :, waiting[0] - first :], waiting[0]


def _means(band: Tensor, windows: Windows) -> Tensor:
    """Average a band of maps [C, S, rows, w] over its windows: [C, S, N]."""
    return band.mean(2).unfold(-1, windows.width, 1)[:, :, windows.lefts].mean(-1)


def _detail(image: Tensor, cell: int) -> Tensor:
    """Return means over cells, float64 [4, h, w] on the CPU.

    They are those of the square of luma minus its local mean, and of products of its gradient: xx, yy and xy.
    """
    values = luma(image.cpu().float())
    values = values - values.median()  # a constant image is exactly zero
    around = F.avg_pool2d(values, 2 * cell + 1, 1, cell, count_include_pad=False)
    smooth = F.avg_pool2d(values, 3, 1, 1, count_include_pad=False)
    down, across = torch.gradient(F.pad(smooth[None], (1, 1, 1, 1), "replicate")[0, 0])
    down, across = down[None, 1:-1, 1:-1], across[None, 1:-1, 1:-1]
    means = torch.cat([(values - around).square(), across.square(), down.square(), across * down])
    return F.avg_pool2d(means, cell, ceil_mode=True).double()


def _contrast(means: Tensor) -> Tensor:
    """Map means of `_detail` [4, ...] to a contrast from 0, for a constant window, to 1; low for parallel gradients."""
    squares, across, down, both = means
    parallel = ((across - down).square() + 4 * both.square()) / ((across + down).square() + _EPS)
    contrast: Tensor = squares / (squares + _FLOOR**2) * (1 - _DIRECTED * parallel)
    return contrast


def _blended(windows: Windows, octaves: Tensor, confidence: Tensor, most: Tensor) -> Field:
    """Blend the values of windows, float64 [N], by Hann weights, which are positive everywhere.

    Non-finite values are ignored, the median becomes zero, and confidence is limited to `most` [h, w].
    """
    finite = octaves.isfinite() & confidence.isfinite()
    octaves, confidence = octaves.where(finite, 0.0), confidence.where(finite, 0.0)
    weights = confidence + _MIN_WEIGHT
    terms = torch.stack([weights * octaves, weights, confidence, torch.ones_like(weights)])
    down, across = _hann(windows.height)[:, None], _hann(windows.width)
    columns = (torch.tensor(windows.lefts)[:, None] + torch.arange(windows.width)).flatten()
    sums = torch.zeros(4, windows.rows, windows.columns, dtype=torch.float64)
    for top, row in zip(windows.tops, torch.split(terms, len(windows.lefts), 1), strict=True):
        line = torch.zeros(4, windows.columns, dtype=torch.float64)
        line.index_add_(1, columns, (row[:, :, None] * across).flatten(1))
        sums[:, top : top + windows.height] += down * line[:, None]
    weighted, total, confident, count = sums
    octaves, confidence = weighted / total, torch.minimum(confident / count, most)
    octaves = octaves - weighted_quantile(octaves, confidence, 0.5)
    return Field((octaves * (confidence.sum() > 0)).float(), confidence.clamp(0, 1).float())


def _hann(length: int) -> Tensor:
    """Return a Hann window without its zeros, float64 [length]."""
    return torch.sin(math.pi * (torch.arange(length, dtype=torch.float64) + 0.5) / length).square()
