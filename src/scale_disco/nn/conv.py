"""Scale convolutions as modules: image to scales (lift) and scales to scales (conv)."""

import json
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..basis import Basis
from ..basis.discrete import at_scales
from ..checks import check_count
from ..functional.conv import apply_kernels, kernels
from ..functional.layout import check_extent, lay_out
from ..scales import TOLERANCE, Scales
from .fixed import FixedTensors, SpatialDims


class ScaleConvolution(SpatialDims, FixedTensors):
    """Base of all scale convolutions: weights [C', C / groups, (T,) F] over a basis, and their layout."""

    scale_extent: int | None = None  # T; None for layers that take images

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        basis: Basis,
        stride: int = 1,
        padding: str | int = "same",
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if not isinstance(basis, Basis):
            raise TypeError(f"{who}: expected a basis such as DiscreteBasis(3, scales), got {basis!r}")
        if basis.spatial_dims != self.spatial_dims:
            raise ValueError(f"{who}: expected a basis of {self.spatial_dims} spatial axes, got {basis.spatial_dims}")
        self.layout = lay_out(who, basis, stride, padding, groups, padding_mode)
        self._padding = padding
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if check_count(who, name, channels, 1) % self.groups:
                raise ValueError(f"{who}: {name} must be a multiple of the {self.groups} groups, got {channels}")
        self.in_channels, self.out_channels, self.basis = int(in_channels), int(out_channels), basis
        extent = () if self.scale_extent is None else (self.scale_extent,)
        shape = (out_channels, in_channels // groups, *extent, basis.num_functions)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self._fix_stencils()
        self.reset_parameters()

    def _fix_stencils(self) -> None:
        # A buffer per distinct stencil; the dilations of a discrete basis share one.
        self._names = tuple(f"stencil{source}" for source in self.basis.sources)
        self.fix({name: self.basis.stencils[k].functions for k, name in enumerate(self._names)}, self.weight)

    def set_scales(self, scales: Scales) -> None:
        """Solve the basis for other scales, in place; weights stay. `with_scales` changes whole networks."""
        check_same_steps(type(self).__name__, self.scale_extent or 1, self.basis.scales, scales)
        self.basis = at_scales(self.basis, scales)
        options = self.stride, self.padding, self.groups, self.padding_mode
        self.layout = lay_out(type(self).__name__, self.basis, *options)
        self._fix_stencils()

    @property
    def lifting(self) -> bool:
        """Whether the layer takes images, not feature maps."""
        return self.scale_extent is None

    # Read-only: the layout is computed from them.
    stride = property(lambda self: self.layout.stride[0])
    groups = property(lambda self: self.layout.groups)
    padding = property(lambda self: self._padding)
    padding_mode = property(lambda self: self.layout.padding_mode)

    def reset_parameters(self) -> None:
        """Initialize weights so that a deep ReLU network keeps the variance at every scale (He), and zero the bias.

        `basis.power` is the gain of the basis in variance. Weights of neighboring scales start at zero: the last scale
        has no neighbors, and its variance would shrink with every layer.
        """
        with torch.no_grad():
            own = self.weight if self.lifting else self.weight[:, :, 0]
            self.weight.zero_()
            own.normal_(0, math.sqrt(2 / (self.weight.shape[1] * self.basis.power)))
            if self.bias is not None:
                self.bias.zero_()

    def factors(self) -> tuple[Tensor, list[Tensor]]:
        """Return weights [C', C / groups, (T,) F] and the functions [F, side, ...] of every scale; see `kernels`."""
        return self.weight, [getattr(self, name) for name in self._names]  # torch 2.6 cannot trace get_buffer

    def kernels(self) -> list[Tensor]:
        """Return the kernel of every scale, [(T,) C', C / groups, side, ...]: weights times functions."""
        return kernels(*self.factors())

    def forward(self, x: Tensor) -> Tensor:
        return apply_kernels(type(self).__name__, x, self.kernels(), self.bias, self.layout)

    def get_extra_state(self) -> Tensor:
        """Return the spec and fingerprint of the basis as JSON in a uint8 tensor, which every file format can hold."""
        fingerprint = [float(f"{number:.9g}") for number in self.basis.fingerprint]  # later digits depend on threads
        text = json.dumps({"spec": self.basis.spec, "fingerprint": fingerprint}, sort_keys=True)
        return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Raise an error if the weights belong to another basis."""
        who, own = type(self).__name__, self.basis.fingerprint
        try:
            note = json.loads(bytes(state.round().to(torch.uint8).tolist()))  # rounded, as all tensors may be cast
            spec, fingerprint = note["spec"], [float(number) for number in note["fingerprint"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{who}: the basis metadata in the checkpoint is corrupted ({error})") from error
        near = [math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(own, fingerprint, strict=False)]
        if len(own) != len(fingerprint) or not all(near):
            theirs, ours = (json.dumps(text, sort_keys=True) for text in (spec, self.basis.spec))
            raise ValueError(f"{who}: the checkpoint was made with another basis: {theirs}; this layer has {ours}")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        note = f"{prefix}_extra_state"
        if note in state_dict:
            self.set_extra_state(state_dict[note])  # before any weight is overwritten
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        if note in missing:  # optional: weights of an ordinary network have none
            missing.remove(note)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, {self.basis!r}"]
        defaults = {"stride": 1, "padding": "same", "groups": 1, "padding_mode": "zeros"}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        parts += ["bias=False"] if self.bias is None else []
        parts += [] if self.scale_extent in (None, 1) else [f"scale_extent={self.scale_extent}"]
        return ", ".join(parts)


class _ScaleConv(ScaleConvolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        basis: Basis,
        stride: int = 1,
        padding: str | int = "same",
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        scale_extent: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(basis, Basis):
            check_extent(type(self).__name__, scale_extent, len(basis.scales))
            warn_unequal_steps(type(self).__name__, scale_extent, basis.scales)
        self.scale_extent = scale_extent
        super().__init__(
            in_channels, out_channels, basis, stride, padding, groups, bias, padding_mode, device=device, dtype=dtype
        )


def warn_unequal_steps(who: str, extent: int, scales: Scales) -> None:
    """Warn the caller's caller if neighboring scales are used and their steps differ."""
    steps = [scales.ratio(k + 1, k) for k in range(len(scales) - 1)]
    if extent > 1 and max(steps) >= 1.01 * min(steps):  # the authors' scales are rounded
        why = f"assumes equal steps between scales, got {scales}; neighboring scales will not be equivariant"
        warnings.warn(f"{who}: scale_extent {extent} {why}", stacklevel=3)


def check_same_steps(who: str, extent: int, old: Scales, new: Scales) -> None:
    """Raise an error unless a layer of this scale extent can have new scales in the place of its own."""
    check_extent(who, extent, len(new))
    if not math.isclose(old[0], new[0], rel_tol=TOLERANCE):
        why = f"the first scale is that of the weights, expected {old[0]:g}, got {new[0]:g}"
        raise ValueError(f"{who}: {why}; rescale the image instead")
    if extent > 1 and (old.step is None or new.step is None or not math.isclose(old.step, new.step, rel_tol=TOLERANCE)):
        raise ValueError(f"{who}: scale_extent {extent} needs the steps of {old}, got {new}")


class ScaleLift1d(ScaleConvolution, spatial_dims=1):
    """Convolve a signal with one kernel at every scale: [B, C, W] -> [B, C', S, W']. See `ScaleLift2d`.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> lift = ScaleLift1d(2, 8, DiscreteBasis(3, [1, 2, 4], spatial_dims=1))
        >>> lift(torch.randn(2, 2, 64)).shape
        torch.Size([2, 8, 3, 64])
    """


class ScaleLift2d(ScaleConvolution, spatial_dims=2):
    """Convolve an image with one kernel at every scale: [B, C, H, W] -> [B, C', S, H', W'].

    Shrinking the input by a scale of the basis moves the output along S and shrinks it in space (Eq. 7 of the paper).
    Between scales of integer ratio the equality is exact.

    Args:
        in_channels: Channels of the image.
        out_channels: Channels of the feature map, at every scale.
        basis: Stencils and scales; fixes the kernel size.
        stride: Step between output pixels. For equivariance through a network prefer `ScaleBlurPool2d`.
        padding: "same" keeps H and W at every scale (divided by the stride, rounded up); "valid" keeps what the
            largest stencil covers; a number of pixels pads the image as for the largest stencil.
        groups: Number of groups of channels.
        bias: Whether to add a bias to each output channel, the same at all scales.
        padding_mode: Values outside the image: zeros, circular, reflect or replicate.
        device: Device of the parameters.
        dtype: Data type of the parameters.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> lift = ScaleLift2d(3, 8, DiscreteBasis(3, [1, 2, 4]))
        >>> lift(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 8, 3, 32, 32])
    """


class ScaleLift3d(ScaleConvolution, spatial_dims=3):
    """Convolve volumes with one kernel at every scale: [B, C, D, H, W] -> [B, C', S, D', H', W']. See `ScaleLift2d`."""


class ScaleConv1d(_ScaleConv, spatial_dims=1):
    """Scale convolution of feature maps of signals: [B, C, S, W] -> [B, C', S, W']. See `ScaleConv2d`."""


class ScaleConv2d(_ScaleConv, spatial_dims=2):
    """Scale convolution of a feature map (Eq. 3): [B, C, S, H, W] -> [B, C', S, H', W'].

    Output scale k sees input scales k, ..., k + T - 1 through kernels enlarged by scale k, zeros past the last scale.
    An input shifted along S and shrunk in space gives an output shifted and shrunk alike, exactly between scales of
    integer ratio. With a one-pixel basis, `DiscreteBasis(1, scales)`, it is one ordinary 1x1 convolution.

    Args:
        in_channels: Channels of the input, at every scale.
        out_channels: Channels of the output, at every scale.
        basis: Stencils and scales; fixes the kernel size.
        stride, padding, groups, bias, padding_mode, device, dtype: As in `ScaleLift2d`.
        scale_extent: T, number of scales each output sees; more than one assumes equal steps between scales.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> conv = ScaleConv2d(16, 32, DiscreteBasis(3, [1, 2, 4]), scale_extent=2)
        >>> conv(torch.randn(2, 16, 3, 32, 32)).shape
        torch.Size([2, 32, 3, 32, 32])
    """


class ScaleConv3d(_ScaleConv, spatial_dims=3):
    """Scale convolution of feature maps of volumes: [B, C, S, D, H, W] -> [B, C', S, D', H', W']. See `ScaleConv2d`."""
