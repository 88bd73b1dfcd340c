"""Networks for inference: kernels multiplied out, batch norms folded, and files for other runtimes."""

import copy
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from .convert.decimated import DecimatedNetwork
from .convert.layers import PLAIN, FoldedConv
from .convert.surgery import replace, replace_modules
from .files import check_writable, reason, written_atomically
from .fold import fold, unfold
from .functional.conv import apply_kernels, kernels
from .nn.conv import ScaleConvolution

try:
    from torch.fx.experimental import _config
except ImportError:  # a private module; without it, programs may assume a batch of more than one image
    _config = None  # type: ignore[assignment]

_AXES = ("depth", "height", "width")  # names of dynamic axes


def bake(module: nn.Module, *, compact: bool = False) -> nn.Module:
    """Return an inference copy of a layer or network: kernels multiplied out, batch norms folded, no basis.

    Every scale convolution becomes plain convolutions with fixed kernels. A batch norm that directly follows a
    convolution, and nothing else does, is folded into it; others stay. The copy is in evaluation mode and its baked
    layers have no trainable weights; the given module is not modified.

    Norms are found by tracing `forward` symbolically. If that fails (data-dependent control flow, optional arguments),
    none is folded and a warning says why. Layers with hooks or with a `forward` of a subclass stay as they are.

    Args:
        module: The layer or network.
        compact: Whether to keep weights and stencils where they are smaller than their kernels, and multiply them in
            every forward pass. For files: onnxruntime and other runtimes that fold constants do it once, on loading.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> from scale_disco.nn import ScaleBatchNorm2d, ScaleLift2d
        >>> net = nn.Sequential(ScaleLift2d(3, 8, DiscreteBasis(3, [1, 2])), ScaleBatchNorm2d(8)).eval()
        >>> images = torch.randn(1, 3, 16, 16)
        >>> torch.allclose(bake(net)(images), net(images), atol=1e-5)
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"bake: expected a module, got {type(module).__name__}")
    baked = copy.deepcopy(module).eval()
    if isinstance(baked, DecimatedNetwork):  # the network itself is an ordinary one
        baked.network = bake(baked.network, compact=compact)
        return baked
    for layer_name, norm_name in _foldable(baked):
        layer, norm = baked.get_submodule(layer_name), baked.get_submodule(norm_name)
        assert isinstance(norm, _BatchNorm)
        known = isinstance(layer, (ScaleConvolution, FoldedConv))
        fused: Any = BakedConvolution(layer, norm, compact) if known else fuse_conv_bn_eval(layer, norm)  # type: ignore[arg-type, type-var]
        replace(baked, layer_name, fused)
        replace(baked, norm_name, nn.Identity())
    return replace_modules(baked, _bakeable, partial(BakedConvolution, compact=compact))


class BakedConvolution(nn.Module):
    """A scale convolution, or one of a converted network, with fixed kernels and the batch norm folded in, if any.

    Scales whose kernels are dilations of each other share a buffer. With `compact` it has weights and stencils instead
    of kernels if these are fewer numbers.
    """

    bias: Tensor | None
    weight: Tensor | None

    def __init__(
        self, layer: ScaleConvolution | FoldedConv, norm: _BatchNorm | None = None, compact: bool = False
    ) -> None:
        super().__init__()
        self.who, self.layout, self.in_channels = type(layer).__name__, layer.layout, layer.in_channels
        self.lifting, self.folded = isinstance(layer, ScaleConvolution) and layer.lifting, False
        if isinstance(layer, FoldedConv):
            self.folded, self.before, self.after = True, layer.before, layer.after  # averages commute with the norm
        with torch.no_grad():
            exact = copy.deepcopy(layer).double()
            (weight, parts), bias, phases = exact.factors(), exact.bias, getattr(layer, "phases", 1)
            products = exact.kernels()
            bias = None if bias is None else bias.repeat_interleave(phases)
        self.scales = len(products)
        factor = torch.ones(1, dtype=torch.float64, device=layer.weight.device)
        if norm is not None:
            factor, shift = (number.repeat_interleave(phases) for number in _affine(norm))
            bias = shift if bias is None else bias.detach() * factor + shift
        # A buffer per distinct kernel, as the layer has one per distinct stencil.
        sources = [next(l for l in range(k + 1) if products[l] is products[k]) for k in range(self.scales)]
        compact = compact and weight.numel() < sum(products[source].numel() for source in set(sources))
        self._names = tuple(f"{'stencil' if compact else 'kernel'}{source}" for source in sources)
        for name, part in dict(zip(self._names, parts if compact else products, strict=True)).items():
            scaled = part.detach() if compact else part.detach() * factor.reshape(-1, *[1] * (layer.spatial_dims + 1))
            self.register_buffer(name, scaled.to(layer.weight).contiguous())
        scaled = weight.detach() * factor.reshape(-1, *[1] * (weight.ndim - 1))
        self.register_buffer("weight", scaled.to(layer.weight).contiguous() if compact else None)
        self.register_buffer("bias", None if bias is None else bias.detach().to(layer.weight))

    def forward(self, x: Tensor) -> Tensor:
        parts = [getattr(self, name) for name in self._names]  # torch 2.6 cannot trace get_buffer
        products = parts if self.weight is None else kernels(self.weight, parts)
        x = unfold(self.before(x), self.scales) if self.folded else x
        y = apply_kernels(self.who, x, products, self.bias, self.layout)
        return self.after(fold(y)) if self.folded else y

    def set_scales(self, scales: Any) -> None:
        raise ValueError("with_scales: kernels of a baked network are fixed: change the scales, then bake")

    def extra_repr(self) -> str:
        return f"{self.who}, {self.in_channels} channels, {self.scales} scales"


def export_program(module: nn.Module, example: Tensor, *, compact: bool = False) -> torch.export.ExportedProgram:
    """Bake a network (`compact`: see `bake`) and return a `torch.export` program that takes any batch and image size.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> from scale_disco.nn import ScaleLift2d
        >>> program = export_program(ScaleLift2d(1, 2, DiscreteBasis(3, [1, 2])), torch.randn(1, 1, 16, 16))
        >>> program.module()(torch.randn(3, 1, 20, 24)).shape
        torch.Size([3, 2, 2, 20, 24])
    """
    if example.ndim < 3 or 0 in example.shape:
        raise ValueError(f"export: expected an example [B, C, ...] of at least one image, got {tuple(example.shape)}")
    baked = bake(module, compact=compact)
    if len(example) == 1:  # torch.export specializes on axes of length 1
        example = torch.cat([example, example])
    shape = dict.fromkeys(_dynamic_axes(baked, example), torch.export.Dim.DYNAMIC)
    config: Any = _config
    # Trace without assuming a batch of more than one image, if this version of torch can.
    with config.patch(backed_size_oblivious=True) if hasattr(config, "backed_size_oblivious") else nullcontext():
        return torch.export.export(baked, (example,), dynamic_shapes=(shape,))


def _dynamic_axes(module: nn.Module, example: Tensor) -> dict[int, str]:
    """Return the axes of the input that may have any size, and their names."""
    kinds = (BakedConvolution, ScaleConvolution)
    layers = [part for part in module.modules() if isinstance(part, kinds) and not getattr(part, "folded", False)]
    images = any(part.lifting for part in layers) or not layers
    first = 2 if images else 3  # behind the channels, and the scales of feature maps
    return {0: "batch", **dict(zip(range(first, example.ndim), _AXES[first - example.ndim :], strict=True))}


def export_onnx(
    module: nn.Module,
    example: Tensor,
    path: str | os.PathLike[str],
    *,
    compact: bool = False,
    progress: Callable[[str], object] | None = None,
) -> None:
    """Bake a network and write it as an ONNX file that takes any batch and image size.

    Axes of the input "images" are named batch, height and width. The file is run once in onnxruntime on the example; an
    error is raised if the outputs differ.

    Args:
        module: A layer or network with one tensor as input, images or feature maps, and one or several as output.
        example: Images that it takes.
        path: File to write, atomically.
        compact: Whether to write weights and stencils instead of kernels that are larger: a smaller file, for runtimes
            that fold constants, as onnxruntime does on loading.
        progress: Called with the name of each step, such as `print`: large networks take minutes.
    """
    report = progress or (lambda step: None)
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise ImportError(f'ONNX needs its packages: pip install "scale-disco[onnx]" ({error})') from error
    check_writable(path)
    report("tracing")
    traced, axes = export_program(module, example, compact=compact), _dynamic_axes(module, example)
    report("translating")
    program = torch.onnx.export(
        traced, dynamo=True, input_names=["images"], dynamic_shapes=(axes,), optimize=True, verbose=False
    )
    assert program is not None
    with written_atomically(path) as draft:
        report("writing")
        program.save(str(draft), external_data=False)
        report("comparing with onnxruntime")
        try:
            session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
            outputs = session.run(None, {"images": example.detach().numpy(force=True)})
        except Exception as error:  # onnxruntime's errors have no common base class
            why = " ".join(str(error).split())
            raise RuntimeError(f"export_onnx: onnxruntime cannot run {example.dtype} images here: {why}") from error
        with torch.no_grad():
            expected = bake(module)(example)
        for output, own in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
            difference = float((torch.from_numpy(output).to(own) - own).abs().max())
            if not difference <= 1e-3 * float(own.abs().max()) + 1e-4:
                raise RuntimeError(f"export_onnx: onnxruntime's output differs from the network's by {difference:.3g}")


def _affine(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return factor and shift of each channel by which a norm in evaluation mode is x * factor + shift, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        factor = factor * norm.weight.detach().double()
    shift = -norm.running_mean.detach().double() * factor
    return factor, shift if norm.bias is None else shift + norm.bias.detach().double()


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        layers = tuple(f"{__package__}.{name}" for name in ("nn", "convert.layers", "convert.pools"))
        layer = any(kind.__module__.startswith(layers) for kind in type(m).__mro__)
        # Layers of named networks may have control flow of their own; blocks with norms inside are traced.
        zoo = type(m).__module__.startswith((f"{__package__}.models", f"{__package__}.tasks"))
        layer = layer or (zoo and not any(isinstance(part, _BatchNorm) for part in m.modules()))
        return layer or super().is_leaf_module(m, module_qualified_name)


def _foldable(module: nn.Module) -> list[tuple[str, str]]:
    """Return the names of layers and of the norms that alone follow them."""
    if not any(isinstance(part, _BatchNorm) and part is not module for part in module.modules()):
        return []
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        if any(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise ValueError("its forward has optional arguments")
        graph = _Tracer().trace(module)
    except Exception as error:  # a forward may raise anything when it meets a symbol instead of a tensor
        warnings.warn(f"bake: cannot trace {type(module).__name__}, no norm is folded ({reason(error)})", stacklevel=3)
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    layers: dict[Any, nn.Module] = {node: module.get_submodule(str(node.target)) for node in calls}
    used = Counter(layers.values())
    followed = [(node, next(iter(node.users))) for node in calls if len(node.users) == 1]
    return [
        (str(node.target), str(user.target))
        for node, user in followed
        if user in layers and _fits(layers[node], layers[user]) and used[layers[node]] == used[layers[user]] == 1
    ]


def _bakeable(layer: nn.Module) -> TypeGuard[ScaleConvolution | FoldedConv]:
    """Return whether a layer does what its class says: no hooks, no forward of a subclass."""
    if not isinstance(layer, (ScaleConvolution, FoldedConv)) or _has_hooks(layer):
        return False
    return type(layer).forward in (ScaleConvolution.forward, FoldedConv.forward)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _fits(layer: nn.Module, norm: nn.Module) -> bool:
    """Return whether a norm can be folded into a layer: both are of known classes, and the norm has statistics."""
    plain = type(layer) in PLAIN and not _has_hooks(layer)
    if not (plain or _bakeable(layer)) or not isinstance(norm, _BatchNorm) or norm.running_mean is None:
        return False
    return type(norm).__module__.startswith(("torch.nn", f"{__package__}.nn")) and not _has_hooks(norm)
