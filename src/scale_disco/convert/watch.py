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


class Place(NamedTuple):
    """Where scales are reduced: before or after a call of a module, the output where its name is empty."""

    module: str
    before: bool = False
    call: int = 0  # which of the calls, where there are several; 0 for all
    time: float = math.inf  # what happens later sees one scale

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {self.module}" if self.module else "at the output"


OUTPUT = Place("")


class _Made(NamedTuple):
    """A call of a module that has returned."""

    module: str
    call: int
    time: int


class Watch(TorchFunctionMode):
    """Runs along with a network, and remembers.

    `found` is the last place where a map gives up its space: becomes one pixel, or has other axes afterwards.
    """

    def __init__(self, dims: int, image: Tensor) -> None:
        super().__init__()
        self.dims = dims
        self.found: Place | None = None
        self.entered: dict[str, list[int]] = {}  # modules and the times of their calls
        self.left: dict[str, int] = {}  # when the last call of a module returned
        self.foreign: dict[str, tuple[str, int]] = {}  # what cannot be converted, by module, and when it was called
        self.maxima: dict[str, tuple[str, int]] = {}  # max pools that are no modules
        self._time = 0
        self._stack: list[tuple[_Made, tuple[int, ...]]] = []  # modules being called, and their inputs
        self._live: dict[int, Tensor] = {id(image): image}  # what depends on the image; kept, so that ids stay unique
        self._made_by: dict[int, _Made] = {}
        self._made_of: dict[int, int] = {}  # the one map that a map was computed from
        self._pooled: dict[int, Place] = {}  # pixels that were maps, and where they gave up space

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

    def after(self, name: str) -> Place:
        """The place after the last call of a module."""
        calls = len(self.entered[name])
        return Place(name, call=calls if calls > 1 else 0, time=self.left[name])

    def _enter(self, name: str, inputs: Sequence[Any]) -> None:
        self._time += 1
        times = self.entered.setdefault(name, [])
        times.append(self._time)
        given = tuple(id(one) for one in inputs if isinstance(one, Tensor))
        self._stack.append((_Made(name, len(times), self._time), given))

    def _leave(self, out: Any) -> None:
        self._time += 1
        (name, call, _), _ = self._stack.pop()
        self.left[name] = self._time
        if isinstance(out, Tensor):
            self._live[id(out)] = out
            self._made_by[id(out)] = _Made(name, call, self._time)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs))
        given = {id(one): one for one in leaves if isinstance(one, Tensor) and id(one) in self._live}
        if given:
            self._note(func, leaves, list(given.values()))
            self._live |= {id(one): one for one in tree_leaves(out) if isinstance(one, Tensor)}
            if isinstance(out, Tensor):
                self._follow(func, [one for one in given.values() if one.ndim == self.dims + 2], out)
        return out

    def _follow(self, func: Any, maps: list[Tensor], out: Tensor) -> None:
        """Where a result came from, and whether space was given up for it."""
        if out.ndim != self.dims + 2:
            if len(maps) == 1:
                self.found = self._pooled.get(id(maps[0])) or self._place(id(maps[0]))
            return
        if len(maps) == 1 and maps[0] is not out:
            self._made_of[id(out)] = id(maps[0])
        if _pixels(out) == 1:
            wide = [one for one in maps if _pixels(one) > 1]
            if wide and func not in _CONVOLUTIONS:
                self.found = self._pooled[id(out)] = self._place(id(wide[0]))
            else:
                self._pooled |= {id(out): self._pooled[id(one)] for one in maps if id(one) in self._pooled}

    def _place(self, lost: int) -> Place:
        """Before the outermost module that takes the map that is lost, or after the one that made it."""
        for made, inputs in self._stack[1:]:
            if inputs == (lost,):
                return Place(made.module, before=True, call=made.call, time=made.time)
        while lost not in self._made_by and lost in self._made_of:
            lost = self._made_of[lost]
        made = self._made_by.get(lost, _Made("", 0, 0))
        return Place(made.module, call=made.call, time=made.time) if made.module else OUTPUT

    def _note(self, func: Any, leaves: Sequence[Any], given: Sequence[Tensor]) -> None:
        """Remember a call that cannot be converted."""
        (name, _, time), _ = self._stack[-1]
        if func in _MAX_POOLS:
            self.maxima[name] = (f"{func.__name__.strip('_')} outside of a module", time)
        elif func in _CONVOLUTIONS and math.prod(leaves[1].shape[2:]) > 1 and leaves[0] is not leaves[1]:
            self.foreign.setdefault(name, ("a convolution outside of a convolutional layer", time))
        elif func in _PRODUCTS and sum(one.ndim > 2 for one in given) > 1:
            self.foreign.setdefault(name, ("a product of two maps, as in attention", time))
        elif func in _FOREIGN:
            self.foreign.setdefault(name, (_FOREIGN[func], time))


def _pixels(x: Tensor) -> int:
    return math.prod(x.shape[2:])
