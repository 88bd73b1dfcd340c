"""Timing layers and networks against what they could cost at best and what they cost in the authors' way.

On a shared machine a time means little by itself. All contenders run in turns within one process, so that whatever
else the machine does hits them alike, and are compared round by round.
"""

from __future__ import annotations

import copy
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
from ...convert.surgery import exchanged
from ...export import bake
from ...functional import reference
from ...models import create_model
from ...nn import ScaleAvgPool2d, ScaleBatchNorm2d, ScaleConv2d, ScaleLift2d, ScaleProject
from ...nn.conv import ScaleConvolution
from ...scales import Scales

Name = TypeVar("Name", bound=Hashable)
Step = Callable[[], None]
Run = Callable[..., Tensor | list[Tensor]]

OURS, BAKED, DENSE, LOWER_BOUND, PLAIN = "ours", "baked", "dense reference", "bare convolutions", "S plain"


@dataclass(frozen=True)
class Cost:
    """What a step of one contender takes: seconds of every round, floating-point operations, bytes at its peak."""

    seconds: tuple[float, ...]
    flops: int
    peak: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, other: Cost) -> tuple[float, float, float]:
        """How many times the other's time, round by round: median, first and last quartile."""
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
        return (
            f"B{self.batch} {self.in_channels}->{self.out_channels}, {self.side}x{self.side}, "
            f"{self.kernel_size}x{self.kernel_size}, {{{factors}}}"
            + (f", T = {self.scale_extent}" if self.scale_extent > 1 else "")
        )


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
    """The layer whose cost is followed over the number of scales."""
    return LayerSetting(2, 32, 32, 56, 3, Scales.geometric(_ROOT, count))


def layer_steps(setting: LayerSetting, *, backward: bool) -> dict[str, Step]:
    """The contenders for a layer: ours, baked (forward only), its dense twin, bare convolutions, S plain ones."""
    basis = DiscreteBasis(setting.kernel_size, setting.scales)
    layer = ScaleConv2d(setting.in_channels, setting.out_channels, basis, scale_extent=setting.scale_extent)
    shape = (len(setting.scales), setting.batch, setting.in_channels, setting.side, setting.side)
    x = torch.randn(shape).movedim(0, 2)  # scale-major, as layers hand on
    base = nn.Conv2d(setting.in_channels, setting.out_channels, setting.kernel_size, padding=setting.kernel_size // 2)
    maps = [one.clone() for one in x.movedim(2, 0)]
    return _contenders(layer, x, backward) | {PLAIN: _step(lambda *maps: [base(m) for m in maps], maps, base, backward)}


def network_steps(*, batch: int, side: int, scales: Scales, backward: bool) -> dict[str, Step]:
    """The contenders for a whole network; the plain one is the same network of ordinary layers on S times the batch."""
    net = network(scales)
    x = torch.randn(batch, 3, side, side)
    plain = ordinary_network()
    repeated = x.repeat(len(scales), 1, 1, 1)
    return _contenders(net, x, backward) | {PLAIN: _step(plain, [repeated], plain, backward)}


def model_steps(name: str, *, batch: int, backward: bool) -> dict[str, Step]:
    """The contenders for a network of the zoo; the plain one is its family's ordinary network on S times the batch."""
    net = create_model(name)
    layer = next((part for part in net.modules() if isinstance(part, ScaleConvolution)), None)
    if layer is None:
        raise ValueError(f"bench: {name} has no scale convolutions to compare: give one such as mnist/disco")
    x = torch.randn(batch, 1, 28, 28)
    plain = create_model(f"{name.split('/')[0]}/cnn")
    repeated = x.repeat(len(layer.basis.scales), 1, 1, 1)
    return _contenders(net, x, backward) | {PLAIN: _step(plain, [repeated], plain, backward)}


def network(scales: Scales) -> nn.Module:
    """Six scale convolutions with norms and ReLUs, two average pools, projection and a linear classifier."""
    basis = DiscreteBasis(3, scales)
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(_WIDTHS):
        layers.append((ScaleConv2d if index else ScaleLift2d)(before, after, basis, bias=False))
        layers += [ScaleBatchNorm2d(after), nn.ReLU()]
        if index in (1, 3):
            layers.append(ScaleAvgPool2d(2))
    return nn.Sequential(*layers, ScaleProject("max"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def ordinary_network() -> nn.Module:
    """The same of ordinary layers."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(_WIDTHS):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        if index in (1, 3):
            layers.append(nn.AvgPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


_WIDTHS = ((3, 32), (32, 32), (32, 64), (64, 64), (64, 64), (64, 64))


def measure(
    steps: Mapping[Name, Step],
    *,
    repeats: int,
    device: torch.device | None = None,
    progress: Callable[[], None] | None = None,
) -> dict[Name, Cost]:
    """The cost of every contender; timed in turns, in changing order, after runs that count and are not timed.

    Steps on a `device` that works on its own, such as a GPU, end when it has done them.
    """
    flops = {name: count_flops(step) for name, step in steps.items()}
    peaks = {name: peak_memory(step) for name, step in steps.items()}
    wait = _wait(device)
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


def _wait(device: torch.device | None) -> Step:
    if device is None or device.type == "cpu":
        return lambda: None
    synchronize: Step = getattr(torch, device.type).synchronize
    return synchronize


def count_flops(step: Step) -> int:
    """Floating-point operations of a step, by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def peak_memory(step: Step) -> int:
    """Bytes that a step holds at its peak, beyond what was there before it."""
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep off the terminal what torch's profiler says of itself, straight to the file descriptor."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def on_reference(module: nn.Module) -> nn.Module:
    """A copy of a layer or network whose scale convolutions run on the dense twin."""
    return exchanged(copy.deepcopy(module), lambda part: isinstance(part, ScaleConvolution), _Dense)


class _Dense(nn.Module):
    def __init__(self, layer: ScaleConvolution) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        run = reference.scale_lift if layer.lifting else reference.scale_conv
        return run(
            x,
            layer.weight,
            layer.basis,
            layer.bias,
            stride=layer.stride,
            padding=layer.padding,
            groups=layer.groups,
            padding_mode=layer.padding_mode,
        )


def _contenders(module: nn.Module, x: Tensor, backward: bool) -> dict[str, Step]:
    dense = on_reference(module)
    steps = {
        OURS: _step(module, [x], module, backward),
        DENSE: _step(dense, [x], dense, backward),
        LOWER_BOUND: lower_bound_step(module, x, backward),
    }
    return steps if backward else {**steps, BAKED: _step(bake(module), [x], None, backward)}


def lower_bound_step(module: nn.Module, x: Tensor, backward: bool) -> Step:
    """The very convolutions that a module runs, on ready kernels and inputs of their own, and nothing else.

    What a module may run by the Fourier transform or by tiles are convolutions here.
    """
    with torch.no_grad(), functional.direct(), _Recorder() as recorder:
        module(x)
    copies: dict[int, Tensor] = {}

    def own(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return copies.setdefault(id(value), value.detach().clone(memory_format=torch.contiguous_format))

    calls = [(conv, [own(value) for value in arguments]) for conv, arguments in recorder.calls]

    def run(*leaves: Tensor) -> list[Tensor]:
        fresh = dict(zip((id(tensor) for tensor in copies.values()), leaves, strict=True))
        return [conv(*(fresh.get(id(value), value) for value in arguments)) for conv, arguments in calls]

    return _step(run, list(copies.values()), None, backward)


class _Recorder(TorchFunctionMode):
    """Notes every convolution that is called, with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CONVOLUTION.values():
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _step(run: Run, inputs: list[Tensor], module: nn.Module | None, backward: bool) -> Step:
    """One forward pass, or forward and backward to inputs and parameters with a ready gradient."""
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

    def both() -> None:
        torch.autograd.backward(run(*leaves), gradients)
        for leaf in trained:
            leaf.grad = None

    return both
