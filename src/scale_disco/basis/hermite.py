"""Hermite functions: Gaussian derivatives of ascending order, or of few orders at several widths."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_positive
from ..resampling import on_cpu
from .sampled import Presets, SampledBasis, Sampling, centered, mnist_preset

# The matrices by which the authors' DISCO networks mix their pixel basis: DISCO-A (stl10) and DISCO-B (mnist).
MIXING_PRESETS: Presets = {
    "mnist": {"kernel_size": 7, "sigma": 1.9, "max_order": 4, "mult": 1.5},
    "mnist+": {"kernel_size": 7, "sigma": 1.9, "max_order": 4, "mult": 1.9},
    "stl10": {"kernel_size": 3, "sigma": 0.9},
}


class HermiteBasis(SampledBasis):
    """Products of Hermite functions along rows and columns, with the scale as their width in pixels.

    By default the orders run from 0 to `kernel_size - 1` on both axes (the authors' "A"). With `max_order` the
    two orders sum to at most that, and widths shrink by `mult` until there are enough functions ("B").

    Args:
        kernel_size: Effective size E; there are E * E functions.
        scales: Any ascending scales.
        base_scale: Width of the functions in pixels at scale 1.
        size: Odd side of the stencil at the largest scale; by default it covers the enlarged kernel.
        max_order: Largest sum of the two orders; requires `mult`.
        mult: Ratio of each width to the next smaller one.

    Example:
        >>> HermiteBasis(3, [1, 2], base_scale=0.9)
        HermiteBasis(3, Scales(1, 2), support=(3, 7), dilation=(1, 1))
        >>> HermiteBasis.preset("mnist").dense().shape
        torch.Size([49, 4, 15, 15])
    """

    kind = "hermite"
    # Of the authors' SESN and tracker. "+" is training with scale augmentation; "-sesn" are the parameters of the SESN
    # code where those of the DISCO code differ; "stl10-c" is the variant SESN-C.
    presets: ClassVar[Presets] = {
        "mnist": mnist_preset(1.5, max_order=4, mult=1.4),
        "mnist+": mnist_preset(1.7, max_order=4, mult=1.5),
        "mnist-sesn": mnist_preset(2.0, max_order=4, mult=1.5),
        "mnist-sesn+": mnist_preset(1.5, size=13, max_order=4, mult=1.4),
        "stl10": {"kernel_size": 3, "size": 7, "scales": tuple(0.9 * 1.41**i for i in range(3))},
        "stl10-c": {"kernel_size": 3, "size": 7, "scales": tuple(1.1 * 1.41**i for i in range(3))},
        "tracker-stem": {"kernel_size": 7, "size": 9, "scales": tuple(0.9 * 1.4**i for i in range(3))},
        "tracker": {"kernel_size": 3, "size": 5, "scales": tuple(0.9 * 1.4**i for i in range(3))},
    }

    def __init__(
        self,
        kernel_size: int,
        scales: Iterable[float],
        *,
        base_scale: float = 1.0,
        size: int | None = None,
        max_order: int | None = None,
        mult: float | None = None,
    ) -> None:
        def sample(at: Sampling) -> Tensor:
            return _hermite("HermiteBasis", at.kernel_size, at.side, at.scale, max_order, mult)

        super().__init__(kernel_size, scales, base_scale, size, sample, {"max_order": max_order, "mult": mult})


@on_cpu()
def hermite_mixing(
    kernel_size: int, sigma: float, *, max_order: int | None = None, mult: float | None = None
) -> Tensor:
    """Return Hermite functions as weights of pixels, [F, F] with F = kernel_size ** 2, not normalized.

    `basis.mix(hermite_mixing(...)).normalized()` turns a pixel basis into that of the authors' DISCO networks.

    Args:
        kernel_size: Side of the pixel kernel.
        sigma: Width of the functions in pixels.
        max_order, mult: As in `HermiteBasis`.

    Example:
        >>> hermite_mixing(3, 0.5)[0].reshape(3, 3)[1, 1].item()  # the center of the Gaussian, 1 / sigma ** 2
        4.0
    """
    kernel_size = check_count("hermite_mixing", "kernel_size", kernel_size, 1)
    sigma = check_positive("hermite_mixing", "sigma", sigma)
    return _hermite("hermite_mixing", kernel_size, kernel_size, sigma, max_order, mult).flatten(1)


def hermite_mixing_preset(name: str) -> Tensor:
    """Return the authors' mixing matrix for an experiment, by a name from `MIXING_PRESETS`.

    Example:
        >>> hermite_mixing_preset("stl10").shape
        torch.Size([9, 9])
    """
    return hermite_mixing(**MIXING_PRESETS[check_choice("hermite_mixing_preset", "name", name, MIXING_PRESETS)])


def _hermite(who: str, kernel_size: int, side: int, sigma: float, max_order: int | None, mult: float | None) -> Tensor:
    """Return the first kernel_size ** 2 functions [F, side, side]; the order along rows runs fastest."""
    if max_order is None and mult is None:
        axis = _factors(kernel_size - 1, side, sigma)
        return torch.einsum("ar,bc->barc", axis, axis).flatten(0, 1)
    if max_order is None or mult is None:
        raise ValueError(f"{who}: max_order and mult go together, got max_order={max_order!r}, mult={mult!r}")
    check_count(who, "max_order", max_order, 0)
    check_positive(who, "mult", mult)
    rows, cols = torch.tensor([(a, b) for b in range(max_order + 1) for a in range(max_order + 1 - b)]).T
    functions: list[Tensor] = []
    while len(functions) < kernel_size**2:
        axis = _factors(max_order, side, sigma)
        functions.extend(torch.einsum("fr,fc->frc", axis[rows], axis[cols]))
        sigma /= mult
    return torch.stack(functions[: kernel_size**2])


def _factors(order: int, side: int, sigma: float) -> Tensor:
    """Return exp(-t^2 / 2) He_n(t) / sigma along one axis, with t in units of sigma: [order + 1, side]."""
    t = centered(side) / sigma
    polynomials = [torch.ones_like(t), t]
    for n in range(1, order):
        polynomials.append(t * polynomials[n] - n * polynomials[n - 1])
    return torch.stack(polynomials[: order + 1]) * torch.exp(-t.square() / 2) / sigma
