"""Scale convolutions as functions: stencils and weights in, feature map out.

Each scale is one plain (dilated) convolution with its own small kernel, `stencil x weights`, so the cost is linear in
the number of scales; large kernels run in `spectral`, those of many channels in `winograd`. `reference` holds the dense
twins that the paper's authors ran: one large zero-filled kernel for all scales. They are there to be read and to test
the fast path against.

Which way a convolution runs depends on how many images there are, so numbers of an image may differ in their last
digits with those beside it: by rounding relative to the largest value of the image. A pixel that is no finite number
never reaches another image. Directly it reaches what its kernels reach; by tiles all of the tiles that see it, at most
three taps farther; by the Fourier transform all of its image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..basis import Basis
from ..basis.stencil import CONVOLUTION
from ..checks import check_count
from ..fold import fold, unfold
from . import _fft as spectral
from . import _winograd as winograd

PADDING_MODES = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}
_transforms = ContextVar("transforms", default=True)  # whether convolutions may run by them, in every thread by itself


class Layout(NamedTuple):
    """How the kernels of all scales are laid on an image."""

    stride: tuple[int, ...]  # per axis
    groups: int
    padding_mode: str
    dilations: tuple[tuple[int, ...], ...]  # per scale and axis
    pads: tuple[tuple[tuple[int, int], ...], ...]  # per scale and axis, before and after; negative to cut the image
    pointwise: bool = False  # one tap, the same at all scales

    @classmethod
    def even(
        cls,
        dims: int,
        stride: int,
        groups: int,
        padding_mode: str,
        dilations: Sequence[int],
        pads: Sequence[tuple[int, int]],
        pointwise: bool = False,
    ) -> Layout:
        """The same along all axes: a dilation and pads per scale."""
        per_axis = tuple((dilation,) * dims for dilation in dilations), tuple((pair,) * dims for pair in pads)
        return cls((stride,) * dims, groups, padding_mode, *per_axis, pointwise)


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
        stride: Step between output pixels.
        padding: "same" keeps the size at every scale (divided by the stride, rounded up); "valid" keeps what the
            largest stencil covers; a number of pixels pads the image as for the largest stencil.
        groups: Groups of channels that do not see each other.
        padding_mode: What lies outside the image: zeros, circular, reflect or replicate.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> basis = DiscreteBasis(3, [1, 2, 4])
        >>> scale_lift(torch.randn(2, 3, 32, 32), torch.randn(8, 3, 9), basis).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    layout = lay_out("scale_lift", basis, stride, padding, groups, padding_mode)
    _check_weight("scale_lift", weight, (basis.num_functions,), groups)
    check_input("scale_lift", x, weight, weight.shape[1] * groups, basis.spatial_dims)
    return lift(x, kernels(weight, stencil_functions(basis, weight)), bias, layout)


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

    Args:
        x: Feature map over the scales of the basis.
        weight: Coefficients of the basis functions, [C', C / groups, T, F].
        basis: Stencils and scales.
        bias: As in `scale_lift`, like all other arguments.
        stride: Step between output pixels.
        padding: "same", "valid" or pixels.
        groups: Groups of channels that do not see each other.
        padding_mode: What lies outside the image.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> basis = DiscreteBasis(3, [1, 2, 4])
        >>> scale_conv(torch.randn(2, 3, 3, 32, 32), torch.randn(8, 3, 2, 9), basis).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    layout = lay_out("scale_conv", basis, stride, padding, groups, padding_mode)
    _check_weight("scale_conv", weight, (None, basis.num_functions), groups)
    check_extent("scale_conv", weight.shape[2], len(basis.scales))
    check_input("scale_conv", x, weight, weight.shape[1] * groups, basis.spatial_dims, len(basis.scales))
    return convolve(x, kernels(weight, stencil_functions(basis, weight)), bias, layout)


def kernels(weight: Tensor, functions: Sequence[Tensor]) -> list[Tensor]:
    """Weights times stencils, a kernel per scale: [C', C / groups, side, ...], or with T in front.

    Scales with the very same functions, such as the dilations of a discrete basis, share their kernel. Half precision
    is for convolutions: kernels are multiplied out in the precision of the functions and rounded once.
    """
    if _autocast(weight):
        with torch.autocast(weight.device.type, enabled=False):
            return kernels(weight, functions)
    exact = weight.to(torch.promote_types(weight.dtype, functions[0].dtype))
    if weight.ndim == 4:
        exact = torch.stack(exact.unbind(2))  # each t in one piece, and gradients laid out as the weights are
    made: list[Tensor] = []
    for k, stencil in enumerate(functions):
        same = next((l for l in range(k) if functions[l] is stencil), None)
        made.append(torch.tensordot(exact, stencil.to(exact), dims=1).to(weight.dtype) if same is None else made[same])
    return made


def stencil_functions(basis: Basis, weight: Tensor) -> list[Tensor]:
    """The functions of every scale where the weights are; scales with equal numbers get the same tensor."""
    placed: list[Tensor] = []
    for k, source in enumerate(basis.sources):
        placed.append(placed[source] if source < k else at_least_single(basis.stencils[k].functions, weight))
    return placed


def at_least_single(x: Tensor, like: Tensor) -> Tensor:
    """A tensor on the device and in the type of another, but not in half precision."""
    return x.to(like.device, torch.promote_types(like.dtype, torch.float32))


def lift(x: Tensor, kernels: Sequence[Tensor], bias: Tensor | None, layout: Layout) -> Tensor:
    """Images and a ready kernel per scale: [B, C, ...] -> [B, C', S, ...]."""
    scales = len(kernels)
    if layout.pointwise:
        response = convolve_one(x, kernels[0], bias, layout, 0)
        return unfold(response.repeat(scales, *[1] * (x.ndim - 1)), scales)
    return unfold(torch.cat([convolve_one(x, kernel, bias, layout, k) for k, kernel in enumerate(kernels)]), scales)


def convolve(x: Tensor, kernels: Sequence[Tensor], bias: Tensor | None, layout: Layout) -> Tensor:
    """Feature maps and a ready kernel [T, C', C / groups, ...] per scale: [B, C, S, ...] -> [B, C', S, ...]."""
    scales = len(kernels)
    if layout.pointwise and len(kernels[0]) == 1:
        return unfold(convolve_one(fold(x), kernels[0][0], bias, layout, 0), scales)
    maps = scale_maps(x)
    responses = []
    for k, kernel in enumerate(kernels):
        own, *others = kernel[: scales - k].unbind(0)
        response = convolve_one(maps[k], own, bias, layout, k)
        for t, other in enumerate(others, 1):
            response += convolve_one(maps[k + t], other, None, layout, k)
        responses.append(response)
    return unfold(torch.cat(responses), scales)


def scale_maps(x: Tensor) -> tuple[Tensor, ...]:
    """The maps of each scale, [B, C, S, ...] -> S times [B, C, ...]."""
    # One backward for all, where indexing would add up as many full-size gradients.
    if torch.compiler.is_compiling():  # ONNX cannot split a batch of any size
        return x.movedim(2, 0).unbind(0)
    return fold(x).chunk(x.shape[2])  # gradients of maps with channels last stay so


class reference:  # noqa: N801 - a namespace, read as functional.reference.scale_lift
    """Dense twins: the paper's packing and one (grouped) convolution for all scales. Slow, and easy to check."""

    @staticmethod
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
        """As `functional.scale_lift`: all scales are output channels of one convolution."""
        lay_out("scale_lift", basis, stride, padding, groups, padding_mode)  # for its checks
        kernel = torch.einsum("oif,fs...->osi...", weight, _dense(basis).to(weight)).flatten(0, 1)
        bias = None if bias is None else bias.repeat_interleave(len(basis.scales))
        x = _pad(x, [_pads("scale_lift", basis, padding)] * basis.spatial_dims, padding_mode)
        y = CONVOLUTION[basis.spatial_dims](x, kernel, bias, stride, groups=groups)
        return y.reshape(len(x), -1, len(basis.scales), *y.shape[2:])

    @staticmethod
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
        """As `functional.scale_conv`: scales are groups of channels, each with its T neighbours."""
        lay_out("scale_conv", basis, stride, padding, groups, padding_mode)
        scales, extent, outputs = len(basis.scales), weight.shape[2], len(weight)
        padded = torch.cat([x, x.new_zeros(*x.shape[:2], extent - 1, *x.shape[3:])], 2)
        # [B, S, groups, C / groups, T, ...]: every scale with its neighbours, ordered as grouped channels.
        windows = torch.stack([padded[:, :, k : k + extent] for k in range(scales)], 1)
        windows = windows.reshape(len(x), -1, *x.shape[3:])
        kernel = torch.einsum("oitf,fs...->soit...", weight, _dense(basis).to(weight))
        kernel = kernel.reshape(scales * outputs, -1, *kernel.shape[4:])
        bias = None if bias is None else bias.repeat(scales)
        windows = _pad(windows, [_pads("scale_conv", basis, padding)] * basis.spatial_dims, padding_mode)
        y = CONVOLUTION[basis.spatial_dims](windows, kernel, bias, stride, groups=scales * groups)
        return y.reshape(len(x), scales, outputs, *y.shape[2:]).movedim(1, 2)


def lay_out(who: str, basis: Basis, stride: int, padding: str | int, groups: int, padding_mode: str) -> Layout:
    """The layout of a basis, or a one-line error for what cannot be."""
    stride, groups = check_count(who, "stride", stride, 1), check_count(who, "groups", groups, 1)
    if not isinstance(padding_mode, str) or padding_mode not in PADDING_MODES:
        raise ValueError(f"{who}: padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    before, after = _pads(who, basis, padding)
    reach = _reach(basis)
    return Layout.even(
        basis.spatial_dims,
        stride,
        groups,
        padding_mode,
        [stencil.dilation for stencil in basis.stencils],
        [(before - reach[0] + s.reach[0], after - reach[1] + s.reach[1]) for s in basis.stencils],
        basis.pointwise,
    )


def check_input(who: str, x: Tensor, weight: Tensor, channels: int, dims: int, scales: int | None = None) -> None:
    """Refuse an input that the weights cannot be applied to, in one line; feature maps have `scales`, images None."""
    check_shape(who, x, dims, scales is not None, channels, scales, "the scales of its basis")
    if x.device != weight.device:
        raise ValueError(f"{who}: expected input on {weight.device} like its weights, got {x.device}")
    if x.dtype != weight.dtype and not (_autocast(x) and x.is_floating_point()):
        raise TypeError(
            f"{who}: expected input of {weight.dtype} like its weights, got {x.dtype}; "
            f"convert one of them or use torch.autocast"
        )


def check_shape(
    who: str,
    x: Tensor,
    dims: int,
    maps: bool = True,
    channels: int | None = None,
    scales: int | None = None,
    whose: str = "its scales",
) -> None:
    """Refuse what is no image or (`maps`) feature map of so many spatial axes, channels and scales, in one line."""
    if x.ndim != dims + 2 + maps or channels not in (None, x.shape[1]) or scales not in (None, x.shape[2]):
        axes = ", ".join(["B", "C", *(["S"] if maps else []), *"DHW"[3 - dims :]])
        sizes = [f"S = {scales} ({whose})"] if scales else []
        sizes += [f"C = {channels}"] if channels else []
        said = f" with {' and '.join(sizes)}" if sizes else ""
        raise ValueError(f"{who}: expected input [{axes}]{said}, got shape {tuple(x.shape)}")
    check_window(who, x, dims, 1)


def check_window(who: str, x: Tensor, dims: int, side: int) -> None:
    """Refuse images that a window does not fit into, be it of one pixel; sizes that are traced are not known yet."""
    if not torch.compiler.is_compiling() and min(x.shape[-dims:]) < side:
        raise ValueError(
            f"{who}: expected images of at least {side} pixels along each axis, got shape {tuple(x.shape)}"
        )


def _autocast(x: Tensor) -> bool:
    """Whether autocast is on where a tensor is; the meta device has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def check_extent(who: str, extent: object, scales: int) -> None:
    """Refuse a scale extent T that is no integer from 1 to the number of scales."""
    if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= scales:
        raise ValueError(f"{who}: scale extent must be an integer from 1 to {scales} (the scales), got {extent!r}")


def convolve_one(x: Tensor, kernel: Tensor, bias: Tensor | None, layout: Layout, k: int) -> Tensor:
    """One scale: images and the kernel of scale k, [B, C, ...] -> [B, C', ...]."""
    pads = layout.pads[k]
    if not torch.compiler.is_compiling():
        _check_size(x, kernel, layout, k)
        response = _transformed(x, kernel, layout, k)
        if response is not None:
            return response if bias is None else response + bias[:, None, None]
    inside = [before for before, _ in pads]
    if layout.padding_mode != "zeros" or any(before != after or before < 0 for before, after in pads):
        x, inside = _pad(x, pads, layout.padding_mode), [0] * len(pads)
    # else the convolution pads by itself, without a copy of the image
    conv = CONVOLUTION[kernel.ndim - 2]
    return conv(x, kernel, bias, layout.stride, inside, layout.dilations[k], layout.groups)


def _transformed(x: Tensor, kernel: Tensor, layout: Layout, k: int) -> Tensor | None:
    """By the Fourier transform or by tiles where that pays: centred, over zeros, for all pixels and channels."""
    ones, step = (1,) * (kernel.ndim - 2), layout.dilations[k][0]
    centred = tuple((step * (side // 2),) * 2 for side in kernel.shape[2:])
    plain = (layout.stride, layout.groups, layout.padding_mode) == (ones, 1, "zeros")
    if not _transforms.get() or not plain or layout.pads[k] != centred or set(layout.dilations[k]) != {step}:
        return None
    if step == 1 and spectral.pays(x, kernel):
        return spectral.correlate(x, kernel)
    if winograd.pays(x, kernel, step):
        return winograd.correlate(x, kernel, step)
    return None


@contextmanager
def direct() -> Iterator[None]:
    """Inside it all convolutions run directly, none by the Fourier transform or tiles."""
    before = _transforms.set(False)
    try:
        yield
    finally:
        _transforms.reset(before)


def _check_size(x: Tensor, kernel: Tensor, layout: Layout, k: int) -> None:
    mode = layout.padding_mode
    taps = kernel.shape[2:]
    for side, tap, step, pads in zip(x.shape[-len(taps) :], taps, layout.dilations[k], layout.pads[k], strict=True):
        if side + sum(pads) < step * (tap - 1) + 1:
            raise ValueError(
                f"scale convolution: an image of {side} pixels is smaller than its largest stencil; "
                f'use padding="same" or larger images'
            )
        most = {"circular": side, "reflect": side - 1}.get(mode)
        if most is not None and max(pads) > most:
            raise ValueError(
                f"scale convolution: padding_mode {mode!r} can continue {side} pixels by {most}, and the largest "
                f'stencil needs {max(pads)}; use "zeros", "replicate" or larger images'
            )


@lru_cache(maxsize=8)  # so that the twins need not pack anew with every call
def _dense(basis: Basis) -> Tensor:
    """The dense packing, cut to what the largest stencil reaches."""
    dense, reach = basis.dense(), _reach(basis)
    centre = (dense.shape[-1] - 1) // 2
    for axis in range(2, dense.ndim):
        dense = dense.narrow(axis, centre - reach[0], sum(reach) + 1)
    return dense


def _pad(x: Tensor, pads: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Images continued, or cut where a number is negative, before and after each axis."""
    added = [max(pixels, 0) for pair in reversed(pads) for pixels in pair]
    if any(added):
        x = F.pad(x, added, mode=PADDING_MODES[mode])
    for axis, (before, after) in enumerate(pads, x.ndim - len(pads)):
        start, end = max(-before, 0), max(-after, 0)
        if start or end:
            x = x.narrow(axis, start, x.shape[axis] - start - end)
    return x


def _reach(basis: Basis) -> tuple[int, int]:
    """How far the largest stencils reach before and after their centre."""
    return max(s.reach[0] for s in basis.stencils), max(s.reach[1] for s in basis.stencils)


def _pads(who: str, basis: Basis, padding: str | int) -> tuple[int, int]:
    """Pixels to add before and after each axis for the largest stencil."""
    if padding == "same":
        return _reach(basis)
    if padding == "valid":
        return 0, 0
    if isinstance(padding, int) and not isinstance(padding, bool) and padding >= 0:
        return padding, padding
    raise ValueError(f'{who}: padding must be "same", "valid" or a number of pixels >= 0, got {padding!r}')


def _check_weight(who: str, weight: Tensor, rest: tuple[int | None, ...], groups: int) -> None:
    fits = weight.ndim == len(rest) + 2 and all(w in (None, n) for w, n in zip(rest, weight.shape[2:], strict=True))
    if not fits or len(weight) % groups:
        shape = ", ".join("T" if w is None else str(w) for w in rest)
        raise ValueError(
            f"{who}: expected weight [C', C / groups, {shape}] with C' divisible by {groups} groups and the functions "
            f"of the basis, got shape {tuple(weight.shape)}"
        )
