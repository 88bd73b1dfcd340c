"""Runs a network on an example to find the projection point, unsupported operations, and problems after conversion."""

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ..basis.stencil import CONVOLUTION
from ..equivariance import eval_mode
from ..files import reason
from ..scales import Scales
from .layers import FoldedConv, is_spatial
from .network import ProjectionPoint, ScaleEquivariant

_CONVOLUTIONS = set(CONVOLUTION.values())
_UNSUPPORTED: dict[Any, str] = {
    **dict.fromkeys((F.scaled_dot_product_attention, F.multi_head_attention_forward), "attention"),
    **dict.fromkeys(
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), "a functional transposed convolution"
    ),
    **{function: function.__name__ for function in (F.unfold, F.fold, F.grid_sample)},
}
_PRODUCTS = {torch.matmul, torch.bmm, torch.einsum, torch.baddbmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
_MAX_POOLS: set[Any] = {F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d}
_MAX_POOLS |= {F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices}
_UNPOOLS = {F.max_unpool1d, F.max_unpool2d, F.max_unpool3d}


class Recorder(TorchFunctionMode):
    """Records the calls of a network on one image: of modules, of unsupported functions, and the last global pool.

    A global pool is any function that reduces a map to one pixel or flattens it.
    """

    def __init__(self, image: Tensor) -> None:
        super().__init__()
        self.dims = image.ndim - 2
        self.calls: dict[str, int] = {}  # number of calls per module, in order of the first call
        self.unsupported: dict[str, str] = {}  # functions that cannot be converted, by module
        self.max_pools: dict[str, str] = {}  # max pools that are not modules
        self.unpools = False  # positions of maxima, which rounding can change
        self.places: list[ProjectionPoint] = []  # around the last global pool, best first
        self.head: ProjectionPoint | None = None  # before the first of the last layers, which see vectors only
        self._stack: list[tuple[str, int, tuple[int, ...]]] = []  # active modules: name, call, ids of inputs
        self._tensors = {id(image): image}  # computed from the image; kept alive, so that ids stay unique
        self._makers: dict[int, tuple[str, int]] = {}  # tensor -> module and call that it or its source came from

    def run(self, model: nn.Module, image: Tensor) -> None:
        """Call the network. If all outputs are maps, no global pool counts: scales are reduced at the output."""
        with ExitStack() as hooks, eval_mode(model):
            for name, module in model.named_modules():
                enter = module.register_forward_pre_hook(lambda _, inputs, name=name: self._enter(name, inputs))
                hooks.enter_context(enter)
                hooks.enter_context(module.register_forward_hook(lambda _, inputs, out: self._leave(out)))
            with self:
                output = model(image)
        if all(self._pixels(x) > 1 for x in tree_leaves(output) if isinstance(x, Tensor)):
            self.places = []

    def _enter(self, name: str, inputs: Sequence[Any]) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self._stack.append((name, self.calls[name], tuple(id(x) for x in inputs if isinstance(x, Tensor))))
        if self.head is None and len(inputs) == 1 and id(inputs[0]) in self._tensors and _is_vector(inputs[0]):
            self.head = ProjectionPoint(name, True, self.calls[name])

    def _leave(self, out: Any) -> None:
        name, call, _ = self._stack.pop()
        if isinstance(out, Tensor):
            self._tensors[id(out)] = out
            self._makers[id(out)] = name, call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs))
        inputs = list({id(x): x for x in leaves if isinstance(x, Tensor) and id(x) in self._tensors}.values())
        if inputs:
            self.head = self.head if all(map(_is_vector, inputs)) else None
            self._note(func, leaves, inputs)
            for result in tree_leaves(out):
                if isinstance(result, Tensor):
                    self._follow(func, inputs, result)
        return out

    def _follow(self, func: Any, inputs: list[Tensor], out: Tensor) -> None:
        """Remember where a result came from, and whether it is a global pool of its input."""
        maps = [x for x in inputs if self._pixels(x)]
        if len(maps) == 1 and id(maps[0]) in self._makers and maps[0] is not out:
            self._makers[id(out)] = self._makers[id(maps[0])]
        self._tensors[id(out)] = out
        wide = [x for x in maps if self._pixels(x) > 1]
        maps = wide or ([] if self.places else maps)  # maps of one pixel were pooled before, or came so from a layer
        pooled = len(maps) == 1 and self._pixels(out) == 1 and out.numel() < maps[0].numel()
        if (pooled and func not in _CONVOLUTIONS) or (len(maps) == 1 and not self._pixels(out)):
            takers = [ProjectionPoint(n, True, call) for n, call, ids in self._stack[1:] if ids == (id(maps[0]),)]
            maker = self._makers.get(id(maps[0]), ("", 0))
            self.places = [*takers[:1], *([ProjectionPoint(maker[0], False, maker[1])] if maker[0] else [])]

    def _pixels(self, x: Tensor) -> int:
        """Return the number of pixels of a map, 0 for other tensors."""
        return math.prod(x.shape[2:]) if x.ndim == self.dims + 2 else 0

    def _note(self, func: Any, leaves: Sequence[Any], inputs: Sequence[Tensor]) -> None:
        """Remember a call that cannot be converted."""
        name = self._stack[-1][0]
        self.unpools |= func in _UNPOOLS
        if func in _MAX_POOLS:
            self.max_pools[name] = f"{func.__name__.strip('_')} outside of a module"
        elif func in _CONVOLUTIONS and math.prod(leaves[1].shape[2:]) > 1:
            self.unsupported.setdefault(name, "a convolution outside of a convolutional layer")
        elif func in _PRODUCTS and sum(x.ndim > 2 for x in inputs) > 1:
            self.unsupported.setdefault(name, "a product of two maps, as in attention")
        elif func in _UNSUPPORTED:
            self.unsupported.setdefault(name, _UNSUPPORTED[func])


class ConversionCheck:
    """Compares a network with its conversion on an example, in evaluation mode and without gradients."""

    batch = 2  # one image would broadcast against every batch

    def __init__(self, model: nn.Module, example: Tensor, scales: Scales, reduce: str) -> None:
        self.model, self.example, self.scales, self.reduce = model, example, scales, reduce
        self.who = type(model).__name__
        self.called: set[str] = set()  # modules called in evaluation mode
        self.expected = self._output(self.batch)

    def _output(self, count: int) -> Any:
        """Return the network's output for so many images."""
        try:
            with eval_mode(self.model):
                return self.model(self._images(count))
        except Exception as error:  # from the network's own code
            why = f"{self.who} fails on a batch of {count} images, and conversion folds scales into it: {reason(error)}"
            raise ValueError(f"to_scale_equivariant: {why}") from error

    def _images(self, count: int) -> Tensor:
        """Return so many different images."""
        image = self.example
        rolled = [image.roll(k, -1) for k in range(count)]
        return torch.cat([x * (1 + k / 2) if x.is_floating_point() else x for k, x in enumerate(rolled)])

    def find_batch_dependence(self) -> str | None:
        """Return why the output for an image depends on more than that image, which would mix scales; None if not."""
        images = self._images(len(self.scales) * self.batch)
        whole = self._output(len(images))
        for output, expected in zip(tree_leaves(whole), tree_leaves(self.expected), strict=True):
            if isinstance(output, (str, int, float, type(None))):
                continue
            if not isinstance(output, Tensor):
                kind = type(output).__name__
                return f"{self.who} returns a {kind}: expected tensors, or tuples, lists and dicts of them"
            if output.ndim == 0 or len(output) != len(self.scales) * self.batch:
                shape = tuple(expected.shape)
                return f"{self.who} returns a tensor of shape {shape}, whose first dimension is not the batch size"
        if not _agree(whole, self.expected) and not self._agree_in_double(self.model, images, self.batch):
            why = "depends on the other images of the batch, or is random"
            return f"the output of {self.who} for an image {why}; pass strict=False to convert it anyway"
        return None

    def batch_sizes(self, place: ProjectionPoint | None) -> tuple[dict[str, set[int]], str | None]:
        """Return the batch sizes each module gets with the scales reduced at a place, and a problem with it, if any.

        Layers are not converted yet, which does not change batch sizes. Those that evaluation does not call are tried
        in training mode.
        """
        net = ScaleEquivariant(copy.deepcopy(self.model), self.scales, place, self.reduce)
        sizes: dict[str, set[int]] = {}

        def note(name: str, inputs: Any) -> None:
            sizes.setdefault(name, set()).update(len(x) for x in inputs if isinstance(x, Tensor) and x.ndim)

        for name, part in net.network.named_modules():
            part.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs), prepend=True)
        where = "" if place is None else f" with the scales reduced {place}"
        try:
            with eval_mode(net):
                shapes, expected = tree_map(_shape, net(self._images(self.batch))), tree_map(_shape, self.expected)
        except Exception as error:  # from the network's own code
            return {}, f"{self.who} does not run{where}: {reason(error)}"
        if place is not None and shapes != expected:
            return {}, f"{self.who}{where} returns shape {shapes}, expected {expected}; pass another module as project="
        spatial = [name for name, part in net.network.named_modules() if is_spatial(part)]
        self.called = set(sizes)
        if not self.called.issuperset(spatial):
            with torch.no_grad(), suppress(Exception):  # training may need more than images
                net.train()(self._images(self.batch))
        whole = len(self.scales) * self.batch
        for name in spatial:
            received = sizes.get(name, {whole})
            if received - {whole, self.batch}:
                got = max(received)
                return {}, f"{self.who} calls {name} with batch size {got}, expected {whole} (scales x images)"
            if len(received) > 1:
                return {}, f"{self.who} calls {name} before and after the projection; pass another module as project="
        return sizes, None

    def find_problem(self, net: ScaleEquivariant, same: bool) -> str | None:
        """Return why a converted network does not run, or (`same`) differs at the first scale; None if all is well."""
        called: set[nn.Module] = set()
        layers = {name: part for name, part in net.network.named_modules() if isinstance(part, FoldedConv)}
        try:
            with ExitStack() as hooks, eval_mode(net, self.model):
                for part in layers.values():
                    hooks.enter_context(part.register_forward_pre_hook(lambda part, _: called.add(part)))
                reducing = net if net.project is None else net.project  # run it, but go on with the first scale
                hooks.enter_context(reducing.register_forward_hook(_take_first_scale))
                output, expected = net(self.example.clone()), self.model(self.example.clone())
                same = not same or _agree(output, expected) or self._agree_in_double(net, self.example)
                place = "" if same else self._first_difference(net)
        except Exception as error:  # from the network's own code
            return f"the converted {self.who} does not run: {reason(error)}"
        shapes, expected = tree_map(_shape, output), tree_map(_shape, expected)
        if shapes != expected:
            return f"the converted {self.who} returns shape {shapes}, expected {expected}"
        for name, part in layers.items():
            if name in self.called and part not in called:
                hint = "is it in a plain list? Use nn.ModuleList or nn.ModuleDict"
                return f"{self.who} calls {name} from outside its submodules ({hint})"
        where = f"; the first module that differs is {place}" if place else ""
        return None if same else f"the first scale of the converted {self.who} differs from its output{where}"

    def _agree_in_double(self, net: nn.Module, images: Tensor, count: int | None = None) -> bool:
        """Return whether a network is the given one on its first images where rounding is 1e9 times smaller."""
        try:
            net, model = copy.deepcopy((net, self.model))
            images = images.double() if images.is_floating_point() else images
            return _agree(net.double()(images.clone()), model.double()(images[:count].clone()))
        except Exception:  # it needs another precision
            return False

    def _first_difference(self, net: ScaleEquivariant) -> str:
        """Return the name of the module that is the first to compute something else at the first scale, if any."""
        outputs: list[dict[str, Tensor]] = []  # of the first call of every module
        for root, call in ((self.model, self.model), (net.network, net)):
            seen: dict[str, Tensor] = {}
            with ExitStack() as hooks:
                for name, part in root.named_modules():
                    hooks.enter_context(part.register_forward_hook(partial(_keep_output, seen, name)))
                call(self.example.clone())
            outputs.append(seen)
        given, converted = outputs
        return next((name for name in converted if name in given and not _agree(converted[name], given[name])), "")


def _keep_output(outputs: dict[str, Tensor], name: str, part: nn.Module, inputs: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        outputs.setdefault(name, out.clone())


def find_output_problem(net: ScaleEquivariant, model: nn.Module, example: Tensor) -> str | None:
    """Return why a network on the decimated grid does not run on an example, or returns other shapes; None if not."""
    try:
        with eval_mode(net, model):
            shapes, expected = (tree_map(_shape, run(example.clone())) for run in (net, model))
    except Exception as error:  # from the network's own code
        return f"{reason(error)} (example of shape {tuple(example.shape)}; pass others as example=)"
    where = f"{type(model).__name__} with the scales reduced {net.place}"
    return None if net.place is None or shapes == expected else f"{where} returns shape {shapes}, expected {expected}"


def _is_vector(x: Tensor) -> bool:
    """Return whether a tensor is the vector of one image, [1, C] or [1, C, 1, ...]."""
    return x.ndim > 1 and x.shape[0] == 1 and math.prod(x.shape[2:]) == 1


def _take_first_scale(part: nn.Module, inputs: Any, out: Any) -> Any:
    scales = out if isinstance(part, ScaleEquivariant) else inputs[0]
    return tree_map(lambda x: x.select(min(2, x.ndim - 1), 0) if isinstance(x, Tensor) else x, scales)


def _agree(outputs: Any, expected: Any) -> bool:
    """Return whether the first images of all tensors are equal up to rounding."""
    pairs = list(zip(tree_leaves(outputs), tree_leaves(expected), strict=False))
    return all(_close(a[: len(b)] if b.ndim else a, b) for a, b in pairs if isinstance(b, Tensor))


def _close(output: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    if output.shape != expected.shape or expected.is_meta or not expected.isfinite().all():
        return output.shape == expected.shape
    if not expected.is_floating_point():
        return True  # predicted classes can change by rounding
    tolerance = {64: 1e-8, 32: 1e-4}.get(torch.finfo(expected.dtype).bits, 5e-2)
    return bool((output - expected).abs().max() <= tolerance * expected.abs().max()) if expected.numel() else True


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, Tensor) else None
