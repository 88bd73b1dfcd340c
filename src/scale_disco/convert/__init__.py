"""Conversion of a convolutional network, with its weights, to a scale-equivariant one.

At the first scale the discrete basis is the pixel basis, so a trained kernel is used as it is, and its larger scales
are weights times stencils. The image is repeated once per scale along the batch; from there on every layer but the
convolutions runs unchanged on a batch of all scales (see `fold`). Before the classifier the scales are reduced to one.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..checks import check_choice
from ..files import reason
from ..functional.layout import check_extent
from ..nn import ScaleProject
from ..nn.conv import ScaleConvolution, warn_unequal_steps
from ..scales import Scales, as_scales
from .decimated import DecimatedNetwork
from .inspect import ConversionCheck, Recorder, find_output_problem
from .layers import PLAIN, TRANSPOSED, FoldedConv, FoldedLift, call_of, is_spatial, is_strided
from .network import DECISION, OUTPUT, ProjectionPoint, ScaleEquivariant, with_scales
from .pools import MAX_POOLS, pool_dims
from .surgery import Replacement, replace_modules

__all__ = ["DecimatedNetwork", "ScaleEquivariant", "to_scale_equivariant", "with_scales"]

_WHO = "to_scale_equivariant"
# Layers that mix positions and cannot be enlarged.
_UNSUPPORTED = (
    *(nn.Unfold, nn.Fold, nn.RNNBase),
    *(nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
_EXAMPLE_SIDE = {1: 1024, 2: 224, 3: 32}


def to_scale_equivariant(
    model: nn.Module,
    scales: Scales | Sequence[float] = (1, 2**0.5, 2),
    *,
    grid: str = "full",
    example: Tensor | None = None,
    project: str | None = "auto",
    reduce: str | None = None,
    scale_extent: int = 1,
    pooling: str = "auto",
    downsampling: str = "as-is",
    antialias: bool = False,
    strict: bool = True,
) -> ScaleEquivariant:
    """Return a scale-equivariant copy of a network, with its weights and parameter names.

    On the full grid every convolution of more than one pixel sees each scale through its kernel enlarged by that scale;
    all other layers run unchanged. In evaluation mode the first scale computes what the given network computes: with
    `project=None` the output has a scale axis, [B, C, S, ...], and its index 0 is the given network's output.

    On the decimated grid the network is unchanged, and each scale sees the image shrunk by it. Takes any network that
    takes images of several sizes, also to train it from scratch. If all steps between scales are equal, the whole
    network is exact: shrinking the image by the step shifts the output along the scale axis, bit for bit. Any
    number of scales at steps of sqrt 2 costs about two networks.

    The defaults are what measured best for trained networks that are not trained further. A ResNet-50 keeps 71 % of its
    predictions at its trained size (one window for all scales and the maximum: 51 %) and, on images twice as large,
    65 % (the network itself: 44 %, an image pyramid: 72 %). So conversion alone is good for objects larger than in
    training, for maps of all scales at full resolution, and as a start for training. At the trained size, on smaller
    images and for invariant features it is no better than the given network. For one prediction per image
    `grid="decimated"` is about as good for a third of the cost (docs/convert.md, docs/grids.md).

    Args:
        model: A network that takes images [B, C, ...]; it is not modified.
        scales: Ascending. On the full grid kernels are enlarged by each over the first; on the decimated grid the image
            is shrunk by each, and enlarged by scales below 1.
        grid: "full": kernels enlarged, every scale on the grid of the image; "decimated": image shrunk, every scale on
            a grid coarser by it.
        example: Images that the network takes, to find the projection point and to test the result; noise by default
            (224 pixels a side; 32 for volumes, 1024 for signals).
        project: Where the scales are reduced to one. "auto": before the last global pooling or flatten (at the output
            if there is none, or if the outputs are maps), on the decimated grid behind it if what follows takes
            vectors; a module name: after that module, and later layers are left unconverted; "decision": at the output,
            logits [B, K], by `ScaleDecision`; None: keep the scale axis.
        reduce: "mean" (default), "max" or "logsumexp", as in `ScaleProject`; for decisions "logsumexp" (default), "max"
            or "mean", as in `ScaleDecision`.
        scale_extent: T, number of scales every convolution but the first sees; the weights of neighbors start at zero.
        pooling: "growing" for max pooling windows scaled with the kernel, which is more equivariant and equal at the
            first scale; "auto" (default) for the same wherever it is possible: other max pools, such as functions and
            pools that return indices, keep their windows, with a warning; "as-is"; or "average" for average instead of
            max pooling. The decimated grid needs none of them.
        downsampling: "as-is", or "centered" for average pooling after convolutions instead of strides. Average pooling
            improves equivariance and changes the first scale, so the network must be fine-tuned.
        antialias: Whether to low-pass filter the input per scale, to the resolution of a grid coarser by it, and use
            stencils that are optimal under antialiased downsampling, as in cameras and Pillow. Maps of larger
            scales are then smooth, and their means and maxima shift along the scales as they should.
        strict: Whether to raise an error for parts that cannot be converted; otherwise they are kept and listed in
            `unconverted`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> converted = to_scale_equivariant(net, (1, 2))
        >>> converted(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 8])
        >>> print(converted.place)
        before 2
    """
    scales = as_scales(scales)
    reduce = reduce or ("logsumexp" if project == "decision" else "mean")
    if check_choice(_WHO, "grid", grid, ("full", "decimated")) == "decimated":
        options = {"scale_extent": scale_extent != 1, "pooling": pooling not in ("auto", "as-is")}
        options |= {"antialias": antialias, "downsampling": downsampling != "as-is"}
        given = [name for name, changed in options.items() if changed]
        if given:
            raise ValueError(f"{_WHO}: {', '.join(given)}: only for grid='full'; the decimated grid changes no layer")
        return _decimated(model, scales, example, project, reduce)
    check_choice(_WHO, "pooling", pooling, ("auto", "growing", "as-is", "average"))
    downsampling = "centered" if downsampling == "centred" else downsampling  # former spelling
    check_choice(_WHO, "downsampling", downsampling, ("as-is", "centered"))
    ScaleProject(reduce)  # checks it
    check_extent(_WHO, scale_extent, len(scales))
    warn_unequal_steps(_WHO, scale_extent, scales)
    first = _check_model(model)
    if first is None or not any(map(is_spatial, model.modules())):
        who = type(model).__name__
        raise ValueError(f"{_WHO}: {who} has no convolution of more than one pixel (nn.Conv1d, 2d or 3d) to convert")
    _check_name(model, project)
    record = _recorded(model, first, example, required=project is not None or example is not None)
    refused = _refused(model, first.weight.ndim - 2, record, downsampling)
    rigid = {} if pooling == "as-is" else _rigid_pools(model, record)
    if pooling != "auto":  # asked for
        refused, rigid = _outermost({**rigid, **refused}), {}
    check = None if record is None else ConversionCheck(model, _example(first, example), scales, reduce)
    problem = None if check is None else check.find_batch_dependence()
    same = problem is None and pooling != "average" and downsampling != "centered"  # at the first scale
    problem = problem if strict else None
    spatial = [name for name, part in model.named_modules() if is_spatial(part)]
    order = spatial if record is None else [*record.calls, *spatial]
    lifting = next(name for name in order if name in spatial)  # called first
    for place in [] if problem else _places(record, project):
        unchanged, unscaled = {*refused, *rigid}, rigid
        if check is not None:
            sizes, problem = check.batch_sizes(place)
            if problem is not None:
                continue
            one_scale = {name for name, batches in sizes.items() if batches == {check.batch}}
            if project == "auto" and len(scales) > 1 and one_scale & check.called & set(spatial):
                continue  # convolutions follow, which must see all scales
            if project not in ("auto", "decision", None):  # what follows a named place need not be convertible
                refused = {name: why for name, why in refused.items() if name not in one_scale}
            unchanged |= one_scale | (set(spatial) - sizes.keys())
            unscaled = {name: why for name, why in rigid.items() if name not in one_scale}
        if refused and strict:
            listed = _listed(model, refused)
            raise ValueError(f"{_WHO}: cannot convert {listed}; pass strict=False to leave these modules unconverted")
        network = copy.deepcopy(model)
        lift_layer, ordinary = network.get_submodule(lifting), {network.get_submodule(name) for name in unchanged}
        centered = downsampling == "centered"
        direct = record is not None and record.unpools
        parts = Replacement(scales, scale_extent, lift_layer, ordinary, pooling, centered, antialias, direct)
        lift = FoldedLift(scales, first.weight.ndim - 2).to(first.weight) if antialias else None
        network = replace_modules(network, parts.chosen, parts.make)
        unconverted = [name or type(model).__name__ for name in {**refused, **unscaled}]
        net = ScaleEquivariant(network, scales, place, reduce, unconverted, lift=lift)
        net.training = model.training  # submodules keep their own: frozen norms stay in evaluation mode
        problem = None if check is None else check.find_problem(net, same)
        if problem is None:
            if unscaled:
                why = "max pooling windows stay the same at all scales, which makes the larger ones less accurate"
                hint = 'replace them by nn.MaxPool, or pass pooling="as-is"'
                warnings.warn(f"{_WHO}: {_listed(model, unscaled)}: {why}; {hint}", stacklevel=2)
            return net
    raise ValueError(f"{_WHO}: {problem}")


def _decimated(
    model: nn.Module, scales: Scales, example: Tensor | None, project: str | None, reduce: str
) -> ScaleEquivariant:
    """Return a network on the decimated grid."""
    ScaleProject(reduce)  # checks it
    first = _check_model(model)
    _check_name(model, project)
    tried = project not in ("decision", None) or example is not None
    record = _recorded(model, first, example, required=True) if tried else None
    places = list(_places(record, project))
    if record is not None and project == "auto":
        if any(not isinstance(model.get_submodule(name), PLAIN) for name in record.unsupported):
            places = places[-1:]  # attention may follow, which must see all scales
        places = places if record.head is None else [_counted(record, record.head), *places]
    problem = None
    for place in places:
        net = DecimatedNetwork(copy.deepcopy(model), scales, place, reduce)
        net.training = model.training
        problem = find_output_problem(net, model, _example(first, example)) if tried else None
        if problem is None:
            return net
    raise ValueError(f"{_WHO}: {problem}")


def _check_model(model: Any) -> Any:
    """Check that a network can be converted, and return its first convolution of any kernel size, if any."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{_WHO}: expected a module, got {type(model).__name__}")
    who = type(model).__name__
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise TypeError(f"{_WHO}: {who} is a TorchScript module and cannot be converted; pass the original nn.Module")
    if hasattr(model, "_orig_mod"):
        raise TypeError(f"{_WHO}: {who} is a compiled module; convert the original, then call torch.compile")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"{_WHO}: {who} is wrapped for data parallelism; convert its .module, then wrap the result")
    if any(isinstance(part, (FoldedConv, ScaleConvolution, ScaleEquivariant)) for part in model.modules()):
        raise ValueError(f"{_WHO}: {who} is scale-equivariant already")
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(f"{_WHO}: {who} has uninitialized lazy parameters; run a forward pass first")
    devices = sorted({str(tensor.device) for tensor in (*model.parameters(), *model.buffers())})
    if len(devices) > 1:
        raise ValueError(f"{_WHO}: expected a network on one device, got {', '.join(devices)}")
    convolutions: list[Any] = [part for part in model.modules() if isinstance(part, PLAIN)]
    dims = next((part.weight.ndim for part in convolutions if is_spatial(part)), None)
    return next((part for part in convolutions if dims in (None, part.weight.ndim)), None)


def _check_name(model: nn.Module, project: str | None) -> None:
    names = dict(model.named_modules())
    if project not in ("auto", "decision", None) and not (isinstance(project, str) and project and project in names):
        children = ", ".join(name for name, _ in model.named_children())
        got = f"a {type(project).__name__}" if isinstance(project, nn.Module) else repr(project)
        raise ValueError(
            f"{_WHO}: project must be auto, decision, None or the name of a module such as {children}, got {got}"
        )


def _example(first: Any, example: Tensor | None) -> Tensor:
    """Return one image that the network takes."""
    if first is None:
        if not isinstance(example, Tensor) or example.ndim not in (3, 4, 5):
            raise ValueError(
                f"{_WHO}: pass images [B, C, ...] that the network takes as example=: it has no convolution"
            )
        return example[:1].detach().clone()
    dims = first.weight.ndim - 2
    if example is None:
        shape = (1, first.weight.shape[1] * first.groups, *[_EXAMPLE_SIDE[dims]] * dims)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu").to(first.weight)
    if not isinstance(example, Tensor) or example.ndim != dims + 2 or 0 in example.shape:
        got = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"{_WHO}: expected an example [B, C, {', '.join('DHW'[3 - dims :])}], got {got}")
    if example.device != (device := first.weight.device):
        raise ValueError(f"{_WHO}: expected an example on {device} like the network, got one on {example.device}")
    return example[:1].detach().clone()  # the network may change it


def _recorded(model: nn.Module, first: Any, given: Tensor | None, *, required: bool) -> Recorder | None:
    """Record a run on the example; None if the network does not take the default one and need not."""
    example = _example(first, given)
    record = Recorder(example)
    try:
        record.run(model, example)
    except Exception as error:
        if not required:
            return None
        why = f"{reason(error)}; pass an input that it accepts as example= (tried shape {tuple(example.shape)})"
        raise ValueError(f"{_WHO}: {type(model).__name__} fails on the example: {why}") from error
    return record


def _places(record: Recorder | None, project: str | None) -> Sequence[ProjectionPoint | None]:
    """Return the places where scales may be reduced, best first; None for nowhere."""
    if project == "decision":
        return [DECISION]
    if project is None or record is None:
        return [None]
    if project == "auto":
        return [*(_counted(record, place) for place in record.places), OUTPUT]
    if project not in record.calls:
        raise ValueError(f"{_WHO}: project={project!r}: this module is never called in the forward pass")
    calls = record.calls[project]
    return [ProjectionPoint(project, call=calls if calls > 1 else 0)]


def _counted(record: Recorder, place: ProjectionPoint) -> ProjectionPoint:
    """Return a place without the number of the call if there is only one."""
    return place if record.calls[place.module] > 1 else place._replace(call=0)


def _refused(model: nn.Module, dims: int, record: Recorder | None, downsampling: str) -> dict[str, str]:
    """Return the names of modules that cannot be converted, and why."""
    refused: dict[str, str] = {}
    parts: list[tuple[str, Any]] = list(model.named_modules())
    for name, part in parts:
        if isinstance(part, _UNSUPPORTED):
            refused[name] = type(part).__name__
        elif is_spatial(part) and part.weight.ndim - 2 != dims:
            refused[name] = f"{type(part).__name__} in a network of {dims} spatial axes"
        elif is_spatial(part) or (downsampling == "centered" and is_strided(part)):
            try:
                layout, _ = call_of(part)
            except ValueError as error:
                refused[name] = str(error)
            else:
                if not is_spatial(part) and any(map(any, layout.pads[0])):
                    refused[name] = f"a strided {type(part).__name__} of one pixel with padding"
    if record is not None:
        layers = {name for name, part in parts if isinstance(part, (*PLAIN, *TRANSPOSED))}
        refused |= {name: why for name, why in record.unsupported.items() if name not in layers | set(refused)}
    return _outermost(refused)


def _rigid_pools(model: nn.Module, record: Recorder | None) -> dict[str, str]:
    """Return the names of max pools that cannot be replaced, or of the modules that call one, and why."""
    pools = {name: part for name, part in model.named_modules() if isinstance(part, MAX_POOLS)}
    rigid: dict[str, str] = {}
    for name, part in pools.items():
        if part.return_indices:
            rigid[name] = f"{type(part).__name__} that returns indices"
        elif type(part).forward is not MAX_POOLS[pool_dims(part) - 1].forward or "forward" in vars(part):
            rigid[name] = f"{type(part).__name__} has a forward of its own"
    called = {} if record is None else record.max_pools
    return rigid | {name: why for name, why in called.items() if name not in pools}


def _outermost(refused: dict[str, str]) -> dict[str, str]:
    """Leave out modules inside of others."""
    inside = tuple(f"{name}." for name in refused if name)
    return {name: why for name, why in refused.items() if not name.startswith(inside)}


def _listed(model: nn.Module, parts: dict[str, str]) -> str:
    """Return the names of modules and the reasons as a text."""
    return "; ".join(f"{name or type(model).__name__} ({why})" for name, why in parts.items())
