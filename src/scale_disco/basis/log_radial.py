"""Log-radial harmonics: waves in the logarithm of the radius, within a wedge of angles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import check_count, check_positive
from .sampled import Presets, SampledBasis, Sampling, mnist_preset


class LogRadialBasis(SampledBasis):
    """Cosines and sines of the logarithm of the radius, in double wedges rotated about the center.

    The first kernel_size ** 2 of all frequencies, angles and phases.

    Args:
        kernel_size: Effective size E; there are E * E functions.
        scales: Any ascending scales.
        base_scale: Radius at which all waves have the same phase, in pixels at scale 1.
        size: Odd side of the stencil at the largest scale; by default it covers the enlarged kernel.
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
    presets: ClassVar[Presets] = {  # as for BSplineBasis
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
        width = check_positive(who, "width", width)
        parameters = {"orders": orders, "rotations": angles, "width": width}
        super().__init__(
            kernel_size, scales, base_scale, size, lambda at: _wedges(at, orders, angles, width), parameters
        )


def _wedges(at: Sampling, orders: int, rotations: int, width: float) -> Tensor:
    """Return the functions [E * E, side, side]; phase runs fastest, then angle, then frequency."""
    rows, cols = at.grid()
    radius = torch.hypot(rows, cols).clamp(min=1) / at.scale  # the center counts as one pixel away
    log_radius = radius.log()
    if not float(log_radius.max()) > 0:
        raise ValueError(
            f"LogRadialBasis: base_scale * scale must be below {float(radius.max()) * at.scale:.4g}, the distance to "
            f"the corner of the {at.side} x {at.side} stencil, got {at.scale:g}"
        )
    turn = torch.linspace(0, math.pi, rotations, dtype=torch.float64)[:, None, None]
    # Angles are modulo pi: a wedge opens to both sides of the center.
    distance = torch.remainder(torch.atan2(cols, -rows) - turn + math.pi / 2, math.pi) - math.pi / 2
    wedge = torch.exp(-distance.square() / (2 * width * width)) / radius  # [rotations, side, side]
    frequency = 2.0 ** torch.arange(-1, orders - 1, dtype=torch.float64)[:, None, None]
    phase = 2 * math.pi * frequency * log_radius / log_radius.max() - math.pi / 4
    wave = torch.stack([phase.cos(), phase.sin()], dim=1)  # [orders, 2, side, side]
    functions = (wave[:, None] * wedge[:, None]).flatten(0, 2)
    return functions[: at.num_functions] / (at.scale * at.scale)
