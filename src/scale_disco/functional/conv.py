"""How a kernel becomes a convolution: weights times stencils, then one plain convolution per scale."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..basis import Basis
from ..fold import fold, unfold
from ._dispatch import convolve_one as convolve_one
from .layout import Layout, check_extent, check_input, check_weight, is_autocast, lay_out


def scale_lift(
    x: Tensor,
    weight: Tensor,
    basis: Basis,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: str | int = "same",
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Convolve images with one kernel at every scale of the basis: [B, C, ...] -> [B, C', S, ...], scale-major.

    Args:
        x: Images with as many spatial axes as the basis.
        weight: Coefficients of the basis functions, [C', C / groups, F].
        basis: Stencils and scales.
        bias: Added to each channel at every scale, [C'].
        stride, padding, groups, padding_mode: As in `scale_disco.nn.ScaleLift2d`.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> basis = DiscreteBasis(3, [1, 2, 4])
        >>> scale_lift(torch.randn(2, 3, 32, 32), torch.randn(8, 3, 9), basis).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    layout = lay_out("scale_lift", basis, stride, padding, groups, padding_mode)
    check_weight("scale_lift", weight, (basis.num_functions,), groups)
    return apply_kernels("scale_lift", x, kernels(weight, _functions(basis, weight)), bias, layout)


def scale_conv(
    x: Tensor,
    weight: Tensor,
    basis: Basis,
    bias: Tensor | None = None,
    *,
    stride: int = 1,
    padding: str | int = "same",
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Scale convolution of a feature map (Eq. 3): [B, C, S, ...] -> [B, C', S, ...], scale-major.

    Output scale k sees input scales k, ..., k + T - 1 through kernels enlarged by scale k, zeros past the last scale.
    `weight` is [C', C / groups, T, F]; all other arguments are those of `scale_lift`.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> basis = DiscreteBasis(3, [1, 2, 4])
        >>> scale_conv(torch.randn(2, 3, 3, 32, 32), torch.randn(8, 3, 2, 9), basis).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    layout = lay_out("scale_conv", basis, stride, padding, groups, padding_mode)
    check_weight("scale_conv", weight, (None, basis.num_functions), groups)
    check_extent("scale_conv", weight.shape[2], len(basis.scales))
    return apply_kernels("scale_conv", x, kernels(weight, _functions(basis, weight)), bias, layout)


def kernels(weight: Tensor, functions: Sequence[Tensor]) -> list[Tensor]:
    """Multiply weights by stencils, a kernel per scale: [C', C / groups, side, ...], or with T in front.

    Scales that share a tensor of functions, such as the dilations of a discrete basis, share their kernel. Products are
    computed in the precision of the functions and rounded once to that of the weights.
    """
    if is_autocast(weight):
        with torch.autocast(weight.device.type, enabled=False):
            return kernels(weight, functions)
    exact = weight.to(torch.promote_types(weight.dtype, functions[0].dtype))
    if weight.ndim == 4:
        exact = torch.stack(exact.unbind(2))  # each t contiguous, and gradients with the strides of the weights
    products: list[Tensor] = []
    for k, stencil in enumerate(functions):
        same = [products[l] for l in range(k) if functions[l] is stencil]
        products.append(same[0] if same else torch.tensordot(exact, stencil.to(exact), dims=1).to(weight.dtype))
    return products


def _functions(basis: Basis, weight: Tensor) -> list[Tensor]:
    """Return the functions of every scale on the weights' device, one tensor for scales with equal functions."""
    placed = {k: at_least_single(basis.stencils[k].functions, weight) for k in set(basis.sources)}
    return [placed[source] for source in basis.sources]


def at_least_single(x: Tensor, like: Tensor) -> Tensor:
    """Move a tensor to the device and dtype of another, but not to half precision."""
    return x.to(like.device, torch.promote_types(like.dtype, torch.float32))


def apply_kernels(who: str, x: Tensor, kernels: Sequence[Tensor], bias: Tensor | None, layout: Layout) -> Tensor:
    """Check the input, then `lift` an image with kernels [C', ...] or `convolve` a feature map with [T, C', ...]."""
    dims = len(layout.stride)
    lifting = kernels[0].ndim == dims + 2
    channels = kernels[0].shape[-dims - 1] * layout.groups
    check_input(who, x, kernels[0], channels, dims, None if lifting else len(kernels))
    return (lift if lifting else convolve)(x, kernels, bias, layout)


def lift(x: Tensor, kernels: Sequence[Tensor], bias: Tensor | None, layout: Layout) -> Tensor:
    """Convolve images with a kernel [C', C / groups, ...] per scale: [B, C, ...] -> [B, C', S, ...]."""
    scales = len(kernels)
    if layout.pointwise:
        return unfold(convolve_one(x, kernels[0], bias, layout, 0).repeat(scales, *[1] * (x.ndim - 1)), scales)
    return unfold(torch.cat([convolve_one(x, kernel, bias, layout, k) for k, kernel in enumerate(kernels)]), scales)


def convolve(x: Tensor, kernels: Sequence[Tensor], bias: Tensor | None, layout: Layout) -> Tensor:
    """Convolve feature maps with a kernel [T, C', C / groups, ...] per scale: [B, C, S, ...] -> [B, C', S, ...]."""
    scales = len(kernels)
    if layout.pointwise and len(kernels[0]) == 1:
        return unfold(convolve_one(fold(x), kernels[0][0], bias, layout, 0), scales)
    maps, responses = scale_maps(x), []
    parts: list[Sequence[Tensor]] = []  # of the kernel along T, split once for scales that share it
    for k, kernel in enumerate(kernels):
        same = [parts[l] for l in range(k) if kernels[l] is kernel]
        parts.append(same[0] if same else kernel.unbind(0))
        own, *others = parts[k][: scales - k]
        response = convolve_one(maps[k], own, bias, layout, k)
        for t, other in enumerate(others, 1):
            response += convolve_one(maps[k + t], other, None, layout, k)
        responses.append(response)
    return unfold(torch.cat(responses), scales)


def scale_maps(x: Tensor) -> tuple[Tensor, ...]:
    """Split a feature map into its scales, [B, C, S, ...] -> S times [B, C, ...]."""
    # One backward for all scales; indexing would add up S full-size gradients.
    if torch.compiler.is_compiling():  # ONNX cannot split a batch of unknown size
        return x.movedim(2, 0).unbind(0)
    return fold(x).chunk(x.shape[2])  # keeps channels_last gradients
