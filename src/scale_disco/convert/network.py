"""A converted network: scales into the batch, the network on them, scales reduced to one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..fold import unfold
from ..nn import ScaleProject
from ..scales import Scales
from .watch import ProjectionPoint

_PREFIX = "network."


class ScaleEquivariant(nn.Module):
    """A network of images that runs at several scales: [B, C, ...] -> what the network gives.

    Inside, `network` runs on [S * B, C, ...], all scales in one batch, up to `place`, where `project` reduces them to
    one; outputs that do not pass there are reduced at the end. Without `project` outputs have a scale axis,
    [B, C, S, ...]. The `state_dict` has the network's own names: its checkpoints load, and the other way round.

    Attributes:
        network: The network, with its own attributes: replace a classifier as `converted.network.fc = ...`.
        scales: Of the kernels, over the first one.
        project: A `ScaleProject`, or None.
        place: Where it is applied.
        unconverted: Names of layers that were kept as they are, and of modules that do what cannot be converted.
    """

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
        self.project = None if place is None else ScaleProject(reduce)
        self._reduction = None
        if place is not None and place.module:
            self._reduction = _Reduction(len(scales), self.project, place)
            module = network.get_submodule(place.module)
            if place.before:
                module.register_forward_pre_hook(self._reduction)
            else:
                module.register_forward_hook(self._reduction)
        self._lift = lift
        self.network = network
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Any:
        if self._reduction is not None:
            self._reduction.start()
        # repeat would need a number of axes to trace
        lifted = torch.cat([images] * len(self.scales)) if self._lift is None else self._lift(images)
        output = self.network(lifted)
        return tree_map(lambda x: self._reduced(x, images), output)

    def _reduced(self, output: Any, images: Tensor) -> Any:
        """An output that still holds all scales, with these reduced or as an axis."""
        count = len(self.scales)
        if not isinstance(output, Tensor) or (self._reduction is not None and output.shape[0] == images.shape[0]):
            return output
        return _reduced(output, count, self.project)

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


class _Reduction:
    """A hook that reduces the scales of what a module takes or gives."""

    def __init__(self, count: int, project: nn.Module | None, place: ProjectionPoint) -> None:
        self.count, self.project, self.place = count, project, place
        self.calls: dict[int, int] = {}  # of the module in this run of the network, by thread

    def start(self) -> None:
        """A run of the network begins."""
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
    """[S * B, C, ...] -> [B, C, ...], or (None) [B, C, S, ...]; the same without channels."""
    maps = unfold(x, count) if x.ndim > 1 else unfold(x[:, None], count)
    maps = maps if project is None else project(maps)
    return maps if x.ndim > 1 else maps[:, 0]


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:  # all of them, so that their order stays
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
