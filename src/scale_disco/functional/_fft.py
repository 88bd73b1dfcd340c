"""Large kernels on the CPU by the Fourier transform.

A product of spectra costs the same for every kernel size, so that large kernels on batches of small maps take a
fraction of the time of the plain convolution. Small kernels, few images and large maps are faster directly, or need
less memory, and run so. Rounding is relative to the largest value of an image, and a pixel that is not finite reaches
all of its image, but no other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SIDE = 15  # of the smallest kernel that is transformed
_CHANNELS, _BATCH = 16, 16  # at least
_MAP = 64  # pixels at most: the spectrum of a kernel is as large as the map
_SPECTRA = 1 << 25  # numbers at most in the spectra of all kernels: some 256 MB


def pays(x: Tensor, kernel: Tensor) -> bool:
    """Whether `correlate` is the faster way, for images [B, C, H, W] and a kernel [C', C, side, side]."""
    return (
        kernel.ndim == 4
        and kernel.shape[-1] >= _SIDE
        and kernel.shape[-1] % 2 == 1
        and x.shape[0] >= _BATCH
        and x.shape[1] >= _CHANNELS
        and max(x.shape[-2:]) <= _MAP
        and kernel.shape[0] * kernel.shape[1] * x.shape[-2] * x.shape[-1] <= _SPECTRA
        and x.is_cpu
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
    )


def correlate(x: Tensor, kernel: Tensor) -> Tensor:
    """`F.conv2d(x, kernel, padding=side // 2)` for odd sides, by spectra: [B, C, H, W] -> [B, C', H, W].

    Example:
        >>> x, kernel = torch.randn(2, 3, 14, 14), torch.randn(4, 3, 23, 23)
        >>> torch.allclose(correlate(x, kernel), F.conv2d(x, kernel, padding=11), atol=1e-3)
        True
    """
    height, width = x.shape[-2:]
    # Taps farther out than the map is wide meet zeros only.
    rows, cols = (min(kernel.shape[-1] // 2, side - 1) for side in (height, width))
    kernel = F.pad(kernel, [cols - kernel.shape[-1] // 2] * 2 + [rows - kernel.shape[-1] // 2] * 2)
    size = _fast_size(height + rows), _fast_size(width + cols)  # what wraps around meets the margin before the image
    image = F.pad(x, (cols, size[1] - width - cols, rows, size[0] - height - rows))
    spectrum = torch.fft.rfft2(image)
    product = torch.bmm(  # a matrix product of channels for every frequency
        spectrum.flatten(2).permute(2, 0, 1), torch.fft.rfft2(kernel, s=size).conj().flatten(2).permute(2, 1, 0)
    )
    y: Tensor = torch.fft.irfft2(product.permute(1, 2, 0).reshape(len(x), len(kernel), *spectrum.shape[2:]), s=size)
    return y[..., :height, :width]


def _fast_size(least: int) -> int:
    """The next number without prime factors above 5, whose transforms are fast."""
    return next(n for n in range(least, 2 * least + 1) if 60**20 % n == 0)
