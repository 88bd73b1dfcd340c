"""Replacement of modules in a network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..scales import Scales
from .layers import TRANSPOSED, FoldedConv, is_spatial, is_strided
from .pools import MAX_POOLS, GrowingMaxPool, MeanPool, PooledPoint
from .transposed import FoldedTransposed

_HOOKS = tuple(name for name in vars(nn.Identity()) if "hook" in name and not name.startswith(("_state", "_load")))


def replace_modules(net: nn.Module, chosen: Callable[[nn.Module], bool], make: Callable[[Any], nn.Module]) -> nn.Module:
    """Replace every chosen submodule, or the module itself, by what `make` returns for it; return the result."""
    if chosen(net):
        return make(net)
    for name, part in list(net.named_modules(remove_duplicate=False)):
        if chosen(part):
            replace(net, name, make(part))
    return net


def replace(module: nn.Module, name: str, new: nn.Module) -> None:
    """Replace the submodule of this name."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, new)


@dataclass
class Replacement:
    """Selects the modules to replace and builds their scale-equivariant replacements."""

    scales: Scales
    extent: int
    lifting: nn.Module
    unchanged: set[nn.Module]
    pooling: str
    centered: bool
    antialias: bool
    direct: bool
    made: dict[nn.Module, nn.Module] = field(default_factory=dict)  # a layer that is used twice stays one layer

    def chosen(self, part: Any) -> bool:
        pool = self.pooling != "as-is" and isinstance(part, MAX_POOLS)
        return part not in self.unchanged and (is_spatial(part) or pool or (self.centered and is_strided(part)))

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
            kind = FoldedTransposed if isinstance(part, TRANSPOSED) else FoldedConv
            new = kind(part, self.scales, extent, centered=self.centered, antialias=self.antialias)
            new.direct, new.layout = self.direct, new.layout._replace(direct=self.direct)
            return new
        return PooledPoint(part)
