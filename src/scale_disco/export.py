"""Networks ready for use: kernels multiplied out, batch norms folded, and files for other runtimes."""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard

import torch
import torch.fx.experimental._config
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from . import nn as snn
from .convert.layers import PLAIN, FoldedConv
from .convert.surgery import exchanged, replace
from .files import check_writable, written_atomically
from .fold import fold, unfold
from .functional import convolve, lift
from .functional.layout import Layout, check_input
from .nn.conv import ScaleConvolution


def bake(module: nn.Module) -> nn.Module:
    """An inference copy of a layer or network: kernels multiplied out once, batch norms folded, basis gone.

    Every scale convolution becomes plain convolutions with fixed kernels. A batch norm that directly follows a
    convolution, and nothing else does, is folded into it; others stay. The copy is in evaluation mode and has no
    trainable weights in what was baked; the given module is untouched.

    Norms are found by tracing `forward` symbolically. Where that cannot tell what follows what (control flow that
    depends on data, optional arguments), none is folded and a warning says why. Layers with hooks, or of classes with
    a `forward` of their own, stay as they are.

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
    for layer_name, norm_name in _foldable(baked):
        layer, norm = baked.get_submodule(layer_name), baked.get_submodule(norm_name)
        replace(baked, layer_name, _folded(layer, norm))
        replace(baked, norm_name, nn.Identity())
    return exchanged(baked, _bakeable, _baked)


class BakedConvolution(nn.Module):
    """A scale convolution with fixed kernels; batch norm, if any, folded in."""

    layout: Layout

    def __init__(self, layer: ScaleConvolution | FoldedConv, norm: _BatchNorm | None = None) -> None:
        super().__init__()
        self.who, self.layout, self.spatial_dims = type(layer).__name__, layer.layout, layer.spatial_dims
        self.in_channels, self.lifting = layer.in_channels, isinstance(layer, ScaleConvolution) and layer.lifting
        with torch.no_grad():
            exact = copy.deepcopy(layer).double()
            made, bias = exact.kernels(), exact.bias
        self.scales = len(made)
        factor = torch.ones(1, dtype=torch.float64, device=layer.weight.device)
        if norm is not None:
            factor, shift = _affine(norm)
            bias = shift if bias is None else bias.detach() * factor + shift
        # A buffer per distinct kernel, as the layer has one per distinct stencil.
        sources = [next(l for l in range(k + 1) if made[l] is made[k]) for k in range(self.scales)]
        self._names = tuple(f"kernel{source}" for source in sources)
        for name, kernel in dict(zip(self._names, made, strict=True)).items():
            scaled = kernel.detach() * factor.reshape(-1, *[1] * (self.spatial_dims + 1))
            self.register_buffer(name, scaled.to(layer.weight).contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().to(layer.weight))

    def forward(self, x: Tensor) -> Tensor:
        ready = [self.get_buffer(name) for name in self._names]
        scales = None if self.lifting else self.scales
        check_input(self.who, x, ready[0], self.in_channels, self.spatial_dims, scales)
        return (lift if self.lifting else convolve)(x, ready, self.get_buffer("bias"), self.layout)

    def extra_repr(self) -> str:
        return f"{self.who}, {self.in_channels} channels, {self.scales} scales"


class BakedFoldedConv(BakedConvolution):
    """A convolution of a converted network with fixed kernels: [S * B, C, ...] -> [S * B, C', ...]."""

    def __init__(self, layer: FoldedConv, norm: _BatchNorm | None = None) -> None:
        super().__init__(layer, norm)
        self.before, self.after = layer.before, layer.after  # means, if any, do not mind the norm before them

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(fold(super().forward(unfold(self.before(x), self.scales))))
        return y


def _baked(layer: ScaleConvolution | FoldedConv, norm: _BatchNorm | None = None) -> BakedConvolution:
    return BakedFoldedConv(layer, norm) if isinstance(layer, FoldedConv) else BakedConvolution(layer, norm)


def export_program(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The baked network as a `torch.export` program that takes any batch and image size.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> from scale_disco.nn import ScaleLift2d
        >>> program = export_program(ScaleLift2d(1, 2, DiscreteBasis(3, [1, 2])), torch.randn(1, 1, 16, 16))
        >>> program.module()(torch.randn(3, 1, 20, 24)).shape
        torch.Size([3, 2, 2, 20, 24])
    """
    if example.ndim < 3 or 0 in example.shape:
        raise ValueError(f"export: expected an example [B, C, ...] of at least one image, got {tuple(example.shape)}")
    baked = bake(module)
    if len(example) == 1:  # torch takes an axis of length 1 for one that never changes
        example = torch.cat([example, example])
    maps = [part for part in baked.modules() if isinstance(part, (BakedConvolution, ScaleConvolution))]
    maps = [part for part in maps if not isinstance(part, BakedFoldedConv)]
    images = any(part.lifting for part in maps) or not maps
    fixed = (1,) if images else (1, 2)  # channels, and the scales of feature maps
    shape = {axis: torch.export.Dim.DYNAMIC for axis in range(example.ndim) if axis not in fixed}
    with _any_batch():
        return torch.export.export(baked, (example,), dynamic_shapes=(shape,))


def export_onnx(module: nn.Module, example: Tensor, path: str | os.PathLike[str]) -> None:
    """Bake a network and write it as an ONNX file that takes any batch and image size.

    The file is run once in onnxruntime on the example and refused where the outputs differ.

    Args:
        module: A layer or network with one tensor as input, images or feature maps, and one or several as output.
        example: Images of the kind it takes.
        path: File to write, whole or not at all.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise ImportError(f'ONNX needs its packages: pip install "scale-disco[onnx]" ({error})') from error
    check_writable(path)
    program = export_program(module, example)
    made = torch.onnx.export(program, dynamo=True, input_names=["images"], verbose=False)
    assert made is not None
    with written_atomically(path) as draft:
        made.save(str(draft), external_data=False)
        try:
            session = onnxruntime.InferenceSession(str(draft), providers=["CPUExecutionProvider"])
            found = session.run(None, {"images": example.detach().numpy(force=True)})
        except Exception as error:  # onnxruntime has its own classes, of no common kind
            reason = " ".join(str(error).split())
            raise RuntimeError(f"export_onnx: onnxruntime cannot run {example.dtype} images here: {reason}") from error
        with torch.no_grad():
            expected = bake(module)(example)
        for one, other in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            difference = float((torch.from_numpy(one).to(other) - other).abs().max())
            if not difference <= 1e-3 * float(other.abs().max()) + 1e-4:
                raise RuntimeError(f"export_onnx: onnxruntime's output differs from the network's by {difference:.3g}")


def _any_batch() -> AbstractContextManager[Any]:
    """Let torch.export trace without assuming that a batch has more than one image, where this torch can."""
    config: Any = torch.fx.experimental._config
    if not hasattr(config, "backed_size_oblivious"):
        return nullcontext()
    patched: AbstractContextManager[Any] = config.patch(backed_size_oblivious=True)
    return patched


def _affine(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """What a norm in evaluation does to each channel: x * factor + shift, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        factor = factor * norm.weight.detach().double()
    shift = -norm.running_mean.detach().double() * factor
    return factor, shift if norm.bias is None else shift + norm.bias.detach().double()


def _folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    assert isinstance(norm, _BatchNorm)
    if isinstance(layer, (ScaleConvolution, FoldedConv)):
        return _baked(layer, norm)
    return fuse_conv_bn_eval(layer, norm)  # type: ignore[type-var]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        layers = (f"{__package__}.nn", f"{__package__}.convert.layers")
        layer = any(kind.__module__.startswith(layers) for kind in type(m).__mro__)
        # Layers of named networks, with control flow of their own; blocks with norms inside are looked into.
        zoo = type(m).__module__.startswith((f"{__package__}.models", f"{__package__}.tasks"))
        layer = layer or (zoo and not any(isinstance(part, _BatchNorm) for part in m.modules()))
        return layer or super().is_leaf_module(m, module_qualified_name)


def _foldable(module: nn.Module) -> list[tuple[str, str]]:
    """Names of layers and of the norms that alone follow them."""
    if not any(isinstance(part, _BatchNorm) and part is not module for part in module.modules()):
        return []
    try:
        taken = inspect.signature(module.forward).parameters.values()
        if any(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in taken):
            raise ValueError("its forward has optional arguments")
        graph = _Tracer().trace(module)
    except Exception as error:  # whatever a forward may raise when it meets a symbol instead of a tensor
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"bake: cannot trace {type(module).__name__}, no norm is folded ({reason})", stacklevel=3)
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    layers: dict[Any, nn.Module] = {node: module.get_submodule(str(node.target)) for node in calls}
    used = [id(layer) for layer in layers.values()]
    found = []
    for node in calls:
        followers = list(node.users)
        if len(followers) != 1 or followers[0] not in layers:
            continue
        first, second = layers[node], layers[followers[0]]
        if _fits(first, second) and used.count(id(first)) == used.count(id(second)) == 1:
            found.append((str(node.target), str(followers[0].target)))
    return found


def _bakeable(layer: nn.Module) -> TypeGuard[ScaleConvolution | FoldedConv]:
    """Whether a layer does what its class says: no hooks, no forward of a subclass."""
    if not isinstance(layer, (ScaleConvolution, FoldedConv)) or _has_hooks(layer):
        return False
    return any(type(layer).forward is kind.forward for kind in (snn.ScaleLift2d, snn.ScaleConv2d, FoldedConv))


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _fits(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether a norm can be folded into a layer: both are what they seem, and the norm has statistics."""
    plain = type(layer) in PLAIN and not _has_hooks(layer)
    if not (plain or _bakeable(layer)) or not isinstance(norm, _BatchNorm) or norm.running_mean is None:
        return False
    return type(norm).__module__.startswith(("torch.nn", f"{__package__}.nn")) and not _has_hooks(norm)
