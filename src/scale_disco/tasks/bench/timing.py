"""Time, memory and FLOPs of layers and networks, compared with a lower bound and with the authors' packing.

Absolute times mean little on a shared machine. All contenders run in turns in one process, so that other load affects
them alike, and are compared round by round.
"""

import copy
import itertools
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ... import functional
from ...basis import DiscreteBasis
from ...basis.stencil import CONVOLUTION
from ...convert import to_scale_equivariant
from ...convert.surgery import replace_modules
from ...export import bake
from ...functional import reference
from ...models import create_model
from ...nn import ScaleConv2d
from ...nn.conv import ScaleConvolution
from ...scales import Scales
from ..mnist_scale.small_networks import conv_layers

Name = TypeVar("Name", bound=Hashable)
Step = Callable[[], None]
Run = Callable[..., Tensor | list[Tensor]]

# Names as --json and --csv have them; `LABELS` has those of plots.
OURS, BAKED, DENSE, LOWER_BOUND, PLAIN = "ours", "baked", "dense reference", "bare convolutions", "S plain"
ONE_SCALE, FULL, DECIMATED = "one scale", "full grid", "decimated grid"
LABELS = {LOWER_BOUND: "lower bound"}


@dataclass(frozen=True)
class Cost:
    """Cost of a step: seconds of every round, floating-point operations and peak memory in bytes."""

    seconds: tuple[float, ...]
    flops: int
    peak: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, other: "Cost") -> tuple[float, float, float]:
        """Return the ratio of times, round by round: median, first and last quartile."""
        ratios = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return median, low, high


@dataclass(frozen=True)
class LayerSetting:
    """A scale convolution to time."""

    batch: int
    in_channels: int
    out_channels: int
    side: int
    kernel_size: int
    scales: Scales
    scale_extent: int = 1

    def __str__(self) -> str:
        factors = ", ".join(f"{factor:.4g}" for factor in self.scales)
        images = f"B{self.batch} {self.in_channels}->{self.out_channels}, {self.side}x{self.side}"
        extent = f", T = {self.scale_extent}" if self.scale_extent > 1 else ""
        return f"{images}, {self.kernel_size}x{self.kernel_size}, {{{factors}}}{extent}"


_CUBE_ROOT, _ROOT = 2 ** (1 / 3), 2**0.5

# Layers of the paper's networks (STL-10, MNIST-scale), and two with many scales.
SETTINGS = (
    LayerSetting(8, 128, 128, 48, 3, Scales.geometric(_ROOT, 3)),
    LayerSetting(64, 32, 63, 28, 7, Scales.geometric(_CUBE_ROOT, 4)),
    LayerSetting(64, 63, 95, 14, 7, Scales.geometric(_CUBE_ROOT, 4)),
    LayerSetting(4, 64, 64, 56, 3, Scales.geometric(_ROOT, 5)),
    LayerSetting(2, 32, 32, 56, 3, Scales.geometric(_ROOT, 7)),
)


def growth_setting(count: int) -> LayerSetting:
    """Return the layer that is timed for each number of scales."""
    return LayerSetting(2, 32, 32, 56, 3, Scales.geometric(_ROOT, count))


def layer_steps(setting: LayerSetting, *, backward: bool) -> dict[str, Step]:
    """Return the contenders for a layer: ours, baked (forward only), dense, lower bound, S plain convolutions."""
    basis = DiscreteBasis(setting.kernel_size, setting.scales)
    layer = ScaleConv2d(setting.in_channels, setting.out_channels, basis, scale_extent=setting.scale_extent)
    shape = (len(setting.scales), setting.batch, setting.in_channels, setting.side, setting.side)
    x = torch.randn(shape).movedim(0, 2)  # scale-major, as layers return it
    base = nn.Conv2d(setting.in_channels, setting.out_channels, setting.kernel_size, padding=setting.kernel_size // 2)
    maps = [scale.clone() for scale in x.movedim(2, 0)]
    return _contenders(layer, x, backward) | {PLAIN: _step(lambda *maps: [base(m) for m in maps], maps, base, backward)}


def network_steps(*, batch: int, side: int, scales: Scales, backward: bool) -> dict[str, Step]:
    """Return the contenders for `network`."""
    return _network_contenders(network(scales), (batch, 3, side, side), lambda: network(None), len(scales), backward)


def grid_steps(count: int, *, batch: int = 1, side: int = 128, backward: bool) -> dict[str, Step]:
    """Return `network` of ordinary layers at one scale, and converted to so many scales on both grids."""
    plain, scales = network(None), Scales.geometric(_ROOT, count)
    nets = {ONE_SCALE: plain, FULL: to_scale_equivariant(plain, scales)}
    nets[DECIMATED] = to_scale_equivariant(plain, scales, grid="decimated")
    x = torch.randn(batch, 3, side, side)
    for net in nets.values():
        net.train(backward)
    return {name: _step(net, [x], net, backward) for name, net in nets.items()}


def model_steps(name: str, *, batch: int, backward: bool) -> dict[str, Step]:
    """Return the contenders for a registered model; the plain network is the CNN of its family."""
    model = create_model(name)
    layer = next((module for module in model.modules() if isinstance(module, ScaleConvolution)), None)
    if layer is None:
        raise ValueError(f"bench: {name} has no scale convolutions to compare: choose a model such as mnist/disco")
    cnn, scales = f"{name.split('/')[0]}/cnn", layer.basis.scales
    return _network_contenders(model, (batch, 1, 28, 28), lambda: create_model(cnn), len(scales), backward)


def _network_contenders(
    net: nn.Module, shape: tuple[int, ...], make_plain: Callable[[], nn.Module], scales: int, backward: bool
) -> dict[str, Step]:
    """The plain network is one of ordinary layers on a batch as many times as large as there are scales."""
    x = torch.randn(shape)
    plain = make_plain()
    return _contenders(net, x, backward) | {PLAIN: _step(plain, [x.repeat(scales, 1, 1, 1)], plain, backward)}


def network(scales: Scales | None) -> nn.Module:
    """Six 3x3 convolutions with norms and ReLUs, two average pools and a classifier; ordinary layers without scales."""
    basis = None if scales is None else DiscreteBasis(3, scales)
    layers = conv_layers((3, 32, 32, 64, 64, 64, 64), 3, (1, 3), basis)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def measure(
    steps: Mapping[Name, Step], *, repeats: int, device: torch.device | None = None, progress: Step | None = None
) -> dict[Name, Cost]:
    """Measure the cost of every contender, in turns and rotating order, after untimed runs for memory and FLOPs.

    On an asynchronous `device` such as a GPU, a step ends when the device has finished it.
    """
    flops = {name: count_flops(step) for name, step in steps.items()}
    peaks = {name: peak_memory(step) for name, step in steps.items()}
    wait: Step = getattr(torch, device.type if device else "cpu").synchronize  # on CPUs it does nothing
    seconds: dict[Name, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(repeats):
        for name in order:
            wait()
            start = time.perf_counter()
            steps[name]()
            wait()
            seconds[name].append(time.perf_counter() - start)
        order = order[1:] + order[:1]
        if progress is not None:
            progress()
    return {name: Cost(tuple(seconds[name]), flops[name], peaks[name]) for name in steps}


def count_flops(step: Step) -> int:
    """Return the floating-point operations of a step, by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def peak_memory(step: Step) -> int:
    """Return the bytes that a step allocates at its peak."""
    with _silenced_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((int(event.nbytes()) for event in changes), initial=0))


@contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Hide the messages that torch's profiler writes directly to the file descriptor."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def on_reference(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose scale convolutions run on the dense reference."""
    return replace_modules(copy.deepcopy(module), lambda module: isinstance(module, ScaleConvolution), _Dense)


class _Dense(nn.Module):
    def __init__(self, layer: ScaleConvolution) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        run = reference.scale_lift if layer.lifting else reference.scale_conv
        options = {name: getattr(layer, name) for name in ("stride", "padding", "groups", "padding_mode")}
        return run(x, layer.weight, layer.basis, layer.bias, **options)


def _contenders(module: nn.Module, x: Tensor, backward: bool) -> dict[str, Step]:
    dense = on_reference(module)
    steps = {
        OURS: _step(module, [x], module, backward),
        DENSE: _step(dense, [x], dense, backward),
        LOWER_BOUND: lower_bound_step(module, x, backward),
    }
    return steps if backward else {**steps, BAKED: _step(bake(module), [x], None, backward)}


def lower_bound_step(module: nn.Module, x: Tensor, backward: bool) -> Step:
    """Return the plain `F.conv2d` calls of a module, with the same stencils, on kernels and inputs computed before.

    What a module may compute by FFT or Winograd tiles is a direct convolution here.
    """
    with torch.no_grad(), functional.direct(), _Recorder() as recorder:
        module(x)
    copies: dict[int, Tensor] = {}

    def cloned(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return copies.setdefault(id(value), value.detach().clone(memory_format=torch.contiguous_format))

    calls = [(conv, [cloned(value) for value in arguments]) for conv, arguments in recorder.calls]

    def run(*leaves: Tensor) -> list[Tensor]:
        fresh = dict(zip((id(tensor) for tensor in copies.values()), leaves, strict=True))
        return [conv(*(fresh.get(id(value), value) for value in arguments)) for conv, arguments in calls]

    return _step(run, list(copies.values()), None, backward)


class _Recorder(TorchFunctionMode):
    """Records every convolution with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CONVOLUTION.values():
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _step(run: Run, inputs: list[Tensor], module: nn.Module | None, backward: bool) -> Step:
    """Return a step: a forward pass, or forward and backward to inputs and parameters with a given output gradient."""
    leaves = [x.detach().requires_grad_(backward) for x in inputs]
    trained = leaves + ([] if module is None else list(module.parameters()))

    def forward() -> None:
        with torch.no_grad():
            run(*leaves)

    if not backward:
        return forward
    with torch.no_grad():
        outputs = run(*leaves)
    gradients = [torch.randn_like(out) for out in (outputs if isinstance(outputs, list) else [outputs])]

    def forward_backward() -> None:
        torch.autograd.backward(run(*leaves), gradients)
        for leaf in trained:
            leaf.grad = None

    return forward_backward
