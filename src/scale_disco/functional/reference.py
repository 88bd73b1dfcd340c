"""Dense reference implementations of `scale_lift` and `scale_conv`.

They use one large zero-filled kernel for all scales, as the paper's code does. Tests compare the fast path with them.
Arguments are those of the fast path.
"""

from functools import lru_cache
from typing import Unpack

import torch
from torch import Tensor

from ..basis import Basis
from ..basis.stencil import CONVOLUTION
from ._dispatch import pad
from .layout import Options, largest_reach, lay_out


def scale_lift(
    x: Tensor, weight: Tensor, basis: Basis, bias: Tensor | None = None, **options: Unpack[Options]
) -> Tensor:
    """Lift with all scales as output channels of one convolution."""
    layout = lay_out("scale_lift", basis, **options)
    kernel = torch.einsum("oif,fs...->osi...", weight, _dense(basis).to(weight)).flatten(0, 1)
    bias = None if bias is None else bias.repeat_interleave(len(basis.scales))
    x = pad(x, layout.largest_pads(), layout.padding_mode)
    y = CONVOLUTION[basis.spatial_dims](x, kernel, bias, layout.stride, groups=layout.groups)
    return y.reshape(len(x), -1, len(basis.scales), *y.shape[2:])


def scale_conv(
    x: Tensor, weight: Tensor, basis: Basis, bias: Tensor | None = None, **options: Unpack[Options]
) -> Tensor:
    """Convolve with scales as groups of channels, each with its T neighbors."""
    layout = lay_out("scale_conv", basis, **options)
    scales, extent, outputs = len(basis.scales), weight.shape[2], len(weight)
    padded = torch.cat([x, x.new_zeros(*x.shape[:2], extent - 1, *x.shape[3:])], 2)
    # [B, S, groups, C / groups, T, ...]: every scale with its neighbors, ordered as grouped channels.
    windows = torch.stack([padded[:, :, k : k + extent] for k in range(scales)], 1)
    windows = windows.reshape(len(x), -1, *x.shape[3:])
    kernel = torch.einsum("oitf,fs...->soit...", weight, _dense(basis).to(weight))
    kernel = kernel.reshape(scales * outputs, -1, *kernel.shape[4:])
    bias = None if bias is None else bias.repeat(scales)
    windows = pad(windows, layout.largest_pads(), layout.padding_mode)
    y = CONVOLUTION[basis.spatial_dims](windows, kernel, bias, layout.stride, groups=scales * layout.groups)
    return y.reshape(len(x), scales, outputs, *y.shape[2:]).movedim(1, 2)


@lru_cache(maxsize=8)
def _dense(basis: Basis) -> Tensor:
    """Return the dense packing, cropped to the largest stencil."""
    dense, reach = basis.dense(), largest_reach(basis)
    center = (dense.shape[-1] - 1) // 2
    for axis in range(2, dense.ndim):
        dense = dense.narrow(axis, center - reach[0], sum(reach) + 1)
    return dense
