"""Ordinary convolutions at every scale, on batches that hold all scales: what converted networks are made of."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..basis import DiscreteBasis
from ..basis.stencil import CONVOLUTION
from ..fold import fold, unfold
from ..functional import Layout, convolve, kernels, scale_maps
from ..nn.fixed import FixedTensors
from ..resample import kernel_reach, kernel_weights
from ..scales import Scales

PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
# Of layers: weights, and the kernels made of them. Outside of the layers, so that copies and files do not have them.
_KEPT: WeakKeyDictionary[FoldedConv, tuple[list[Tensor], list[Tensor]]] = WeakKeyDictionary()
_DENSE_SIDE = 15  # of the largest kernel that is solved as a whole; larger ones are products of their axes
_DENSE_DILATION = 4  # larger ones are rounded to whole pixels: at most half a pixel off at five pixels and more


class FoldedConv(FixedTensors):
    """A convolution at every scale, scales along the batch: [S * B, C, ...] -> [S * B, C', ...].

    Holds the weights of the ordinary convolution that it is made of, under their names and in their shape. Scale k sees
    its part of the batch through the kernel enlarged by `scales[k]`; at the first that is the kernel itself. Every
    scale keeps the centre, size, stride and padding of the ordinary convolution. Dilations above 4 are rounded to whole
    pixels; a causal convolution, padded on one side, is enlarged about its centre too, and sees ahead.

    Args:
        conv: A convolution, or one of a subclass that pads and then convolves.
        scales: The factors of enlargement, over the first one.
        scale_extent: T, how many neighbouring scales each output sees; the weights of neighbours start at zero.
        centred: Whether to convolve without stride and take means of the stride's size instead.
        antialias: Whether enlarged kernels are the best for images that are shrunk with a filter.

    Example:
        >>> conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        >>> FoldedConv(conv, Scales([1, 2]))(torch.randn(2 * 4, 3, 32, 32)).shape
        torch.Size([8, 8, 16, 16])
    """

    def __init__(
        self, conv: Any, scales: Scales, scale_extent: int = 1, *, centred: bool = False, antialias: bool = False
    ) -> None:
        super().__init__()
        call = call_of(conv)
        self.scales, self.scale_extent, self.spatial_dims = scales, scale_extent, conv.weight.ndim - 2
        self.weight, self.bias = conv.weight, conv.bias
        self.in_channels, self.out_channels = call.groups * conv.weight.shape[1], conv.weight.shape[0]
        self.kernel_size: tuple[int, ...] = tuple(conv.weight.shape[2:])
        # Those of the ordinary convolution, for networks that ask their layers.
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        if scale_extent > 1:
            self.neighbours = nn.Parameter(conv.weight.new_zeros(scale_extent - 1, *conv.weight.shape))
        placed = _placed(self.kernel_size, call.dilation, scales, antialias)
        pads = tuple(_pads(one, placed[0], call) for one in placed)
        averaged = centred and max(call.stride) > 1
        stride = (1,) * self.spatial_dims if averaged else call.stride
        self.layout = Layout(stride, call.groups, call.padding_mode, tuple(one.dilation for one in placed), pads)
        self.before = call.padded
        self.after = mean_pool(call.stride) if averaged else nn.Identity()
        # A buffer per distinct stencil; none where the kernel is the weights themselves.
        self._names = tuple("" if one.functions is None else f"stencil{one.source}" for one in placed)
        self.fix({f"stencil{one.source}": one.functions for one in placed if one.functions is not None}, conv.weight)

    def kernels(self) -> list[Tensor]:
        """The kernel of every scale, [T, C', C / groups, side, ...]."""
        weight = self.weight[None]
        if self.scale_extent > 1:
            weight = torch.cat([weight, self.neighbours])
        flat = weight.flatten(3).movedim(0, 2)  # [C', C / groups, T, F]
        made = {name: kernels(flat, [self.get_buffer(name)])[0] for name in set(self._names) if name}
        return [made[name] if name else weight for name in self._names]

    def forward(self, input: Tensor) -> Tensor:
        count, x = len(self._names), input
        if x.ndim != self.spatial_dims + 2 or x.shape[1] != self.in_channels or x.shape[0] % count:
            axes = ", ".join("DHW"[3 - self.spatial_dims :])
            raise ValueError(
                f"FoldedConv: expected input [S * B, C, {axes}] with S = {count} and C = {self.in_channels}, "
                f"got shape {tuple(x.shape)}"
            )
        y = convolve(unfold(self.before(x), count), self._ready_kernels(), self.bias, self.layout)
        out: Tensor = self.after(fold(y))
        return out.contiguous() if input.is_contiguous() else out  # as networks that take views expect

    def _ready_kernels(self) -> list[Tensor]:
        """The kernels, kept while nothing is trained and weights stay equal: one image can cost less than they do."""
        if torch.is_grad_enabled() or not self.weight.is_cpu or _traced(self.weight):
            _KEPT.pop(self, None)
            return self.kernels()
        weights = [self.weight] if self.scale_extent == 1 else [self.weight, self.neighbours]
        kept = _KEPT.get(self)
        if kept is None or not all(_equal(one, other) for one, other in zip(kept[0], weights, strict=True)):
            kept = _KEPT[self] = [one.detach().clone() for one in weights], self.kernels()
        return kept[1]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.scale_extent > 1:  # weights of an ordinary network have no neighbours
            like = state_dict.get(f"{prefix}weight", self.neighbours)
            state_dict.setdefault(f"{prefix}neighbours", like.new_zeros(self.neighbours.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        said = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, {self.scales!r}"
        said += f", stride={self.layout.stride}" if max(self.layout.stride) > 1 else ""
        said += f", groups={self.layout.groups}" if self.layout.groups > 1 else ""
        return said + (f", scale_extent={self.scale_extent}" if self.scale_extent > 1 else "")


class FoldedLift(FixedTensors):
    """An image once for every scale, scales along the batch: [B, C, ...] -> [S * B, C, ...].

    Every scale gets it at its own resolution: through the filter by which images are shrunk by that scale, but not
    shrunk. What kernels enlarged by a scale see is then what the kernels themselves see of the image shrunk by it; for
    odd ratios, for which the shrunk image has its pixels where the image has some, exactly so. The first scale gets the
    image itself.
    """

    def __init__(self, scales: Scales, spatial_dims: int) -> None:
        super().__init__()
        self.scales, self.spatial_dims = scales, spatial_dims
        ratios = [scales.integer_ratio(k) or scales.ratio(k) for k in range(len(scales))]
        self.fix({f"filter{k}": _shrinking_filter(ratio) for k, ratio in enumerate(ratios)}, torch.empty(0))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images, *(self._filtered(images, k) for k in range(1, len(self.scales)))])

    def _filtered(self, images: Tensor, k: int) -> Tensor:
        weights = self.get_buffer(f"filter{k}").to(images)
        channels, reach = images.shape[1], len(weights) // 2
        for axis in range(self.spatial_dims):
            after = self.spatial_dims - 1 - axis
            pads = [0, 0] * after + [reach, reach] + [0, 0] * axis
            shape = [1] * axis + [len(weights)] + [1] * after
            kernel = weights.reshape(1, 1, *shape).expand(channels, 1, *shape)
            images = CONVOLUTION[self.spatial_dims](F.pad(images, pads, "replicate"), kernel, groups=channels)
        return images

    def extra_repr(self) -> str:
        return f"{self.scales!r}"


def _shrinking_filter(ratio: float) -> Tensor:
    """The filter by which `resample` shrinks an image along an axis with antialiasing, around a pixel."""
    if ratio == 1:
        return torch.ones(1, dtype=torch.float64)
    reach = kernel_reach(ratio, "cubic", True)
    middle = torch.zeros(1, dtype=torch.float64)
    return kernel_weights(middle, torch.arange(-reach, reach + 1), ratio, "cubic", True)[0]


class MeanPool(nn.Module):
    """Means instead of a pool's maxima: windows side by side, of its stride, as many as it has."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        dims = pool_dims(pool)
        self.sizes = copy.deepcopy(pool)  # says how many
        stride = per_axis(pool.stride, dims)
        self.means = mean_pool(stride)
        if max(stride) == 1:
            kind: Any = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1]
            self.means = kind(pool.kernel_size, 1, pool.padding, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.means(x)
        for axis, side in enumerate(self.sizes(x[:1, :1]).shape[2:], 2):
            y = y.narrow(axis, 0, min(side, y.shape[axis]))
        return y


class GrowingMaxPool(nn.Module):
    """A max pool whose windows grow with the scale, scales along the batch: [S * B, C, ...] -> [S * B, C, ...].

    Windows are dilated about their centre, at the first scale they are the pool's own. Between integers a dilation is a
    mix of the two next to it, and a window with its centre between pixels the mean of the two next to that.
    """

    def __init__(self, pool: Any, scales: Scales) -> None:
        super().__init__()
        self.pool, self.scales, self.spatial_dims = copy.deepcopy(pool), scales, pool_dims(pool)
        self.ratios = tuple(scales.integer_ratio(k) or scales.ratio(k) for k in range(len(scales)))

    def forward(self, x: Tensor) -> Tensor:
        parts = scale_maps(unfold(x, len(self.ratios)))
        return torch.cat([self._mixed(part, ratio) for part, ratio in zip(parts, self.ratios, strict=True)])

    def _mixed(self, x: Tensor, ratio: float) -> Tensor:
        below = math.floor(ratio)
        pooled = self._centred(x, below)
        return pooled if ratio == below else torch.lerp(pooled, self._centred(x, below + 1), ratio - below)

    def _centred(self, x: Tensor, factor: int) -> Tensor:
        size, stride, padding, dilation = (
            per_axis(number, self.spatial_dims)
            for number in (self.pool.kernel_size, self.pool.stride, self.pool.padding, self.pool.dilation)
        )
        counts = self.pool(x[:1, :1]).shape[2:]
        # Twice what a window of that dilation reaches further out than the pool's own.
        excess = [(factor - 1) * step * (taps - 1) for taps, step in zip(size, dilation, strict=True)]
        placed = []
        for late in (0, 1) if any(number % 2 for number in excess) else (0,):
            y = x
            for axis in range(self.spatial_dims):  # maxima along rows of maxima along columns, faster than torch's pool
                before = padding[axis] + (excess[axis] + 1 - late) // 2
                taps = (tap * factor * dilation[axis] - before for tap in range(size[axis]))
                seen = (_every(y, axis + 2, first, stride[axis], counts[axis]) for first in taps)
                y = functools.reduce(torch.maximum, seen)
            placed.append(y)
        y = placed[0] if len(placed) == 1 else (placed[0] + placed[1]) / 2
        reach = [factor * step * (taps - 1) for taps, step in zip(size, dilation, strict=True)]
        if factor == 1 or (
            not torch.compiler.is_compiling() and all(a < b for a, b in zip(reach, x.shape[2:], strict=True))
        ):
            return y
        return torch.where(y == -math.inf, self.pool(x), y)  # windows that reach over a small map altogether


def _every(x: Tensor, axis: int, first: int, step: int, count: int) -> Tensor:
    """Entries first, first + step... of an axis, so many, those outside of it -inf."""
    before = max(0, -(first // step))
    traced = torch.compiler.is_compiling()  # where sizes are unknown
    before = before if traced else min(before, count)
    taken = x[(slice(None),) * axis + (slice(first + before * step, None, step),)]
    after = count - before - taken.shape[axis]
    if not traced and before == after == 0:
        return taken
    return F.pad(taken, [0, 0] * (x.ndim - 1 - axis) + [before, after], value=-math.inf)


def pool_dims(pool: nn.Module) -> int:
    """Along how many axes a max pool goes."""
    return 1 + MAX_POOLS.index(next(kind for kind in MAX_POOLS if isinstance(pool, kind)))


class PooledPoint(nn.Module):
    """A strided 1x1 convolution as a mean and a 1x1 convolution of every pixel, under the names of its weights."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.groups = conv.weight, conv.bias, conv.groups
        self.pool = mean_pool(conv.stride)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = CONVOLUTION[x.ndim - 2](self.pool(x), self.weight, self.bias, groups=self.groups)
        return y


def _traced(weight: Tensor) -> bool:
    """Whether somebody looks at what is computed, or the weight is not the layer's own."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return _get_current_dispatch_mode() is not None or type(weight) is not nn.Parameter


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def mean_pool(size: Sequence[int]) -> nn.Module:
    """Means of windows side by side, those at the far end of what is inside the image."""
    pool: Any = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[len(size) - 1]
    made: nn.Module = pool(tuple(size), ceil_mode=True, count_include_pad=False)
    return made


class Call(NamedTuple):
    """How a layer calls the convolution of its weights."""

    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]  # before and after each axis
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    padded: nn.Module  # what is done to the input before


def call_of(conv: Any) -> Call:
    """How a convolution is called, also by subclasses that pad and then convolve; ValueError for other ones."""
    base: Any = next(kind for kind in PLAIN if isinstance(conv, kind))
    if any(conv._parameters.get(name) is not getattr(conv, name) for name in ("weight", "bias")):
        raise ValueError("its weights are computed by a parametrisation: remove that first")
    own = ValueError(f"{type(conv).__name__} has a forward of its own that is not padding layers and the convolution")
    if "forward" in vars(conv):  # tracing would see that of its class
        raise own
    if type(conv).forward is base.forward and type(conv)._conv_forward is base._conv_forward:
        flat = conv._reversed_padding_repeated_twice
        pads = tuple(zip(flat[0::2][::-1], flat[1::2][::-1], strict=True))
        return Call(conv.stride, pads, conv.dilation, conv.groups, conv.padding_mode, nn.Identity())
    try:
        graph = fx.Tracer().trace(conv)
    except Exception as error:  # whatever a forward may raise when it meets a symbol instead of a tensor
        raise own from error
    steps = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    *first, last = steps or [None]
    if not all(_pads_only(conv, node) for node in first) or not _convolves(conv, last):
        raise own
    said = dict(zip(("stride", "padding", "dilation", "groups"), (1, 0, 1, 1), strict=True))
    said |= dict(zip(said, last.args[3:], strict=False)) | {key: last.kwargs[key] for key in said if key in last.kwargs}
    dims = conv.weight.ndim - 2
    if isinstance(said["padding"], str):
        raise own
    return Call(
        per_axis(said["stride"], dims),
        tuple((pixels, pixels) for pixels in per_axis(said["padding"], dims)),
        per_axis(said["dilation"], dims),
        said["groups"],
        "zeros",
        nn.Sequential(*(conv.get_submodule(node.target) for node in first)),
    )


def per_axis(value: Any, dims: int) -> tuple[int, ...]:
    """A number, or one for each axis, as one for each axis."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _pads_only(conv: nn.Module, node: Any) -> bool:
    """Whether a step of a forward is a layer that pads."""
    if node.op != "call_module":
        return False
    layer = conv.get_submodule(node.target)
    return isinstance(layer, nn.Identity) or type(layer).__module__ == "torch.nn.modules.padding"


def _convolves(conv: Any, node: Any) -> bool:
    """Whether a step of a forward is the convolution with the layer's own weight and bias."""
    if node is None or node.target is not CONVOLUTION[conv.weight.ndim - 2] or len(node.users) != 1:
        return False
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    bias = given.get("bias")
    named = "bias" if getattr(bias, "op", None) == "get_attr" and bias.target == "bias" else None
    return given["weight"].target == "weight" and named == (None if conv.bias is None else "bias")


class _Placed(NamedTuple):
    """The pixels of a kernel at one scale, and how they are laid on the image along each axis."""

    functions: Tensor | None  # [F, ...]; None for the pixels themselves
    source: int  # the scale whose functions these are
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # pixels before the centre
    after: tuple[int, ...]


@lru_cache(maxsize=64)  # networks have many kernels and few sizes
def _placed(
    kernel_size: tuple[int, ...], dilation: tuple[int, ...], scales: Scales, antialias: bool
) -> tuple[_Placed, ...]:
    """The pixels of a kernel at every scale: dilated where the ratio is an integer, the discrete basis elsewhere."""
    with torch.inference_mode(False):  # what is cached is for everyone
        return tuple(_laid(kernel_size, dilation, scales, antialias))


def _laid(kernel_size: tuple[int, ...], dilation: tuple[int, ...], scales: Scales, antialias: bool) -> list[_Placed]:
    reach = [step * (side - 1) for side, step in zip(kernel_size, dilation, strict=True)]
    steps = [step if side > 1 else 1 for side, step in zip(kernel_size, dilation, strict=True)]
    placed: list[_Placed] = []
    solved: list[_Placed] = []
    for k in range(len(scales)):
        ratio: float | None = scales.integer_ratio(k)
        if ratio is None and max(steps) > _DENSE_DILATION:
            ratio = scales.ratio(k)
        if ratio is not None:
            factors = [round(ratio * step) for step in dilation]
            before = [round(ratio * (length // 2)) for length in reach]
            after = [(side - 1) * factor - b for side, factor, b in zip(kernel_size, factors, before, strict=True)]
            placed.append(_Placed(None, k, tuple(factors), tuple(before), tuple(after)))
        else:
            solved = solved or _enlarged(kernel_size, dilation, scales, antialias)
            placed.append(solved[k])
    return placed


def _enlarged(
    kernel_size: tuple[int, ...], dilation: tuple[int, ...], scales: Scales, antialias: bool
) -> list[_Placed]:
    """The discrete basis of a kernel: the optimum for cubes, else the products of those along the axes."""
    dims, side, step = len(kernel_size), kernel_size[0], dilation[0]
    whole = step * (side - 1) + 1
    if len(set(zip(kernel_size, dilation, strict=True))) == 1 and (dims == 1 or whole <= _DENSE_SIDE):
        basis = DiscreteBasis(whole, scales, spatial_dims=dims, antialias=antialias)
        chosen = torch.arange(whole**dims).reshape([whole] * dims)[(slice(None, None, step),) * dims].flatten()
        return [
            _Placed(one.functions[chosen], source, *((number,) * dims for number in (one.dilation, *one.reach)))
            for one, source in zip(basis.stencils, basis.sources, strict=True)
        ]
    axes = [_enlarged((side,), (step,), scales, antialias) for side, step in zip(kernel_size, dilation, strict=True)]
    return [
        _Placed(
            _product([one.functions for one in parts if one.functions is not None]),
            max(one.source for one in parts),
            *(
                tuple(number for one in parts for number in getattr(one, key))
                for key in ("dilation", "before", "after")
            ),
        )
        for parts in zip(*axes, strict=True)
    ]


def _product(axes: Sequence[Tensor]) -> Tensor:
    """Functions of the axes multiplied out: [F1, k1], [F2, k2] -> [F1 * F2, k1, k2]."""
    product = axes[0]
    for axis in axes[1:]:
        product = torch.einsum("f...,gk->fg...k", product, axis).flatten(0, 1)
    return product


def _pads(one: _Placed, first: _Placed, call: Call) -> tuple[tuple[int, int], ...]:
    """Padding at a scale that keeps centre and size as they are at the first."""
    return tuple(
        (before + one.before[axis] - first.before[axis], after + one.after[axis] - first.after[axis])
        for axis, (before, after) in enumerate(call.pads)
    )


def is_strided(part: Any) -> bool:
    """Whether a layer is an ordinary convolution of one pixel that leaves out pixels."""
    return isinstance(part, PLAIN) and not is_spatial(part) and max(part.stride) > 1


def is_spatial(part: Any) -> bool:
    """Whether a layer is an ordinary convolution of more than one pixel."""
    return isinstance(part, PLAIN) and math.prod(part.weight.shape[2:]) > 1
