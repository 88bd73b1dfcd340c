"""How far a mapping is from commuting with rescaling: Eq. 14 of the paper, for layers and whole networks.

The paper leaves its protocol open. Ours, and why:

- **Which rescalings.** Every ratio between two of the scales, each once. The operator L shrinks by the ratio.
- **Which scale pairs.** Shrinking by `scales[k] / scales[l]` moves the response at scale k to scale l. Only pairs
  inside the set are compared; responses that leave it at the small end or enter at the large end are not.
- **Input that has a scale axis** is shrunk in space and shifted along scale alike; scales that have nothing to
  receive are filled with zeros, which is what a scale convolution assumes past its last scale.
- **Border.** Padding at the image border is not part of the claim: by default a quarter of the side of the compared
  maps is left out at each end. `border=0` counts everything, which suits objects on an empty background.
- **One number.** For each ratio the squared norm of the difference over the squared norm of the rescaled response,
  both summed over images, channels, scale pairs and pixels; then the sum over ratios, as Eq. 14 has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Literal, overload

import torch
from torch import Tensor

from .basis import Basis
from .functional import scale_lift
from .resample import resample
from .scales import Scales, as_scales

Mapping = Callable[[Tensor], Tensor]
Norms = dict[float, tuple[float, float]]  # ratio -> squared norms of the difference and of the rescaled response


@overload
def equivariance_error(
    mapping: Mapping,
    images: Tensor,
    scales: Scales | Sequence[float],
    *,
    mode: str = ...,
    antialias: bool = ...,
    border: float = ...,
    per_step: Literal[False] = ...,
    spatial_dims: int | None = ...,
) -> float: ...
@overload
def equivariance_error(
    mapping: Mapping,
    images: Tensor,
    scales: Scales | Sequence[float],
    *,
    mode: str = ...,
    antialias: bool = ...,
    border: float = ...,
    per_step: Literal[True],
    spatial_dims: int | None = ...,
) -> dict[float, float]: ...
def equivariance_error(
    mapping: Mapping,
    images: Tensor,
    scales: Scales | Sequence[float],
    *,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    per_step: bool = False,
    spatial_dims: int | None = None,
) -> float | dict[float, float]:
    """Relative equivariance error of any callable (Eq. 14): 0 for a mapping that commutes with rescaling.

    What is compared follows from the shapes: a scale axis in the output is matched with its shift, a map without
    one is compared as it is, a vector [B, C] must not change.

    Args:
        mapping: A lifting layer [B, C, H, W] -> [B, C', S, H, W], a scale-to-scale layer on [B, C, S, H, W], a
            projected network [B, C, H, W] -> [B, C', H', W'], or a classifier -> [B, C']. It must keep the pixel
            grid (padding="same"); strides are fine. Modules are called in evaluation mode and left as they were.
        images: Its input.
        scales: The scales of the mapping; only their ratios matter.
        mode: Interpolation of the rescaling, see `resample`.
        antialias: Whether the rescaling filters before it shrinks.
        border: Left out at each end of the compared maps: pixels if an int, part of the side if a float.
        per_step: Return the error of every ratio of scales, {ratio: error}, instead of their sum.
        spatial_dims: Spatial axes of the input; needed only for a feature map [B, C, S, W] or a volume that is not
            lifted, since 4 axes are read as images and 5 as feature maps of images.

    Example:
        >>> def blur(images):  # commutes with plain subsampling only if its window grows with the image
        ...     return torch.nn.functional.avg_pool2d(images, 3, stride=1, padding=1)
        >>> equivariance_error(blur, torch.rand(1, 1, 32, 32), [1, 2]) > 0.01
        True
        >>> equivariance_error(lambda images: 2 * images, torch.rand(1, 1, 32, 32), [1, 2])
        0.0
    """
    with _evaluating(mapping):
        norms = _norms(mapping, images, as_scales(scales), mode, antialias, border, spatial_dims)
    errors = _relative(norms)
    return errors if per_step else sum(errors.values())


def assert_equivariant(
    mapping: Mapping,
    images: Tensor,
    scales: Scales | Sequence[float],
    *,
    tolerance: float = 0.02,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    spatial_dims: int | None = None,
) -> None:
    """Raise AssertionError where `equivariance_error` exceeds the tolerance, with the error of every ratio.

    The default suits a discrete basis of few scales on photographs; the error is a sum over ratios, so allow more
    for many scales. Between scales of integer ratio a layer is exact: ask for 1e-10 in float32 and 1e-20 in float64
    (errors are squared norms).

    Example:
        >>> assert_equivariant(torch.nn.Identity(), torch.rand(1, 1, 32, 32), [1, 2 ** 0.5, 2])
    """
    errors = equivariance_error(
        mapping,
        images,
        scales,
        mode=mode,
        antialias=antialias,
        border=border,
        per_step=True,
        spatial_dims=spatial_dims,
    )
    total = sum(errors.values())
    if not total <= tolerance:
        steps = ", ".join(f"ratio {ratio:.4g}: {error:.3g}" for ratio, error in errors.items())
        raise AssertionError(f"equivariance error {total:.3g} exceeds the tolerance {tolerance:g} ({steps})")


def basis_error(
    basis: Basis,
    images: Tensor,
    *,
    scales: Scales | Sequence[float] | None = None,
    channels: int = 32,
    seed: int = 0,
    mode: str = "cubic",
    antialias: bool = False,
    border: float = 0.25,
    batch: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Eq. 14 of a lifting convolution with random weights over this basis, on images [B, C, ...].

    Args:
        basis: Any basis.
        images: Images with as many spatial axes as the basis.
        scales: Scales to rescale by, where the basis holds rounded ones; its own by default.
        channels: Random kernels; weights are independent standard normal.
        seed: Of the weights.
        mode: Interpolation of the rescaling.
        antialias: Whether the rescaling filters before it shrinks.
        border: As in `equivariance_error`.
        batch: Images taken at a time.
        progress: Called as `progress(images done, images)`.
    """
    if channels < 1 or len(images) == 0:
        raise ValueError(f"basis_error: expected images and at least one kernel, got {len(images)} and {channels}")
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(channels, images.shape[1], basis.num_functions, dtype=torch.float64, generator=generator)
    weight = weight.to(images)
    chosen = basis.scales if scales is None else as_scales(scales)
    totals: Norms = {}
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        norms = _norms(
            lambda x: scale_lift(x, weight, basis), part, chosen, mode, antialias, border, basis.spatial_dims
        )
        for ratio, (difference, norm) in norms.items():
            before = totals.get(ratio, (0.0, 0.0))
            totals[ratio] = (before[0] + difference, before[1] + norm)
        if progress is not None:
            progress(start + len(part), len(images))
    return sum(_relative(totals).values())


def _relative(norms: Norms) -> dict[float, float]:
    errors = {}
    for ratio, (difference, norm) in norms.items():
        if not (math.isfinite(difference) and math.isfinite(norm)):
            raise ValueError(f"equivariance_error: the response to images shrunk by {ratio:.4g} is not finite")
        if norm == 0:
            raise ValueError(f"equivariance_error: the response vanishes at ratio {ratio:.4g}, so it has no error")
        errors[ratio] = difference / norm
    return errors


@contextmanager
def _evaluating(mapping: Mapping) -> Iterator[None]:
    training = [m for m in mapping.modules() if m.training] if isinstance(mapping, torch.nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def _norms(
    mapping: Mapping,
    images: Tensor,
    scales: Scales,
    mode: str,
    antialias: bool,
    border: float,
    spatial_dims: int | None,
) -> Norms:
    if len(scales) < 2:
        raise ValueError(f"equivariance_error: expected at least two scales, got {scales}")
    whole = isinstance(border, Integral)
    if isinstance(border, bool) or not isinstance(border, Real) or not border >= 0 or not (whole or border < 0.5):
        raise ValueError(f"equivariance_error: border must be pixels >= 0 or a part of the side < 0.5, got {border!r}")
    if len(images) == 0:
        raise ValueError(f"equivariance_error: expected at least one image, got shape {tuple(images.shape)}")
    response = mapping(images)
    if not isinstance(response, Tensor):
        raise TypeError(f"equivariance_error: the mapping must return one tensor, got {type(response).__name__}")
    dims = _spatial_dims(images, response, spatial_dims)
    lifted = images.ndim == dims + 3
    if lifted and images.shape[2] != len(scales):
        raise ValueError(
            f"equivariance_error: expected input [B, C, S, ...] with S = {len(scales)} (the scales), "
            f"got shape {tuple(images.shape)}"
        )
    has_scales, has_space = response.ndim == dims + 3, response.ndim >= dims + 2
    if response.ndim not in (2, dims + 2, dims + 3):
        raise ValueError(
            f"equivariance_error: expected output [B, C, S, ...], [B, C, ...] or [B, C] with {dims} spatial axes, "
            f"got shape {tuple(response.shape)}"
        )
    if has_scales and response.shape[2] != len(scales):
        raise ValueError(
            f"equivariance_error: expected output [B, C, S, ...] with S = {len(scales)} (the scales), "
            f"got shape {tuple(response.shape)}"
        )

    def shrink(x: Tensor, ratio: float) -> Tensor:
        small = resample(x.reshape(-1, 1, *x.shape[x.ndim - dims :]), 1 / ratio, mode=mode, antialias=antialias)
        return small.reshape(*x.shape[: x.ndim - dims], *small.shape[2:])

    norms: Norms = {}
    for ratio, pairs in scales.steps():
        small = shrink(images, ratio)
        if lifted:
            moved = torch.zeros_like(small)
            for k, l in pairs:
                moved[:, :, l] = small[:, :, k]
            small = moved
        observed = mapping(small)
        expected = shrink(response, ratio) if has_space else response
        matches = [(expected[:, :, k], observed[:, :, l]) for k, l in pairs] if has_scales else [(expected, observed)]
        difference = norm = 0.0
        for want, got in matches:
            want, got = _inner(want, got, dims, border) if has_space else (want, got)
            difference += float((want - got).double().square().sum())
            norm += float(want.double().square().sum())
        norms[ratio] = (difference, norm)
    return norms


def _spatial_dims(images: Tensor, response: Tensor, given: int | None) -> int:
    if given is None:
        given = images.ndim - 2 if response.ndim == images.ndim + 1 else {3: 1, 4: 2, 5: 2, 6: 3}.get(images.ndim)
    if given not in (1, 2, 3) or images.ndim not in (given + 2, given + 3):
        raise ValueError(
            f"equivariance_error: expected images [B, C, ...] or feature maps [B, C, S, ...] with 1 to 3 spatial axes, "
            f"got shape {tuple(images.shape)}"
        )
    return given


def _inner(want: Tensor, got: Tensor, dims: int, border: float) -> tuple[Tensor, Tensor]:
    """The common part of two maps, their first pixels aligned, without the border."""
    for axis in range(want.ndim - dims, want.ndim):
        sides = want.shape[axis], got.shape[axis]
        if abs(sides[0] - sides[1]) > 1:
            raise ValueError(
                f"equivariance_error: rescaling the output gives {sides[0]} pixels, rescaling the input {sides[1]}; "
                f'the mapping must keep the pixel grid (padding="same")'
            )
        side = min(sides)
        margin = int(border) if isinstance(border, Integral) else math.floor(side * border)
        if side <= 2 * margin:
            raise ValueError(f"equivariance_error: a border of {margin} leaves nothing of {side} pixels")
        want, got = (x.narrow(axis, margin, side - 2 * margin) for x in (want, got))
    return want, got
