"""The image model of the paper's expectation E_f.

A prior turns a pair of scales into Gram matrices. Take an output pixel of `L[f]`: its response to tap i of
the smaller stencil is a linear functional `a_i` of f, and the contribution of tap m of the larger stencil to
`L[f * psi]` is a functional `b_m`. The Gram matrices are `E a_i a_j`, `E a_i b_m` and `E b_m b_n`, averaged over
output pixels, that is over all positions of a pixel of the shrunken image between those of the large one.
"""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import short_repr
from ..resampling import kernel_reach, kernel_weights, source_coordinates

# Correlation of neighboring pixels in the "image" prior. Measured on digits and photos (results/equivariance.md):
# the error is flat from 0.7 to 0.98, the largest value tried, and higher below.
IMAGE_CORRELATION = 0.9
_PHASES = 64  # positions between two pixels over which a ratio without a short period is averaged
_PIXELS_PER_TAP = 4
_BLOCK = 2_000_000  # numbers in memory per block of rows of an image


class TooFewPixelsError(ValueError):
    """Raised if the images of a prior are too small, or too few, for stencils of this size."""


class Grams(NamedTuple):
    """Second moments between the taps of the smaller (l) and the larger (k) stencil, per output pixel."""

    ll: Tensor
    lk: Tensor
    kk: Tensor


class ScalePair(NamedTuple):
    """Two scales, of which L shrinks the larger by `ratio`, with the offsets of their taps in pixels along one axis."""

    ratio: float
    offsets_l: Tensor
    offsets_k: Tensor
    mode: str
    antialias: bool
    spatial_dims: int

    def functionals(self, where: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return a [D, taps of l, N] and b [D, taps of k, N] along one axis, for output pixels that read at `where`."""
        operator = (self.ratio, self.mode, self.antialias)
        a = kernel_weights(where[:, None] + self.offsets_l * self.ratio, pixels, *operator)
        b = kernel_weights(where[:, None] + self.offsets_k, pixels, *operator)
        return a, b

    @property
    def extent(self) -> tuple[int, int]:
        """Pixels before and after its coordinate that an output pixel depends on."""
        reach = kernel_reach(self.ratio, self.mode, self.antialias)
        low = min(float(self.offsets_l[0]) * self.ratio, float(self.offsets_k[0]))
        high = max(float(self.offsets_l[-1]) * self.ratio, float(self.offsets_k[-1]))
        return reach - math.floor(low), reach + math.ceil(high)

    def sources(self, rows: Tensor) -> Tensor:
        """Return the input coordinates that output rows read."""
        return source_coordinates(rows, self.ratio, self.mode, self.antialias)

    def inner_rows(self, size: int) -> slice:
        """Return the output pixels of an image of `size` pixels that do not depend on the border."""
        before, after = self.extent
        where = self.sources(torch.arange(math.floor(size / self.ratio + 1e-9), dtype=torch.float64))
        inner = ((where >= before) & (where <= size - 1 - after)).nonzero()
        if len(inner) == 0:
            least = before + after + math.ceil(self.ratio) + 1
            raise TooFewPixelsError(f"prior: images need at least {least} pixels a side for these scales, got {size}")
        return slice(int(inner[0]), int(inner[-1]) + 1)


@dataclass(frozen=True)
class CorrelatedNoise:
    """Gaussian images with covariance `rho**|x| * rho**|y|`, rho the correlation of neighbors; 0 is white noise."""

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
        # Covariance and operators are products over axes, so the moments are Kronecker powers.
        axis = [torch.einsum("din,djn->ij", *sides) / len(where) for sides in ((ac, a), (ac, b), (bc, b))]
        return Grams(*(reduce(torch.kron, [moments] * pair.spatial_dims) for moments in axis))

    def sample(self, count: int, side: int, spatial_dims: int, generator: torch.Generator) -> Tensor:
        """Return random images [count, 1, side, ...]."""
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
    """The user's own images; moments are averages over their pixels away from the border."""

    def __init__(self, images: Tensor, spatial_dims: int) -> None:
        if not images.is_floating_point():
            raise TypeError(f"prior: images must be floating-point, got {images.dtype}")
        empty = images.ndim < spatial_dims or images.numel() == 0
        if empty or not bool(torch.isfinite(images).all()):
            got = f"shape {tuple(images.shape)}" + ("" if empty else " with NaN or infinite values")
            raise ValueError(f"prior: expected finite images with {spatial_dims} spatial axes, got {got}")
        if not bool(images.any()):
            raise ValueError("prior: images must not be all zero, got zeros only")
        shape = images.shape[images.ndim - spatial_dims :]
        self.images = images.detach().to("cpu", torch.float64).reshape(-1, *shape).clone()
        header = str(tuple(self.images.shape)).encode()
        self.spec = f"images sha256:{hashlib.sha256(header + self.images.numpy().tobytes()).hexdigest()}"

    def grams(self, pair: ScalePair) -> Grams:
        axes = [self._axis(pair, size) for size in self.images.shape[1:]]
        taps_a, taps_b = axes[0][0].shape[1], axes[0][1].shape[1]
        totals = [torch.zeros(m**pair.spatial_dims, n**pair.spatial_dims, dtype=torch.float64)
                  for m, n in ((taps_a, taps_a), (taps_a, taps_b), (taps_b, taps_b))]  # fmt: skip
        count = len(self.images) * math.prod(a.shape[0] for a, _ in axes)
        least = _PIXELS_PER_TAP * max(taps_a, taps_b) ** pair.spatial_dims
        if count < least:  # the stencils would overfit
            raise TooFewPixelsError(f"prior: need {least} pixels away from borders, got {count}; add more images")
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
        """Return random crops [count, 1, side, ...]."""
        shortest = min(self.images.shape[1:])
        if shortest < side:
            raise ValueError(f"prior: images need at least {side} pixels a side, got {shortest}")
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
        return pair.functionals(pair.sources(rows), torch.arange(size))


Prior = CorrelatedNoise | ImagePrior  # both have `spec`, for basis files, `grams` and `sample`


def as_prior(prior: str | float | Tensor | NDArray[Any] | Prior, spatial_dims: int) -> Prior:
    """Return the prior for "white", "image", a correlation of neighbors in [0, 1), or a tensor of images."""
    if isinstance(prior, (Tensor, np.ndarray)):
        return ImagePrior(torch.as_tensor(prior), spatial_dims)
    if isinstance(prior, (CorrelatedNoise, ImagePrior)):
        return prior
    value = {"white": 0.0, "image": IMAGE_CORRELATION}.get(prior) if isinstance(prior, str) else prior
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < 1:
        return CorrelatedNoise(float(value))
    raise ValueError(f'prior: expected "white", "image", a correlation in [0, 1) or images, got {short_repr(prior)}')


def _phases(pair: ScalePair) -> Tensor:
    """Return the fractional coordinates that output pixels read: those of one period, or evenly spaced ones."""
    period = Fraction(pair.ratio).limit_denominator(_PHASES)
    if math.isclose(period, pair.ratio, rel_tol=1e-9):
        where = pair.sources(torch.arange(period.denominator, dtype=torch.float64))
        return where - torch.floor(where)
    return (torch.arange(_PHASES, dtype=torch.float64) + 0.5) / _PHASES


def _project(image: Tensor, axes: list[Tensor]) -> Tensor:
    """Apply functionals [D, Q, N] along each axis: [N, ...] -> [output pixels, taps]."""
    for functionals in axes:  # each turns the first axis into (D, Q) at the end
        image = torch.tensordot(image, functionals, dims=([0], [2]))
    image = image.permute(*range(0, image.ndim, 2), *range(1, image.ndim, 2))
    return image.reshape(math.prod(image.shape[: len(axes)]), -1)
