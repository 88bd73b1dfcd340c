"""Trying a conversion on images before anyone relies on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..scales import Scales
from .layers import FoldedConv, is_spatial
from .network import ScaleEquivariant
from .watch import ProjectionPoint


class Trial:
    """Runs of a network on an example, in evaluation and without gradients."""

    batch = 2  # images: not one, which would fit every batch by broadcasting

    def __init__(self, model: nn.Module, example: Tensor, scales: Scales, reduce: str) -> None:
        self.model, self.example, self.scales, self.reduce = model, example, scales, reduce
        self.who = type(model).__name__
        self.called: set[str] = set()  # modules, in evaluation
        self.expected = self._answer(self.batch)

    def _answer(self, count: int) -> Any:
        """What the given network says of so many images."""
        try:
            with evaluated(self.model):
                return self.model(self._images(count))
        except Exception as error:  # of the network's own code
            raise ValueError(
                f"to_scale_equivariant: {self.who} takes one image and not {count}, as scales need: {reason(error)}"
            ) from error

    def _images(self, count: int) -> Tensor:
        """So many different images."""
        one = self.example
        return torch.cat(
            [one.roll(k, -1) * (1 + k / 2) if one.is_floating_point() else one.roll(k, -1) for k in range(count)]
        )

    def dependence(self) -> str | None:
        """Why the output for an image is not that image's alone, if so: scales would mix."""
        leaves = tree_leaves(self._answer(len(self.scales) * self.batch))
        for found, expected in zip(leaves, tree_leaves(self.expected), strict=True):
            if not isinstance(found, Tensor):
                if isinstance(found, (str, int, float, type(None))):
                    continue
                return (
                    f"{self.who} returns a {type(found).__name__}: expected tensors, or tuples, lists and dicts of them"
                )
            if found.ndim == 0 or len(found) != len(self.scales) * self.batch:
                return (
                    f"{self.who} returns a tensor of shape {tuple(expected.shape)}, which does not begin with the batch"
                )
            if not _close(found[: self.batch], expected):
                return (
                    f"the output of {self.who} for an image depends on the other images of the batch, or on chance; "
                    f"give strict=False to convert it all the same"
                )
        return None

    def received(self, place: ProjectionPoint | None) -> tuple[dict[str, set[int]], str | None]:
        """How many images each module gets with the scales reduced at a place, and why that cannot be, if so.

        Layers are still ordinary ones, for which it does not matter. Those that are not called in evaluation are tried
        in training.
        """
        net = ScaleEquivariant(copy.deepcopy(self.model), self.scales, place, self.reduce)
        batches: dict[str, set[int]] = {}

        def note(name: str, inputs: Any) -> None:
            batches.setdefault(name, set()).update(len(x) for x in inputs if isinstance(x, Tensor) and x.ndim)

        hooks = [
            part.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs), prepend=True)
            for name, part in net.network.named_modules()
        ]
        where = "" if place is None else f" with the scales reduced {place}"
        try:
            with evaluated(net):
                found = tree_map(_shape, net(self._images(self.batch)))
        except Exception as error:  # of the network's own code
            return {}, f"{self.who} does not run{where}: {reason(error)}"
        if place is not None and found != tree_map(_shape, self.expected):
            expected = tree_map(_shape, self.expected)
            return {}, f"{self.who}{where} gives {found}, not {expected}: name another module in project="
        spatial = [name for name, part in net.network.named_modules() if is_spatial(part)]
        self.called = set(batches)
        if not self.called.issuperset(spatial):
            # Training may ask for more than images; layers that are not called there either stay ordinary.
            with torch.no_grad(), suppress(Exception):
                net.train()(self._images(self.batch))
        for hook in hooks:
            hook.remove()
        whole = len(self.scales) * self.batch
        for name in spatial:
            given = batches.get(name, {whole})
            if given - {whole, self.batch}:
                return (
                    {},
                    f"{self.who} calls {name} on another batch than the images: expected {whole}, got {max(given)}",
                )
            if len(given) > 1:
                return {}, f"{self.who} calls {name} on all scales and{where} on one: name another module in project="
        return batches, None

    def problem(self, net: ScaleEquivariant) -> str | None:
        """Why a converted network does not do what the given one does, if so."""
        called: set[nn.Module] = set()
        hooks = [
            part.register_forward_pre_hook(lambda part, _: called.add(part))
            for part in net.modules()
            if isinstance(part, FoldedConv)
        ]
        try:
            with evaluated(net, self.model):
                found, expected = (tree_map(_shape, run(self.example.clone())) for run in (net, self.model))
        except Exception as error:  # of the network's own code
            return f"the converted {self.who} does not run: {reason(error)}"
        finally:
            for hook in hooks:
                hook.remove()
        if net.place is not None and found != expected:
            return f"the converted {self.who} gives {found} for one image, not {expected}"
        for name, part in net.network.named_modules():
            if isinstance(part, FoldedConv) and name in self.called and part not in called:
                return (
                    f"{self.who} calls {name} from outside of its modules, such as a list: keep its layers in "
                    f"nn.ModuleList or nn.ModuleDict"
                )
        return None


@contextmanager
def evaluated(*models: nn.Module) -> Iterator[None]:
    """Networks in evaluation mode and without gradients, for a while."""
    training = {part: part.training for model in models for part in model.modules()}
    try:
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for part, was in training.items():
            part.training = was


def reason(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _close(found: Tensor, expected: Tensor) -> bool:
    """Whether two outputs are the same up to rounding."""
    if found.shape != expected.shape or expected.is_meta or not expected.isfinite().all():
        return found.shape == expected.shape
    if not expected.is_floating_point():
        return True  # classes can change by rounding
    tolerance = 1e-3 if torch.finfo(expected.dtype).bits > 16 else 5e-2
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max()) if expected.numel() else True


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, Tensor) else None
