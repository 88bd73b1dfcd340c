"""Three sampled families: B-splines, Fourier-Bessel functions and log-radial harmonics.

Their presets are those of the authors' SESN; "+" is training with scale augmentation.
"""

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_positive
from .sampled import Presets, SampledBasis, Sampling, mnist_preset

_ROUNDING = 1e-14  # smaller values are zero up to rounding


class BSplineBasis(SampledBasis):
    """Products of B-splines, one for each point of a kernel_size x kernel_size lattice.

    The lattice spans the stencil of each scale, whatever its side, so that the functions grow with the support.

    Args:
        kernel_size, scales, size: As in `HermiteBasis`.
        base_scale: The lattice reaches `base_scale * scales[0]` times as far as the stencil, at every scale.
        order: Degree of the splines: 1, 2 or 3.
        mult: A larger value makes the splines narrower.

    Example:
        >>> BSplineBasis(3, [1, 2])
        BSplineBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> BSplineBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "bspline"
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
        parameters: dict[str, Any] = {"order": order, "mult": check_positive("BSplineBasis", "mult", mult)}
        super().__init__(kernel_size, scales, base_scale, size, partial(_splines, **parameters), parameters)


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


class FourierBesselBasis(SampledBasis):
    """Bessel functions of the radius times cosines and sines of the angle, by ascending frequency.

    Their domain is a disc that fills the largest stencil at absolute scale 1 and grows with the scale; each scale
    is cropped to its own stencil.

    Args:
        kernel_size, scales, size: As in `HermiteBasis`.
        base_scale: Radius of the disc at scale 1, in halves of `size`.

    Example:
        >>> FourierBesselBasis(3, [1, 2])
        FourierBesselBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> FourierBesselBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "fourier-bessel"
    presets: ClassVar[Presets] = {"mnist": mnist_preset(0.88), "mnist+": mnist_preset(0.6)}

    def __init__(
        self, kernel_size: int, scales: Iterable[float], *, base_scale: float = 1.0, size: int | None = None
    ) -> None:
        super().__init__(kernel_size, scales, base_scale, size, _drum, {})


def bessel(order: Tensor, x: Tensor) -> Tensor:
    """Return J_order(x) for integer orders, up to float64 rounding.

    The trapezoid rule on Bessel's integral with N points has error J_{N - order}(x), negligible for N far above x.
    """
    points = int(order.max()) + 2 * math.ceil(float(x.abs().max())) + 32
    angle = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    return torch.cos(order[..., None] * angle - x[..., None] * angle.sin()).mean(-1)


@lru_cache(maxsize=16)  # the same for every scale of a basis
def bessel_zeros(limit: int) -> tuple[Tensor, Tensor]:
    """Return all positive zeros below `limit` of all J_k, ascending, and the k of each."""
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
    functions = functions.flatten(0, 1)[exists][: at.kernel_size**2]
    return torch.where(functions.abs() < _ROUNDING, 0, functions) / (at.scale * at.scale)


class LogRadialBasis(SampledBasis):
    """Cosines and sines of the logarithm of the radius, in double wedges rotated about the center.

    The first kernel_size ** 2 of all frequencies, angles and phases.

    Args:
        kernel_size, scales, size: As in `HermiteBasis`.
        base_scale: Radius at which all waves have the same phase, in pixels at scale 1.
        orders: Number of frequencies, each twice the previous one.
        rotations: Number of angles from 0 to pi, both included though they are the same wedge. By default one
            more than is needed for E * E functions.
        width: Width of a wedge in radians.

    Example:
        >>> LogRadialBasis(3, [1, 2])
        LogRadialBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> LogRadialBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "log-radial"
    presets: ClassVar[Presets] = {
        "mnist": mnist_preset(0.1, orders=3, rotations=11, width=0.2),
        "mnist+": mnist_preset(0.5, orders=3, rotations=10, width=0.3),
    }

    def __init__(
        self,
        kernel_size: int,
        scales: Iterable[float],
        *,
        base_scale: float = 1.0,
        size: int | None = None,
        orders: int = 3,
        rotations: int | None = None,
        width: float = 0.3,
    ) -> None:
        who = "LogRadialBasis"
        orders = check_count(who, "orders", orders, 1)
        least = math.ceil(check_count(who, "kernel_size", kernel_size, 1) ** 2 / (2 * orders))
        angles = check_count(who, "rotations", least + 1 if rotations is None else rotations, least)
        parameters: dict[str, Any] = {"orders": orders, "rotations": angles}
        parameters["width"] = check_positive(who, "width", width)
        super().__init__(kernel_size, scales, base_scale, size, partial(_wedges, **parameters), parameters)


def _wedges(at: Sampling, orders: int, rotations: int, width: float) -> Tensor:
    """Return the functions [E * E, side, side]; phase runs fastest, then angle, then frequency."""
    rows, cols = at.grid()
    radius = torch.hypot(rows, cols).clamp(min=1) / at.scale  # the center counts as one pixel away
    log_radius = radius.log()
    if not float(log_radius.max()) > 0:
        corner = f"the distance to the corner of the {at.side} x {at.side} stencil"
        rule = f"below {float(radius.max()) * at.scale:.4g}, {corner}"
        raise ValueError(f"LogRadialBasis: base_scale * scale must be {rule}, got {at.scale:g}")
    turn = torch.linspace(0, math.pi, rotations, dtype=torch.float64)[:, None, None]
    # Angles are modulo pi: a wedge opens to both sides of the center.
    distance = torch.remainder(torch.atan2(cols, -rows) - turn + math.pi / 2, math.pi) - math.pi / 2
    wedge = torch.exp(-distance.square() / (2 * width * width)) / radius  # [rotations, side, side]
    frequency = 2.0 ** torch.arange(-1, orders - 1, dtype=torch.float64)[:, None, None]
    phase = 2 * math.pi * frequency * log_radius / log_radius.max() - math.pi / 4
    wave = torch.stack([phase.cos(), phase.sin()], dim=1)  # [orders, 2, side, side]
    return (wave[:, None] * wedge[:, None]).flatten(0, 2)[: at.kernel_size**2] / (at.scale * at.scale)
