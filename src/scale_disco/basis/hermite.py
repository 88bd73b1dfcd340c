"""Hermite functions: Gaussian derivatives of growing order, or of few orders at several widths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_positive
from ..scales import Scales
from .cpu import on_cpu
from .sampled import Presets, SampledBasis, centered, mnist_scales

# Settings of the authors' SESN and tracker, by experiment. "+" is training with scale augmentation, "-sesn" are
# the settings of the SESN code where those of the DISCO code differ, "stl10-c" is the variant SESN-C.
PRESETS: Presets = {
    "mnist": {"kernel_size": 7, "size": 15, "scales": mnist_scales(1.5), "max_order": 4, "mult": 1.4},
    "mnist+": {"kernel_size": 7, "size": 15, "scales": mnist_scales(1.7), "max_order": 4, "mult": 1.5},
    "mnist-sesn": {"kernel_size": 7, "size": 15, "scales": mnist_scales(2.0), "max_order": 4, "mult": 1.5},
    "mnist-sesn+": {"kernel_size": 7, "size": 13, "scales": mnist_scales(1.5), "max_order": 4, "mult": 1.4},
    "stl10": {"kernel_size": 3, "size": 7, "scales": tuple(0.9 * 1.41**i for i in range(3))},
    "stl10-c": {"kernel_size": 3, "size": 7, "scales": tuple(1.1 * 1.41**i for i in range(3))},
    "tracker-stem": {"kernel_size": 7, "size": 9, "scales": tuple(0.9 * 1.4**i for i in range(3))},
    "tracker": {"kernel_size": 3, "size": 5, "scales": tuple(0.9 * 1.4**i for i in range(3))},
}

# The matrices by which the authors' DISCO networks mix their pixel basis: DISCO-A (stl10) and DISCO-B (mnist).
MIXING_PRESETS: Presets = {
    "mnist": {"kernel_size": 7, "sigma": 1.9, "max_order": 4, "mult": 1.5},
    "mnist+": {"kernel_size": 7, "sigma": 1.9, "max_order": 4, "mult": 1.9},
    "stl10": {"kernel_size": 3, "sigma": 0.9},
}


class HermiteBasis(SampledBasis):
    """Products of Hermite functions along rows and columns, the scale being their width in pixels.

    By default the orders run from 0 to `kernel_size - 1` on both axes (the authors' "A"). With `max_order` the
    two orders sum to at most that, and widths shrink by `mult` until there are enough functions ("B").

    Args:
        kernel_size: Effective size E; there are E * E functions.
        scales: Any ascending scales.
        base_scale: Width of the functions in pixels at scale 1.
        size: Odd side of the stencil at the largest scale; by default it covers the enlarged kernel.
        max_order: Largest sum of the two orders; goes with `mult`.
        mult: Ratio of each width to the next smaller one.

    Example:
        >>> HermiteBasis(3, [1, 2], base_scale=0.9)
        HermiteBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> HermiteBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "hermite"
    presets = PRESETS

    def __init__(
        self,
        kernel_size: int,
        scales: Scales | Sequence[float],
        *,
        base_scale: float = 1.0,
        size: int | None = None,
        max_order: int | None = None,
        mult: float | None = None,
    ) -> None:
        _check_family("HermiteBasis", max_order, mult)
        super().__init__(
            kernel_size,
            scales,
            base_scale,
            size,
            lambda at: _hermite(at.kernel_size, at.side, at.scale, max_order, mult),
            {"max_order": max_order, "mult": mult},
        )


@on_cpu
def hermite_mixing(
    kernel_size: int, sigma: float, *, max_order: int | None = None, mult: float | None = None
) -> Tensor:
    """Hermite functions as weights of pixels, [F, F] with F = kernel_size ** 2, not normalised.

    `basis.mix(hermite_mixing(...)).normalized()` turns a pixel basis into what the authors' DISCO networks use.

    Args:
        kernel_size: Side of the pixel kernel.
        sigma: Width of the functions in pixels.
        max_order: As in `HermiteBasis`.
        mult: As in `HermiteBasis`.

    Example:
        >>> hermite_mixing(3, 0.5)[0].reshape(3, 3)[1, 1].item()  # the centre of the Gaussian, 1 / sigma ** 2
        4.0
    """
    check_count("hermite_mixing", "kernel_size", kernel_size, 1)
    check_positive("hermite_mixing", "sigma", sigma)
    _check_family("hermite_mixing", max_order, mult)
    return _hermite(kernel_size, kernel_size, sigma, max_order, mult).flatten(1)


def hermite_mixing_preset(name: str) -> Tensor:
    """The authors' mixing matrix for an experiment, by a name from `MIXING_PRESETS`.

    Example:
        >>> hermite_mixing_preset("stl10").shape
        torch.Size([9, 9])
    """
    return hermite_mixing(**MIXING_PRESETS[check_choice("hermite_mixing_preset", "name", name, MIXING_PRESETS)])


def _check_family(who: str, max_order: int | None, mult: float | None) -> None:
    if (max_order is None) != (mult is None):
        raise ValueError(f"{who}: max_order and mult go together, got max_order={max_order!r}, mult={mult!r}")
    if max_order is not None and mult is not None:
        check_count(who, "max_order", max_order, 0)
        check_positive(who, "mult", mult)


def _hermite(kernel_size: int, side: int, sigma: float, max_order: int | None, mult: float | None) -> Tensor:
    """The first kernel_size ** 2 functions [F, side, side]; the order along rows runs fastest."""
    if max_order is None or mult is None:
        axis = _factors(kernel_size - 1, side, sigma)
        return torch.einsum("ar,bc->barc", axis, axis).flatten(0, 1)
    down = [a for b in range(max_order + 1) for a in range(max_order + 1 - b)]
    across = [b for b in range(max_order + 1) for a in range(max_order + 1 - b)]
    functions: list[Tensor] = []
    while len(functions) < kernel_size**2:
        axis = _factors(max_order, side, sigma)
        functions.extend(torch.einsum("fr,fc->frc", axis[down], axis[across]))
        sigma /= mult
    return torch.stack(functions[: kernel_size**2])


def _factors(order: int, side: int, sigma: float) -> Tensor:
    """Along one axis, exp(-t^2 / 2) He_n(t) / sigma with t in units of sigma: [order + 1, side]."""
    t = centered(side) / sigma
    polynomials = [torch.ones_like(t), t]
    for n in range(1, order):
        polynomials.append(t * polynomials[n] - n * polynomials[n - 1])
    return torch.stack(polynomials[: order + 1]) * torch.exp(-t.square() / 2) / sigma
