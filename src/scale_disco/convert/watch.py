"""What a network does with an image: where it gives up space, in which order, and what no enlarged kernel follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..basis.stencil import CONVOLUTION

_CONVOLUTIONS = set(CONVOLUTION.values())
_FOREIGN: dict[Any, str] = {
    F.scaled_dot_product_attention: "attention",
    F.multi_head_attention_forward: "attention",
    F.unfold: "unfold",
    F.fold: "fold",
    F.grid_sample: "grid_sample",
    F.conv_transpose1d: "a transposed convolution",
    F.conv_transpose2d: "a transposed convolution",
    F.conv_transpose3d: "a transposed convolution",
}
_PRODUCTS = {torch.matmul, torch.bmm, torch.einsum, torch.baddbmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
_MAX_POOLS = {F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d}


class ProjectionPoint(NamedTuple):
    """Where scales are reduced: before or after a call of a module, the output where its name is empty."""

    module: str
    before: bool = False
    call: int = 0  # which of the calls, where there are several; 0 for all

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {self.module}" if self.module else "at the output"


OUTPUT = ProjectionPoint("")


class _Seen(NamedTuple):
    """A tensor that depends on the image."""

    tensor: Tensor  # kept, so that ids stay unique
    narrow: bool  # one pixel for each channel, be they in any order
    losses: frozenset[int] = frozenset()  # where space was given up on the way to it


class Watch(TorchFunctionMode):
    """Runs along with a network, and remembers.

    Space is given up where a map becomes one pixel, or has other axes afterwards. Where that meets a map again, as in
    squeeze and excitation, it is not.
    """

    def __init__(self, dims: int, image: Tensor) -> None:
        super().__init__()
        self.dims = dims
        self.calls: dict[str, int] = {}  # of each module
        self.order: list[str] = []  # modules as they are first called
        self.foreign: dict[str, str] = {}  # what cannot be converted, by module
        self.maxima: dict[str, str] = {}  # max pools that are no modules
        self._stack: list[tuple[str, int, tuple[int, ...]]] = []  # modules being called, which call, their inputs
        self._seen = {id(image): _Seen(image, narrow=False)}
        self._made_by: dict[int, tuple[str, int]] = {}  # tensors, and the call of the module that returned them
        self._made_of: dict[int, int] = {}  # the one map that a map was computed from
        self._losses: list[list[ProjectionPoint]] = []  # the places that suit each, best first
        self._regained: set[int] = set()

    @property
    def places(self) -> list[ProjectionPoint]:
        """Where the network gives up space for the last time, best first."""
        kept = [places for index, places in enumerate(self._losses) if index not in self._regained]
        return [] if not kept else [place for place in kept[-1] if place.module]

    @contextmanager
    def over(self, model: nn.Module) -> Iterator[None]:
        """Watch every module of a network."""
        hooks = []
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(lambda _, inputs, name=name: self._enter(name, inputs)))
            hooks.append(module.register_forward_hook(lambda _, inputs, out: self._leave(out)))
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str, inputs: Sequence[Any]) -> None:
        if name not in self.calls:
            self.order.append(name)
        self.calls[name] = self.calls.get(name, 0) + 1
        self._stack.append((name, self.calls[name], tuple(id(one) for one in inputs if isinstance(one, Tensor))))

    def _leave(self, out: Any) -> None:
        name, call, _ = self._stack.pop()
        if isinstance(out, Tensor):
            self._seen.setdefault(id(out), _Seen(out, narrow=False))
            self._made_by[id(out)] = name, call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs))
        given = {id(one): self._seen[id(one)] for one in leaves if isinstance(one, Tensor) and id(one) in self._seen}
        if given:
            self._note(func, leaves, [one.tensor for one in given.values()])
            for one in tree_leaves(out):
                if isinstance(one, Tensor):
                    self._seen[id(one)] = self._follow(func, list(given.values()), one)
        return out

    def _follow(self, func: Any, given: list[_Seen], out: Tensor) -> _Seen:
        """Where a result came from, and whether space was given up or regained for it."""
        maps = [one for one in given if one.tensor.ndim == self.dims + 2]
        wide = [one for one in maps if not one.narrow]
        losses = frozenset().union(*(one.losses for one in given))
        if len(maps) == 1 and maps[0].tensor is not out:
            self._made_of[id(out)] = id(maps[0].tensor)
        if out.ndim != self.dims + 2:
            if len(wide) == 1 or (len(maps) == 1 and not maps[0].losses):
                losses |= {self._lose(maps[0].tensor)}
            return _Seen(out, narrow=False, losses=losses)
        turned = len(given) == 1 and given[0].narrow and out.numel() == given[0].tensor.numel()
        narrow = turned or math.prod(out.shape[2:]) == 1
        if narrow and wide and func not in _CONVOLUTIONS:
            losses |= {self._lose(wide[0].tensor)}
        if not narrow and losses:
            self._regained |= losses
            losses = frozenset()
        return _Seen(out, narrow, losses)

    def _lose(self, lost: Tensor) -> int:
        """Note that a map is given up: before the outermost module that takes it, or after the one that made it."""
        places = [ProjectionPoint(name, True, call) for name, call, inputs in self._stack[1:] if inputs == (id(lost),)][
            :1
        ]
        found = id(lost)
        while found not in self._made_by and found in self._made_of:
            found = self._made_of[found]
        if found in self._made_by:
            name, call = self._made_by[found]
            places.append(ProjectionPoint(name, False, call))
        self._losses.append(places)
        return len(self._losses) - 1

    def _note(self, func: Any, leaves: Sequence[Any], given: Sequence[Tensor]) -> None:
        """Remember a call that cannot be converted."""
        name = self._stack[-1][0]
        if func in _MAX_POOLS:
            self.maxima[name] = f"{func.__name__.strip('_')} outside of a module"
        elif func in _CONVOLUTIONS and math.prod(leaves[1].shape[2:]) > 1:
            self.foreign.setdefault(name, "a convolution outside of a convolutional layer")
        elif func in _PRODUCTS and sum(one.ndim > 2 for one in given) > 1:
            self.foreign.setdefault(name, "a product of two maps, as in attention")
        elif func in _FOREIGN:
            self.foreign.setdefault(name, _FOREIGN[func])
