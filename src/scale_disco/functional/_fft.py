"""Convolutions with large kernels on the CPU by FFT.

A product of spectra costs the same for every kernel size, so large kernels on batches of small maps take a fraction of
the time of `F.conv2d`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_SIDE, _CHANNELS, _BATCH = 15, 16, 16  # minima
_MAP = 64  # maximum side: the spectrum of a kernel is as large as the map
_SPECTRA = 1 << 25  # maximum number of kernel values at map size


def is_faster(x: Tensor, kernel: Tensor) -> bool:
    """Return whether `correlate` is faster than `F.conv2d`, for [B, C, H, W] and a kernel [C', C, side, side]."""
    return (
        kernel.shape[-1] >= _SIDE
        and kernel.shape[-1] % 2 == 1
        and x.shape[0] >= _BATCH
        and x.shape[1] >= _CHANNELS
        and max(x.shape[-2:]) <= _MAP
        and kernel.shape[0] * kernel.shape[1] * x.shape[-2] * x.shape[-1] <= _SPECTRA
    )


def correlate(x: Tensor, kernel: Tensor) -> Tensor:
    """Compute `F.conv2d(x, kernel, padding=side // 2)` for odd sides: [B, C, H, W] -> [B, C', H, W]."""
    height, width = x.shape[-2:]
    # Taps beyond the size of the map see zeros only.
    rows, cols = (min(kernel.shape[-1] // 2, side - 1) for side in (height, width))
    kernel = F.pad(kernel, [cols - kernel.shape[-1] // 2] * 2 + [rows - kernel.shape[-1] // 2] * 2)
    size = _fast_size(height + rows), _fast_size(width + cols)  # wrap-around stays in the margin before the image
    spectrum = torch.fft.rfft2(F.pad(x, (cols, size[1] - width - cols, rows, size[0] - height - rows)))
    product = torch.bmm(  # over channels, for every frequency
        spectrum.flatten(2).permute(2, 0, 1), torch.fft.rfft2(kernel, s=size).conj().flatten(2).permute(2, 1, 0)
    )
    y: Tensor = torch.fft.irfft2(product.permute(1, 2, 0).reshape(len(x), len(kernel), *spectrum.shape[2:]), s=size)
    return y[..., :height, :width]


def _fast_size(least: int) -> int:
    """Return the next size with no prime factor above 5, for which FFTs are fast."""
    return next(n for n in range(least, 2 * least + 1) if 60**20 % n == 0)
