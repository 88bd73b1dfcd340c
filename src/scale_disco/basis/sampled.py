"""Base of the sampled families: one function of the plane, dilated to every scale and sampled on pixels."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_positive
from ..resampling import on_cpu
from ..scales import as_scales
from .stencil import Basis, Stencil

# A function this much smaller at the first scale than at another is rounding noise there.
_VANISHED = 1e-12

Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sampling:
    """One scale of a basis, the argument of a formula; `scale` and `smallest` are absolute, in the family's unit."""

    kernel_size: int
    side: int
    scale: float
    size: int
    smallest: float

    def grid(self) -> tuple[Tensor, Tensor]:
        """Return rows and columns in pixels from the center, each [side, side]."""
        rows, cols = torch.meshgrid(*[centered(self.side)] * 2, indexing="ij")
        return rows, cols


class SampledBasis(Basis):
    """Functions of a continuous family sampled at every scale, each divided by its norm at the first scale.

    Args:
        kernel_size: Effective size E; the basis has the first E * E functions of the family.
        scales: Any ascending scales.
        base_scale: The formula gets `base_scale * scale`.
        size: Odd side of the stencil at the largest scale; the others are proportional. Defaults to the smallest
            that is at least `kernel_size` times the ratio of the largest scale to the smallest.
        sample: The formula: returns the functions [E * E, side, side] at one scale.
        parameters: Other parameters of the formula, for the spec.
    """

    presets: ClassVar[Presets] = {}

    @on_cpu()
    def __init__(
        self,
        kernel_size: int,
        scales: Iterable[float],
        base_scale: float,
        size: int | None,
        sample: Callable[[Sampling], Tensor],
        parameters: dict[str, Any],
    ) -> None:
        who = type(self).__name__
        kernel_size = check_count(who, "kernel_size", kernel_size, 1)
        scales = as_scales(scales)
        base_scale = check_positive(who, "base_scale", base_scale)
        if size is None:
            # The tolerance keeps an odd integer from growing by two because of rounding.
            size = 2 * (math.ceil(kernel_size * scales.ratio(-1) - 1e-6) // 2) + 1
        if isinstance(size, bool) or not isinstance(size, int) or size % 2 == 0 or size < kernel_size:
            raise ValueError(f"{who}: size must be an odd integer >= kernel_size {kernel_size}, got {size!r}")
        sampled = []
        for scale in scales:
            side = 2 * math.floor(int(size * scale / scales[-1]) / 2) + 1  # as in the authors' code
            sampled.append(sample(Sampling(kernel_size, side, base_scale * scale, size, base_scale * scales[0])))
        norms = torch.stack([functions.flatten(1).norm(dim=1) for functions in sampled])  # [S, F]
        vanished = ~(norms[0] > _VANISHED * norms.amax(0))  # true for NaN and infinity as well
        if bool(vanished.any()):
            rule = f"finite and nonzero on the {' x '.join(map(str, sampled[0].shape[1:]))} pixels of the first scale"
            raise ValueError(f"{who}: every function must be {rule}, but function {int(vanished.nonzero()[0])} is not")
        stencils = [Stencil(functions / norms[0, :, None, None]) for functions in sampled]
        spec = {"kind": self.kind, "base_scale": base_scale, "size": size, **parameters}
        super().__init__(scales, stencils, kernel_size=kernel_size, spec=spec)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return a basis with the authors' parameters, by a name from `presets`."""
        return cls(**cls.presets[check_choice(f"{cls.__name__}.preset", "name", name, cls.presets)])


def centered(side: int) -> Tensor:
    """Return the offsets of `side` pixels in a row from their center."""
    return torch.arange(side, dtype=torch.float64) - (side - 1) / 2


def mnist_preset(smallest: float, *, size: int = 15, **parameters: Any) -> dict[str, Any]:
    """Return the authors' parameters for MNIST-scale: four scales over one octave, rounded as in their scripts."""
    scales = tuple(round(smallest * 2 ** (i / 3), 2) for i in range(4))
    return {"kernel_size": 7, "size": size, "scales": scales, **parameters}
