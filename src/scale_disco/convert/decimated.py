"""Networks on the decimated grid: each scale sees the image shrunk by it, on a grid coarser by it.

The network is the given one, unchanged, so that any layer, stride, pool or attention is exact under shrinking by a
scale of the set. Scales run one after the other, the finest last: at the projection point the others stop, and it goes
on with the maps of all of them. Batch norms that use the statistics of the batch need all scales at the same time; the
network then runs once, on `ScaleLevels`.
"""

import operator
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from ..files import reason
from ..resampling import pyramid
from .network import ProjectionPoint, ScaleEquivariant

# Attributes of the wrapper itself: no gradient flows through it, only through its levels.
_OWN = {getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn")}
_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


class DecimatedNetwork(ScaleEquivariant):
    """A network that sees images at several scales, each shrunk by it: images [B, C, ...] -> the network's output.

    Scale s is the image shrunk by s with antialiasing (see `pyramid`), so that `network` responds there to what is s
    times as large. Maps of different sizes are enlarged to those of the first scale before they are projected, or
    stacked to a scale axis. Batch norms in training share their statistics over all pixels of all scales.
    Attributes are those of `ScaleEquivariant`.
    """

    grid: ClassVar[str] = "decimated"

    def _make_reduction(self, place: ProjectionPoint) -> Any:
        return _Meeting(self.project, place)

    def forward(self, images: Tensor) -> Any:
        levels = pyramid(images, self.scales)
        passes = _Passes()
        token = _PASSES.set(passes)
        try:
            if len(levels) > 1 and any(map(_uses_batch_statistics, self.network.modules())):
                outputs = [self._run(ScaleLevels(levels), "at all scales together, as batch norms in training need")]
            else:
                outputs = self._in_turn(levels, passes)
        finally:
            _PASSES.reset(token)
        if self._reduction is None:
            return tree_map(lambda *maps: _combined(maps, self.project, len(images)), *outputs)
        if passes.met != 1 or len(outputs) != 1:
            raise ValueError(f"ScaleEquivariant: {self._who} does not pass the projection {self.place} at every scale")
        return tree_map(lambda x: x.levels[0] if isinstance(x, ScaleLevels) else x, outputs[0])

    def _in_turn(self, levels: Sequence[Tensor], passes: "_Passes") -> list[Any]:
        """Return the outputs of all scales, or that of the first one if the others stop at the projection point."""
        outputs = []
        for k in reversed(range(len(levels))):
            passes.calls, passes.last = 0, k == 0
            sides = "x".join(map(str, levels[k].shape[2:]))
            try:
                outputs.append(self._run(levels[k], f"at scale {self.scales[k]:g}, on images of {sides} pixels"))
            except _ReachedProjection:
                continue
        return outputs[::-1]

    def _run(self, images: Tensor, where: str) -> Any:
        try:
            return self.network(images)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # from the network's own code
            raise ValueError(f"ScaleEquivariant: {self._who} fails {where}: {reason(error)}") from error

    @property
    def _who(self) -> str:
        return type(self.network).__name__


def _uses_batch_statistics(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)


def _combined(maps: Sequence[Any], project: nn.Module | None, batch: int | None = None) -> Any:
    """Project the maps of all scales, finest first, or (None) stack them to [B, C, S, ...]; also without channels."""
    if isinstance(maps[0], ScaleLevels):
        maps = maps[0].levels
    if not isinstance(maps[0], Tensor):
        return maps[0]
    shapes = [tuple(x.shape) for x in maps]
    if batch is not None and (maps[0].ndim == 0 or len(maps[0]) != batch):
        raise ValueError(f"ScaleEquivariant: expected outputs of {batch} images along the first axis, got {shapes[0]}")
    if len({shape[:2] for shape in shapes}) > 1 or (len(set(shapes)) > 1 and maps[0].ndim not in _LINEAR):
        raise ValueError(f"ScaleEquivariant: expected vectors of one size or maps of one width, got {shapes}")
    if maps[0].ndim == 1:
        return _combined([x[:, None] for x in maps], project)[:, 0]
    size = maps[0].shape[2:]
    same = [x if x.shape[2:] == size else F.interpolate(x, size, mode=_LINEAR[x.ndim]) for x in maps]
    stacked = torch.stack(same).movedim(0, 2)
    return stacked if project is None else project(stacked)


class _ReachedProjection(BaseException):
    """Ends the pass of a scale; not an `Exception`, which a network could catch."""


@dataclass
class _Passes:
    """The passes of a network through its scales."""

    last: bool = True  # whether this pass goes on behind the projection point
    calls: int = 0  # of the module there
    met: int = 0  # how often scales were projected
    maps: list[Any] = field(default_factory=list)  # of the passes so far


_PASSES: ContextVar[_Passes | None] = ContextVar("passes", default=None)  # each thread has its own


class _Meeting:
    """A hook at the projection point: passes end there, and the last one goes on with the projected maps of all."""

    def __init__(self, project: nn.Module | None, place: ProjectionPoint) -> None:
        self.project, self.place = project, place

    def __call__(self, module: nn.Module, inputs: Any, output: Any = None) -> Any:
        passes = _PASSES.get()
        if passes is None:  # the network itself was called
            return None
        passes.calls += 1
        if self.place.call not in (0, passes.calls):
            return None
        maps = inputs if self.place.before else output
        if not passes.last:
            passes.maps.append(maps)
            raise _ReachedProjection
        passes.met += 1
        return tree_map(lambda *levels: _combined(levels, self.project), maps, *reversed(passes.maps))


class ScaleLevels(Tensor):
    """Maps of several sizes, one per scale, that a network sees as one tensor: functions run on each of them.

    Batch norms see all of them together. A size is an integer where it is the same at all scales, else `PerScale`.
    """

    levels: tuple[Tensor, ...]

    @staticmethod
    def __new__(cls, levels: Sequence[Tensor]) -> "ScaleLevels":
        first = levels[0]
        maps: ScaleLevels = Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype, device=first.device)
        maps.levels = tuple(levels)
        return maps

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return _batch_norm(*args, **kwargs)
        if func in _OWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        count = next(len(x.levels) for x in _leaves((args, kwargs)) if isinstance(x, ScaleLevels))
        return _per_scale([func(*_at(args, k), **_at(kwargs, k)) for k in range(count)])

    @classmethod
    def __torch_dispatch__(cls, func: Any, *arguments: Any) -> Any:
        raise TypeError(f"{func} needs one tensor, got maps of several scales")


class PerScale:
    """A number or another value that differs between scales, such as a side; arithmetic works on each."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)

    def __bool__(self) -> bool:
        raise TypeError("its code branches on the size of images, which differs between scales")

    def __repr__(self) -> str:
        return f"PerScale{self.values}"

    __hash__ = None  # type: ignore[assignment]


def _operator(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def apply(self: PerScale, *others: Any) -> Any:
        rows = [(value, *(_at(other, k) for other in others)) for k, value in enumerate(self.values)]
        return _per_scale([function(*(row[::-1] if swapped else row)) for row in rows])

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(PerScale, f"__{_name}__", _operator(getattr(operator, _name)))
    setattr(PerScale, f"__r{_name}__", _operator(getattr(operator, _name), swapped=True))
for _name in ("neg", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(PerScale, f"__{_name}__", _operator(getattr(operator, _name)))


def _at(value: Any, k: int) -> Any:
    """Return an argument as scale k sees it."""
    if isinstance(value, ScaleLevels):
        return value.levels[k]
    if isinstance(value, PerScale):
        return value.values[k]
    if isinstance(value, slice):
        return slice(*(_at(end, k) for end in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _at(entry, k) for key, entry in value.items()}
    return type(value)(_at(entry, k) for entry in value) if type(value) in (tuple, list) else value


def _leaves(value: Any) -> Any:
    """Iterate over the entries of nested arguments."""
    if isinstance(value, (tuple, list, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _leaves(entry)
    else:
        yield value


def _per_scale(results: Sequence[Any]) -> Any:
    """Join the results of all scales: tensors to `ScaleLevels`, numbers that differ to `PerScale`."""
    return tree_map(_joined, *results)


def _joined(*values: Any) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return ScaleLevels(values)
    if isinstance(first, torch.Size):
        return tuple(_joined(*sides) for sides in zip(*values, strict=True))
    return first if all(value == first for value in values[1:]) else PerScale(values)


def _batch_norm(
    input: ScaleLevels, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> ScaleLevels:  # fmt: skip
    """Normalize maps; in training by the statistics of all of them together, each pixel with the same weight."""
    levels = input.levels
    if not training:
        fixed = running_mean, running_var, weight, bias
        return ScaleLevels([F.batch_norm(x, *fixed, eps=eps) for x in levels])
    like = levels[0] if running_mean is None else running_mean
    weight = like.new_ones(levels[0].shape[1]) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    mean, var, *normalized = _SharedNorm.apply(weight, bias, eps, *levels)  # type: ignore[no-untyped-call]
    if running_mean is not None:
        count = sum(map(_pixels, levels))
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_(var.to(running_var) * (count / max(count - 1, 1)), momentum)
    return ScaleLevels(normalized)


class _SharedNorm(torch.autograd.Function):
    """Mean and variance of all maps together, and the maps normalized by them; without a copy of the maps."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, eps: float, *maps: Tensor) -> tuple[Tensor, ...]:
        shares = [_pixels(x) / sum(map(_pixels, maps)) for x in maps]
        unused = torch.zeros_like(weight), torch.zeros_like(weight)  # running statistics; moments have their precision
        moments = [torch.batch_norm_update_stats(x, *unused, 0.0) for x in maps]
        mean = torch.stack([share * m for share, (m, _) in zip(shares, moments, strict=True)]).sum(0)
        var = torch.stack([p * (v + (m - mean).square()) for p, (m, v) in zip(shares, moments, strict=True)]).sum(0)
        ctx.save_for_backward(weight, mean, var, *maps)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, var)
        return (mean, var, *(torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, False) for x in maps))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        weight, mean, var, *maps = ctx.saved_tensors
        # As if the statistics were constants, and then how they depend on every pixel.
        fixed = [
            torch.ops.aten.native_batch_norm_backward(g, x, weight, mean, var, None, None, False, ctx.eps, [True] * 3)
            for g, x in zip(grads[2:], maps, strict=True)
        ]
        grad_weight, grad_bias = (torch.stack([parts[i] for parts in fixed]).sum(0) for i in (1, 2))
        inverse = (var + ctx.eps).rsqrt()
        factor = -weight * inverse / sum(map(_pixels, maps))
        gain = factor * inverse * grad_weight
        shift = factor * grad_bias - gain * mean
        shape = (-1, *[1] * (maps[0].ndim - 2))
        gain, shift = (x.to(maps[0]).view(shape) for x in (gain, shift))
        return (
            grad_weight,
            grad_bias,
            None,
            *(parts[0].addcmul_(x, gain).add_(shift) for parts, x in zip(fixed, maps, strict=True)),
        )


def _pixels(x: Tensor) -> int:
    return x.numel() // x.shape[1]
