"""The quadratic problem behind the discrete basis: pairs of scales -> normal equations -> solution.

The paper's general objective (appendix "General Solution") is a sum over all pairs of scales k > l of
`E_f ||L[f] * psi_l - L[f * psi_k]||_F^2`. It is quadratic in the stencils, with the Gram matrices of the prior, so its
minimum solves one linear system, the same for all basis functions up to the right-hand side.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..scales import Scales
from .prior import Prior, ScalePair

_MAX_TAPS = 8000  # 0.5 GB for the matrix and as much for its factor
_RIDGE = 1e-13  # of the mean diagonal: keeps Cholesky defined if a prior leaves a direction undetermined


def plan(scales: Scales) -> list[tuple[int, int]]:
    """Return (root, dilation) for every scale: the smallest scale that divides it, and the integer ratio to it.

    A root is its own root with dilation 1; the others are its dilations, exactly (Eq. 12).

    Example:
        >>> plan(Scales.geometric(2 ** 0.5, 4))
        [(0, 1), (1, 1), (0, 2), (1, 2)]
    """
    roots: list[tuple[int, int]] = []
    for k in range(len(scales)):
        candidates = [*(root for root in range(k) if roots[root][0] == root), k]
        divisors = ((root, scales.integer_ratio(k, root)) for root in candidates)
        roots.append(next((root, dilation) for root, dilation in divisors if dilation))
    return roots


def tap_offsets(side: int, dilation: int = 1) -> Tensor:
    """Return the positions of the taps of a stencil along one axis, 0 at its center tap (side - 1) // 2."""
    return float(dilation) * (torch.arange(side, dtype=torch.float64) - (side - 1) // 2)


class Conditions(NamedTuple):
    """What equivariance is measured with: the operator L and the prior on images."""

    prior: Prior
    mode: str
    antialias: bool
    spatial_dims: int

    def pair(self, ratio: float, smaller: tuple[int, int], larger: tuple[int, int]) -> ScalePair:
        """Return the pair of two stencils, each given as (side, dilation), with L shrinking by `ratio`."""
        return ScalePair(ratio, tap_offsets(*smaller), tap_offsets(*larger), *self[1:])


def solve(scales: Scales, sides: Sequence[int], conditions: Conditions) -> list[Tensor]:
    """Return stencils [F, side, ...] of every scale: pixels at the first root, the optimum at the others.

    `sides` are those before dilation, equal for scales that share a root.
    """
    dims = conditions.spatial_dims
    layout = plan(scales)
    taps = [side**dims for side in sides]
    unknowns = sorted({root for root, _ in layout} - {0})
    ends = list(accumulate((taps[root] for root in unknowns), initial=0))
    block = {root: slice(*rows) for root, rows in zip(unknowns, pairwise(ends), strict=True)}  # of its taps
    size = ends[-1]
    if size > _MAX_TAPS:
        got = f"{size} for stencils of sides {', '.join(str(sides[root]) for root in unknowns)}"
        hint = "leave out large scales or set support"
        raise ValueError(f"DiscreteBasis: at most {_MAX_TAPS} taps can be solved for, got {got}; {hint}")
    left = torch.zeros(size, size, dtype=torch.float64)
    right = torch.zeros(size, taps[0], dtype=torch.float64)

    for ratio, pairs in scales.steps():
        weight = ratio**-dims  # the norm sums over the pixels of the shrunken image
        for k, l in pairs:
            if layout[k][0] == layout[l][0] == 0:
                continue  # both known
            grams = conditions.prior.grams(conditions.pair(ratio, (sides[l], layout[l][1]), (sides[k], layout[k][1])))
            quadratic = ((l, l, grams.ll), (l, k, -grams.lk), (k, l, -grams.lk.T), (k, k, grams.kk))
            for i, j, matrix in quadratic:
                row, column = layout[i][0], layout[j][0]
                if row == 0:
                    continue
                if column == 0:  # the pixel basis, an identity matrix
                    right[block[row]] -= weight * matrix
                else:
                    left[block[row], block[column]] += weight * matrix

    solution = right
    if size:
        left.diagonal().add_(_RIDGE * left.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(left)
        if int(failed):
            raise ValueError("prior: images must have enough detail to determine the stencils, these have too little")
        solution = torch.cholesky_solve(right, factor)
    stencils = []
    for (root, _), side in zip(layout, sides, strict=True):
        flat = torch.eye(taps[0], dtype=torch.float64) if root == 0 else solution[block[root]]
        stencils.append(flat.T.reshape(taps[0], *[side] * dims).contiguous())
    return stencils


def predicted_errors(
    scales: Scales, stencils: Sequence[tuple[Tensor, int]], conditions: Conditions
) -> dict[tuple[int, int], tuple[float, float]]:
    """Return expected squared norms (of the difference, of `L[f * psi_k]`) for each pair (k, l), summed over functions.

    A stencil is given as functions [F, side, ...] and dilation.
    """
    errors = {}
    for ratio, pairs in scales.steps():
        for k, l in pairs:
            (psi_l, dilation_l), (psi_k, dilation_k) = stencils[l], stencils[k]
            pair = conditions.pair(ratio, (psi_l.shape[-1], dilation_l), (psi_k.shape[-1], dilation_k))
            grams = conditions.prior.grams(pair)
            flat_l, flat_k = psi_l.flatten(1), psi_k.flatten(1)
            norm = ((flat_k @ grams.kk) * flat_k).sum()
            cross = ((flat_l @ grams.lk) * flat_k).sum()
            difference = ((flat_l @ grams.ll) * flat_l).sum() - 2 * cross + norm
            errors[k, l] = (max(float(difference), 0.0), float(norm))
    return errors


def total_error(scales: Scales, errors: dict[tuple[int, int], tuple[float, float]]) -> float:
    """Return Eq. 14 from the norms of all pairs: the relative error of every ratio of scales, summed over ratios."""
    total = 0.0
    for _, pairs in scales.steps():
        difference, norm = (sum(norms) for norms in zip(*(errors[pair] for pair in pairs), strict=True))
        total += difference / norm if norm > 0 else (math.inf if difference > 0 else 0.0)
    return total
