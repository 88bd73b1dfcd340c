"""Scale-invariant columns, SiCNN (Xu et al. 2014): one kernel resized for every column, a column for every scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...basis import Basis
from ...basis.cpu import on_cpu
from ...checks import check_count
from ...fold import unfold
from ...functional import convolve, lift, scale_maps
from ...functional.layout import check_input, check_shape
from ...nn import ScaleConv2d, ScaleLift2d
from ...nn.conv import ScaleConvolution
from ...scales import Scales, as_scales


class _Columns(ScaleConvolution):
    """What both layers share: a kernel resized to the scale of every column, and torch's random weights."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, scales: Scales | Sequence[float], stride: int = 1
    ) -> None:
        basis = _resized_pixels(kernel_size, as_scales(scales))
        super().__init__(in_channels, out_channels, basis, stride, bias=False)

    def reset_parameters(self) -> None:
        """The random weights of `torch.nn.Conv2d`."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))


class ColumnLift2d(_Columns, ScaleLift2d):
    """Convolve an image with one kernel resized to every scale: [B, C, H, W] -> [B, C', S, H', W'], no bias.

    Resizing is interpolation, after which every kernel gets back the sum of magnitudes it had at scale 1. As in the
    authors' code, nothing guards that division: a kernel that is zero wherever a small scale reads it makes NaN.

    Args:
        in_channels: Channels of the image.
        out_channels: Channels of every column.
        kernel_size: Odd side of the kernel at scale 1; a kernel of one pixel is the same in all columns.
        scales: Scale of each column, ascending.
        stride: Step between output pixels.

    Example:
        >>> ColumnLift2d(1, 8, 7, [0.5, 1, 2])(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 8, 3, 28, 28])
    """

    def forward(self, x: Tensor) -> Tensor:
        check_input("ColumnLift2d", x, self.weight, self.in_channels, 2)
        return lift(x, _matched(self.kernels(), self.weight), None, self.layout)


class ColumnConv2d(_Columns, ScaleConv2d):
    """Convolve every column with one kernel resized to its scale: [B, C, S, H, W] -> [B, C', S, H', W'], no bias.

    See `ColumnLift2d` for the kernels. Columns do not see each other.

    Args:
        in_channels: Channels of every column of the input.
        out_channels: Channels of every column of the output.
        kernel_size: Odd side of the kernel at scale 1.
        scales: Scale of each column, ascending.
        stride: Step between output pixels.

    Example:
        >>> ColumnConv2d(4, 8, 3, [0.5, 1, 2], stride=2)(torch.randn(2, 4, 3, 28, 28)).shape
        torch.Size([2, 8, 3, 14, 14])
    """

    def forward(self, x: Tensor) -> Tensor:
        check_input("ColumnConv2d", x, self.weight, self.in_channels, 2, len(self.basis.scales))
        return convolve(x, _matched(self.kernels(), self.weight.movedim(2, 0)), None, self.layout)


class ColumnBatchNorm2d(nn.ModuleList):
    """A batch norm of its own for every column: [B, C, S, H, W] -> [B, C, S, H, W].

    Args:
        channels: Channels of every column.
        scales: Number of columns.

    Example:
        >>> ColumnBatchNorm2d(8, 3)(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 16, 16])
    """

    def __init__(self, channels: int, scales: int) -> None:
        super().__init__(nn.BatchNorm2d(channels) for _ in range(check_count("ColumnBatchNorm2d", "scales", scales, 1)))

    def forward(self, x: Tensor) -> Tensor:
        check_shape("ColumnBatchNorm2d", x, 2, scales=len(self), whose="its columns")
        return unfold(torch.cat([norm(one) for norm, one in zip(self, scale_maps(x), strict=True)]), len(self))


def rescaling(side: int, factor: float, mode: str = "linear") -> Tensor:
    """Interpolation of an axis by a factor, then zeros around it or its centre cut out: a matrix [side, side].

    Linear interpolation keeps the end pixels in place (torch's `align_corners`).

    Example:
        >>> rescaling(3, 2, "nearest")
        tensor([[0., 1., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    if math.floor(side * factor) < 1:
        raise ValueError(f"rescaling: {side} pixels scaled by {factor:g} leave none")
    pixels = torch.eye(side, dtype=torch.float64, device="cpu")[None]  # an image of a channel per pixel
    resized = F.interpolate(pixels, scale_factor=factor, mode=mode, align_corners=True if mode == "linear" else None)
    missing = side - resized.shape[-1]
    return F.pad(resized, (missing // 2, missing - missing // 2))[0].T.contiguous()


@lru_cache(maxsize=16)
@on_cpu()
def _resized_pixels(kernel_size: int, scales: Scales) -> Basis:
    """The pixels of a kernel resized to every scale, on the grid of the largest one; each cut to what is not zero."""
    if check_count("SiCNN", "kernel_size", kernel_size, 1) % 2 == 0:
        raise ValueError(f"SiCNN: kernel_size must be odd, got {kernel_size}")
    if kernel_size == 1:
        return Basis.from_dense(torch.ones(1, len(scales), 1, 1), scales, kernel_size=1)
    margin = max(math.ceil((int(kernel_size * scales[-1]) - kernel_size) / 2), 0)
    side = kernel_size + 2 * margin
    pixels = F.pad(torch.eye(kernel_size**2, dtype=torch.float64).reshape(-1, kernel_size, kernel_size), [margin] * 4)
    axes = [rescaling(side, scale, "nearest" if scale > 1 else "linear") for scale in scales]
    resized = [axis @ pixels @ axis.T for axis in axes]
    return Basis.from_dense(torch.stack(resized, 1), scales, kernel_size=kernel_size)


def _matched(kernels: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """Kernels [..., side, side] with the sums of magnitudes that weights [..., F] have."""
    if weight.shape[-1] == 1:
        return list(kernels)
    norm = weight.abs().sum(-1)
    return [kernel * (norm / kernel.abs().sum((-2, -1)))[..., None, None] for kernel in kernels]
