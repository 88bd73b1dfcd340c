"""The one rescaling operator L of the paper: on images, and as a matrix.

Row d of the matrix reads the input around the coordinate `(d + 1/2) r - 1/2`, with r = 1 / scale: pixel
centres lie at half-integers and the image corner is the fixed point. Pure subsampling (`nearest`) reads
pixel `floor(d r)`. Both are torch's conventions: `torch.nn.functional.interpolate` with `scale_factor` gives the
same numbers wherever it has the mode. Only the size may differ by one, where size times scale is an integer but for
rounding: 39 pixels shrunk by 1.3 are 30 here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real

import torch
from torch import Tensor

# torch's names, and ours.
_MODES = {
    "nearest": "nearest",
    "nearest-exact": "nearest-exact",
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
}
_SLACK = 1e-9  # keeps floor() of a product that should be an integer on that integer


def canonical_mode(mode: str) -> str:
    """Our name of an interpolation mode: nearest, nearest-exact, linear or cubic.

    Example:
        >>> canonical_mode("bicubic")
        'cubic'
    """
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(f"mode: expected one of {', '.join(_MODES)}, got {mode!r}")
    return _MODES[mode]


def resample(x: Tensor, scale: float, *, mode: str = "cubic", antialias: bool = False) -> Tensor:
    """Rescale images by a factor: [B, C, H, W] -> [B, C, floor(H scale), floor(W scale)].

    One, two or three spatial axes, each by the same factor; differentiable. For every integer 1 / scale
    it is a shift-invariant filter followed by subsampling. A pixel that is not finite spoils its whole map, no other.

    Args:
        x: Images with batch and channel axes in front.
        scale: Factor; below 1 shrinks.
        mode: nearest, nearest-exact, linear or cubic; torch's bilinear, trilinear and bicubic mean the same.
        antialias: Widen the interpolation kernel by 1 / scale when shrinking. With `nearest`, average the
            pixels that fall into the new one.

    Example:
        >>> resample(torch.arange(6.0).reshape(1, 1, 6), 1 / 2, mode="linear")
        tensor([[[0.5000, 2.5000, 4.5000]]])
    """
    if x.ndim not in (3, 4, 5):
        raise ValueError(f"resample: expected images [B, C, ...] with 1 to 3 spatial axes, got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"resample: expected floating-point images, got {x.dtype}")
    for axis in range(2, x.ndim):
        matrix = resample_matrix(x.shape[axis], scale, mode=mode, antialias=antialias).to(x)
        rest = x.shape[axis + 1 :]
        x = (matrix @ x.flatten(axis + 1)).reshape(*x.shape[:axis], len(matrix), *rest) if rest else x @ matrix.T
    return x


def resample_matrix(size: int, scale: float, *, mode: str = "cubic", antialias: bool = False) -> Tensor:
    """The operator on one axis of `size` pixels as a matrix [floor(size scale), size], in float64.

    Example:
        >>> resample_matrix(4, 1 / 2, mode="linear")
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    if not (isinstance(scale, Real) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"resample: scale must be a positive finite number, got {scale!r}")
    if math.floor(size * scale + _SLACK) < 1:
        raise ValueError(f"resample: {size} pixels scaled by {scale:g} leave none")
    return _matrix(size, float(scale), canonical_mode(mode), bool(antialias)).clone()


@lru_cache(maxsize=16)  # a loop over a few ratios and sizes; large matrices must not pile up
def _matrix(size: int, scale: float, mode: str, antialias: bool) -> Tensor:
    rows = math.floor(size * scale + _SLACK)
    ratio = 1 / scale
    where = source_coordinates(torch.arange(rows, dtype=torch.float64), ratio, mode, antialias)
    reach = kernel_reach(ratio, mode, antialias)
    weights = kernel_weights(where, torch.arange(-reach, size + reach), ratio, mode, antialias)
    inside = weights[:, reach : reach + size].clone()
    if antialias:
        return inside / inside.sum(1, keepdim=True)  # what falls off the image is left out
    inside[:, 0] += weights[:, :reach].sum(1)  # what falls off the image reads the edge pixel
    inside[:, -1] += weights[:, reach + size :].sum(1)
    return inside


def source_coordinates(rows: Tensor, ratio: float, mode: str, antialias: bool) -> Tensor:
    """Where output rows read the input, in pixels of the input."""
    if mode == "nearest" and not antialias:
        return rows * ratio
    return (rows + 0.5) * ratio - 0.5


def kernel_reach(ratio: float, mode: str, antialias: bool) -> int:
    """How many pixels from its coordinate, at most, a row has weights."""
    radius = {"nearest": 1.0, "nearest-exact": 1.0, "linear": 1.0, "cubic": 2.0}[mode]
    return math.ceil(radius * (max(ratio, 1.0) if antialias else 1.0)) + 1


def kernel_weights(where: Tensor, pixels: Tensor, ratio: float, mode: str, antialias: bool) -> Tensor:
    """Weights of `pixels` in rows that read at the coordinates `where`: [rows, pixels], on an endless image."""
    offset = pixels.to(where) - where[..., None]
    if mode in ("nearest", "nearest-exact") and not antialias:
        chosen = torch.floor(where + (0.5 if mode == "nearest-exact" else 0.0) + _SLACK)
        return (pixels.to(where) == chosen[..., None]).to(where)
    width = max(ratio, 1.0) if antialias else 1.0
    if mode == "cubic":
        # Keys' kernel; torch and Pillow use a = -1/2 with antialiasing and torch a = -3/4 without.
        weights = _keys(offset.abs() / width, -0.5 if antialias else -0.75)
    elif mode == "linear":
        weights = (1 - offset.abs() / width).clamp(min=0)
    else:  # the part of each pixel that the widened box covers
        weights = ((width + 1) / 2 - offset.abs()).clamp(0, 1)
    return weights / weights.sum(-1, keepdim=True) if antialias else weights


def _keys(x: Tensor, a: float) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
