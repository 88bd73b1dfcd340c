"""A converted network: scales folded into the batch, the network on them, scales reduced to one."""

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..fold import unfold
from ..nn import ScaleDecision, ScaleProject
from ..scales import Scales, as_scales

_PREFIX = "network."
_Network = TypeVar("_Network", bound=nn.Module)


class ProjectionPoint(NamedTuple):
    """Where scales are reduced: before or after a call of a module, or at the output if its name is empty."""

    module: str
    before: bool = False
    call: int = 0  # which call of the module, counted from 1; 0 for all
    decides: bool = False  # whether every scale decides, and `ScaleDecision` combines the logits

    def __str__(self) -> str:
        if self.module:
            return f"{'before' if self.before else 'after'} {self.module}"
        return "at the output, as decisions" if self.decides else "at the output"


OUTPUT, DECISION = ProjectionPoint(""), ProjectionPoint("", decides=True)


class ScaleEquivariant(nn.Module):
    """A network that runs at several scales: images [B, C, ...] -> the network's output.

    Inside, `network` runs on [S * B, C, ...], all scales in one batch, up to `place`, where `project` reduces them to
    one; outputs that do not pass there are reduced at the end. Without `project` outputs have a scale axis,
    [B, C, S, ...]. Keys of the `state_dict` are the network's own, so checkpoints load in both directions.

    Attributes:
        network: The network, with its own attributes: replace a classifier as `converted.network.fc = ...`.
        scales: Scales of the kernels.
        project: A `ScaleProject`, a `ScaleDecision`, or None.
        place: Where it is applied.
        grid: "full" or "decimated".
        unconverted: Names of layers that were kept, and of modules with operations that cannot be converted.
    """

    grid: ClassVar[str] = "full"

    def __init__(
        self,
        network: nn.Module,
        scales: Scales,
        place: ProjectionPoint | None,
        reduce: str,
        unconverted: Sequence[str] = (),
        *,
        lift: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.scales, self.place, self.unconverted = scales, place, tuple(unconverted)
        self.project = None if place is None else (ScaleDecision if place.decides else ScaleProject)(reduce)
        self._reduction = None
        if place is not None and place.module:
            self._reduction = self._make_reduction(place)
            module = network.get_submodule(place.module)
            (module.register_forward_pre_hook if place.before else module.register_forward_hook)(self._reduction)
        self._lift = lift
        self.network = network
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    def _make_reduction(self, place: ProjectionPoint) -> Any:
        return _Reduction(len(self.scales), self.project, place)

    def with_scales(self, scales: Scales | Sequence[float]) -> Self:
        """Return a copy of the network with the same weights and other scales; see `scale_disco.with_scales`."""
        return with_scales(self, scales)

    def set_scales(self, scales: Scales) -> None:
        """Change the scales in place; layers of the network have their own."""
        self.scales = scales
        if isinstance(self._reduction, _Reduction):
            self._reduction.count = len(scales)

    def forward(self, images: Tensor) -> Any:
        if self._reduction is not None:
            self._reduction.start()
        # Not repeat, which needs a number of axes to trace.
        lifted = torch.cat([images] * len(self.scales)) if self._lift is None else self._lift(images)
        return tree_map(lambda x: self._reduced(x, images), self.network(lifted))

    def _reduced(self, output: Any, images: Tensor) -> Any:
        """Reduce the scales of an output that still has all of them, or unfold them to an axis."""
        if not isinstance(output, Tensor) or (self._reduction is not None and output.shape[0] == images.shape[0]):
            return output
        return _reduced(output, len(self.scales), self.project)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) and name not in ("network", "project", "_lift") and hasattr(self.network, name):
            raise AttributeError(f"ScaleEquivariant: {name} is a part of the network: set .network.{name}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            network = self._modules.get("network")
            if network is None or not hasattr(network, name):
                raise
        raise AttributeError(f"ScaleEquivariant: {name} is a part of the network: use .network.{name}")

    def extra_repr(self) -> str:
        return f"{self.scales!r}, " + ("scale axis kept" if self.place is None else f"scales reduced {self.place}")


def with_scales(network: _Network, scales: Scales | Iterable[float]) -> _Network:
    """Return a copy of a network with the same weights and another set of scales.

    Train with few scales and use many: with decisions at every scale (`ScaleDecision`) a network recognizes objects of
    sizes that were not in training. Takes converted networks, on both grids, and networks of the layers of
    `scale_disco.nn` on a `DiscreteBasis`, which is solved again for the new scales. Parameters and buffers are copied,
    and keys of the `state_dict` stay.

    On the full grid the first scale is that of the weights and must stay; layers that see several scales
    (`scale_extent` above 1) need the same step between scales. Baked networks cannot be changed.

    Example:
        >>> from scale_disco import DiscreteBasis
        >>> from scale_disco.nn import ScaleLift2d
        >>> net = nn.Sequential(ScaleLift2d(3, 8, DiscreteBasis(3, [1, 2])), nn.ReLU())
        >>> with_scales(net, [1, 2, 4])(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 8, 3, 32, 32])
    """
    scales = as_scales(scales)
    changed = copy.deepcopy(network)
    parts: list[Any] = [part for part in changed.modules() if hasattr(part, "set_scales")]
    if not parts:
        raise ValueError(f"with_scales: {type(network).__name__} has no layer with scales")
    for part in parts:
        part.set_scales(scales)
    return changed


class _Reduction:
    """A hook that reduces the scales of a module's input or output."""

    def __init__(self, count: int, project: nn.Module | None, place: ProjectionPoint) -> None:
        self.count, self.project, self.place = count, project, place
        self.calls: dict[int, int] = {}  # of the module in this forward pass, by thread

    def start(self) -> None:
        """Reset the count of calls at the start of a forward pass."""
        if self.place.call:
            self.calls[_thread()] = 0

    def __call__(self, module: nn.Module, inputs: Any, output: Any = None) -> Any:
        if self.place.call:
            self.calls[_thread()] += 1
            if self.calls[_thread()] != self.place.call:
                return None
        return tree_map(
            lambda x: _reduced(x, self.count, self.project) if isinstance(x, Tensor) else x,
            inputs if self.place.before else output,
        )


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def _reduced(x: Tensor, count: int, project: nn.Module | None) -> Tensor:
    """Reduce [S * B, C, ...] -> [B, C, ...], or unfold it (None) to [B, C, S, ...]; also without channels."""
    maps = unfold(x, count) if x.ndim > 1 else unfold(x[:, None], count)
    maps = maps if project is None else project(maps)
    return maps if x.ndim > 1 else maps[:, 0]


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:  # all of them, to keep their order
        own = key.removeprefix(prefix)
        state[prefix + own.removeprefix(_PREFIX)] = state.pop(key)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        own = key.removeprefix(prefix)
        if own != "project.log_temperature":
            state[prefix + _PREFIX + own] = state.pop(key)
    project = module.project
    if isinstance(project, nn.Module) and hasattr(project, "log_temperature"):  # not in an ordinary checkpoint
        state.setdefault(f"{prefix}project.log_temperature", project.log_temperature)
