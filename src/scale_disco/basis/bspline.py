"""B-splines on a regular lattice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import check_choice, check_positive
from .sampled import Presets, SampledBasis, Sampling, mnist_preset


class BSplineBasis(SampledBasis):
    """Products of B-splines, one for each point of a kernel_size x kernel_size lattice.

    The lattice spans the stencil of each scale, whatever its side, so that the functions grow with the support.

    Args:
        kernel_size: Effective size E; there are E * E functions.
        scales: Any ascending scales.
        base_scale: The lattice reaches `base_scale * scales[0]` times as far as the stencil, at every scale.
        size: Odd side of the stencil at the largest scale; by default it covers the enlarged kernel.
        order: Degree of the splines: 1, 2 or 3.
        mult: A larger value makes the splines narrower.

    Example:
        >>> BSplineBasis(3, [1, 2])
        BSplineBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> BSplineBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "bspline"
    # Of the authors' SESN; "+" is training with scale augmentation.
    presets: ClassVar[Presets] = {
        "mnist": mnist_preset(0.6, order=2, mult=2.0),
        "mnist+": mnist_preset(0.6, order=1, mult=3.0),
    }

    def __init__(
        self,
        kernel_size: int,
        scales: Iterable[float],
        *,
        base_scale: float = 1.0,
        size: int | None = None,
        order: int = 2,
        mult: float = 2.0,
    ) -> None:
        check_choice("BSplineBasis", "order", order, (1, 2, 3))
        mult = check_positive("BSplineBasis", "mult", mult)
        super().__init__(
            kernel_size, scales, base_scale, size, lambda at: _splines(at, order, mult), {"order": order, "mult": mult}
        )


def _splines(at: Sampling, order: int, mult: float) -> Tensor:
    """Return the functions [E * E, side, side]; the lattice point along rows runs fastest."""
    distance = _interval(at.side) - at.smallest * _interval(at.kernel_size)[:, None]
    axis = _spline(distance * mult / at.smallest, order)
    return torch.einsum("ir,jc->jirc", axis, axis).flatten(0, 1) / (at.scale * at.scale)


def _interval(points: int) -> Tensor:
    """Return equally spaced points from -1 to 1; 0 if there is only one."""
    return torch.linspace(-1, 1, points, dtype=torch.float64) if points > 1 else torch.zeros(1, dtype=torch.float64)


def _spline(x: Tensor, order: int) -> Tensor:
    """Evaluate the centered cardinal B-spline in powers of the distance to the nearer end: exactly zero outside."""
    inside = (order + 1) / 2 - x.abs()
    terms = [(-1) ** k * math.comb(order + 1, k) * (inside - k).clamp(min=0) ** order for k in range(order + 1)]
    return torch.stack(terms).sum(0) / math.factorial(order)
