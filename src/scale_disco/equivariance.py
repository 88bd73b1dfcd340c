"""Equivariance error of layers and whole networks: Eq. 14 of the paper.

The paper leaves the protocol open; docs/equivariance.md explains and justifies ours. In short: every ratio between two
of the scales counts once; shrinking by `scales[k] / scales[l]` moves the response at scale k to scale l, and pairs
within the set are compared; a border is left out; norms are summed before they are divided.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from typing import Literal, overload

import torch
from torch import Tensor

from .basis import Basis
from .functional.conv import scale_lift
from .resampling import resample
from .scales import Scales, as_scales

Mapping = Callable[[Tensor], Tensor]
Norms = dict[float, tuple[float, float]]  # ratio -> squared norms of the difference and of the rescaled response


# fmt: off
@overload
def equivariance_error(
    mapping: Mapping, images: Tensor, scales: Iterable[float], *, mode: str = ..., antialias: bool = ...,
    border: float = ..., per_step: Literal[False] = ..., spatial_dims: int | None = ...,
) -> float: ...
@overload
def equivariance_error(
    mapping: Mapping, images: Tensor, scales: Iterable[float], *, mode: str = ..., antialias: bool = ...,
    border: float = ..., per_step: Literal[True], spatial_dims: int | None = ...,
) -> dict[float, float]: ...
# fmt: on
def equivariance_error(
    mapping: Mapping,
    images: Tensor,
    scales: Iterable[float],
    *,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    per_step: bool = False,
    spatial_dims: int | None = None,
) -> float | dict[float, float]:
    """Return the relative equivariance error of a callable (Eq. 14): 0 if it commutes with rescaling.

    The shape of the output decides what is compared: with a scale axis, the output shifted along it; without one,
    the maps as they are; a vector [B, C] must not change.

    Args:
        mapping: A lifting layer [B, C, H, W] -> [B, C', S, H, W], a scale-to-scale layer on [B, C, S, H, W], a
            projected network [B, C, H, W] -> [B, C', H', W'], or a classifier -> [B, C']. It must keep the pixel
            grid (padding="same"); strides are fine. Modules are called in evaluation mode and then restored.
        images: Input of the mapping.
        scales: Scales of the mapping; only their ratios matter.
        mode: Interpolation of the rescaling, see `resample`.
        antialias: Whether the rescaling filters before it shrinks.
        border: Left out at each end of the compared maps: pixels if an int, fraction of the side if a float.
        per_step: Return the error of every ratio of scales, {ratio: error}, instead of their sum.
        spatial_dims: Number of spatial axes of the input; needed only for a feature map [B, C, S, W] or a volume that
            is not lifted, since 4 axes are read as images and 5 as feature maps of images.

    Example:
        >>> def blur(images):  # commutes with subsampling only if its window scales with the image
        ...     return torch.nn.functional.avg_pool2d(images, 3, stride=1, padding=1)
        >>> equivariance_error(blur, torch.rand(1, 1, 32, 32), [1, 2]) > 0.01
        True
        >>> equivariance_error(lambda images: 2 * images, torch.rand(1, 1, 32, 32), [1, 2])
        0.0
    """
    with eval_mode(mapping):
        errors = _relative(_norms(mapping, images, as_scales(scales), mode, antialias, border, spatial_dims))
    return errors if per_step else sum(errors.values())


def assert_equivariant(
    mapping: Mapping,
    images: Tensor,
    scales: Iterable[float],
    *,
    tolerance: float = 0.02,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    spatial_dims: int | None = None,
) -> None:
    """Raise AssertionError if `equivariance_error` exceeds the tolerance, with the error of every ratio.

    The default suits a discrete basis of few scales on photos; the error is a sum over ratios, so allow more
    for many scales. Between scales of integer ratio a layer is exact: use 1e-10 in float32 and 1e-20 in float64
    (errors are squared norms).

    Example:
        >>> assert_equivariant(torch.nn.Identity(), torch.rand(1, 1, 32, 32), [1, 2 ** 0.5, 2])
    """
    with eval_mode(mapping):
        errors = _relative(_norms(mapping, images, as_scales(scales), mode, antialias, border, spatial_dims))
    total = sum(errors.values())
    if not total <= tolerance:
        steps = ", ".join(f"ratio {ratio:.4g}: {error:.3g}" for ratio, error in errors.items())
        raise AssertionError(f"equivariance error {total:.3g} exceeds the tolerance {tolerance:g} ({steps})")


def basis_error(
    basis: Basis,
    images: Tensor,
    *,
    scales: Iterable[float] | None = None,
    channels: int = 32,
    seed: int = 0,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    batch: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Return Eq. 14 for a lifting convolution with random weights over this basis, on images [B, C, ...].

    Args:
        basis: Any basis.
        images: Images with as many spatial axes as the basis.
        scales: Exact scales, if those of the basis are rounded. Defaults to the scales of the basis.
        channels: Number of random kernels; weights are independent standard normal.
        seed: Seed of the weights.
        mode, antialias, border: As in `equivariance_error`.
        batch: Number of images per batch.
        progress: Called as `progress(images done, images)`.
    """
    if channels < 1 or len(images) == 0:
        raise ValueError(f"basis_error: expected images and at least one kernel, got {len(images)} and {channels}")
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(channels, images.shape[1], basis.num_functions, dtype=torch.float64, generator=generator)
    weight = weight.to(images)
    exact = basis.scales if scales is None else as_scales(scales)
    lift = partial(scale_lift, weight=weight, basis=basis)
    parts: list[Norms] = []
    for start in range(0, len(images), batch):
        some = images[start : start + batch]
        parts.append(_norms(lift, some, exact, mode, antialias, border, basis.spatial_dims))
        if progress is not None:
            progress(start + len(some), len(images))
    totals = {ratio: (sum(p[ratio][0] for p in parts), sum(p[ratio][1] for p in parts)) for ratio in parts[0]}
    return sum(_relative(totals).values())


def _relative(norms: Norms) -> dict[float, float]:
    for ratio, (difference, norm) in norms.items():
        if not (math.isfinite(difference) and math.isfinite(norm)):
            raise ValueError(f"equivariance_error: the response to images shrunk by {ratio:.4g} is not finite")
        if norm == 0:
            raise ValueError(f"equivariance_error: the response vanishes at ratio {ratio:.4g}, its error is undefined")
    return {ratio: difference / norm for ratio, (difference, norm) in norms.items()}


@contextmanager
def eval_mode(*mappings: Mapping) -> Iterator[None]:
    """Call networks in evaluation mode and without gradients, then restore their modes."""
    networks = [mapping for mapping in mappings if isinstance(mapping, torch.nn.Module)]
    training = [module for network in networks for module in network.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def _norms(
    mapping: Mapping, images: Tensor, scales: Scales, mode: str, antialias: bool, border: float, dims: int | None
) -> Norms:
    if len(scales) < 2:
        raise ValueError(f"equivariance_error: expected at least two scales, got {scales}")
    pixels = isinstance(border, Integral)
    if isinstance(border, bool) or not isinstance(border, Real) or not border >= 0 or not (pixels or border < 0.5):
        rule = "border must be pixels >= 0 or a fraction of a side < 0.5"
        raise ValueError(f"equivariance_error: {rule}, got {border!r}")
    if len(images) == 0:
        raise ValueError(f"equivariance_error: expected at least one image, got shape {tuple(images.shape)}")
    response = mapping(images)
    if not isinstance(response, Tensor):
        raise TypeError(f"equivariance_error: the mapping must return one tensor, got {type(response).__name__}")
    if dims is None:
        dims = images.ndim - 2 if response.ndim == images.ndim + 1 else {3: 1, 4: 2, 5: 2, 6: 3}.get(images.ndim)
    if dims not in (1, 2, 3) or images.ndim not in (dims + 2, dims + 3):
        rule = "expected images [B, C, ...] or feature maps [B, C, S, ...] with 1 to 3 spatial axes"
        raise ValueError(f"equivariance_error: {rule}, got shape {tuple(images.shape)}")
    if response.ndim not in (2, dims + 2, dims + 3):
        rule = f"expected output [B, C, S, ...], [B, C, ...] or [B, C] with {dims} spatial axes"
        raise ValueError(f"equivariance_error: {rule}, got shape {tuple(response.shape)}")
    for name, x in (("input", images), ("output", response)):
        if x.ndim == dims + 3 and x.shape[2] != len(scales):
            rule = f"expected {name} [B, C, S, ...] with S = {len(scales)} (the scales)"
            raise ValueError(f"equivariance_error: {rule}, got shape {tuple(x.shape)}")

    def shrink(x: Tensor, ratio: float) -> Tensor:
        small = resample(x.reshape(-1, 1, *x.shape[x.ndim - dims :]), 1 / ratio, mode=mode, antialias=antialias)
        return small.reshape(*x.shape[: x.ndim - dims], *small.shape[2:])

    norms: Norms = {}
    for ratio, pairs in scales.steps():
        small = shrink(images, ratio)
        if images.ndim == dims + 3:
            shifted = torch.zeros_like(small)
            for k, l in pairs:
                shifted[:, :, l] = small[:, :, k]
            small = shifted
        observed = mapping(small)
        expected = shrink(response, ratio) if response.ndim > 2 else response
        matches = [(expected, observed)]
        if response.ndim == dims + 3:
            matches = [(expected[:, :, k], observed[:, :, l]) for k, l in pairs]
        difference = norm = 0.0
        for left, right in matches:
            left, right = _inner(left, right, dims, border) if response.ndim > 2 else (left, right)
            difference += float((left - right).double().square().sum())
            norm += float(left.double().square().sum())
        norms[ratio] = (difference, norm)
    return norms


def _inner(left: Tensor, right: Tensor, dims: int, border: float) -> tuple[Tensor, Tensor]:
    """Return the common part of two maps, their first pixels aligned, without the border."""
    for axis in range(left.ndim - dims, left.ndim):
        sides = left.shape[axis], right.shape[axis]
        if abs(sides[0] - sides[1]) > 1:
            why = f"rescaling the output gives {sides[0]} pixels, rescaling the input {sides[1]}"
            raise ValueError(f'equivariance_error: {why}; the mapping must keep the pixel grid (padding="same")')
        side = min(sides)
        margin = int(border) if isinstance(border, Integral) else math.floor(side * border)
        if side <= 2 * margin:
            raise ValueError(f"equivariance_error: a border of {margin} leaves nothing of {side} pixels")
        left, right = (x.narrow(axis, margin, side - 2 * margin) for x in (left, right))
    return left, right
