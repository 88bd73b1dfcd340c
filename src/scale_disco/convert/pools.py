"""Pools of converted networks: average pooling, and max pooling with windows that grow with the scale."""

import copy
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..basis.stencil import CONVOLUTION
from ..fold import unfold
from ..functional.conv import scale_maps
from ..scales import Scales

MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVG_POOLS: Sequence[Any] = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


class MeanPool(nn.Module):
    """Average pooling instead of a max pool: adjacent windows of its stride, and its output size."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.sizes = copy.deepcopy(pool)  # gives the output size
        stride = per_axis(pool.stride, pool_dims(pool))
        self.means = mean_pool(stride)
        if max(stride) == 1:
            self.means = _AVG_POOLS[len(stride) - 1](pool.kernel_size, 1, pool.padding, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.means(x)
        for axis, side in enumerate(self.sizes(x[:1, :1]).shape[2:], 2):
            y = y.narrow(axis, 0, min(side, y.shape[axis]))
        return y


class GrowingMaxPool(nn.Module):
    """Max pooling with windows scaled with the kernel, scales along the batch: [S * B, C, ...] -> [S * B, C, ...].

    Windows are dilated about their center; at the first scale they are the pool's own. A fractional dilation mixes the
    two nearest integers, and a window centered between pixels is the mean of the two next to it.
    """

    def __init__(self, pool: Any, scales: Scales) -> None:
        super().__init__()
        self.pool, self.spatial_dims = copy.deepcopy(pool), pool_dims(pool)
        self.set_scales(scales)

    def set_scales(self, scales: Scales) -> None:
        """Change the scales, in place."""
        self.scales = scales
        self.ratios = tuple(scales.integer_ratio(k) or scales.ratio(k) for k in range(len(scales)))

    def forward(self, x: Tensor) -> Tensor:
        parts = scale_maps(unfold(x, len(self.ratios)))
        return torch.cat([self._interpolated(part, ratio) for part, ratio in zip(parts, self.ratios, strict=True)])

    def _interpolated(self, x: Tensor, ratio: float) -> Tensor:
        below = math.floor(ratio)
        pooled = self._centered(x, below)
        return pooled if ratio == below else torch.lerp(pooled, self._centered(x, below + 1), ratio - below)

    def _centered(self, x: Tensor, factor: int) -> Tensor:
        size, stride, padding, dilation = (
            per_axis(number, self.spatial_dims)
            for number in (self.pool.kernel_size, self.pool.stride, self.pool.padding, self.pool.dilation)
        )
        counts = self.pool(x[:1, :1]).shape[2:]
        # Twice the extra reach of a window of that dilation over the pool's own.
        excess = [(factor - 1) * step * (taps - 1) for taps, step in zip(size, dilation, strict=True)]
        pooled = []
        for late in (0, 1) if any(number % 2 for number in excess) else (0,):
            y = x
            for axis in range(self.spatial_dims):  # separable, which is faster than torch's pool
                before = padding[axis] + (excess[axis] + 1 - late) // 2
                taps = (tap * factor * dilation[axis] - before for tap in range(size[axis]))
                strided = (_strided(y, axis + 2, first, stride[axis], counts[axis]) for first in taps)
                y = functools.reduce(torch.maximum, strided)
            pooled.append(y)
        y = pooled[0] if len(pooled) == 1 else (pooled[0] + pooled[1]) / 2
        reach = [factor * step * (taps - 1) for taps, step in zip(size, dilation, strict=True)]
        fits = not torch.compiler.is_compiling() and all(a < b for a, b in zip(reach, x.shape[2:], strict=True))
        # Windows larger than a small map may hold none of its pixels.
        return y if factor == 1 or fits else torch.where(y == -math.inf, self.pool(x), y)


def _strided(x: Tensor, axis: int, first: int, step: int, count: int) -> Tensor:
    """Return `count` entries first, first + step, ... of an axis, -inf outside of it."""
    before = max(0, -(first // step))
    traced = torch.compiler.is_compiling()  # sizes are unknown
    before = before if traced else min(before, count)
    taken = x[(slice(None),) * axis + (slice(first + before * step, None, step),)]
    after = count - before - taken.shape[axis]
    if not traced and before == after == 0:
        return taken
    return F.pad(taken, [0, 0] * (x.ndim - 1 - axis) + [before, after], value=-math.inf)


def pool_dims(pool: nn.Module) -> int:
    """Return the number of spatial axes of a max pool."""
    return 1 + MAX_POOLS.index(next(kind for kind in MAX_POOLS if isinstance(pool, kind)))


class PooledPoint(nn.Module):
    """A strided 1x1 convolution as average pooling and a 1x1 convolution, under the names of its weights."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.groups = conv.weight, conv.bias, conv.groups
        self.pool = mean_pool(per_axis(conv.stride, conv.weight.ndim - 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = CONVOLUTION[x.ndim - 2](self.pool(x), self.weight, self.bias, groups=self.groups)
        return y


def mean_pool(size: Sequence[int]) -> nn.Module:
    """Return average pooling over adjacent windows; the last ones average over pixels inside the image."""
    pool: nn.Module = _AVG_POOLS[len(size) - 1](tuple(size), ceil_mode=True, count_include_pad=False)
    return pool


def per_axis(value: Any, dims: int) -> tuple[int, ...]:
    """Expand a number, or a sequence of one, to one per axis."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
