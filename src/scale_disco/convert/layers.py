"""Layers of converted networks: ordinary convolutions on batches that hold all scales."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..basis import DiscreteBasis
from ..basis.stencil import CONVOLUTION
from ..fold import fold, unfold
from ..functional.conv import convolve, kernels
from ..functional.layout import Layout
from ..nn.conv import check_same_steps
from ..nn.fixed import FixedTensors
from ..resampling import kernel_reach, kernel_weights
from ..scales import Scales
from .pools import mean_pool, per_axis

try:
    from torch.utils._python_dispatch import _get_current_dispatch_mode
except ImportError:  # a private function; without it, kernels are not cached

    def _get_current_dispatch_mode() -> Any:  # type: ignore[misc]
        return "unknown"


PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Layer -> weights and the kernels computed from them. Outside of the layers, so that copies and files have none.
_KERNELS: "WeakKeyDictionary[FoldedConv, tuple[list[Tensor], list[Tensor]]]" = WeakKeyDictionary()
_DENSE_SIDE = 15  # of the largest kernel that is solved as a whole; larger ones are products of their axes
_DENSE_DILATION = 4  # larger ones are rounded to whole pixels: at most half a pixel off at five pixels and more


class FoldedConv(FixedTensors):
    """A convolution at every scale, scales along the batch: [S * B, C, ...] -> [S * B, C', ...].

    Holds the weights of the ordinary convolution under their names and in their shape. Scale k sees its part of the
    batch through the kernel enlarged by `scales[k]`; at the first scale that is the kernel itself. Every scale keeps
    the center, size, stride and padding of the ordinary convolution. Dilations above 4 are rounded to whole pixels; a
    causal convolution, padded on one side, is enlarged about its center too, and sees ahead. With `centered` it has no
    stride and is followed by average pooling of that stride; other options are those of `to_scale_equivariant`.

    Example:
        >>> conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        >>> FoldedConv(conv, Scales([1, 2]))(torch.randn(2 * 4, 3, 32, 32)).shape
        torch.Size([8, 8, 16, 16])
    """

    phases, direct = 1, False  # outputs per pixel and channel; whether the first scale is exact bit for bit

    def __init__(
        self, conv: Any, scales: Scales, scale_extent: int = 1, *, centered: bool = False, antialias: bool = False
    ) -> None:
        super().__init__()
        self._own, self.before = call_of(conv)
        self._centered, self._antialias, own = centered, antialias, self._own
        self.scale_extent, self.spatial_dims = scale_extent, conv.weight.ndim - 2
        self.weight, self.bias = conv.weight, conv.bias
        self.in_channels, self.out_channels = own.groups * conv.weight.shape[1], conv.weight.shape[0]
        self.kernel_size = tuple(conv.weight.shape[2:])
        # Those of the ordinary convolution, for networks that read them.
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        if scale_extent > 1:
            self.neighbours = nn.Parameter(conv.weight.new_zeros(scale_extent - 1, *conv.weight.shape))
        self._place(scales)

    def set_scales(self, scales: Scales) -> None:
        """Enlarge the kernel to other scales, in place; weights stay."""
        check_same_steps("FoldedConv", self.scale_extent, self.scales, scales)
        _KERNELS.pop(self, None)
        self._place(scales)

    def _place(self, scales: Scales) -> None:
        self._place_kernel(scales, self.kernel_size, self._own)

    def _place_kernel(self, scales: Scales, kernel_size: tuple[int, ...], own: Layout) -> None:
        self.scales, own = scales, own._replace(direct=self.direct)
        placed = _placed(kernel_size, own.dilations[0], scales, self._antialias)
        pads = tuple(kernel.pads(placed[0], own.pads[0]) for kernel in placed)
        averaged = self._centered and max(own.stride) > 1
        stride = (1,) * self.spatial_dims if averaged else own.stride
        self.layout = own._replace(stride=stride, dilations=tuple(kernel.dilation for kernel in placed), pads=pads)
        self.after = mean_pool(own.stride) if averaged else nn.Identity()
        # A buffer per distinct stencil; none where the kernel is the weights themselves.
        self._names = tuple("" if kernel.functions is None else f"stencil{kernel.source}" for kernel in placed)
        self.fix({f"stencil{p.source}": p.functions for p in placed if p.functions is not None}, self.weight)

    def _arranged(self, weight: Tensor) -> Tensor:
        return weight  # [T, ...]; the kernel at the first scale

    def _first(self) -> Tensor:
        weight = self.weight[None]
        if self.scale_extent > 1:
            weight = torch.cat([weight, self.neighbours])
        return self._arranged(weight)

    def factors(self) -> tuple[Tensor, list[Tensor]]:
        """Return weights [C', C / groups, T, F] and the functions [F, side, ...] of every scale; see `kernels`."""
        weight = self._first()
        flat = weight.flatten(3).movedim(0, 2)
        pixels = torch.eye(flat.shape[-1], dtype=flat.dtype, device=flat.device).reshape(-1, *weight.shape[3:])
        return flat, [getattr(self, name) if name else pixels for name in self._names]

    def kernels(self) -> list[Tensor]:
        """Return the kernel of every scale, [T, C', C / groups, side, ...]: weights times functions."""
        weight = self._first()
        flat = weight.flatten(3).movedim(0, 2)  # [C', C / groups, T, F]
        enlarged = {name: kernels(flat, [getattr(self, name)])[0] for name in set(self._names) if name}
        return [enlarged[name] if name else weight for name in self._names]

    def forward(self, input: Tensor) -> Tensor:
        count, x = len(self._names), input
        if x.ndim != self.spatial_dims + 2 or x.shape[1] != self.in_channels or x.shape[0] % count:
            axes, sizes = ", ".join("DHW"[3 - self.spatial_dims :]), f"S = {count} and C = {self.in_channels}"
            raise ValueError(f"FoldedConv: expected input [S * B, C, {axes}] with {sizes}, got shape {tuple(x.shape)}")
        bias = self.bias if self.bias is None or self.phases == 1 else self.bias.repeat_interleave(self.phases)
        y = convolve(unfold(self.before(x), count), self._ready_kernels(), bias, self.layout)
        out: Tensor = self.after(fold(y))
        return out.contiguous() if input.is_contiguous() else out  # for networks that take views

    def _ready_kernels(self) -> list[Tensor]:
        """Return the kernels, cached without gradients while weights stay equal: one image can cost less than they."""
        if torch.is_grad_enabled() or not self.weight.is_cpu or _traced(self.weight):
            if not torch.compiler.is_compiling():  # the compiler of torch 2.6 cannot trace weak dictionaries
                _KERNELS.pop(self, None)
            return self.kernels()
        weights = [self.weight] if self.scale_extent == 1 else [self.weight, self.neighbours]
        cached = _KERNELS.get(self)
        pairs = zip(cached[0], weights, strict=True) if cached else ()
        if cached is None or not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs):
            cached = _KERNELS[self] = [weight.detach().clone() for weight in weights], self.kernels()
        return cached[1]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.scale_extent > 1:  # weights of an ordinary network have no neighbors
            like = state_dict.get(f"{prefix}weight", self.neighbours)
            state_dict.setdefault(f"{prefix}neighbours", like.new_zeros(self.neighbours.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, {self.scales!r}"
        text += f", stride={self.layout.stride}" if max(self.layout.stride) > 1 else ""
        text += f", groups={self.layout.groups}" if self.layout.groups > 1 else ""
        return text + (f", scale_extent={self.scale_extent}" if self.scale_extent > 1 else "")


def _traced(weight: Tensor) -> bool:
    """Return whether the computation is traced, or the weight is not the layer's own parameter."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return _get_current_dispatch_mode() is not None or type(weight) is not nn.Parameter


class FoldedLift(FixedTensors):
    """An image repeated for every scale along the batch, each at its own resolution: [B, C, ...] -> [S * B, C, ...].

    Each copy passes the filter by which images are shrunk by that scale, but is not subsampled. Enlarged kernels then
    see in it what the kernels themselves see in the shrunk image; exactly so for odd ratios, for which the pixels of
    the shrunk image lie on pixels of the image. The first scale gets the image itself.
    """

    def __init__(self, scales: Scales, spatial_dims: int) -> None:
        super().__init__()
        self.spatial_dims = spatial_dims
        self.set_scales(scales)

    def set_scales(self, scales: Scales) -> None:
        """Change the scales, in place."""
        self.scales = scales
        ratios = [scales.integer_ratio(k) or scales.ratio(k) for k in range(len(scales))]
        self.fix({f"filter{k}": _shrinking_filter(ratio) for k, ratio in enumerate(ratios)}, torch.empty(0))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images, *(self._filtered(images, k) for k in range(1, len(self.scales)))])

    def _filtered(self, images: Tensor, k: int) -> Tensor:
        weights: Tensor = getattr(self, f"filter{k}").to(images)
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
    """Return the filter with which `resample` shrinks an image along an axis with antialiasing, around a pixel."""
    center, reach = torch.zeros(1, dtype=torch.float64), kernel_reach(ratio, "cubic", True)
    pixels = torch.arange(-reach, reach + 1)
    return center + 1 if ratio == 1 else kernel_weights(center, pixels, ratio, "cubic", True)[0]


def call_of(conv: Any) -> tuple[Layout, nn.Module]:
    """Return the layout of a convolution, and what is applied to its input first by subclasses that pad.

    Raises ValueError for subclasses that do anything else.
    """
    base: Any = next(kind for kind in (*PLAIN, *TRANSPOSED) if isinstance(conv, kind))
    parameters = dict(conv.named_parameters(recurse=False))
    if any(parameters.get(name) is not getattr(conv, name) for name in ("weight", "bias")):
        raise ValueError("its weights are computed by a parametrization: remove that first")
    own = ValueError(f"{type(conv).__name__} has a forward of its own that is not padding layers and the convolution")
    if {"forward", "_conv_forward"} & vars(conv).keys():  # tracing would see those of its class
        raise own
    if all(getattr(type(conv), name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward")):
        return _layout_of(conv), nn.Identity()
    if isinstance(conv, TRANSPOSED):
        raise ValueError(f"{type(conv).__name__} has a forward of its own")
    try:
        graph = fx.Tracer().trace(conv)
    except Exception as error:  # a forward may raise anything when it meets a symbol instead of a tensor
        raise own from error
    steps = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    *first, last = steps or [None]
    if not all(_pads_only(conv, node) for node in first) or not _convolves(conv, last):
        raise own
    options = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    options |= dict(zip(options, last.args[3:], strict=False))
    options |= {key: last.kwargs[key] for key in options if key in last.kwargs}
    if isinstance(options["padding"], str):
        raise own
    stride, padding, dilation = (per_axis(options[key], conv.weight.ndim - 2) for key in list(options)[:3])
    padded = nn.Sequential(*(conv.get_submodule(node.target) for node in first))
    pads = tuple(zip(padding, padding, strict=True))
    return Layout(stride, options["groups"], "zeros", (dilation,), (pads,)), padded


def _layout_of(conv: Any) -> Layout:
    """Return the layout of torch's own forward, which reads attributes when called: they may have been changed."""
    taps = conv.weight.shape[2:]
    stride, dilation = (per_axis(value, len(taps)) for value in (conv.stride, conv.dilation))
    if conv.padding_mode != "zeros":
        flat = list(conv._reversed_padding_repeated_twice)  # as of its construction, whatever `padding` says now
        pads = tuple(zip(flat[-2::-2], flat[::-2], strict=True))
    elif conv.padding in ("same", "valid"):
        wide = conv.padding == "same"
        reach = [wide * step * (side - 1) for side, step in zip(taps, dilation, strict=True)]
        pads = tuple((length // 2, length - length // 2) for length in reach)
    else:
        numbers = (per_axis(value, len(taps)) for value in (conv.padding, conv.output_padding))
        pads = tuple((side, side - more) for side, more in zip(*numbers, strict=True))  # more: of transposed ones
    return Layout(stride, conv.groups, conv.padding_mode, (dilation,), (pads,))


def _pads_only(conv: nn.Module, node: Any) -> bool:
    """Return whether a step of a forward is a padding layer."""
    if node.op != "call_module":
        return False
    layer = conv.get_submodule(node.target)
    return isinstance(layer, nn.Identity) or type(layer).__module__ == "torch.nn.modules.padding"


def _convolves(conv: Any, node: Any) -> bool:
    """Return whether a step of a forward is the convolution with the layer's own weight and bias."""
    if node is None or node.target is not CONVOLUTION[conv.weight.ndim - 2] or len(node.users) != 1:
        return False
    arguments = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    bias = arguments.get("bias")
    named = "bias" if getattr(bias, "op", None) == "get_attr" and bias.target == "bias" else None
    return arguments["weight"].target == "weight" and named == (None if conv.bias is None else "bias")


class _PlacedKernel(NamedTuple):
    """The pixels of a kernel at one scale, and how they lie on the image along each axis."""

    functions: Tensor | None  # [F, ...]; None for the pixels themselves
    source: int  # the scale whose functions these are
    dilation: tuple[int, ...]
    before: tuple[int, ...]  # pixels before the center
    after: tuple[int, ...]

    def pads(self, first: "_PlacedKernel", pads: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return the padding that keeps center and size as they are at the first scale."""
        extents = zip(pads, self.before, self.after, first.before, first.after, strict=True)
        return tuple((pad[0] + b - b0, pad[1] + a - a0) for pad, b, a, b0, a0 in extents)


@functools.lru_cache(maxsize=64)  # networks have many kernels and few sizes
@torch.inference_mode(False)  # cached tensors may be used in training
def _placed(
    kernel_size: tuple[int, ...], dilation: tuple[int, ...], scales: Scales, antialias: bool
) -> list[_PlacedKernel]:
    """Return the pixels of a kernel at every scale: dilated for integer ratios, the discrete basis elsewhere."""
    reach = [step * (side - 1) for side, step in zip(kernel_size, dilation, strict=True)]
    largest_step = max(step if side > 1 else 1 for side, step in zip(kernel_size, dilation, strict=True))
    placed: list[_PlacedKernel] = []
    solved: list[_PlacedKernel] = []
    for k in range(len(scales)):
        ratio: float | None = scales.integer_ratio(k)
        if ratio is None and largest_step > _DENSE_DILATION:
            ratio = scales.ratio(k)
        if ratio is None:
            solved = solved or _enlarged(kernel_size, dilation, scales, antialias)
            placed.append(solved[k])
            continue
        factors = [round(ratio * step) for step in dilation]
        before = [round(ratio * (length // 2)) for length in reach]
        after = [(side - 1) * factor - b for side, factor, b in zip(kernel_size, factors, before, strict=True)]
        placed.append(_PlacedKernel(None, k, tuple(factors), tuple(before), tuple(after)))
    return placed


def _enlarged(
    kernel_size: tuple[int, ...], dilation: tuple[int, ...], scales: Scales, antialias: bool
) -> list[_PlacedKernel]:
    """Return the discrete basis of a kernel: optimal for equal sides, else the product of those along the axes."""
    dims, side, step = len(kernel_size), kernel_size[0], dilation[0]
    whole = step * (side - 1) + 1
    if len(set(zip(kernel_size, dilation, strict=True))) == 1 and (dims == 1 or whole <= _DENSE_SIDE):
        basis = DiscreteBasis(whole, scales, spatial_dims=dims, antialias=antialias)
        chosen = torch.arange(whole**dims).reshape([whole] * dims)[(slice(None, None, step),) * dims].flatten()
        return [
            _PlacedKernel(s.functions[chosen], source, *((number,) * dims for number in (s.dilation, *s.reach)))
            for s, source in zip(basis.stencils, basis.sources, strict=True)
        ]
    axes = [_enlarged((side,), (step,), scales, antialias) for side, step in zip(kernel_size, dilation, strict=True)]
    placed = []
    for parts in zip(*axes, strict=True):
        factors = (part.functions for part in parts if part.functions is not None)  # [F1, ...], [F2, k], ...
        functions = functools.reduce(lambda a, b: torch.einsum("f...,gk->fg...k", a, b).flatten(0, 1), factors)
        dilations, before, after = (
            tuple(getattr(part, key)[0] for part in parts) for key in ("dilation", "before", "after")
        )
        placed.append(_PlacedKernel(functions, max(part.source for part in parts), dilations, before, after))
    return placed


def is_spatial(part: Any) -> bool:
    """Return whether a module is an ordinary or transposed convolution of more than one pixel."""
    strided = isinstance(part, TRANSPOSED) and max(per_axis(part.stride, 1)) > 1
    return strided or (isinstance(part, (*PLAIN, *TRANSPOSED)) and math.prod(part.weight.shape[2:]) > 1)


def is_strided(part: Any) -> bool:
    """Return whether a module is an ordinary convolution of one pixel with a stride."""
    return isinstance(part, PLAIN) and not is_spatial(part) and max(per_axis(part.stride, 1)) > 1
