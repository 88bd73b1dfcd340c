"""Replacement of modules in a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def exchanged(module: nn.Module, chosen: Callable[[nn.Module], bool], make: Callable[[Any], nn.Module]) -> nn.Module:
    """Replace every chosen submodule, or the module itself, by what `make` returns for it; return the result."""
    if chosen(module):
        return make(module)
    for name, part in list(module.named_modules(remove_duplicate=False)):
        if chosen(part):
            replace(module, name, make(part))
    return module


def replace(module: nn.Module, name: str, new: nn.Module) -> None:
    """Replace the submodule of this name."""
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, new)
