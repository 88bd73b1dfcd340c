"""Scale convolutions as functions: stencils and weights in, feature map out.

Each scale is one plain (dilated) convolution with its own small kernel, `stencil x weights`, so the cost is linear in
the number of scales. The code is in `conv`; `reference` has dense implementations for reading and testing.

On CPUs, large kernels run by FFT and kernels with many channels by Winograd tiles. The choice depends on the batch
size, so outputs for an image may differ by rounding, relative to its largest value, with the batch it is in. NaN or
infinity never spreads to other images. In plain convolutions it spreads as far as the kernels reach, by Winograd to
all tiles that contain it, at most three taps farther, by FFT to the whole image.
"""

from . import reference
from ._dispatch import convolve_one, direct  # noqa: F401
from .conv import apply_kernels, at_least_single, convolve, kernels, lift, scale_conv, scale_lift, scale_maps  # noqa: F401

__all__ = ["direct", "reference", "scale_conv", "scale_lift"]
