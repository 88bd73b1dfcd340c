"""The paper's solver: gradient descent on random images for a fixed number of steps."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from ..resampling import resample
from ..scales import Scales
from .solve import Conditions, plan
from .stencil import Stencil

Progress = Callable[[int, int], None]  # of steps done and all steps
_BATCH = 4
_PIXELS = {1: 512, 2: 64, 3: 24}  # side of the random images, by spatial axes, beyond what the stencils cover
_PEAK_LR = 0.2  # for half of the steps, then decayed exponentially
_FINAL_LR_FRACTION = 1e-3


def sampled_objective(scales: Scales, stencils: Sequence[Stencil], images: Tensor, conditions: Conditions) -> Tensor:
    """Return the paper's objective on a sample of images [B, 1, ...]: a differentiable scalar, per input pixel.

    The sum over all pairs of scales k > l of `||L[f] * psi_l - L[f * psi_k]||^2` (appendix "General
    Solution"), each over the output pixels that do not depend on the border.
    """

    def shrink(x: Tensor) -> Tensor:
        return resample(x, 1 / ratio, mode=conditions.mode, antialias=conditions.antialias)

    total = images.new_zeros(())
    for ratio, pairs in scales.steps():
        shrunk = shrink(images)
        for k, l in pairs:
            small, large = stencils[l], stencils[k]
            pair = conditions.pair(ratio, (small.side, small.dilation), (large.side, large.dilation))
            difference = small.apply(shrunk) - shrink(large.apply(images))
            inner = [pair.inner_rows(size) for size in images.shape[2:]]
            squares = difference[(slice(None), slice(None), *inner)].square()
            total = total + squares.sum(1).mean() * ratio**-conditions.spatial_dims
    return total


def descend(
    scales: Scales, sides: Sequence[int], conditions: Conditions, steps: int, seed: int, progress: Progress | None
) -> list[Tensor]:
    """Return stencils after `steps` of Adam from a random start, with new random images at every step.

    The descent runs in coordinates in which responses to images of the prior have unit covariance: this changes
    little for white noise, but the descent does not converge on smooth images without it.
    """
    dims = conditions.spatial_dims
    layout = plan(scales)
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.eye(sides[0] ** dims, dtype=torch.float64).reshape(-1, *[sides[0]] * dims)
    free: dict[int, Tensor] = {}  # root -> coordinates [F, taps]
    whiten: dict[int, Tensor] = {}  # root -> upper triangular [taps, taps]: coordinates = whiten @ taps
    for root in sorted({root for root, _ in layout} - {0}):
        start = torch.randn(len(pixels), sides[root] ** dims, dtype=torch.float64, generator=generator)
        moments = conditions.prior.grams(conditions.pair(scales.ratio(root), (sides[0], 1), (sides[root], 1))).kk
        moments.diagonal().add_(1e-9 * moments.diagonal().mean())
        whiten[root] = torch.linalg.cholesky(moments, upper=True)
        free[root] = (start @ whiten[root].T).requires_grad_()

    def stencils() -> list[Stencil]:
        functions = {0: pixels}
        for root, x in free.items():
            flat = torch.linalg.solve_triangular(whiten[root], x.T, upper=True).T
            functions[root] = flat.reshape(-1, *[sides[root]] * dims)
        return [Stencil(functions[root], dilation) for root, dilation in layout]

    if free and steps:
        covered = max(sum(stencil.reach) for stencil in stencils())
        side = _PIXELS[dims] + covered + math.ceil(8 * scales.ratio(len(scales) - 1))
        optimizer = torch.optim.Adam(list(free.values()), lr=_PEAK_LR)
        schedule = LambdaLR(optimizer, lambda step: _FINAL_LR_FRACTION ** max(0.0, 2 * step / steps - 1))
        for step in range(steps):
            images = conditions.prior.sample(_BATCH, side, dims, generator)
            optimizer.zero_grad()
            sampled_objective(scales, stencils(), images, conditions).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(step + 1, steps)
    return [stencil.functions.detach().clone() for stencil in stencils()]
