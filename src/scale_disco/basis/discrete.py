"""The basis of the paper: pixels, their exact dilations, and the optimum everywhere else."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import check_count
from ..resample import canonical_mode
from ..scales import Scales, as_scales
from .cpu import on_cpu, one_thread
from .descent import descend
from .prior import CorrelatedNoise, Prior, TooFewPixelsError, as_prior
from .solve import Conditions, plan, predicted_errors, solve, total_error
from .stencil import Basis, Stencil

# A stencil grows while two more pixels a side lower the predicted error by at least this part of it.
SUPPORT_TOLERANCE = 0.05
_ROUNDING = 1e-12  # an error below this is none
_SOLVERS = ("exact", "gradient")
_REMEMBERED = 128  # solved bases kept in memory, the oldest dropped first
_SOLVED: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
_SOLVING = threading.RLock()  # threads that ask for the same basis wait for one of them to solve it


class DiscreteBasis(Basis):
    """Kernels that commute with discrete rescaling: exactly where that is possible, optimally elsewhere.

    At the first scale the functions are single pixels. A scale that is an integer multiple of another is
    its dilation: `L[f] * psi_l == L[f * psi_k]` (Eq. 7) holds exactly. Where it is a multiple of several,
    it follows the smallest. The other stencils minimise the summed squared error over all pairs of scales
    (appendix "General Solution"), solved jointly in closed form.

    Solved bases are kept in memory; asking for the same one again costs nothing.

    Args:
        kernel_size: Side of the kernel at the first scale, odd or even.
        scales: Any ascending scales.
        prior: The images to be optimal for: "image" (neighbours correlated by 0.9), "white" (noise, the
            paper), any correlation in [0, 1), or a tensor of your own images [N, C, H, W].
        mode: Interpolation of the rescaling: nearest, nearest-exact, linear or cubic, or torch's names.
        antialias: Whether the rescaling filters before it shrinks.
        support: Side of the solved stencils: one number, or one per scale. By default they grow until two
            more pixels a side would lower the predicted error by less than a twentieth.
        spatial_dims: 1, 2 or 3.
        solver: "exact", or "gradient" for the paper's descent on random images.
        steps: Steps of the descent, for `solver="gradient"`.
        seed: Of the start and the images of the descent.
        progress: Called as `progress(step, steps)` during the descent.

    Example:
        >>> basis = DiscreteBasis(3, Scales.geometric(2 ** 0.5, 4))
        >>> basis
        DiscreteBasis(3, Scales(1, 1.414, 2, 2.828), support=(3, 5, 3, 5), dilation=(1, 1, 2, 2))
        >>> basis.stencils[1].functions.shape, basis.taps
        (torch.Size([9, 5, 5]), 68)
    """

    kind = "discrete"

    @on_cpu
    def __init__(
        self,
        kernel_size: int,
        scales: Scales | Sequence[float],
        *,
        prior: str | float | Tensor | NDArray[Any] | Prior = "image",
        mode: str = "cubic",
        antialias: bool = False,
        support: int | Sequence[int] | None = None,
        spatial_dims: int = 2,
        solver: str = "exact",
        steps: int | None = None,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        kernel_size = check_count("DiscreteBasis", "kernel_size", kernel_size, 1)
        scales = as_scales(scales)
        if isinstance(spatial_dims, bool) or not isinstance(spatial_dims, int) or spatial_dims not in (1, 2, 3):
            raise ValueError(f"DiscreteBasis: spatial_dims must be 1, 2 or 3, got {spatial_dims!r}")
        if solver not in _SOLVERS:
            raise ValueError(f"DiscreteBasis: solver must be one of {', '.join(_SOLVERS)}, got {solver!r}")
        if (solver == "gradient") != (steps is not None):
            raise ValueError(f'DiscreteBasis: steps goes with solver="gradient" and only there, got {steps!r}')
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
            raise ValueError(f"DiscreteBasis: steps must be an integer >= 0, got {steps!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"DiscreteBasis: seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
        if not isinstance(antialias, bool):
            raise TypeError(f"DiscreteBasis: antialias must be True or False, got {antialias!r}")
        conditions = Conditions(as_prior(prior, spatial_dims), canonical_mode(mode), antialias, spatial_dims)
        asked = None if support is None else _check_support(kernel_size, scales, support)
        functions = _solved(kernel_size, scales, conditions, asked, steps, seed, progress)
        stencils = [Stencil(f.clone(), dilation) for f, (_, dilation) in zip(functions, plan(scales), strict=True)]
        spec: dict[str, Any] = {
            "kind": self.kind,
            "prior": conditions.prior.spec,
            "mode": conditions.mode,
            "antialias": antialias,
            "solver": solver,
        }
        if steps is not None:
            spec |= {"steps": steps, "seed": seed}
        super().__init__(scales, stencils, kernel_size=kernel_size, spec=spec)
        self._conditions = conditions


def _solved(
    kernel_size: int,
    scales: Scales,
    conditions: Conditions,
    asked: tuple[int, ...] | None,
    steps: int | None,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[Tensor, ...]:
    """Functions of every scale, from memory where they were solved before."""
    spec = (kernel_size, scales, conditions.prior.spec, conditions.mode, conditions.antialias, conditions.spatial_dims)
    key = (*spec, asked, steps, seed)
    with _SOLVING:
        if key in _SOLVED:
            return _SOLVED[key]
        with one_thread() if isinstance(conditions.prior, CorrelatedNoise) else nullcontext():
            sides = asked or _choose_support(kernel_size, scales, conditions)
            if set(sides) == {1}:
                functions = [torch.ones(1, *[1] * conditions.spatial_dims, dtype=torch.float64)] * len(scales)
            elif steps is None:
                functions = solve(scales, sides, conditions)
            else:
                functions = descend(scales, sides, conditions, steps, seed, progress)
        if len(_SOLVED) >= _REMEMBERED:
            del _SOLVED[next(iter(_SOLVED))]
        _SOLVED[key] = tuple(functions)
        return _SOLVED[key]


def _check_support(kernel_size: int, scales: Scales, support: int | Sequence[int]) -> tuple[int, ...]:
    roots = [root for root, _ in plan(scales)]
    if isinstance(support, Integral) and not isinstance(support, bool):
        sides = [kernel_size if root == 0 else int(support) for root in roots]
    elif isinstance(support, (Sequence, np.ndarray)) and not isinstance(support, str):
        sides = [int(side) if isinstance(side, Integral) and not isinstance(side, bool) else side for side in support]
    else:
        raise TypeError(f"DiscreteBasis: support must be a side or one side per scale, got {support!r}")
    if len(sides) != len(scales):
        raise ValueError(f"DiscreteBasis: support must name one side per scale, {len(scales)}, got {support!r}")
    for k, (side, root) in enumerate(zip(sides, roots, strict=True)):
        if isinstance(side, bool) or not isinstance(side, int) or side < 1 or (side - kernel_size) % 2:
            parity = "odd" if kernel_size % 2 else "even"
            raise ValueError(
                f"DiscreteBasis: support must be positive and {parity} like kernel_size {kernel_size}, "
                f"got {side!r} at scale {k}"
            )
        expected = kernel_size if root == 0 else sides[root]
        if side != expected:
            why = f"a dilation of scale {root}" if k else "the pixel basis"
            raise ValueError(f"DiscreteBasis: scale {k} is {why}, so its support is {expected}, got {side}")
    return tuple(sides)


def _choose_support(kernel_size: int, scales: Scales, conditions: Conditions) -> tuple[int, ...]:
    """Grow the solved stencils, the most useful first, until growing all of them would not pay."""
    layout = plan(scales)
    unknowns = sorted({root for root, _ in layout} - {0})

    def spread(sides: dict[int, int]) -> list[int]:
        return [sides.get(root, kernel_size) for root, _ in layout]

    def error(sides: dict[int, int]) -> float:
        stencils = zip(solve(scales, spread(sides), conditions), (d for _, d in layout), strict=True)
        return total_error(scales, predicted_errors(scales, list(stencils), conditions))

    # Start with the grid that covers the enlarged kernel.
    half = kernel_size // 2
    sides = {root: kernel_size + 2 * (math.ceil(scales.ratio(root) * half - 1e-6) - half) for root in unknowns}
    best = error(sides)
    while best > _ROUNDING:
        try:
            if error({root: side + 2 for root, side in sides.items()}) > (1 - SUPPORT_TOLERANCE) * best:
                break
        except TooFewPixelsError:  # the images of the prior cannot tell what more taps would be good for
            break
        grown = [{**sides, root: sides[root] + 2} for root in unknowns]
        best, sides = min(((error(candidate), candidate) for candidate in grown), key=lambda entry: entry[0])
    return tuple(spread(sides))
