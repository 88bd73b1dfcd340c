"""Runs one convolution as `F.conv*d`, by Winograd tiles or by FFT, whichever is faster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..basis.stencil import CONVOLUTION
from . import _fft, _winograd
from .layout import PADDING_MODES, Layout

_transforms = ContextVar("transforms", default=True)  # whether Winograd and FFT are allowed, per thread


@contextmanager
def direct() -> Iterator[None]:
    """Run all convolutions inside this context by `F.conv*d`, without Winograd or FFT."""
    token = _transforms.set(False)
    try:
        yield
    finally:
        _transforms.reset(token)


def convolve_one(x: Tensor, kernel: Tensor, bias: Tensor | None, layout: Layout, k: int) -> Tensor:
    """Convolve images with the kernel of scale k: [B, C, ...] -> [B, C', ...]."""
    pads = layout.pads[k]
    if not torch.compiler.is_compiling():
        _check_size(x, kernel, layout, k)
        response = _transformed(x, kernel, layout, k)
        if response is not None:
            return response if bias is None else response + bias[:, None, None]
    inside = [before for before, _ in pads]  # padded by the convolution itself, without a copy of the image
    if layout.padding_mode != "zeros" or any(before != after or before < 0 for before, after in pads):
        x, inside = pad(x, pads, layout.padding_mode), [0] * len(pads)
    return CONVOLUTION[kernel.ndim - 2](x, kernel, bias, layout.stride, inside, layout.dilations[k], layout.groups)


def _transformed(x: Tensor, kernel: Tensor, layout: Layout, k: int) -> Tensor | None:
    """Convolve by FFT or Winograd where that is faster; None elsewhere.

    Only dense, zero-padded 2-D convolutions of stride 1 that keep the image size qualify, in full precision on the CPU.
    """
    step = layout.dilations[k][0]
    same = tuple((step * (side // 2),) * 2 for side in kernel.shape[2:])
    plain = (layout.stride, layout.groups, layout.padding_mode) == ((1, 1), 1, "zeros") and not layout.direct
    if not _transforms.get() or not plain or layout.pads[k] != same or set(layout.dilations[k]) != {step}:
        return None
    if not x.is_cpu or x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return None
    if step == 1 and _fft.is_faster(x, kernel):
        return _fft.correlate(x, kernel)
    if _winograd.is_faster(x, kernel, step):
        return _winograd.correlate(x, kernel, step)
    return None


def pad(x: Tensor, pads: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Pad images before and after each axis; negative values crop."""
    added = [max(pixels, 0) for pair in reversed(pads) for pixels in pair]
    if any(added):
        x = F.pad(x, added, mode=PADDING_MODES[mode])
    for axis, (before, after) in enumerate(pads, x.ndim - len(pads)):
        start, end = max(-before, 0), max(-after, 0)
        if start or end:
            x = x.narrow(axis, start, x.shape[axis] - start - end)
    return x


def _check_size(x: Tensor, kernel: Tensor, layout: Layout, k: int) -> None:
    mode, taps = layout.padding_mode, kernel.shape[2:]
    for side, tap, step, pads in zip(x.shape[-len(taps) :], taps, layout.dilations[k], layout.pads[k], strict=True):
        if side + sum(pads) < step * (tap - 1) + 1:
            why = f"an image of {side} pixels is smaller than its largest stencil"
            raise ValueError(f'scale convolution: {why}; use padding="same" or larger images')
        most = {"circular": side, "reflect": side - 1}.get(mode)
        if most is not None and max(pads) > most:
            why = f"can pad {side} pixels by at most {most}, but the largest stencil needs {max(pads)}"
            hint = 'use "zeros", "replicate" or larger images'
            raise ValueError(f"scale convolution: padding_mode {mode!r} {why}; {hint}")
