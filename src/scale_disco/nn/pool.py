"""Pooling and upsampling of feature maps, scale by scale."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..basis import DiscreteBasis
from ..checks import check_choice, check_count, check_positive
from ..fold import fold, unfold
from ..functional.conv import convolve_one, scale_maps
from ..functional.layout import Layout, check_shape, check_window, lay_out
from ..scales import Scales, as_scales
from .fixed import FixedTensors, SpatialDims


def _max_pool1d(x: Tensor, size: int, stride: int, padding: int = 0, dilation: int = 1) -> Tensor:
    """As `F.max_pool1d`, whose width torch.export would fix."""
    return F.max_pool2d(x[..., None], (size, 1), (stride, 1), (padding, 0), (dilation, 1))[..., 0]


_MAX_POOL: dict[int, Callable[..., Tensor]] = {1: _max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_INTERPOLATION = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}, "cubic": {2: "bicubic"}}
_TORCH_NAMES = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


class _ScalePool(SpatialDims, nn.Module):
    """Pooling with windows of one size at all scales, or (`scales`) windows enlarged with the kernels."""

    def __init__(
        self, kernel_size: int, stride: int | None = None, padding: int = 0, *, scales: Iterable[float] | None = None
    ) -> None:
        super().__init__()
        who = type(self).__name__
        self.kernel_size = check_count(who, "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else check_count(who, "stride", stride, 1)
        self.padding = check_count(who, "padding", padding, 0)
        if 2 * padding > kernel_size:
            raise ValueError(f"{who}: padding must be at most half of kernel_size {kernel_size}, got {padding}")
        if scales is not None and padding != (kernel_size - 1) // 2:
            rule = f"padding must be {(kernel_size - 1) // 2} for kernel_size {kernel_size}, got {padding}"
            raise ValueError(f"{who}: windows that follow the scale stay centered: {rule}")
        self.scales = None if scales is None else as_scales(scales)
        if self.scales is not None:
            self.follow(self.scales)

    def set_scales(self, scales: Scales) -> None:
        """Change the scales that windows follow, if any, in place."""
        if self.scales is not None:
            self.scales = scales
            self.follow(scales)

    def follow(self, scales: Scales) -> None:
        """Prepare windows that follow the scale."""

    def check(self, x: Tensor) -> None:
        """Raise an error unless the input is a feature map, with the scales that windows follow, if any."""
        who, dims = type(self).__name__, self.spatial_dims
        check_shape(who, x, dims, scales=None if self.scales is None else len(self.scales))
        check_window(who, x, dims, self.kernel_size - 2 * self.padding)

    def extra_repr(self) -> str:
        follows = "" if self.scales is None else f", scales={self.scales}"
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}{follows}"


class _ScaleMaxPool(_ScalePool):
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        pool, scales, size, dims = _MAX_POOL[self.spatial_dims], self.scales, self.kernel_size, self.spatial_dims
        if scales is None:
            return unfold(pool(fold(x), size, self.stride, self.padding), x.shape[2])

        def largest(x: Tensor, k: int) -> Tensor:
            dilation = max(round(scales.ratio(k)), 1)
            before = self.padding * dilation
            after = 2 * self.padding + (size - 1) * (dilation - 1) - before  # the output size of the first scale
            return pool(F.pad(x, (before, after) * dims, value=-math.inf), size, self.stride, 0, dilation)

        return _each_scale(x, largest)


class _EnlargedWindow(FixedTensors):
    """A window of weights, enlarged to every scale as the discrete basis enlarges kernels."""

    def enlarge(self, window: Tensor, scales: Scales, stride: int, cut: int = 0) -> None:
        """Compute the centered window of each scale and its layout, without `cut` pixels at the far ends."""
        basis = DiscreteBasis(window.shape[0], scales, spatial_dims=window.ndim)
        windows = [torch.tensordot(window.double().flatten(), s.functions, dims=1) for s in basis.stencils]
        self.fix({f"window{k}": window for k, window in enumerate(windows)}, torch.empty(0))
        layout = lay_out(type(self).__name__, basis, stride, "same", 1, "zeros")
        pads = tuple(tuple((before, after - cut) for before, after in axes) for axes in layout.pads)
        self._layout = layout._replace(pads=pads)

    def weigh(self, x: Tensor, k: int) -> Tensor:
        """Return weighted means over the part of the window of scale k inside the image."""
        window = getattr(self, f"window{k}").to(x)[None, None]
        kernel = window.expand(x.shape[1], *window.shape[1:])
        same = self._layout
        # Not _replace, which torch 2.6 cannot trace.
        per_channel = Layout(same.stride, x.shape[1], same.padding_mode, same.dilations, same.pads, same.pointwise)
        sums = convolve_one(x, kernel, None, per_channel, k)
        return sums / convolve_one(torch.ones_like(x[:1, :1]), window, None, self._layout, k)


class _ScaleAvgPool(_ScalePool, _EnlargedWindow):
    def follow(self, scales: Scales) -> None:
        window = torch.ones([self.kernel_size] * self.spatial_dims, device="cpu")
        self.enlarge(window, scales, self.stride, cut=self.kernel_size - 1 - 2 * self.padding)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        if self.scales is None:
            return unfold(_average(fold(x), self.kernel_size, self.stride, self.padding), x.shape[2])
        return _each_scale(x, self.weigh)


class _ScaleBlurPool(SpatialDims, _EnlargedWindow):
    def __init__(self, scales: Iterable[float], stride: int = 2) -> None:
        super().__init__()
        self.stride = check_count(type(self).__name__, "stride", stride, 1)
        self.set_scales(as_scales(scales))

    def set_scales(self, scales: Scales) -> None:
        """Enlarge the blur to these scales, in place."""
        self.scales = scales
        line, window = torch.tensor([1.0, 2.0, 1.0], device="cpu"), torch.ones((), device="cpu")
        for _ in range(self.spatial_dims):
            window = window[..., None] * line
        self.enlarge(window, self.scales, 1)

    def forward(self, x: Tensor) -> Tensor:
        check_shape(type(self).__name__, x, self.spatial_dims, scales=len(self.scales))
        check_window(type(self).__name__, x, self.spatial_dims, self.stride)
        blurred = _each_scale(x, self.weigh)
        return blurred if self.stride == 1 else unfold(_average(fold(blurred), self.stride, self.stride, 0), x.shape[2])

    def extra_repr(self) -> str:
        return f"{self.scales}, stride={self.stride}"


def _each_scale(x: Tensor, pool: Callable[[Tensor, int], Tensor]) -> Tensor:
    return unfold(torch.cat([pool(maps, k) for k, maps in enumerate(scale_maps(x))]), x.shape[2])


def _average(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    if x.ndim == 5 and x.dtype in (torch.float16, torch.bfloat16):  # not in torch on CPU
        return F.avg_pool3d(x.float(), size, stride, padding).to(x.dtype)
    return _AVG_POOL[x.ndim - 2](x, size, stride, padding)


class ScaleMaxPool1d(_ScaleMaxPool, spatial_dims=1):
    """Max pooling of [B, C, S, W] at every scale. See `ScaleMaxPool2d`."""


class ScaleMaxPool2d(_ScaleMaxPool, spatial_dims=2):
    """Max pooling of [B, C, S, H, W] at every scale.

    Windows have one size at all scales, or follow the scale: dilated by its ratio to the first one, rounded to an
    integer. Between scales of integer ratio pooling then commutes with subsampling exactly, as the kernels do. Such
    windows are aligned at their first pixel, not their center: use them with subsampling, not with interpolation.

    Args:
        kernel_size: Side of the window at the first scale.
        stride: Step between windows; the side of the window by default.
        padding: Pixels of -inf around the image; `(kernel_size - 1) // 2` for windows that follow the scale.
        scales: Scales to follow; None for windows of one size.

    Example:
        >>> ScaleMaxPool2d(2, scales=[1, 2, 4])(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 8, 8])
    """


class ScaleMaxPool3d(_ScaleMaxPool, spatial_dims=3):
    """Max pooling of [B, C, S, D, H, W] at every scale. See `ScaleMaxPool2d`."""


class ScaleAvgPool1d(_ScaleAvgPool, spatial_dims=1):
    """Average pooling of [B, C, S, W] at every scale. See `ScaleAvgPool2d`."""


class ScaleAvgPool2d(_ScaleAvgPool, spatial_dims=2):
    """Average pooling of [B, C, S, H, W] at every scale.

    Windows of one size are aligned with rescaling, which works on half-pixel centers: the simplest good downsampling;
    `ScaleBlurPool2d` is better. Windows may also follow the scale: a window is a kernel of ones, enlarged as
    `DiscreteBasis` enlarges kernels, dilated for integer ratios and optimal elsewhere.

    Args:
        kernel_size, stride, scales: As in `ScaleMaxPool2d`.
        padding: Pixels of zeros around the image. For windows that follow the scale it is `(kernel_size - 1) // 2`, and
            means are over pixels inside the image.

    Example:
        >>> ScaleAvgPool2d(2)(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 8, 8])
    """


class ScaleAvgPool3d(_ScaleAvgPool, spatial_dims=3):
    """Average pooling of [B, C, S, D, H, W] at every scale. See `ScaleAvgPool2d`."""


class ScaleBlurPool1d(_ScaleBlurPool, spatial_dims=1):
    """Blur enlarged with the scale, then average pooling of [B, C, S, W]. See `ScaleBlurPool2d`."""


class ScaleBlurPool2d(_ScaleBlurPool, spatial_dims=2):
    """Blur enlarged with the scale, then average pooling of [B, C, S, H, W]: the recommended downsampling.

    The blur is [1, 2, 1] along each axis, enlarged as `DiscreteBasis` enlarges kernels, at the edge a mean over pixels
    inside the image; it removes what ReLU made too fine for the coarser grid. The mean is centered between pixels, like
    rescaling by interpolation. On photos the error of a six-layer network is several times below that with means alone
    (results/equivariance.md). Under plain subsampling strides and windows that follow the scale are exact instead.

    Args:
        scales: Scales of the maps.
        stride: Side and step of the mean; 1 leaves it out.

    Example:
        >>> ScaleBlurPool2d([1, 2, 4])(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 8, 8])
    """


class ScaleBlurPool3d(_ScaleBlurPool, spatial_dims=3):
    """Blur enlarged with the scale, then average pooling of [B, C, S, D, H, W]. See `ScaleBlurPool2d`."""


class ScaleUpsample(nn.Module):
    """Upsample feature maps in space at every scale: the counterpart of average pooling, for decoders.

    Follow it by a scale convolution. A strided transposed convolution is not offered: its kernels at even dilations
    would never reach the pixels between those of the input.

    Args:
        scale_factor: Ratio of output to input size; `forward` also takes a size.
        mode: "linear" (default), "nearest", "nearest-exact", or "cubic" for images; torch's "bilinear", "trilinear"
            and "bicubic" mean the same.

    Example:
        >>> ScaleUpsample(2)(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 32, 32])
    """

    def __init__(self, scale_factor: float = 2, mode: str = "linear") -> None:
        super().__init__()
        check_positive("ScaleUpsample", "scale_factor", scale_factor)
        modes = ("nearest", "nearest-exact", *_INTERPOLATION)
        self.mode = check_choice("ScaleUpsample", "mode", _TORCH_NAMES.get(mode, mode), modes)
        self.scale_factor = scale_factor
        self._least = next(side for side in count(math.ceil(1 / scale_factor)) if side * scale_factor >= 1)

    def forward(self, x: Tensor, size: Sequence[int] | None = None) -> Tensor:
        dims = x.ndim - 3
        if dims not in (1, 2, 3) or (self.mode == "cubic" and dims != 2):
            spatial = "2 spatial axes" if self.mode == "cubic" else "1 to 3 spatial axes"
            raise ValueError(f"ScaleUpsample: expected input [B, C, S, ...] with {spatial}, got shape {tuple(x.shape)}")
        check_window("ScaleUpsample", x, dims, 1 if size is not None else self._least)
        mode = _INTERPOLATION[self.mode][dims] if self.mode in _INTERPOLATION else self.mode
        return unfold(F.interpolate(fold(x), size, self.scale_factor if size is None else None, mode), x.shape[2])

    def extra_repr(self) -> str:
        return f"{self.scale_factor}, mode={self.mode!r}"
