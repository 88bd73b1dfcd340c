"""Fourier-Bessel functions: the vibration modes of a drum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from .sampled import Presets, SampledBasis, Sampling, mnist_preset

_ROUNDING = 1e-14  # smaller values are zero up to rounding


class FourierBesselBasis(SampledBasis):
    """Bessel functions of the radius times cosines and sines of the angle, by ascending frequency.

    Their domain is a disc that fills the largest stencil at absolute scale 1 and grows with the scale; each scale
    is cropped to its own stencil.

    Args:
        kernel_size: Effective size E; there are E * E functions.
        scales: Any ascending scales.
        base_scale: Radius of the disc at scale 1, in halves of `size`.
        size: Odd side of the stencil at the largest scale; by default it covers the enlarged kernel.

    Example:
        >>> FourierBesselBasis(3, [1, 2])
        FourierBesselBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> FourierBesselBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "fourier-bessel"
    presets: ClassVar[Presets] = {"mnist": mnist_preset(0.88), "mnist+": mnist_preset(0.6)}  # as for BSplineBasis

    def __init__(
        self, kernel_size: int, scales: Iterable[float], *, base_scale: float = 1.0, size: int | None = None
    ) -> None:
        super().__init__(kernel_size, scales, base_scale, size, _drum, {})


def bessel(order: Tensor, x: Tensor) -> Tensor:
    """Return J_order(x) for integer orders, up to float64 rounding.

    The trapezoid rule on Bessel's integral with N points has error J_{N - order}(x), negligible for N far above x.

    Example:
        >>> round(bessel(torch.tensor(0), torch.tensor(1.0, dtype=torch.float64)).item(), 12)
        0.765197686558
    """
    points = int(order.max()) + 2 * math.ceil(float(x.abs().max())) + 32
    angle = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    return torch.cos(order[..., None] * angle - x[..., None] * angle.sin()).mean(-1)


@lru_cache(maxsize=16)  # the same for every scale of a basis
def bessel_zeros(limit: int) -> tuple[Tensor, Tensor]:
    """Return all positive zeros below `limit` of all J_k, ascending, and the k of each.

    Example:
        >>> zeros, orders = bessel_zeros(6)
        >>> [round(zero, 4) for zero in zeros.tolist()], orders.tolist()
        ([2.4048, 3.8317, 5.1356, 5.5201], [0, 1, 2, 0])
    """
    # J_k is positive up to k, and its zeros are more than 3 apart: from k on, at most one between two integers.
    low, orders = torch.tril_indices(limit, limit)
    low = low.double()
    sign = bessel(orders, low).sign()
    change = bessel(orders, low + 1).sign() != sign
    low, orders, sign = low[change], orders[change], sign[change]
    for halving in range(1, 53):
        middle = low + 0.5**halving
        low = torch.where(bessel(orders, middle).sign() == sign, middle, low)
    rank = low.argsort()
    return low[rank], orders[rank]


def _drum(at: Sampling) -> Tensor:
    """Return the functions [E * E, side, side], without constant factors, which the normalization cancels."""
    rows, cols = at.grid()
    # About z^2 / 4 - z / 2 functions have a zero below z: E * E of them well below 2 E + 4. The authors also drop
    # frequencies too high for the pixels, but none of the first E * E are.
    zeros, orders = (values[:, None, None] for values in bessel_zeros(2 * at.kernel_size + 4))
    radii, which = torch.unique(torch.hypot(rows, cols) / (at.size / 2 * at.scale), return_inverse=True)
    radial = torch.where(radii < 1, bessel(orders, zeros * radii.clamp(max=1)), 0)[:, 0, which]
    angle = orders * torch.atan2(cols, rows)
    functions = torch.stack([radial * angle.cos(), radial * angle.sin()], dim=1)  # [zeros, 2, side, side]
    exists = torch.stack([orders >= 0, orders > 0], dim=1).flatten()  # there is no sine of order 0
    functions = functions.flatten(0, 1)[exists][: at.num_functions]
    return torch.where(functions.abs() < _ROUNDING, 0, functions) / (at.scale * at.scale)
