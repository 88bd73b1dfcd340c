"""Scale convolutions as functions: stencils and weights in, feature map out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .basis import Basis


def scale_lift(x: Tensor, weight: Tensor, basis: Basis) -> Tensor:
    """Convolve images with one kernel at every scale of the basis: [B, C, ...] -> [B, C', S, ...].

    One plain (dilated) convolution per scale, zeros outside the image, same size out as in. Memory is scale-major.

    Args:
        x: Images with as many spatial axes as the basis.
        weight: Coefficients of the basis functions, [C', C, F].
        basis: Stencils and scales.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> basis = DiscreteBasis(3, [1, 2, 4])
        >>> scale_lift(torch.randn(2, 3, 32, 32), torch.randn(8, 3, 9), basis).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    dims = basis.spatial_dims
    if x.ndim != dims + 2:
        raise ValueError(
            f"scale_lift: expected images [B, C, ...] with {dims} spatial axes, got shape {tuple(x.shape)}"
        )
    if weight.ndim != 3 or weight.shape[1:] != (x.shape[1], basis.num_functions):
        raise ValueError(
            f"scale_lift: expected weight [C', {x.shape[1]}, {basis.num_functions}] (channels of the images, "
            f"functions of the basis), got shape {tuple(weight.shape)}"
        )
    conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    responses = []
    for stencil in basis.stencils:
        kernel = torch.tensordot(weight, stencil.functions.to(weight), dims=1)  # [C', C, k, ...]
        responses.append(conv(F.pad(x, stencil.reach * dims), kernel, dilation=stencil.dilation))
    return torch.stack(responses).movedim(0, 2)
