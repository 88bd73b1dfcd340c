"""Equivariance error of layers and whole networks: Eq. 14 of the paper.

The paper leaves the protocol open; docs/equivariance.md explains and justifies ours. In short: every ratio between two
of the scales counts once; shrinking by `scales[k] / scales[l]` moves the response at scale k to scale l, and pairs
within the set are compared; a border is left out; norms are summed before they are divided.

Eq. 14 divides by the response. On photos most of it is smooth, and commutes with rescaling whatever the layer, so the
size of the error says little. The relative error divides by that of an ordinary layer: 0 is exact, and 1 knows nothing
of scale.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .basis import Basis
from .functional.conv import scale_lift
from .resampling import resample
from .scales import Scales, as_scales

Mapping = Callable[[Tensor], Tensor]

# The default of `assert_equivariant`: correct layers are below it, ordinary convolutions above (docs/equivariance.md).
RELATIVE_TOLERANCE = 0.2
_KERNELS = 64  # of the ordinary layer


class Norms(NamedTuple):
    """Squared norms at one ratio of scales."""

    difference: float  # of the rescaled response and the response to rescaled images
    response: float  # the rescaled response
    reference: float  # what `difference` would be for an ordinary layer with as large a response


# fmt: off
@overload
def equivariance_error(
    mapping: Mapping, images: Tensor, scales: Iterable[float], *, mode: str = ..., antialias: bool = ...,
    border: float = ..., per_step: Literal[False] = ..., relative: bool = ..., spatial_dims: int | None = ...,
) -> float: ...
@overload
def equivariance_error(
    mapping: Mapping, images: Tensor, scales: Iterable[float], *, mode: str = ..., antialias: bool = ...,
    border: float = ..., per_step: Literal[True], relative: bool = ..., spatial_dims: int | None = ...,
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
    relative: bool = False,
    spatial_dims: int | None = None,
) -> float | dict[float, float]:
    """Return the equivariance error of a callable (Eq. 14): 0 if it commutes with rescaling.

    The shape of the output decides what is compared: with a scale axis, the output shifted along it; without one,
    the maps as they are. Vectors and constant outputs are refused: any mapping can return one.

    `relative=True` divides the error at every ratio by that of an ordinary layer, and takes the mean over ratios: 1 for
    a layer that knows nothing of scale. With a scale axis, the ordinary layer is the same response compared without the
    shift along it. Without one, it is a convolution with random 3x3 kernels, and both errors are those of the
    differences between neighboring pixels.

    Args:
        mapping: A lifting layer [B, C, H, W] -> [B, C', S, H, W], a scale-to-scale layer on [B, C, S, H, W], or a
            projected network [B, C, H, W] -> [B, C', H', W']. It must keep the pixel grid (padding="same"); strides
            are fine. Modules are called in evaluation mode and then restored.
        images: Input of the mapping.
        scales: Scales of the mapping; only their ratios matter.
        mode: Interpolation of the rescaling, see `resample`.
        antialias: Whether the rescaling filters before it shrinks.
        border: Left out at each end of the compared maps: pixels if an int, fraction of the side if a float.
        per_step: Return the error of every ratio of scales, {ratio: error}, instead of one for all.
        relative: Divide Eq. 14 by that of an ordinary layer.
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
        operator: dict[str, Any] = {"mode": mode, "antialias": antialias}
        norms = _norms(mapping, images, as_scales(scales), border, spatial_dims, relative, **operator)
    errors = _errors(norms, images, relative)
    return errors if per_step else _total(errors, relative)


def assert_equivariant(
    mapping: Mapping,
    images: Tensor,
    scales: Iterable[float],
    *,
    tolerance: float | None = None,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    spatial_dims: int | None = None,
) -> None:
    """Raise AssertionError if a callable is not equivariant, with the error of every ratio.

    By default the relative error may be at most 0.2, a fifth of that of an ordinary layer: correct layers and networks
    pass on photos, ordinary convolutions do not. `tolerance` bounds Eq. 14 itself instead. Use it for exact layers,
    those between scales of integer ratio: 1e-10 in float32 and 1e-20 in float64 (errors are squared norms).

    Example:
        >>> assert_equivariant(torch.nn.Identity(), torch.rand(1, 1, 32, 32), [1, 2 ** 0.5, 2])
    """
    relative = tolerance is None
    operator: dict[str, Any] = {"mode": mode, "antialias": antialias, "border": border, "spatial_dims": spatial_dims}
    errors = equivariance_error(mapping, images, scales, per_step=True, relative=relative, **operator)
    total, limit = _total(errors, relative), RELATIVE_TOLERANCE if tolerance is None else tolerance
    if not total <= limit:
        name = "relative equivariance error" if relative else "equivariance error"
        steps = ", ".join(f"ratio {ratio:.4g}: {error:.3g}" for ratio, error in errors.items())
        raise AssertionError(f"{name} {total:.3g} exceeds the tolerance {limit:g} ({steps})")


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
    relative: bool = False,
    batch: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Return Eq. 14 for a lifting convolution with random weights over this basis, measured on images [B, C, ...].

    `basis.error` predicts it for images of the basis's prior instead, in expectation over weights. Photos are smoother
    than those, and their errors about a tenth.

    Args:
        basis: Any basis.
        images: Images with as many spatial axes as the basis.
        scales: Exact scales, if those of the basis are rounded. Defaults to the scales of the basis.
        channels: Number of random kernels; weights are independent standard normal.
        seed: Seed of the weights.
        mode, antialias, border, relative: As in `equivariance_error`.
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
    parts: list[dict[float, Norms]] = []
    for start in range(0, len(images), batch):
        some = images[start : start + batch]
        parts.append(_norms(lift, some, exact, border, basis.spatial_dims, False, mode=mode, antialias=antialias))
        if progress is not None:
            progress(start + len(some), len(images))
    norms = {ratio: Norms(*map(sum, zip(*(part[ratio] for part in parts), strict=True))) for ratio in parts[0]}
    return _total(_errors(norms, images, relative), relative)


def _errors(norms: dict[float, Norms], images: Tensor, relative: bool) -> dict[float, float]:
    """Return Eq. 14 of every ratio, or that divided by the error of an ordinary layer."""
    for ratio, (difference, response, reference) in norms.items():
        if not (math.isfinite(difference) and math.isfinite(response)):
            raise ValueError(f"equivariance_error: the response to images shrunk by {ratio:.4g} is not finite")
        if response == 0:
            raise ValueError(f"equivariance_error: the response vanishes at ratio {ratio:.4g}, its error is undefined")
        if relative and not reference > _rounding(images) * response:
            why = "an ordinary layer has no error either; use images with detail, or pass tolerance= or relative=False"
            raise ValueError(f"equivariance_error: the relative error at ratio {ratio:.4g} is undefined: {why}")
    return {ratio: each.difference / (each.reference if relative else each.response) for ratio, each in norms.items()}


def _total(errors: dict[float, float], relative: bool) -> float:
    """Return the sum over ratios, as in Eq. 14; the mean of relative errors."""
    return sum(errors.values()) / (len(errors) if relative else 1)


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
    mapping: Mapping, images: Tensor, scales: Scales, border: float, dims: int | None, relative: bool, **operator: Any
) -> dict[float, Norms]:
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
    _check_response(response, images, scales, dims)

    def shrink(x: Tensor, ratio: float) -> Tensor:
        small = resample(x.reshape(-1, 1, *x.shape[x.ndim - dims :]), 1 / ratio, **operator)
        return small.reshape(*x.shape[: x.ndim - dims], *small.shape[2:])

    lifted = response.ndim == dims + 3
    ordinary = _ordinary(images, dims)
    ordinary_response = ordinary(images) if relative and not lifted else None
    norms: dict[float, Norms] = {}
    for ratio, pairs in scales.steps():
        small = moved = shrink(images, ratio)
        if images.ndim == dims + 3:
            moved = torch.zeros_like(small)
            for k, l in pairs:
                moved[:, :, l] = small[:, :, k]
        observed, expected = mapping(moved), shrink(response, ratio)
        if lifted:
            matches = [_inner(expected[:, :, k], observed[:, :, l], dims, border) for k, l in pairs]
            unmoved = [_inner(expected[:, :, k], observed[:, :, k], dims, border) for k, _ in pairs]
            norms[ratio] = Norms(*_energies(matches), _energies(unmoved)[0])
        elif ordinary_response is None:
            norms[ratio] = Norms(*_energies([_inner(expected, observed, dims, border)]), 0.0)
        else:
            difference, energy = _energies([_detail(*_inner(expected, observed, dims, border), dims)])
            pair = _inner(shrink(ordinary_response, ratio), ordinary(small), dims, border)
            error, whole = _energies([_detail(*pair, dims)])
            norms[ratio] = Norms(difference, energy, energy * error / whole if whole else 0.0)
    _, energy = _energies([(observed, observed)])
    if 0 < energy < math.inf:
        blank, _ = _energies([(observed, mapping(torch.zeros_like(moved)))])
        if blank <= _rounding(images) * energy or bool((response == response[(..., *[slice(1)] * dims)]).all()):
            why = "the same at every pixel or for all images, and its error says nothing; measure the layers before it"
            raise ValueError(f"equivariance_error: the output is constant, {why}")
    return norms


def _check_response(response: Tensor, images: Tensor, scales: Scales, dims: int) -> None:
    shape = tuple(response.shape)
    if response.ndim == 2 or (response.ndim > 2 and set(shape[2:]) == {1}):
        why = "a vector has no spatial axes to compare; measure the feature maps that it is computed from"
        raise ValueError(f"equivariance_error: {why}, got output of shape {shape}")
    if response.ndim not in (dims + 2, dims + 3):
        rule = f"expected output [B, C, S, ...] or [B, C, ...] with {dims} spatial axes"
        raise ValueError(f"equivariance_error: {rule}, got shape {shape}")
    for name, x in (("input", images), ("output", response)):
        if x.ndim == dims + 3 and x.shape[2] != len(scales):
            rule = f"expected {name} [B, C, S, ...] with S = {len(scales)} (the scales)"
            raise ValueError(f"equivariance_error: {rule}, got shape {tuple(x.shape)}")


def _rounding(x: Tensor) -> float:
    """Return a relative squared norm that may be rounding."""
    return float((16 * torch.finfo(x.dtype).eps) ** 2)


def _energies(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the squared norms of the differences and of the first maps."""
    difference = energy = 0.0
    for left, right in pairs:
        difference += float((left - right).double().square().sum())
        energy += float(left.double().square().sum())
    return difference, energy


def _detail(left: Tensor, right: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Return the differences between neighboring pixels along every axis, of both maps."""
    inner: tuple[Any, ...] = (..., *[slice(1, None)] * dims)
    left, right = (torch.stack([(x - x.roll(1, -axis))[inner] for axis in range(1, dims + 1)]) for x in (left, right))
    return left, right


def _ordinary(images: Tensor, dims: int) -> Mapping:
    """Return a convolution of images or feature maps with random 3x3 kernels, to which scales are channels."""
    flat = images.flatten(1, images.ndim - dims - 1)
    weight = torch.randn(_KERNELS, flat.shape[1], *[3] * dims, generator=torch.Generator().manual_seed(0)).to(images)
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    return lambda x: convolve(x.flatten(1, x.ndim - dims - 1), weight, padding=1)


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
