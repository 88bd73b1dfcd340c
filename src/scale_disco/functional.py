"""Scale convolutions as functions: stencils and weights in, feature map out.

Each scale is one plain (dilated) convolution with its own small kernel, `stencil x weights`, so the cost is linear in
the number of scales. `reference` holds the dense twins that the paper's authors ran: one large zero-filled kernel for
all scales. They are there to be read and to test the fast path against.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .basis import Basis, Stencil
from .basis.stencil import CONVOLUTION
from .fold import fold, unfold

PADDING_MODES = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


class _Geometry(NamedTuple):
    """How kernels are laid on an image, alike for all scales."""

    stride: int
    groups: int
    padding_mode: str
    reach: tuple[int, int]  # of the largest stencil
    padding: tuple[int, int]

    def pads(self, stencil: Stencil) -> tuple[int, int]:
        """Pixels to add before and after each axis for one scale; negative where the image is to be cut."""
        before, after = (p - (r - s) for p, r, s in zip(self.padding, self.reach, stencil.reach, strict=True))
        return before, after


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
    geometry = _geometry("scale_lift", basis, stride, padding, groups, padding_mode)
    _check_images(x, basis)
    _check_weight("scale_lift", weight, x.shape[1], (basis.num_functions,), groups)
    responses = [
        _convolve(x, torch.tensordot(weight, stencil.functions.to(weight), dims=1), bias, stencil, geometry)
        for stencil in basis.stencils
    ]
    return unfold(torch.cat(responses), len(basis.scales))


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
    geometry = _geometry("scale_conv", basis, stride, padding, groups, padding_mode)
    scales = len(basis.scales)
    _check_maps(x, basis)
    _check_weight("scale_conv", weight, x.shape[1], (None, basis.num_functions), groups)
    extent = weight.shape[2]
    if not 1 <= extent <= scales:
        raise ValueError(f"scale_conv: scale extent must be from 1 to {scales} (the scales), got {extent}")
    maps = fold(x).chunk(scales)  # one backward for all slices, where indexing would add up as many full-size gradients
    responses = []
    for k, stencil in enumerate(basis.stencils):
        kernel = torch.tensordot(weight, stencil.functions.to(weight), dims=1)  # [C', C / groups, T, k, ...]
        response = _convolve(maps[k], kernel[:, :, 0], bias, stencil, geometry)
        for t in range(1, min(extent, scales - k)):
            response = response + _convolve(maps[k + t], kernel[:, :, t], None, stencil, geometry)
        responses.append(response)
    return unfold(torch.cat(responses), scales)


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
        geometry = _geometry("scale_lift", basis, stride, padding, groups, padding_mode)
        kernel = torch.einsum("oif,fs...->osi...", weight, _dense(basis, geometry).to(weight)).flatten(0, 1)
        bias = None if bias is None else bias.repeat_interleave(len(basis.scales))
        y = _dense_convolve(x, kernel, bias, geometry, groups)
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
        geometry = _geometry("scale_conv", basis, stride, padding, groups, padding_mode)
        scales, extent, outputs = len(basis.scales), weight.shape[2], len(weight)
        padded = torch.cat([x, x.new_zeros(*x.shape[:2], extent - 1, *x.shape[3:])], 2)
        # [B, S, groups, C / groups, T, ...]: every scale with its neighbours, ordered as grouped channels.
        windows = torch.stack([padded[:, :, k : k + extent] for k in range(scales)], 1)
        windows = windows.reshape(len(x), -1, *x.shape[3:])
        kernel = torch.einsum("oitf,fs...->soit...", weight, _dense(basis, geometry).to(weight))
        kernel = kernel.reshape(scales * outputs, -1, *kernel.shape[4:])
        bias = None if bias is None else bias.repeat(scales)
        y = _dense_convolve(windows, kernel, bias, geometry, scales * groups)
        return y.reshape(len(x), scales, outputs, *y.shape[2:]).movedim(1, 2)


def _convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, stencil: Stencil, geometry: _Geometry) -> Tensor:
    before, after = geometry.pads(stencil)
    inside = 0
    if geometry.padding_mode == "zeros" and before == after >= 0:
        inside = before  # the convolution pads by itself, without a copy of the image
    else:
        x = _pad(x, before, after, stencil.spatial_dims, geometry.padding_mode)
    conv = CONVOLUTION[stencil.spatial_dims]
    return conv(x, kernel, bias, geometry.stride, inside, stencil.dilation, geometry.groups)


def _dense_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: _Geometry, groups: int) -> Tensor:
    dims = x.ndim - 2
    x = _pad(x, *geometry.padding, dims, geometry.padding_mode)
    return CONVOLUTION[dims](x, kernel, bias, geometry.stride, groups=groups)


def _dense(basis: Basis, geometry: _Geometry) -> Tensor:
    """The dense packing, cut to what the largest stencil reaches."""
    dense = basis.dense()
    centre = (dense.shape[-1] - 1) // 2
    for axis in range(2, dense.ndim):
        dense = dense.narrow(axis, centre - geometry.reach[0], sum(geometry.reach) + 1)
    return dense


def _pad(x: Tensor, before: int, after: int, dims: int, mode: str) -> Tensor:
    if before > 0 or after > 0:
        x = F.pad(x, (max(before, 0), max(after, 0)) * dims, mode=PADDING_MODES[mode])
    for axis in range(x.ndim - dims, x.ndim):
        start, end = max(-before, 0), max(-after, 0)
        if start or end:
            x = x.narrow(axis, start, x.shape[axis] - start - end)
    return x


def _geometry(who: str, basis: Basis, stride: int, padding: str | int, groups: int, padding_mode: str) -> _Geometry:
    for name, value in (("stride", stride), ("groups", groups)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{who}: {name} must be an integer >= 1, got {value!r}")
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"{who}: padding_mode must be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}")
    before, after = (max(stencil.reach[end] for stencil in basis.stencils) for end in (0, 1))
    if padding == "same":
        pads = (before, after)
    elif padding == "valid":
        pads = (0, 0)
    elif isinstance(padding, int) and not isinstance(padding, bool) and padding >= 0:
        pads = (padding, padding)
    else:
        raise ValueError(f'{who}: padding must be "same", "valid" or a number of pixels >= 0, got {padding!r}')
    return _Geometry(stride, groups, padding_mode, (before, after), pads)


def _check_images(x: Tensor, basis: Basis) -> None:
    if x.ndim != basis.spatial_dims + 2:
        raise ValueError(
            f"scale_lift: expected images [B, C, ...] with {basis.spatial_dims} spatial axes (those of the basis), "
            f"got shape {tuple(x.shape)}"
        )


def _check_maps(x: Tensor, basis: Basis) -> None:
    if x.ndim != basis.spatial_dims + 3 or x.shape[2] != len(basis.scales):
        raise ValueError(
            f"scale_conv: expected input [B, C, S, ...] with S = {len(basis.scales)} (the scales of the basis) and "
            f"{basis.spatial_dims} spatial axes, got shape {tuple(x.shape)}"
        )


def _check_weight(who: str, weight: Tensor, channels: int, rest: tuple[int | None, ...], groups: int) -> None:
    wanted = (channels // groups, *rest)
    fits = weight.ndim == len(wanted) + 1 and all(w in (None, n) for w, n in zip(wanted, weight.shape[1:], strict=True))
    if not fits or channels % groups or len(weight) % groups:
        shape = ", ".join("T" if w is None else str(w) for w in wanted)
        raise ValueError(
            f"{who}: expected weight [C', {shape}] for {channels} channels in {groups} groups and the functions of the "
            f"basis, got shape {tuple(weight.shape)}"
        )
