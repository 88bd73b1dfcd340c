"""Scale-equivariant vector fields, SEVF (Marcos et al. 2018): the scale of the largest response, coded as an angle.

A vector field is [B, C, 2, H, W]: its length is the largest response over scales, its direction codes the scale.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...checks import check_count
from ...functional.layout import check_input, check_shape
from ...nn.fixed import FixedTensors
from . import check_odd

_LEVELS = range(-4, 4)
_STEP = 1.26  # ratio of neighboring scales
_TURN = 2 * math.pi / 3 / 7  # angle between neighboring scales, in radians


class _VectorConvolution(FixedTensors):
    """Weights [C', C, (2,) k, k], and the direction of each scale."""

    components: tuple[int, ...] = ()  # of an input channel

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        who = type(self).__name__
        self.in_channels = check_count(who, "in_channels", in_channels, 1)
        self.out_channels = check_count(who, "out_channels", out_channels, 1)
        check_odd(who, "kernel_size", kernel_size)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.components, kernel_size, kernel_size))
        angles = _TURN * torch.tensor(_LEVELS, dtype=torch.float64, device="cpu")
        self.fix({"directions": torch.stack([angles.cos(), angles.sin()])}, self.weight)  # [2, scales]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the random weights of `torch.nn.Conv2d` for each component."""
        bound = 1 / math.sqrt(self.in_channels * self.weight.shape[-1] ** 2)
        nn.init.uniform_(self.weight, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.weight.shape[-1]}"

    def field(self, x: Tensor, kernels: Sequence[Tensor]) -> Tensor:
        """Return the largest response over scales, in the direction of its scale; kernels are [C', C, k, k]."""
        responses = []
        for level, kernel in zip(_LEVELS, kernels, strict=True):
            size = [max(round(side * _STEP**level), 1) for side in x.shape[-2:]]
            y = F.conv2d(_resized(x, size), kernel, padding=kernel.shape[-1] // 2)
            responses.append(_resized(y, x.shape[-2:]))
        largest, scale = torch.stack(responses).max(0)
        return torch.stack([largest.relu() * component.to(x)[scale] for component in self.get_buffer("directions")], 2)


class VectorLift2d(_VectorConvolution):
    """Largest response of a convolution over eight image sizes: [B, C, H, W] -> [B, C', 2, H, W], no bias.

    `kernel_size` must be odd.

    Example:
        >>> VectorLift2d(1, 8, 7)(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 8, 2, 28, 28])
    """

    def forward(self, x: Tensor) -> Tensor:
        check_input("VectorLift2d", x, self.weight, self.in_channels, 2)
        return self.field(x, [self.weight] * len(_LEVELS))


class VectorConv2d(_VectorConvolution):
    """Convolve a vector field at eight sizes with a rotated kernel: [B, C, 2, H, W] -> [B, C', 2, H, W], no bias.

    `kernel_size` must be odd.

    Example:
        >>> VectorConv2d(4, 8, 7)(torch.randn(2, 4, 2, 28, 28)).shape
        torch.Size([2, 8, 2, 28, 28])
    """

    components = (2,)

    def forward(self, x: Tensor) -> Tensor:
        check_input("VectorConv2d", x, self.weight, self.in_channels, 2, 2)
        u, v = self.weight.unbind(2)
        rotated = [torch.stack([u * c + v * s, v * c - u * s], 2) for c, s in self.get_buffer("directions").T.to(x)]
        return self.field(x.flatten(1, 2), [kernel.flatten(1, 2) for kernel in rotated])


class VectorMaxPool2d(nn.Module):
    """Longest vector of every window: [B, C, 2, H, W] -> [B, C, 2, H', W'].

    `kernel_size` is also the stride. The padding is never the maximum.

    Example:
        >>> VectorMaxPool2d(2)(torch.randn(2, 4, 2, 28, 28)).shape
        torch.Size([2, 4, 2, 14, 14])
    """

    def __init__(self, kernel_size: int, padding: int = 0) -> None:
        super().__init__()
        self.kernel_size = check_count("VectorMaxPool2d", "kernel_size", kernel_size, 1)
        self.padding = check_count("VectorMaxPool2d", "padding", padding, 0)

    def forward(self, x: Tensor) -> Tensor:
        _check("VectorMaxPool2d", x)
        return longest(x, self.kernel_size, self.padding)

    def extra_repr(self) -> str:
        return f"{self.kernel_size}, padding={self.padding}"


class VectorBatchNorm2d(nn.Module):
    """Divide vectors by the standard deviation of their lengths, per channel: [B, C, 2, H, W] -> [B, C, 2, H, W].

    `eps` is added to the variance; `momentum` is the weight of a batch in the running variance.

    Example:
        >>> VectorBatchNorm2d(4)(torch.randn(2, 4, 2, 28, 28)).shape
        torch.Size([2, 4, 2, 28, 28])
    """

    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.5) -> None:
        super().__init__()
        self.channels = check_count("VectorBatchNorm2d", "channels", channels, 1)
        self.eps, self.momentum = eps, momentum
        # Part of the authors' layer and so of the paper's parameter counts, but unused: it gets no gradient.
        self.unused = nn.Parameter(torch.ones(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        _check("VectorBatchNorm2d", x, self.channels)
        variance = self.running_var
        if self.training:
            lengths = magnitude(x)
            count = lengths.numel() // self.channels
            if count < 2:
                raise ValueError(f"VectorBatchNorm2d: training needs more than one vector per channel, got {count}")
            variance = lengths.var((0, 2, 3), correction=0)
            with torch.no_grad():
                self.running_var.lerp_(variance.to(self.running_var) * (count / (count - 1)), self.momentum)
        return x * (variance + self.eps).rsqrt()[:, None, None, None]

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps:g}, momentum={self.momentum:g}"


class Magnitude(nn.Module):
    """Lengths of vectors: [B, C, 2, H, W] -> [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        _check("Magnitude", x)
        return magnitude(x)


def magnitude(x: Tensor) -> Tensor:
    """Return the lengths of vectors, [B, C, 2, H, W] -> [B, C, H, W]; the gradient is zero where the length is."""
    u, v = x.unbind(2)
    # Several times faster than `torch.linalg.vector_norm`.
    return (u * u + v * v).clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def longest(x: Tensor, kernel_size: int, padding: int = 0) -> Tensor:
    """Return the longest vector of every window, [B, C, 2, H, W] -> [B, C, 2, H', W']."""
    lengths = magnitude(x.detach())
    _, indices = F.max_pool2d(lengths, kernel_size, padding=padding, return_indices=True)  # [B, C, H', W']
    both = indices.flatten(2)[:, :, None].expand(-1, -1, 2, -1)
    return x.flatten(3).gather(3, both).reshape(*x.shape[:3], *indices.shape[2:])


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    return x if list(x.shape[-2:]) == list(size) else F.interpolate(x, list(size), mode="bilinear")


def _check(who: str, x: Tensor, channels: int | None = None) -> None:
    check_shape(who, x, 2, channels=channels, scales=2, whose="the components of a vector")
