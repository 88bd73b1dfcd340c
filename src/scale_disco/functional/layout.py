"""Stride, dilation and padding of the kernels at all scales, and checks of their inputs."""

from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from ..basis import Basis
from ..checks import check_choice, check_count

PADDING_MODES = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


class Options(TypedDict, total=False):
    """Options of `scale_lift` and `scale_conv`."""

    stride: int
    padding: str | int
    groups: int
    padding_mode: str


class Layout(NamedTuple):
    """Stride, dilation and padding of the kernels at all scales."""

    stride: tuple[int, ...]  # per axis
    groups: int
    padding_mode: str
    dilations: tuple[tuple[int, ...], ...]  # per scale and axis
    pads: tuple[tuple[tuple[int, int], ...], ...]  # per scale and axis, before and after; negative values crop
    pointwise: bool = False  # one tap, the same at all scales
    direct: bool = False  # only by F.conv*d: transforms round differently

    def largest_pads(self) -> list[tuple[int, int]]:
        """Return the padding before and after each axis for the largest stencil."""
        return [(max(b for b, _ in axis), max(a for _, a in axis)) for axis in zip(*self.pads, strict=True)]


def lay_out(
    who: str, basis: Basis, stride: int = 1, padding: str | int = "same", groups: int = 1, padding_mode: str = "zeros"
) -> Layout:
    """Check the arguments of a layer and return its layout."""
    stride, groups = check_count(who, "stride", stride, 1), check_count(who, "groups", groups, 1)
    check_choice(who, "padding_mode", padding_mode, PADDING_MODES)
    before, after = reach = largest_reach(basis)
    if padding != "same":
        pixels = 0 if padding == "valid" else padding
        if isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 0:
            raise ValueError(f'{who}: padding must be "same", "valid" or a number of pixels >= 0, got {padding!r}')
        before = after = pixels
    dims = basis.spatial_dims
    dilations = tuple((s.dilation,) * dims for s in basis.stencils)
    pads = tuple(((before - reach[0] + s.reach[0], after - reach[1] + s.reach[1]),) * dims for s in basis.stencils)
    return Layout((stride,) * dims, groups, padding_mode, dilations, pads, basis.pointwise)


def largest_reach(basis: Basis) -> tuple[int, int]:
    """Return how many pixels the largest stencils extend before and after their center."""
    return max(s.reach[0] for s in basis.stencils), max(s.reach[1] for s in basis.stencils)


def check_weight(who: str, weight: Tensor, rest: tuple[int | None, ...], groups: int) -> None:
    """Raise an error unless the weight is [C', C / groups, *rest]; None stands for any scale extent."""
    fits = weight.ndim == len(rest) + 2 and all(w in (None, n) for w, n in zip(rest, weight.shape[2:], strict=True))
    if not fits or len(weight) % groups:
        shape = ", ".join("T" if w is None else str(w) for w in rest)
        rule = f"[C', C / groups, {shape}], the last axis the basis functions, with C' divisible by {groups} groups"
        raise ValueError(f"{who}: expected weight {rule}, got shape {tuple(weight.shape)}")


def check_extent(who: str, extent: object, scales: int) -> None:
    """Raise an error unless the scale extent T is an integer from 1 to the number of scales."""
    if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= scales:
        raise ValueError(f"{who}: scale extent must be an integer from 1 to {scales} (the scales), got {extent!r}")


def check_input(who: str, x: Tensor, weight: Tensor, channels: int, dims: int, scales: int | None = None) -> None:
    """Raise an error unless the weights apply to the input: a feature map with `scales`, or an image (None)."""
    check_shape(who, x, dims, scales is not None, channels, scales, "the scales of its basis")
    if x.device != weight.device:
        raise ValueError(f"{who}: expected input on {weight.device} like its weights, got {x.device}")
    if x.dtype != weight.dtype and not (is_autocast(x) and x.is_floating_point()):
        hint = "convert one of them or use torch.autocast"
        raise TypeError(f"{who}: expected input of {weight.dtype} like its weights, got {x.dtype}; {hint}")


def check_shape(
    who: str,
    x: Tensor,
    dims: int,
    maps: bool = True,
    channels: int | None = None,
    scales: int | None = None,
    whose: str = "its scales",
) -> None:
    """Raise an error unless the input is an image or (`maps`) a feature map with these axes, channels and scales."""
    if x.ndim != dims + 2 + maps or channels not in (None, x.shape[1]) or scales not in (None, x.shape[2]):
        axes = ", ".join(["B", "C", *(["S"] if maps else []), *"DHW"[3 - dims :]])
        sizes = [f"S = {scales} ({whose})"] if scales else []
        sizes += [f"C = {channels}"] if channels else []
        condition = f" with {' and '.join(sizes)}" if sizes else ""
        raise ValueError(f"{who}: expected input [{axes}]{condition}, got shape {tuple(x.shape)}")
    check_window(who, x, dims, 1)


def check_window(who: str, x: Tensor, dims: int, side: int) -> None:
    """Raise an error if images are smaller than a window; traced sizes are unknown and pass."""
    if not torch.compiler.is_compiling() and min(x.shape[-dims:]) < side:
        raise ValueError(f"{who}: expected at least {side} pixels along each axis, got shape {tuple(x.shape)}")


def is_autocast(x: Tensor) -> bool:
    """Return whether autocast is enabled on the device of a tensor; the meta device has none."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)
