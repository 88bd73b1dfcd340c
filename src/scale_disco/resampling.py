"""The rescaling operator L of the paper, on images and as a matrix.

Row d of the matrix reads the input around the coordinate `(d + 1/2) r - 1/2`, with r = 1 / scale: pixel
centers lie at half-integers and the image corner is the fixed point. Pure subsampling (`nearest`) reads
pixel `floor(d r)`. Both are torch's conventions: `torch.nn.functional.interpolate` with `scale_factor` returns the
same values for every mode it supports. Only the size may differ by one, where size times scale is an integer up to
rounding: 39 pixels shrunk by 1.3 are 30 here.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from .checks import check_positive
from .scales import TOLERANCE, Scales

_RADIUS = {"nearest": 1.0, "nearest-exact": 1.0, "linear": 1.0, "cubic": 2.0}  # of the interpolation kernel, in pixels
_TORCH_NAMES = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
_SLACK = 1e-9  # keeps floor() of a product that should be an integer on that integer


@contextmanager
def on_cpu() -> Iterator[None]:
    """Create new tensors on the CPU, also within `with torch.device("meta")`; a decorator as well."""
    with torch.device("cpu"):
        yield


def canonical_mode(mode: str) -> str:
    """Return the name of an interpolation mode without its dimension: nearest, nearest-exact, linear or cubic."""
    name = _TORCH_NAMES.get(mode, mode) if isinstance(mode, str) else ""
    if name not in _RADIUS:
        raise ValueError(f"mode: expected one of {', '.join([*_RADIUS, *_TORCH_NAMES])}, got {mode!r}")
    return name


def resample(x: Tensor, scale: float, *, mode: str = "cubic", antialias: bool = False) -> Tensor:
    """Rescale images by a factor: [B, C, H, W] -> [B, C, floor(H scale), floor(W scale)].

    Differentiable, over one to three spatial axes with the same factor. For every integer 1 / scale it is a
    shift-invariant filter followed by subsampling. A non-finite pixel affects its whole map, but no other.

    Args:
        x: Images with batch and channel axes in front.
        scale: Factor; below 1 shrinks.
        mode: nearest, nearest-exact, linear or cubic; torch's bilinear, trilinear and bicubic are aliases.
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


def pyramid(images: Tensor, scales: Scales) -> list[Tensor]:
    """Shrink images by every scale: [B, C, H, W] -> one tensor [B, C, floor(H / s), floor(W / s)] per scale s.

    With antialiasing and cubic interpolation; scales below 1 enlarge the images, and scale 1 is the images themselves.
    If all steps between scales are equal, each level is computed from its neighbor towards scale 1 by that step. The
    pyramid of images shrunk by the step is then the same pyramid without its first level, bit for bit.

    Example:
        >>> images = torch.randn(1, 3, 32, 32)
        >>> [tuple(level.shape[2:]) for level in pyramid(images, Scales([1, 2, 4]))]
        [(32, 32), (16, 16), (8, 8)]
        >>> half = resample(images, 1 / 2, antialias=True)
        >>> torch.equal(pyramid(half, Scales([1, 2]))[1], pyramid(images, Scales([1, 2, 4]))[2])
        True
    """
    levels: dict[int, Tensor] = {}
    inner = min(range(len(scales)), key=lambda k: abs(math.log(scales[k])))  # nearest to scale 1
    for k in (*range(inner, len(scales)), *range(inner - 1, -1, -1)):
        source, ratio = images, scales[k]
        if scales.step is not None and k != inner:
            source, ratio = (levels[k - 1], scales.step) if k > inner else (levels[k + 1], 1 / scales.step)
        if ratio > min(source.shape[2:], default=1) * (1 + _SLACK):
            sides = "x".join(map(str, images.shape[2:]))
            raise ValueError(f"pyramid: scale {scales[k]:g} leaves no pixel of images of {sides} pixels")
        levels[k] = source if abs(ratio - 1) < TOLERANCE else resample(source, 1 / ratio, antialias=True)
    return [levels[k] for k in range(len(scales))]


def resample_matrix(size: int, scale: float, *, mode: str = "cubic", antialias: bool = False) -> Tensor:
    """Return the operator on one axis of `size` pixels as a float64 matrix [floor(size scale), size].

    Example:
        >>> resample_matrix(4, 1 / 2, mode="linear")
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    scale = check_positive("resample", "scale", scale)
    if math.floor(size * scale + _SLACK) < 1:
        raise ValueError(f"resample: {size} pixels scaled by {scale:g} leave none")
    return _matrix(size, scale, canonical_mode(mode), bool(antialias)).clone()


@lru_cache(maxsize=16)  # enough for a loop over a few ratios and sizes; more would hold large matrices in memory
@on_cpu()
def _matrix(size: int, scale: float, mode: str, antialias: bool) -> Tensor:
    rows = math.floor(size * scale + _SLACK)
    ratio = 1 / scale
    where = source_coordinates(torch.arange(rows, dtype=torch.float64), ratio, mode, antialias)
    reach = kernel_reach(ratio, mode, antialias)
    weights = kernel_weights(where, torch.arange(-reach, size + reach), ratio, mode, antialias)
    inside = weights[:, reach : reach + size].clone()
    if antialias:
        return inside / inside.sum(1, keepdim=True)  # weights outside the image are dropped
    inside[:, 0] += weights[:, :reach].sum(1)  # weights outside the image go to the edge pixel
    inside[:, -1] += weights[:, reach + size :].sum(1)
    return inside


def source_coordinates(rows: Tensor, ratio: float, mode: str, antialias: bool) -> Tensor:
    """Return the input coordinates, in pixels, that output rows read."""
    if mode == "nearest" and not antialias:
        return rows * ratio
    return (rows + 0.5) * ratio - 0.5


def kernel_reach(ratio: float, mode: str, antialias: bool) -> int:
    """Return an upper bound on the distance, in pixels, between a row's coordinate and its weights."""
    return math.ceil(_RADIUS[mode] * (max(ratio, 1.0) if antialias else 1.0)) + 1


def kernel_weights(where: Tensor, pixels: Tensor, ratio: float, mode: str, antialias: bool) -> Tensor:
    """Return weights [rows, pixels] of `pixels` in rows that read at coordinates `where`, on an infinite image."""
    offset = pixels.to(where) - where[..., None]
    if mode in ("nearest", "nearest-exact") and not antialias:
        nearest = torch.floor(where + (0.5 if mode == "nearest-exact" else 0.0) + _SLACK)
        return (pixels.to(where) == nearest[..., None]).to(where)
    width = max(ratio, 1.0) if antialias else 1.0
    if mode == "cubic":
        # Keys' kernel; torch and Pillow use a = -1/2 with antialiasing and torch a = -3/4 without.
        weights = _keys(offset.abs() / width, -0.5 if antialias else -0.75)
    elif mode == "linear":
        weights = (1 - offset.abs() / width).clamp(min=0)
    else:  # the fraction of each pixel that the widened box covers
        weights = ((width + 1) / 2 - offset.abs()).clamp(0, 1)
    return weights / weights.sum(-1, keepdim=True) if antialias else weights


def _keys(x: Tensor, a: float) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
