"""What images are expected to look like: the f of the paper's expectation E_f.

A prior turns a pair of scales into Gram matrices. Take an output pixel of `L[f]`: its response to tap i of
the smaller stencil is a linear functional `a_i` of f, and what `L[f * psi]` owes to tap m of the larger
stencil is a functional `b_m`. The Gram matrices hold `E a_i a_j`, `E a_i b_m` and `E b_m b_n`, averaged over
output pixels, that is over the positions that a pixel of the shrunken image takes between those of the large one.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..resample import kernel_reach, kernel_weights, source_coordinates

# Neighbour correlation of the "image" prior. Measured on digits and photographs (results/equivariance.md):
# the error is flat from 0.7 to 0.98, the largest tried, and higher below.
IMAGE_CORRELATION = 0.9
_PHASES = 64  # positions between two pixels at which a ratio without a short period is averaged
_PIXELS_PER_TAP = 4
_BLOCK = 2_000_000  # numbers held at once when images are the prior


class TooFewPixelsError(ValueError):
    """The images of a prior are too small, or too few, for stencils of this size."""


class Grams(NamedTuple):
    """Second moments between the taps of the smaller (l) and the larger (k) stencil, per output pixel."""

    ll: Tensor
    lk: Tensor
    kk: Tensor


class ScalePair(NamedTuple):
    """Two scales to be compared: L shrinks by `ratio`; taps sit at these offsets, in pixels, along each axis."""

    ratio: float
    offsets_l: Tensor
    offsets_k: Tensor
    mode: str
    antialias: bool
    spatial_dims: int

    def functionals(self, where: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Along one axis, for output pixels that read at `where`: a [D, taps of l, N] and b [D, taps of k, N]."""
        settings = (self.ratio, self.mode, self.antialias)
        a = kernel_weights(where[:, None] + self.offsets_l * self.ratio, pixels, *settings)
        b = kernel_weights(where[:, None] + self.offsets_k, pixels, *settings)
        return a, b

    @property
    def extent(self) -> tuple[int, int]:
        """Pixels before and after its coordinate that an output pixel depends on."""
        reach = kernel_reach(self.ratio, self.mode, self.antialias)
        low = min(float(self.offsets_l[0]) * self.ratio, float(self.offsets_k[0]))
        high = max(float(self.offsets_l[-1]) * self.ratio, float(self.offsets_k[-1]))
        return reach - math.floor(low), reach + math.ceil(high)

    def inner_rows(self, size: int) -> slice:
        """The output pixels of an image of `size` pixels that no border touches."""
        before, after = self.extent
        rows = torch.arange(math.floor(size / self.ratio + 1e-9), dtype=torch.float64)
        where = source_coordinates(rows, self.ratio, self.mode, self.antialias)
        inner = ((where >= before) & (where <= size - 1 - after)).nonzero()
        if len(inner) == 0:
            need = before + after + math.ceil(self.ratio) + 1
            raise TooFewPixelsError(
                f"prior: images must have at least {need} pixels a side to cover the stencils of these scales, "
                f"got {size}"
            )
        return slice(int(inner[0]), int(inner[-1]) + 1)


class Prior(Protocol):
    """A model of images that can average products of linear functionals, and draw samples."""

    @property
    def spec(self) -> str | float:
        """What a basis file says of it."""
        ...

    def grams(self, pair: ScalePair) -> Grams:
        """Second moments between the taps of two scales."""
        ...

    def sample(self, count: int, side: int, spatial_dims: int, generator: torch.Generator) -> Tensor:
        """Random images [count, 1, side, ...]."""
        ...


@dataclass(frozen=True)
class CorrelatedNoise:
    """Gaussian images whose neighbours are correlated by rho: covariance `rho**|x| * rho**|y|`; 0 is white noise."""

    correlation: float

    @property
    def spec(self) -> str | float:
        return {0.0: "white", IMAGE_CORRELATION: "image"}.get(self.correlation, self.correlation)

    def grams(self, pair: ScalePair) -> Grams:
        where = _phases(pair)
        before, after = pair.extent
        pixels = torch.arange(-before - 1, after + 2)
        a, b = pair.functionals(where, pixels)
        ac, bc = a @ self._covariance(len(pixels)), b @ self._covariance(len(pixels))
        # The covariance is a product over axes and so are the operators: the moments are Kronecker powers.
        return Grams(
            *(
                _kronecker_power(torch.einsum("din,djn->ij", left, right) / len(where), pair.spatial_dims)
                for left, right in ((ac, a), (ac, b), (bc, b))
            )
        )

    def sample(self, count: int, side: int, spatial_dims: int, generator: torch.Generator) -> Tensor:
        x = torch.randn(count, 1, *[side] * spatial_dims, dtype=torch.float64, generator=generator)
        if self.correlation:
            root = torch.linalg.cholesky(self._covariance(side))
            for axis in range(2, x.ndim):
                x = torch.tensordot(x, root, dims=([axis], [1])).movedim(-1, axis)
        return x

    def _covariance(self, size: int) -> Tensor:
        index = torch.arange(size, dtype=torch.float64)
        return self.correlation ** (index[:, None] - index).abs()


class ImagePrior:
    """The user's own images: moments are sums over their pixels, borders left out."""

    def __init__(self, images: Tensor, spatial_dims: int) -> None:
        if not images.is_floating_point():
            raise TypeError(f"prior: images must be floating-point, got {images.dtype}")
        if images.ndim < spatial_dims or images.numel() == 0 or not bool(torch.isfinite(images).all()):
            raise ValueError(
                f"prior: expected finite images with {spatial_dims} spatial axes, got shape {tuple(images.shape)}"
                + ("" if images.ndim < spatial_dims or images.numel() == 0 else " with NaN or infinite values")
            )
        if not bool(images.any()):
            raise ValueError("prior: images must not be all zero, got zeros only")
        shape = images.shape[images.ndim - spatial_dims :]
        self.images = images.detach().to("cpu", torch.float64).reshape(-1, *shape).clone()

    @cached_property
    def digest(self) -> str:
        header = str(tuple(self.images.shape)).encode()
        return hashlib.sha256(header + self.images.numpy().tobytes()).hexdigest()

    @property
    def spec(self) -> str:
        return f"images sha256:{self.digest}"

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImagePrior) and self.digest == other.digest

    def grams(self, pair: ScalePair) -> Grams:
        axes = [self._axis(pair, size) for size in self.images.shape[1:]]
        taps_a, taps_b = axes[0][0].shape[1], axes[0][1].shape[1]
        totals = [torch.zeros(m**pair.spatial_dims, n**pair.spatial_dims, dtype=torch.float64)
                  for m, n in ((taps_a, taps_a), (taps_a, taps_b), (taps_b, taps_b))]  # fmt: skip
        count = len(self.images) * math.prod(a.shape[0] for a, _ in axes)
        need = _PIXELS_PER_TAP * max(taps_a, taps_b) ** pair.spatial_dims
        if count < need:  # fewer would be fitted, not averaged over
            raise TooFewPixelsError(
                f"prior: images must have {need} pixels away from borders, got {count}; give more images"
            )
        per_row = math.prod(a.shape[0] for a, _ in axes[1:]) * (taps_a + taps_b) ** pair.spatial_dims
        block = max(1, _BLOCK // per_row)
        for image in self.images:
            for start in range(0, len(axes[0][0]), block):
                rows = slice(start, start + block)
                a = _project(image, [axes[0][0][rows], *(a for a, _ in axes[1:])])
                b = _project(image, [axes[0][1][rows], *(b for _, b in axes[1:])])
                for total, left, right in zip(totals, (a, a, b), (a, b, b), strict=True):
                    total.addmm_(left.T, right)
        return Grams(*(total / count for total in totals))

    def sample(self, count: int, side: int, spatial_dims: int, generator: torch.Generator) -> Tensor:
        short = min(self.images.shape[1:])
        if short < side:
            raise ValueError(f"prior: images must have at least {side} pixels a side, got {short}")
        crops = []
        for index in torch.randint(len(self.images), (count,), generator=generator).tolist():
            crop = self.images[index]
            for axis in range(spatial_dims):
                start = torch.randint(crop.shape[axis] - side + 1, (), generator=generator).item()
                crop = crop.narrow(axis, int(start), side)
            crops.append(crop)
        return torch.stack(crops)[:, None]

    def _axis(self, pair: ScalePair, size: int) -> tuple[Tensor, Tensor]:
        inner = pair.inner_rows(size)
        rows = torch.arange(inner.start, inner.stop, dtype=torch.float64)
        where = source_coordinates(rows, pair.ratio, pair.mode, pair.antialias)
        return pair.functionals(where, torch.arange(size))


def as_prior(prior: str | float | Tensor | NDArray[Any] | Prior, spatial_dims: int) -> Prior:
    """ "white", "image", a neighbour correlation in [0, 1), or a tensor of images."""
    if isinstance(prior, (Tensor, np.ndarray)):
        return ImagePrior(torch.as_tensor(prior), spatial_dims)
    if isinstance(prior, (CorrelatedNoise, ImagePrior)):
        return prior
    named = {"white": 0.0, "image": IMAGE_CORRELATION}
    if isinstance(prior, str) and prior in named:
        return CorrelatedNoise(named[prior])
    if isinstance(prior, Real) and not isinstance(prior, bool) and 0 <= float(prior) < 1:
        return CorrelatedNoise(float(prior))
    raise ValueError(
        f'prior: expected "white", "image", a correlation in [0, 1) or a tensor of images, got {reprlib.repr(prior)}'
    )


def _phases(pair: ScalePair) -> Tensor:
    """Fractional coordinates at which output pixels read: those of one period, or an even spread."""
    period = Fraction(pair.ratio).limit_denominator(_PHASES)
    if math.isclose(period, pair.ratio, rel_tol=1e-9):
        rows = torch.arange(period.denominator, dtype=torch.float64)
        where = source_coordinates(rows, pair.ratio, pair.mode, pair.antialias)
        return where - torch.floor(where)
    return (torch.arange(_PHASES, dtype=torch.float64) + 0.5) / _PHASES


def _kronecker_power(matrix: Tensor, power: int) -> Tensor:
    result = matrix
    for _ in range(power - 1):
        result = torch.kron(result, matrix)
    return result


def _project(image: Tensor, axes: list[Tensor]) -> Tensor:
    """Apply functionals [D, Q, N] along each axis: [N, ...] -> [output pixels, taps]."""
    for functionals in axes:  # each turns the first axis into (D, Q) at the end
        image = torch.tensordot(image, functionals, dims=([0], [2]))
    dims = len(axes)
    order = [2 * axis for axis in range(dims)] + [2 * axis + 1 for axis in range(dims)]
    image = image.permute(order)
    return image.reshape(math.prod(image.shape[:dims]), -1)
