"""Transposed convolutions of converted networks."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..fold import unfold
from ..functional.conv import scale_maps
from ..functional.layout import Layout
from ..scales import Scales
from .layers import FoldedConv


class FoldedTransposed(FoldedConv):
    """A transposed convolution at every scale, scales along the batch: [S * B, C, ...] -> [S * B, C', ...].

    With stride t it is an ordinary convolution with t outputs per pixel and axis, its phases, next to each other. Their
    kernels, on the grid of the input, are enlarged like all others. Between scales of integer ratio the result is exact
    under subsampling, as for strides. Dilating the transposed kernel is not: the zeros that it skips do not scale.
    """

    def __init__(self, conv: Any, scales: Scales, scale_extent: int = 1, **options: bool) -> None:
        super().__init__(conv, scales, scale_extent, **options)
        self.in_channels, self.out_channels = conv.weight.shape[0], self.groups * conv.weight.shape[1]

    def _place(self, scales: Scales) -> None:
        self.phases, self._phase_sides = math.prod(self._own.stride), []
        self._index = torch.zeros(1, dtype=torch.long, device="cpu")  # of each tap among the phases and their pixels
        for side, step, stride in zip(self.kernel_size, self._own.dilations[0], self._own.stride, strict=True):
            shifts = [tap * step - step * (side - 1) // 2 for tap in range(side)]
            reach = max(abs(shift // stride) for shift in shifts)
            places = [(shift % stride) * (2 * reach + 1) + reach - shift // stride for shift in shifts]
            self._phase_sides.append(2 * reach + 1)
            own = torch.tensor(places, device="cpu")
            self._index = (self._index[:, None] * stride * (2 * reach + 1) + own).flatten()
        interleave = Interleave(self.kernel_size, self._own, scales)
        before, after = interleave.margins
        pads = tuple((side // 2 + before, side // 2 + after) for side in self._phase_sides)
        ones = (1,) * self.spatial_dims
        convolution = self._own._replace(stride=ones, dilations=(ones,), pads=(pads,))
        self._place_kernel(scales, tuple(self._phase_sides), convolution)
        self.after = interleave

    def _arranged(self, weight: Tensor) -> Tensor:
        """Arrange [T, C, C' / groups, ...] as the kernels of all phases, [T, C' * phases, C / groups, ...]."""
        dims, shape = self.spatial_dims, weight.shape
        flat = weight.reshape(shape[0], self.groups, -1, *shape[2:]).transpose(2, 3).flatten(1, 2).flatten(3)
        axes = [size for pair in zip(self._own.stride, self._phase_sides, strict=True) for size in pair]
        spread = flat.new_zeros(*flat.shape[:3], math.prod(axes)).index_copy(3, self._index.to(flat.device), flat)
        order = [0, 1, *range(3, 3 + 2 * dims, 2), 2, *range(4, 4 + 2 * dims, 2)]
        phases = spread.reshape(*flat.shape[:3], *axes).permute(order)  # [T, C', t, ..., C / groups, side, ...]
        return phases.reshape(shape[0], -1, flat.shape[2], *self._phase_sides)


class Interleave(nn.Module):
    """The phases of a transposed convolution as pixels: [S * B, C * phases, ...] -> [S * B, C, ...].

    At the first scale pixel n is phase n mod t of pixel n // t of the input. At scale s it is the phase of pixel n // s
    at the first scale, interpolated between two pixels of the input. Where n is a multiple of the scale's dilation, or
    of a part of it, these are so far apart as well; that makes all integer ratios exact.
    """

    def __init__(self, kernel_size: tuple[int, ...], layout: Layout, scales: Scales) -> None:
        super().__init__()
        self.axes: list[tuple[int, int, int]] = []  # stride, first pixel, and number of pixels of a single one
        for axis, (before, after) in enumerate(layout.pads[0]):
            reach = layout.dilations[0][axis] * (kernel_size[axis] - 1)
            self.axes.append((layout.stride[axis], before - reach // 2, reach + 1 - before - after))
        indices = range(len(scales))
        self.ratios = [scales.integer_ratio(k) or scales.ratio(k) for k in indices]
        self.dilations = [max([scales.integer_ratio(k, l) or 1 for l in range(k)], default=1) for k in indices]
        far = math.ceil(self.ratios[-1])
        before = max(2 * far - start // stride if start < 0 else 0 for stride, start, _ in self.axes)
        after = max(0, *(-(-(start + number) // stride) for stride, start, number in self.axes)) + far
        self.margins = before, after  # pixels around the input that are seen

    def forward(self, x: Tensor) -> Tensor:
        parts = scale_maps(unfold(x, len(self.ratios)))
        return torch.cat([self._interleaved(part, k) for k, part in enumerate(parts)])

    def _interleaved(self, x: Tensor, k: int) -> Tensor:
        dims, ratio, dilation = len(self.axes), self.ratios[k], self.dilations[k]
        strides = [stride for stride, _, _ in self.axes]
        y = x.reshape(x.shape[0], x.shape[1] // math.prod(strides), *strides, *x.shape[2:])
        steps = torch.tensor([math.gcd(dilation, i) for i in range(dilation)], device="cpu")
        for axis, (stride, start, more) in enumerate(self.axes):
            size = y.shape[dims + 2]
            count = (size - sum(self.margins) - 1) * stride + more
            n = torch.arange(count, device="cpu").double() + start
            phase = torch.floor(n / ratio + 1e-6) % stride
            step, pixel = steps[(n % dilation).long()], (n - phase * ratio) / stride
            first = torch.floor(pixel / step + 1e-6)
            index = (phase * size + self.margins[0] + first * step).long().to(y.device)
            entries = y.movedim(2, dims + 1).flatten(dims + 1, dims + 2)
            y = entries.index_select(dims + 1, index)
            if ratio != 1:
                weight = (pixel / step - first).to(y).reshape(-1, *[1] * (dims - 1 - axis))
                y = torch.lerp(y, entries.index_select(dims + 1, index + step.to(y.device)), weight)
        return y
