"""Locally scale-invariant convolution, SI-ConvNet (Kanazawa et al. 2014): rescale, convolve, rescale back, maximize."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...functional.layout import check_input
from ...scales import Scales, as_scales
from .sicnn import rescaling


class RescalingConv2d(nn.Conv2d):
    """Largest response of a convolution over rescaled inputs: [B, C, H, W] -> [B, C', H', W'].

    The input is rescaled by every factor, padded with zeros or cropped to its own size and convolved; the response is
    rescaled back in the same way. `scales` are the factors of the input, ascending; the other arguments are those of
    `torch.nn.Conv2d`.

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
        axes = [[matrix.to(x) for matrix in _rescalings(side, scale, *self._window)] for side in x.shape[-2:]]
        (rows, rows_back), (cols, cols_back) = axes
        y = F.conv2d(rows @ (x @ cols.T), self.weight, self.bias, self.stride)
        return rows_back @ (y @ cols_back.T)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scales={self.scales}"  # type: ignore[no-untyped-call]


@lru_cache(maxsize=64)
def _rescalings(side: int, scale: float, kernel_size: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Return the matrices that rescale an axis before and after an unpadded convolution, without rows never used.

    Of downscaled images only the middle is convolved: for seven scales from 0.3 to 3.3 this saves a third of the work.
    """
    before = F.pad(rescaling(side, scale), (0, 0, padding, padding))
    after = rescaling((len(before) - kernel_size) // stride + 1, 1 / scale)
    used = after.any(0).nonzero()
    first, last = int(used[0]), int(used[-1])
    return before[first * stride : last * stride + kernel_size], after[:, first : last + 1]
