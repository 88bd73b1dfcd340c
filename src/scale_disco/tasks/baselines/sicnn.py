"""Scale-invariant columns, SiCNN (Xu et al. 2014): a column for every scale, with one kernel resized to each."""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...basis import Basis
from ...checks import check_count
from ...fold import unfold
from ...functional.conv import convolve, lift, scale_maps
from ...functional.layout import check_input, check_shape
from ...nn import ScaleConv2d, ScaleLift2d
from ...nn.conv import ScaleConvolution
from ...resampling import on_cpu
from ...scales import Scales, as_scales
from . import check_odd


class _Columns(ScaleConvolution):
    """Base of both layers: a kernel resized to the scale of every column, and torch's random weights."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, scales: Scales | Sequence[float], stride: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, _resized_pixels(kernel_size, as_scales(scales)), stride, bias=False)

    def reset_parameters(self) -> None:
        """Draw the random weights of `torch.nn.Conv2d`."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))


class ColumnLift2d(_Columns, ScaleLift2d):
    """Convolve an image with one kernel resized to every scale: [B, C, H, W] -> [B, C', S, H', W'], no bias.

    Kernels are interpolated and rescaled to the L1 norm of scale 1. As in the authors' code, this division is not
    guarded: a kernel whose pixels at a small scale are all zero gives NaN. `kernel_size` is odd and that of scale 1; a
    kernel of one pixel is the same in all columns. `scales` are those of the columns, ascending.

    Example:
        >>> ColumnLift2d(1, 8, 7, [0.5, 1, 2])(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 8, 3, 28, 28])
    """

    def forward(self, x: Tensor) -> Tensor:
        check_input("ColumnLift2d", x, self.weight, self.in_channels, 2)
        return lift(x, _matched(self.kernels(), self.weight), None, self.layout)


class ColumnConv2d(_Columns, ScaleConv2d):
    """Convolve every column with one kernel resized to its scale: [B, C, S, H, W] -> [B, C', S, H', W'], no bias.

    Kernels and arguments are those of `ColumnLift2d`. Columns are independent.

    Example:
        >>> ColumnConv2d(4, 8, 3, [0.5, 1, 2], stride=2)(torch.randn(2, 4, 3, 28, 28)).shape
        torch.Size([2, 8, 3, 14, 14])
    """

    def forward(self, x: Tensor) -> Tensor:
        check_input("ColumnConv2d", x, self.weight, self.in_channels, 2, len(self.basis.scales))
        return convolve(x, _matched(self.kernels(), self.weight.movedim(2, 0)), None, self.layout)


class ColumnBatchNorm2d(nn.ModuleList):
    """Batch norm with separate statistics and weights for each of S = `scales` columns: [B, C, S, H, W] -> the same.

    Example:
        >>> ColumnBatchNorm2d(8, 3)(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 16, 16])
    """

    def __init__(self, channels: int, scales: int) -> None:
        super().__init__(nn.BatchNorm2d(channels) for _ in range(check_count("ColumnBatchNorm2d", "scales", scales, 1)))

    def forward(self, x: Tensor) -> Tensor:
        check_shape("ColumnBatchNorm2d", x, 2, scales=len(self), whose="its columns")
        return unfold(torch.cat([norm(column) for norm, column in zip(self, scale_maps(x), strict=True)]), len(self))


def rescaling(side: int, factor: float, mode: str = "linear") -> Tensor:
    """Return the matrix [side, side] that interpolates an axis by a factor, then zero-pads or center-crops it.

    Linear interpolation keeps the end pixels in place (`align_corners=True`).

    Example:
        >>> rescaling(3, 2, "nearest")
        tensor([[0., 1., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    if math.floor(side * factor) < 1:
        raise ValueError(f"rescaling: {side} pixels scaled by {factor:g} leave none")
    pixels = torch.eye(side, dtype=torch.float64, device="cpu")[None]  # [1, side, side]: a channel per pixel
    resized = F.interpolate(pixels, scale_factor=factor, mode=mode, align_corners=True if mode == "linear" else None)
    missing = side - resized.shape[-1]
    return F.pad(resized, (missing // 2, missing - missing // 2))[0].T.contiguous()


@lru_cache(maxsize=16)
@on_cpu()
def _resized_pixels(kernel_size: int, scales: Scales) -> Basis:
    """Return the pixel basis resized to every scale, on the grid of the largest one."""
    if check_odd("SiCNN", "kernel_size", kernel_size) == 1:
        return Basis.from_dense(torch.ones(1, len(scales), 1, 1), scales, kernel_size=1)
    margin = max(math.ceil((int(kernel_size * scales[-1]) - kernel_size) / 2), 0)
    side = kernel_size + 2 * margin
    pixels = F.pad(torch.eye(kernel_size**2, dtype=torch.float64).reshape(-1, kernel_size, kernel_size), [margin] * 4)
    axes = [rescaling(side, scale, "nearest" if scale > 1 else "linear") for scale in scales]
    return Basis.from_dense(torch.stack([axis @ pixels @ axis.T for axis in axes], 1), scales, kernel_size=kernel_size)


def _matched(kernels: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """Rescale kernels [..., side, side] to the L1 norm of the weights [..., F]."""
    if weight.shape[-1] == 1:
        return list(kernels)
    norm = weight.abs().sum(-1)
    return [kernel * (norm / kernel.abs().sum((-2, -1)))[..., None, None] for kernel in kernels]
