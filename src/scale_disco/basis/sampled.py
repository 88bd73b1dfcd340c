"""What the sampled families share: one function of the plane, dilated to every scale and sampled on pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_positive
from ..scales import Scales, as_scales
from .cpu import on_cpu
from .stencil import Basis, Stencil

# A function this much smaller at the first scale than at another is rounding noise there, not a shape to divide by.
_VANISHED = 1e-12

Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sampling:
    """One scale of a basis, as a formula needs it; `scale` and `smallest` are absolute, in the family's own unit."""

    kernel_size: int
    side: int
    scale: float
    size: int
    smallest: float

    @property
    def num_functions(self) -> int:
        """How many functions of the family the basis keeps."""
        return self.kernel_size**2

    def grid(self) -> tuple[Tensor, Tensor]:
        """Rows and columns in pixels from the centre, each [side, side]."""
        rows, cols = torch.meshgrid(*[centered(self.side)] * 2, indexing="ij")
        return rows, cols


class SampledBasis(Basis):
    """Functions of a continuous family sampled at every scale, each divided by its norm at the first scale.

    Args:
        kernel_size: Effective size E; the basis keeps the first E * E functions of the family.
        scales: Any ascending scales.
        base_scale: The formula sees `base_scale * scale`.
        size: Odd side of the stencil at the largest scale, the others follow in proportion. By default the
            smallest that is at least `kernel_size` times the ratio of the largest scale to the smallest.
        sample: The formula: the functions [E * E, side, side] at one scale.
        parameters: What else defines the numbers; goes into the spec.
    """

    presets: ClassVar[Presets] = {}

    @on_cpu
    def __init__(
        self,
        kernel_size: int,
        scales: Scales | Sequence[float],
        base_scale: float,
        size: int | None,
        sample: Callable[[Sampling], Tensor],
        parameters: dict[str, Any],
    ) -> None:
        who = type(self).__name__
        kernel_size = check_count(who, "kernel_size", kernel_size, 1)
        scales = as_scales(scales)
        base_scale = check_positive(who, "base_scale", base_scale)
        size = _check_size(who, kernel_size, scales, size)
        sides = [odd_support(size, scale, scales[-1]) for scale in scales]
        absolute = [base_scale * scale for scale in scales]
        sampled = [
            sample(Sampling(kernel_size, side, scale, size, absolute[0]))
            for side, scale in zip(sides, absolute, strict=True)
        ]
        norms = torch.stack([functions.flatten(1).norm(dim=1) for functions in sampled])  # [S, F]
        vanished = ~(norms[0] > _VANISHED * norms.amax(0))  # true for NaN and infinity as well
        if bool(vanished.any()):
            raise ValueError(
                f"{who}: every function must be finite and not zero on the {sides[0]} x {sides[0]} pixels of the first "
                f"scale, got one that is not: function {int(vanished.nonzero()[0])}"
            )
        super().__init__(
            scales,
            [Stencil(functions / norms[0, :, None, None]) for functions in sampled],
            kernel_size=kernel_size,
            spec={"kind": self.kind, "base_scale": base_scale, "size": size, **parameters},
        )

    @classmethod
    def preset(cls, name: str) -> Self:
        """A basis with the authors' settings, by a name from `presets`."""
        return cls(**cls.presets[check_choice(f"{cls.__name__}.preset", "name", name, cls.presets)])


def centered(side: int) -> Tensor:
    """Pixels from the centre of a row of `side` pixels."""
    return torch.arange(side, dtype=torch.float64) - (side - 1) / 2


def odd_support(side: int, scale: float, largest: float) -> int:
    """The authors' odd side of a sampled function at `scale` when the largest scale has `side`."""
    return 2 * math.floor(int(side * scale / largest) / 2) + 1


def mnist_scales(smallest: float) -> tuple[float, ...]:
    """The authors' four scales over one octave, rounded as in their scripts."""
    return tuple(round(smallest * 2 ** (i / 3), 2) for i in range(4))


def _check_size(who: str, kernel_size: int, scales: Scales, size: int | None) -> int:
    if size is None:
        # The tolerance keeps a product that is an odd integer but for rounding from growing by two.
        return 2 * (math.ceil(kernel_size * scales.ratio(-1) - 1e-6) // 2) + 1
    if isinstance(size, bool) or not isinstance(size, int) or size % 2 == 0 or size < kernel_size:
        raise ValueError(f"{who}: size must be an odd integer >= kernel_size {kernel_size}, got {size!r}")
    return size
