"""Locally scale-invariant convolution, SI-ConvNet (Kanazawa et al. 2014): rescale, convolve, rescale back, maximum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...functional.layout import check_input
from ...scales import Scales, as_scales
from .sicnn import rescaling


class RescalingConv2d(nn.Conv2d):
    """The largest response of one convolution over rescaled inputs: [B, C, H, W] -> [B, C', H', W'].

    The input is interpolated by every scale, put into a frame of zeros or cut to its own size, convolved, and what
    comes out is rescaled back in the same way.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side of the kernel.
        scales: Factors by which the input is rescaled, ascending.
        stride: Step between output pixels.
        padding: Pixels of zeros around the input.
        bias: Whether to add a number to each output channel.

    Example:
        >>> RescalingConv2d(1, 8, 7, [0.5, 1, 2], padding=3)(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 8, 28, 28])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        scales: Scales | Sequence[float],
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)
        self.scales = as_scales(scales)
        self._window = kernel_size, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        check_input("RescalingConv2d", x, self.weight, self.in_channels, 2)
        return torch.stack([self._response(x, scale) for scale in self.scales]).max(0).values

    def _response(self, x: Tensor, scale: float) -> Tensor:
        if scale == 1:
            return super().forward(x)
        (rows, rows_back), (cols, cols_back) = (
            [matrix.to(x) for matrix in _there_and_back(side, scale, *self._window)] for side in x.shape[-2:]
        )
        y = F.conv2d(rows @ (x @ cols.T), self.weight, self.bias, self.stride)
        return rows_back @ (y @ cols_back.T)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scales={self.scales}"  # type: ignore[no-untyped-call]


@lru_cache(maxsize=64)
def _there_and_back(side: int, scale: float, kernel_size: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """One axis before and after a convolution without padding, as matrices: what the way back cuts off is never made.

    Shrunk images are convolved in their middle only: with seven scales from 0.3 to 3.3 that saves a third of the work.
    """
    there = F.pad(rescaling(side, scale), (0, 0, padding, padding))
    back = rescaling((len(there) - kernel_size) // stride + 1, 1 / scale)
    used = back.any(0).nonzero()
    first, last = int(used[0]), int(used[-1])
    return there[first * stride : last * stride + kernel_size], back[:, first : last + 1]
