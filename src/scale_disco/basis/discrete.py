"""The basis of the paper: pixels at the first scale, exact dilations of them, and the optimum at the other scales."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from numbers import Integral
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checks import check_choice, check_count
from ..resampling import canonical_mode, on_cpu
from ..scales import Scales, as_scales
from .descent import Progress, descend
from .prior import CorrelatedNoise, Prior, TooFewPixelsError, as_prior
from .solve import Conditions, plan, predicted_errors, solve, total_error
from .stencil import Basis, Stencil

# Stencils grow as long as two more pixels a side reduce the predicted error by at least this fraction.
SUPPORT_TOLERANCE = 0.05
_ROUNDING = 1e-12  # a smaller error is zero up to rounding
_CACHE_SIZE = 128  # solved bases in memory; the oldest is dropped first
_SOLVED: dict[tuple[Any, ...], list[Tensor]] = {}
_SOLVING = threading.RLock()  # one thread solves a basis, others that need it wait
_ONE_THREAD = threading.RLock()  # otherwise one caller could restore the single thread of another


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small operations in one thread; on a busy machine a second one makes them up to 30 times slower."""
    with _ONE_THREAD:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class DiscreteBasis(Basis):
    """Kernels that commute with discrete rescaling: exactly where possible, optimally elsewhere.

    At the first scale the functions are single pixels. A scale that is an integer multiple of another is
    its dilation: `L[f] * psi_l == L[f * psi_k]` (Eq. 7) holds exactly. Of several such scales the smallest
    is dilated. The other stencils minimize the summed squared error over all pairs of scales
    (appendix "General Solution"), solved jointly in closed form. Solved bases are cached in memory.

    Args:
        kernel_size: Side of the kernel at the first scale, odd or even.
        scales: Any ascending scales.
        prior: Images to be optimal for: "image" (correlation of neighbors 0.9), "white" (noise, as in the
            paper), any correlation in [0, 1), or a tensor of your own images [N, C, H, W].
        mode: Interpolation of the rescaling: nearest, nearest-exact, linear or cubic, or torch's names.
        antialias: Whether the rescaling filters before it shrinks.
        support: Side of the solved stencils: one number, or one per scale. By default they grow until two
            more pixels a side would reduce the predicted error by less than 5 %.
        spatial_dims: 1, 2 or 3.
        solver: "exact", or "gradient" for the paper's descent on random images.
        steps: Number of descent steps, for `solver="gradient"`.
        seed: Seed of the initial stencils and the images of the descent.
        progress: Called as `progress(step, steps)` during the descent.

    Example:
        >>> basis = DiscreteBasis(3, Scales.geometric(2 ** 0.5, 4))
        >>> basis
        DiscreteBasis(3, Scales(1, 1.414, 2, 2.828), support=(3, 5, 3, 5), dilation=(1, 1, 2, 2))
        >>> basis.stencils[1].functions.shape, basis.taps
        (torch.Size([9, 5, 5]), 68)
    """

    kind = "discrete"

    @on_cpu()
    def __init__(
        self,
        kernel_size: int,
        scales: Iterable[float],
        *,
        prior: str | float | Tensor | NDArray[Any] | Prior = "image",
        mode: str = "cubic",
        antialias: bool = False,
        support: int | Sequence[int] | None = None,
        spatial_dims: int = 2,
        solver: str = "exact",
        steps: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        who = "DiscreteBasis"
        kernel_size = check_count(who, "kernel_size", kernel_size, 1)
        scales = as_scales(scales)
        check_choice(who, "spatial_dims", spatial_dims, (1, 2, 3))
        check_choice(who, "solver", solver, ("exact", "gradient"))
        if not isinstance(antialias, bool):
            raise TypeError(f"{who}: antialias must be True or False, got {antialias!r}")
        if (solver == "gradient") != (steps is not None):
            raise ValueError(f'{who}: steps must be given with solver="gradient" and only then, got {steps!r}')
        if check_count(who, "seed", seed, 0) >= 2**63:
            raise ValueError(f"{who}: seed must be below 2^63, got {seed}")
        conditions = Conditions(as_prior(prior, spatial_dims), canonical_mode(mode), antialias, spatial_dims)
        spec: dict[str, Any] = {"kind": self.kind, "prior": conditions.prior.spec, "mode": conditions.mode}
        spec |= {"antialias": antialias, "solver": solver}
        minimize: Callable[[Scales, Sequence[int], Conditions], list[Tensor]] = solve
        if steps is not None:
            spec |= {"steps": check_count(who, "steps", steps, 0), "seed": int(seed)}
            minimize = partial(descend, steps=steps, seed=seed, progress=progress)
        sides = None if support is None else _check_support(kernel_size, scales, support)
        key = (kernel_size, scales, conditions.prior.spec, *conditions[1:], sides, steps, seed)
        with _SOLVING:
            if key not in _SOLVED:
                with one_thread() if isinstance(conditions.prior, CorrelatedNoise) else nullcontext():
                    sides = sides or _choose_support(kernel_size, scales, conditions)
                    pixel = torch.ones([1] * (spatial_dims + 1), dtype=torch.float64)
                    functions = [pixel] * len(sides) if set(sides) == {1} else minimize(scales, sides, conditions)
                if len(_SOLVED) >= _CACHE_SIZE:
                    del _SOLVED[next(iter(_SOLVED))]
                _SOLVED[key] = functions
            solved = zip(_SOLVED[key], plan(scales), strict=True)
        stencils = [Stencil(functions.clone(), dilation) for functions, (_, dilation) in solved]
        super().__init__(scales, stencils, kernel_size=kernel_size, spec=spec)
        self._prior = conditions.prior


def at_scales(basis: Basis, scales: Scales) -> Basis:
    """Return a discrete basis, mixed or not, solved again for other scales; the functions at the first scale stay."""
    kind, spec = basis.spec["kind"], basis.spec
    if kind not in (DiscreteBasis.kind, f"recombined {DiscreteBasis.kind}"):
        raise ValueError(f"with_scales: expected a DiscreteBasis, which can be solved again, got a {kind} basis")
    names = ("spatial_dims", "mode", "antialias", "solver", "steps", "seed")
    options = {name: spec[name] for name in names if name in spec}
    solved = DiscreteBasis(basis.kernel_size, scales, prior=basis._prior, **options)
    # At the first scale functions are pixels, so that those of a mixed basis are its matrix.
    return solved if kind == DiscreteBasis.kind else solved.mix(basis.stencils[0].functions.flatten(1))


def _check_support(kernel_size: int, scales: Scales, support: Any) -> tuple[int, ...]:
    roots = [root for root, _ in plan(scales)]
    if isinstance(support, (bool, str)) or not (isinstance(support, Integral) or hasattr(support, "__len__")):
        raise TypeError(f"DiscreteBasis: support must be one side or one side per scale, got {support!r}")
    sides = [support if root else kernel_size for root in roots] if isinstance(support, Integral) else list(support)
    if len(sides) != len(scales):
        raise ValueError(f"DiscreteBasis: support must have one side per scale, {len(scales)}, got {support!r}")
    for k, (side, root) in enumerate(zip(sides, roots, strict=True)):
        if isinstance(side, bool) or not isinstance(side, Integral) or side < 1 or int(side) % 2 != kernel_size % 2:
            rule = f"positive and {'odd' if kernel_size % 2 else 'even'} like kernel_size {kernel_size}"
            raise ValueError(f"DiscreteBasis: support must be {rule}, got {side!r} at scale {k}")
        expected = sides[root] if root else kernel_size
        if side != expected:
            why = f"a dilation of scale {root}" if k else "the pixel basis"
            raise ValueError(f"DiscreteBasis: scale {k} is {why}, so its support is {expected}, got {side}")
    return tuple(int(side) for side in sides)


def _choose_support(kernel_size: int, scales: Scales, conditions: Conditions) -> tuple[int, ...]:
    """Grow the solved stencils, the most useful first, until growing all of them would not pay off."""
    layout = plan(scales)
    unknowns = sorted({root for root, _ in layout} - {0})

    def all_sides(sides: dict[int, int]) -> tuple[int, ...]:
        return tuple(sides.get(root, kernel_size) for root, _ in layout)

    def error(sides: dict[int, int]) -> float:
        functions = solve(scales, all_sides(sides), conditions)
        stencils = [(psi, dilation) for psi, (_, dilation) in zip(functions, layout, strict=True)]
        return total_error(scales, predicted_errors(scales, stencils, conditions))

    # Start with the grid that covers the enlarged kernel.
    half = kernel_size // 2
    sides = {root: kernel_size + 2 * (math.ceil(scales.ratio(root) * half - 1e-6) - half) for root in unknowns}
    best = error(sides)
    while best > _ROUNDING:
        try:
            if error({root: side + 2 for root, side in sides.items()}) > (1 - SUPPORT_TOLERANCE) * best:
                break
        except TooFewPixelsError:  # the images of the prior do not determine more taps
            break
        candidates = [{**sides, root: sides[root] + 2} for root in unknowns]
        best, sides = min(((error(candidate), candidate) for candidate in candidates), key=lambda entry: entry[0])
    return all_sides(sides)
