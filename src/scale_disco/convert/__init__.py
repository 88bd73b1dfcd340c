"""Any convolutional network, made scale-equivariant with its weights.

At the first scale the discrete basis is the pixel basis, so a trained kernel is carried over as it is, and its larger
scales are weights times stencils. The image is repeated once per scale along the batch; from there on every layer but
the convolutions runs unchanged, on a batch that holds all scales (see `fold`). Before the classifier the scales are
reduced to one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..functional import check_extent
from ..nn import ScaleProject
from ..nn.conv import ScaleConvolution, warn_of_steps
from ..scales import Scales, as_scales
from .layers import (
    MAX_POOLS,
    PLAIN,
    FoldedConv,
    FoldedLift,
    GrowingMaxPool,
    MeanPool,
    PooledPoint,
    call_of,
    is_spatial,
    is_strided,
)
from .network import ScaleEquivariant
from .surgery import exchanged
from .trial import Trial, evaluated, reason
from .watch import OUTPUT, ProjectionPoint, Watch

__all__ = ["ScaleEquivariant", "to_scale_equivariant"]

_WHO = "to_scale_equivariant"
# Layers that mix places in a way that no enlarged kernel follows.
_FOREIGN = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.RNNBase,
    nn.Unfold,
    nn.Fold,
)
# What a module knows of its hooks.
_HOOKS = tuple(name for name in vars(nn.Identity()) if "hook" in name and not name.startswith(("_state", "_load")))
_EXAMPLE_SIDE = {1: 1024, 2: 224, 3: 32}


def to_scale_equivariant(
    model: nn.Module,
    scales: Scales | Sequence[float] = (1, 2**0.5, 2),
    *,
    example: Tensor | None = None,
    project: str | None = "auto",
    reduce: str = "max",
    scale_extent: int = 1,
    pooling: str = "as-is",
    downsampling: str = "as-is",
    antialias: bool = False,
    strict: bool = True,
) -> ScaleEquivariant:
    """A scale-equivariant copy of a convolutional network, with its weights and parameter names.

    Every convolution of more than one pixel sees each scale through its kernel enlarged by that scale; all other layers
    run as they are. What the network computes at the first scale is, in evaluation, what the given network computes:
    with `project=None` the output has a scale axis, [B, C, S, ...], and its index 0 is the given network's output.

    Args:
        model: A network of images [B, C, ...]; it is left untouched.
        scales: Ascending; kernels are enlarged by each over the first.
        example: Images that the network takes, by which the place of the projection is found and the result is tried;
            noise by default (224 pixels a side; 32 for volumes, 1024 for signals).
        project: Where the scales are reduced to one: "auto" for before the last layer that gives up space (global pool
            or flatten; the output if none does), the name of a module for after it (what follows stays ordinary), None
            for nowhere.
        reduce: How, as in `ScaleProject`: "max", "mean" or "logsumexp".
        scale_extent: T, how many neighbouring scales every convolution but the first sees; the weights of neighbours
            start at zero.
        pooling: "as-is"; "growing" for max pools whose windows grow with the scale, which is more equivariant and the
            same at the first scale; or "average" for means instead of maxima.
        downsampling: "as-is", or "centred" for means behind convolutions instead of strides. Means give up the equality
            at the first scale for equivariance through the network, so that it has to be fine-tuned.
        antialias: Whether every scale sees the image at its own resolution, without what is too fine for a grid coarser
            by that scale, and kernels are the best for images that are shrunk with a filter, as cameras and Pillow do.
            Maps of larger scales are then smooth, and their means and maxima move along the scales as they should.
        strict: Whether to refuse a network with parts that cannot be converted; otherwise they stay as they are, and
            are listed in `unconverted`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> converted = to_scale_equivariant(net, (1, 2))
        >>> converted(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 8])
        >>> print(converted.place)
        before 2
    """
    scales = as_scales(scales)
    _check_choices(pooling, downsampling, reduce)
    check_extent(_WHO, scale_extent, len(scales))
    warn_of_steps(_WHO, scale_extent, scales)
    first = _check_model(model)
    _check_name(model, project)
    watch = _watched(model, first, example, must=project is not None or example is not None)
    refused = _refused(model, first.weight.ndim - 2, watch, pooling, downsampling)
    trial = None if watch is None else Trial(model, _example(first, example), scales, reduce)
    if trial is not None and strict:
        _raise(trial.dependence())
    problem = None
    for place in _places(watch, project):
        kept = set(refused)
        if trial is not None:
            received, problem = trial.received(place)
            if problem is not None:
                continue
            one_scale = {name for name, batches in received.items() if batches == {trial.batch}}
            if project not in ("auto", None):  # a user who names a place means what comes before it
                refused = {name: why for name, why in refused.items() if name not in one_scale}
            idle = {name for name, part in model.named_modules() if is_spatial(part) and name not in received}
            kept |= one_scale | idle
        _refuse(model, refused, strict)
        network = copy.deepcopy(model)
        lifting = network.get_submodule(_lifting(model, watch))
        held = {network.get_submodule(name) for name in kept}
        parts = _Parts(scales, scale_extent, lifting, held, pooling, downsampling == "centred", antialias)
        named = [name or type(model).__name__ for name in refused]
        lift = FoldedLift(scales, first.weight.ndim - 2).to(first.weight) if antialias else None
        exchange = exchanged(network, parts.chosen, parts.make)
        net = ScaleEquivariant(exchange, scales, place, reduce, named, lift=lift)
        net.training = model.training  # parts keep their own: frozen norms stay frozen
        problem = None if trial is None else trial.problem(net)
        if problem is None:
            return net
    raise ValueError(f"{_WHO}: {problem}")


def _raise(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(f"{_WHO}: {problem}")


def _refuse(model: nn.Module, refused: dict[str, str], strict: bool) -> None:
    if refused and strict:
        listed = "; ".join(f"{name or type(model).__name__} ({reason})" for name, reason in refused.items())
        raise ValueError(f"{_WHO}: cannot convert {listed}; give strict=False to keep that as it is")


class _Parts:
    """Which parts of a network are exchanged, and for what."""

    def __init__(
        self,
        scales: Scales,
        extent: int,
        lifting: nn.Module,
        kept: set[nn.Module],
        pooling: str,
        centred: bool,
        antialias: bool,
    ) -> None:
        self.scales, self.extent, self.lifting, self.kept = scales, extent, lifting, kept
        self.pooling, self.centred, self.antialias = pooling, centred, antialias
        self.made: dict[nn.Module, nn.Module] = {}  # a layer that is used twice stays one layer

    def chosen(self, part: Any) -> bool:
        if part in self.kept:
            return False
        strided = isinstance(part, PLAIN) and max(part.stride) > 1
        return (
            is_spatial(part) or (self.centred and strided) or (self.pooling != "as-is" and isinstance(part, MAX_POOLS))
        )

    def make(self, part: Any) -> nn.Module:
        if part not in self.made:
            self.made[part] = new = self._new(part)
            new.train(part.training)
            for hooks in _HOOKS:
                setattr(new, hooks, getattr(part, hooks))
        return self.made[part]

    def _new(self, part: Any) -> nn.Module:
        if isinstance(part, MAX_POOLS):
            return MeanPool(part) if self.pooling == "average" else GrowingMaxPool(part, self.scales)
        if is_spatial(part):
            extent = 1 if part is self.lifting else self.extent  # it sees the image, the same at all scales
            return FoldedConv(part, self.scales, extent, centred=self.centred, antialias=self.antialias)
        return PooledPoint(part)


def _check_choices(pooling: str, downsampling: str, reduce: str) -> None:
    for name, value, known in (
        ("pooling", pooling, ("as-is", "growing", "average")),
        ("downsampling", downsampling, ("as-is", "centred")),
    ):
        if value not in known:
            raise ValueError(f"{_WHO}: {name} must be one of {', '.join(known)}, got {value!r}")
    ScaleProject(reduce)  # refuses what it does not know


def _check_model(model: Any) -> Any:
    """The first convolution of a network that can be converted, be it of one pixel."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{_WHO}: expected a module, got {type(model).__name__}")
    who = type(model).__name__
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise TypeError(f"{_WHO}: {who} is traced or scripted and cannot be changed: give the network it was made from")
    if hasattr(model, "_orig_mod"):
        raise TypeError(f"{_WHO}: {who} is compiled: give the network it was made from, and compile the result")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"{_WHO}: {who} is a wrapper: give its .module, and wrap the result")
    if any(isinstance(part, (FoldedConv, ScaleConvolution)) for part in model.modules()):
        raise ValueError(f"{_WHO}: {who} is scale-equivariant already")
    if any(is_lazy(one) for one in model.parameters()):
        raise ValueError(f"{_WHO}: {who} has layers without weights yet: run it once on an image")
    devices = sorted({str(one.device) for one in (*model.parameters(), *model.buffers())})
    if len(devices) > 1:
        raise ValueError(f"{_WHO}: expected a network on one device, got {', '.join(devices)}")
    convolutions = [part for part in model.modules() if is_spatial(part)]
    if not convolutions:
        raise ValueError(
            f"{_WHO}: {who} has no convolution of more than one pixel (nn.Conv1d, nn.Conv2d or nn.Conv3d) to convert"
        )
    dims = convolutions[0].weight.ndim
    return next(part for part in model.modules() if isinstance(part, PLAIN) and part.weight.ndim == dims)


def _check_name(model: nn.Module, project: str | None) -> None:
    names = dict(model.named_modules())
    if project not in ("auto", None) and not (isinstance(project, str) and project and project in names):
        children = ", ".join(name for name, _ in model.named_children())
        said = f"a {type(project).__name__}" if isinstance(project, nn.Module) else repr(project)
        raise ValueError(f"{_WHO}: project must be auto, None or the name of a module such as {children}, got {said}")


def _example(first: Any, example: Tensor | None) -> Tensor:
    dims = first.weight.ndim - 2
    if example is None:
        channels = first.weight.shape[1] * first.groups
        generator = torch.Generator().manual_seed(0)
        shape = (1, channels, *[_EXAMPLE_SIDE[dims]] * dims)
        return torch.randn(shape, generator=generator, device="cpu").to(first.weight)
    if not isinstance(example, Tensor) or example.ndim != dims + 2 or 0 in example.shape:
        got = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"{_WHO}: expected an example [B, C, {', '.join('DHW'[3 - dims :])}], got {got}")
    if example.device != first.weight.device:
        raise ValueError(
            f"{_WHO}: expected an example on {first.weight.device} like the network, got one on {example.device}"
        )
    return example[:1].detach().clone()  # the network may change it


def _watched(model: nn.Module, first: Any, given: Tensor | None, *, must: bool) -> Watch | None:
    """What the network does with an example; None where it need not take the one we make up."""
    example = _example(first, given)
    watch = Watch(example.ndim - 2, example)
    try:
        with evaluated(model), watch.over(model):
            model(example)
    except Exception as error:
        if not must:
            return None
        hint = f"give images that it takes as example= (it was tried on {tuple(example.shape)})"
        raise ValueError(
            f"{_WHO}: {type(model).__name__} does not take the example: {reason(error)}; {hint}"
        ) from error
    return watch


def _places(watch: Watch | None, project: str | None) -> Sequence[ProjectionPoint | None]:
    """Where to reduce the scales, best first; None for nowhere."""
    if project is None or watch is None:
        return [None]
    if project == "auto":
        return [place if watch.calls[place.module] > 1 else place._replace(call=0) for place in watch.places] + [OUTPUT]
    if project not in watch.calls:
        raise ValueError(f"{_WHO}: {project!r} cannot be the place of the projection: the network never calls it")
    calls = watch.calls[project]
    return [ProjectionPoint(project, call=calls if calls > 1 else 0)]


def _lifting(model: nn.Module, watch: Watch | None) -> str:
    """The convolution of more than one pixel that is called first."""
    names = [str(name) for name, part in model.named_modules() if is_spatial(part)]
    called = [] if watch is None else [name for name in watch.order if name in names]
    return (called or names)[0]


def _refused(model: nn.Module, dims: int, watch: Watch | None, pooling: str, downsampling: str) -> dict[str, str]:
    """Names of modules that cannot be converted, and why."""
    refused: dict[str, str] = {}
    parts: list[tuple[str, Any]] = list(model.named_modules())
    for name, part in parts:
        if isinstance(part, _FOREIGN):
            refused[name] = type(part).__name__
        elif pooling != "as-is" and isinstance(part, MAX_POOLS) and part.return_indices:
            refused[name] = f"{type(part).__name__} that returns indices"
        elif is_spatial(part) and part.weight.ndim - 2 != dims:
            refused[name] = f"{type(part).__name__} in a network of {dims} spatial axes"
        elif is_spatial(part) or (downsampling == "centred" and is_strided(part)):
            try:
                call = call_of(part)
            except ValueError as error:
                refused[name] = str(error)
            else:
                if not is_spatial(part) and any(map(any, call.pads)):
                    refused[name] = f"a strided {type(part).__name__} of one pixel with padding"
    if watch is not None:
        layers = {name for name, part in parts if isinstance(part, PLAIN)}
        pools = {name for name, part in parts if isinstance(part, MAX_POOLS)}
        refused |= {name: why for name, why in watch.foreign.items() if name not in layers | set(refused)}
        if pooling != "as-is":
            refused |= {name: why for name, why in watch.maxima.items() if name not in pools | set(refused)}
    inside = tuple(f"{name}." for name in refused if name)
    return {name: why for name, why in refused.items() if not name.startswith(inside)}
