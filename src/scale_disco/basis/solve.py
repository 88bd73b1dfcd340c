"""The quadratic problem behind the discrete basis: pairs of scales -> normal equations -> solution.

The paper's general objective (appendix "General Solution") is a sum over all pairs of scales k > l of
`E_f ||L[f] * psi_l - L[f * psi_k]||_F^2`. It is quadratic in the stencils, with matrices that the prior
supplies, so its minimum is the solution of one linear system; all basis functions share its left side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..scales import Scales
from .prior import Prior, ScalePair

_MOST_TAPS = 8000  # 0.5 GB for the matrix and as much for its factor
_RIDGE = 1e-13  # of the mean diagonal: keeps Cholesky defined where a prior leaves a direction free


def plan(scales: Scales) -> list[tuple[int, int]]:
    """For every scale (root, dilation): the smallest scale that divides it, and by how much.

    A root is its own root with dilation 1; the others are its dilations, exactly (Eq. 12).

    Example:
        >>> plan(Scales.geometric(2 ** 0.5, 4))
        [(0, 1), (1, 1), (0, 2), (1, 2)]
    """
    roots: list[tuple[int, int]] = []
    for k in range(len(scales)):
        for root in range(k + 1):
            dilation = scales.integer_ratio(k, root)
            if dilation and (root == k or roots[root][0] == root):
                roots.append((root, dilation))
                break
    return roots


def tap_offsets(side: int, dilation: int = 1) -> Tensor:
    """Positions of the taps of a stencil along one axis, its centre tap (side - 1) // 2 at 0."""
    return float(dilation) * (torch.arange(side, dtype=torch.float64) - (side - 1) // 2)


@dataclass(frozen=True)
class Conditions:
    """What "equivariant" is measured against: the operator L and the images."""

    prior: Prior
    mode: str
    antialias: bool
    spatial_dims: int

    def pair(self, ratio: float, smaller: tuple[int, int], larger: tuple[int, int]) -> ScalePair:
        """L shrinking by `ratio` between two stencils, each given as (side, dilation)."""
        offsets = (tap_offsets(*smaller), tap_offsets(*larger))
        return ScalePair(ratio, *offsets, self.mode, self.antialias, self.spatial_dims)


def solve(scales: Scales, sides: Sequence[int], conditions: Conditions) -> list[Tensor]:
    """Stencils [F, side, ...] of every scale, pixels at the first root, the optimum at the others.

    Args:
        scales: The scales of the basis.
        sides: Side of the stencil of each scale, before dilation; equal for scales that share a root.
        conditions: Operator and prior.
    """
    dims = conditions.spatial_dims
    layout = plan(scales)
    taps = [side**dims for side in sides]
    unknowns = sorted({root for root, _ in layout if root != 0})
    start = {}
    size = 0
    for root in unknowns:
        start[root] = size
        size += taps[root]
    if size > _MOST_TAPS:
        raise ValueError(
            f"DiscreteBasis: at most {_MOST_TAPS} taps can be solved for, got {size} for stencils of sides "
            f"{', '.join(str(sides[root]) for root in unknowns)}; leave out large scales or set support"
        )
    left = torch.zeros(size, size, dtype=torch.float64)
    right = torch.zeros(size, taps[0], dtype=torch.float64)

    for ratio, pairs in scales.steps():
        weight = ratio**-dims  # the norm sums over the pixels of the shrunken image
        for k, l in pairs:
            if layout[k][0] == layout[l][0] == 0:
                continue  # both known
            pair = conditions.pair(ratio, (sides[l], layout[l][1]), (sides[k], layout[k][1]))
            grams = conditions.prior.grams(pair)
            quadratic = ((l, l, grams.ll), (l, k, -grams.lk), (k, l, -grams.lk.T), (k, k, grams.kk))
            for i, j, matrix in quadratic:
                row, column = layout[i][0], layout[j][0]
                if row == 0:
                    continue
                rows = slice(start[row], start[row] + taps[row])
                if column == 0:  # the pixel basis, an identity matrix
                    right[rows] -= weight * matrix
                else:
                    left[rows, start[column] : start[column] + taps[column]] += weight * matrix

    solution = right
    if size:
        left.diagonal().add_(_RIDGE * left.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(left)
        if int(failed):
            raise ValueError("prior: images must have enough detail to determine the stencils, these have too little")
        solution = torch.cholesky_solve(right, factor)
    stencils = []
    for k, (root, _) in enumerate(layout):
        flat = torch.eye(taps[0], dtype=torch.float64) if root == 0 else solution[start[root] :][: taps[root]]
        stencils.append(flat.T.reshape(taps[0], *[sides[k]] * dims).contiguous())
    return stencils


def predicted_errors(
    scales: Scales, stencils: Sequence[tuple[Tensor, int]], conditions: Conditions
) -> dict[tuple[int, int], tuple[float, float]]:
    """Expected squared norms (of the difference, of `L[f * psi_k]`) for each pair (k, l), summed over functions.

    Args:
        scales: The scales of the basis.
        stencils: For every scale its functions [F, side, ...] and dilation.
        conditions: Operator and prior.
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
    """Eq. 14 from the norms of all pairs: a relative error for every ratio of scales, summed over ratios."""
    total = 0.0
    for _, pairs in scales.steps():
        difference, norm = (sum(errors[pair][part] for pair in pairs) for part in (0, 1))
        total += difference / norm if norm > 0 else (math.inf if difference > 0 else 0.0)
    return total
