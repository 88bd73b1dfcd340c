"""Timing layers and networks against what they could cost at best and what they cost in the authors' way.

On a shared machine a time means little by itself. All contenders run in turns within one process, so that whatever
else the machine does hits them alike, and are compared by the medians of their times.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from .basis import DiscreteBasis
from .functional import reference
from .nn import ScaleConv2d
from .nn.conv import ScaleConvolution
from .scales import Scales

Step = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """What one step of a contender takes: seconds (median and quartiles), floating-point operations, bytes at peak."""

    median: float
    low: float
    high: float
    flops: int
    peak: int


@dataclass(frozen=True)
class LayerSetting:
    """A scale convolution to time: channels, image side, kernel and scales."""

    batch: int
    in_channels: int
    out_channels: int
    side: int
    kernel_size: int
    scales: Scales
    support: int | None = None
    scale_extent: int = 1

    def __str__(self) -> str:
        extent = f", T = {self.scale_extent}" if self.scale_extent > 1 else ""
        kernel = f"{self.kernel_size}x{self.kernel_size}"
        factors = ", ".join(f"{factor:.4g}" for factor in self.scales)
        return (
            f"B{self.batch} {self.in_channels}->{self.out_channels}, {self.side}x{self.side}, {kernel}, "
            f"{{{factors}}}{extent}"
        )

    def basis(self) -> DiscreteBasis:
        """The discrete basis of the setting."""
        return DiscreteBasis(self.kernel_size, self.scales, support=self.support)

    def layer(self) -> ScaleConv2d:
        """The scale convolution of the setting."""
        return ScaleConv2d(self.in_channels, self.out_channels, self.basis(), scale_extent=self.scale_extent)


_CUBE_ROOT, _ROOT = 2 ** (1 / 3), 2**0.5

# Sizes from the paper's networks (STL-10, MNIST-scale) and two with many scales.
SETTINGS = (
    LayerSetting(8, 128, 128, 48, 3, Scales.geometric(_ROOT, 3)),
    LayerSetting(64, 32, 63, 28, 7, Scales.geometric(_CUBE_ROOT, 4)),
    LayerSetting(64, 63, 95, 14, 7, Scales.geometric(_CUBE_ROOT, 4)),
    LayerSetting(4, 64, 64, 56, 3, Scales.geometric(_ROOT, 5)),
    LayerSetting(2, 32, 32, 56, 3, Scales.geometric(_ROOT, 7)),
)


def layer_steps(setting: LayerSetting, *, backward: bool) -> dict[str, Step]:
    """The contenders of a layer: ours, the dense twin, the bare convolutions, and S plain ones."""
    layer = setting.layer()
    scales, side = len(setting.scales), (setting.side, setting.side)
    x = torch.randn(scales, setting.batch, setting.in_channels, *side).movedim(0, 2)  # scale-major
    plain = torch.randn(setting.out_channels, setting.in_channels, setting.kernel_size, setting.kernel_size)
    weight, basis, bias = layer.weight, layer.basis, layer.bias
    ready = [kernel.detach() for kernel in layer.kernels()]
    maps = [m.clone() for m in x.movedim(2, 0)]
    reach = [stencil.reach[0] for stencil in basis.stencils]

    def bare(*tensors: Tensor) -> list[Tensor]:
        maps, kernels, added = tensors[:scales], tensors[scales:-1], tensors[-1]
        responses = []
        for k, kernel in enumerate(kernels):
            dilation = basis.stencils[k].dilation
            response = F.conv2d(maps[k], kernel[0], added, 1, reach[k], dilation)
            for t in range(1, min(len(kernel), scales - k)):
                response += F.conv2d(maps[k + t], kernel[t], None, 1, reach[k], dilation)
            responses.append(response)
        return responses

    def plainly(*tensors: Tensor) -> list[Tensor]:
        *maps, kernel, added = tensors
        return [F.conv2d(m, kernel, added, 1, setting.kernel_size // 2) for m in maps]

    own = torch.zeros(setting.out_channels) if bias is None else bias.detach()
    runs: dict[str, tuple[Callable[..., Tensor | list[Tensor]], list[Tensor]]] = {
        "ours": (lambda x, *_: layer(x), [x, weight, own if bias is None else bias]),
        "dense": (lambda x, weight, bias: reference.scale_conv(x, weight, basis, bias), [x, weight.detach(), own]),
        "bare": (bare, [*maps, *ready, own]),
        "plain": (plainly, [*maps, plain, own]),
    }
    return {name: _step(run, tensors, backward) for name, (run, tensors) in runs.items()}


def _step(run: Callable[..., Tensor | list[Tensor]], tensors: list[Tensor], backward: bool) -> Step:
    """One forward pass, or forward and backward to all tensors with a ready gradient."""
    leaves = [tensor if isinstance(tensor, nn.Parameter) else tensor.clone().requires_grad_() for tensor in tensors]

    def forward() -> object:
        with torch.no_grad():
            return run(*leaves)

    if not backward:
        return forward
    with torch.no_grad():
        outputs = run(*leaves)
    gradients = [torch.randn_like(out) for out in (outputs if isinstance(outputs, list) else [outputs])]

    def both() -> None:
        torch.autograd.backward(run(*leaves), gradients)
        for leaf in leaves:
            leaf.grad = None

    return both


def measure(steps: Mapping[str, Step], *, repeats: int, progress: Callable[[], None] | None = None) -> dict[str, Cost]:
    """Cost of every contender; timed in turns, in changing order, after a first untimed run."""
    flops = {name: count_flops(step) for name, step in steps.items()}
    peaks = {name: peak_memory(step) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(repeats):
        for name in order:
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
        order = order[1:] + order[:1]
        if progress is not None:
            progress()
    costs = {}
    for name, seconds in times.items():
        low, median, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        costs[name] = Cost(median, low, high, flops[name], peaks[name])
    return costs


def count_flops(step: Step) -> int:
    """Floating-point operations of a step, by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def peak_memory(step: Step) -> int:
    """Bytes that a step holds at its peak, beyond what was there before it."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results = profiler.profiler.kineto_results
    held = peak = 0
    for event in sorted(
        (event for event in results.events() if event.name() == "[memory]"), key=lambda event: event.start_ns()
    ):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def on_reference(module: nn.Module) -> nn.Module:
    """A copy of a network whose scale convolutions run on the dense twin."""
    module = copy.deepcopy(module)
    if isinstance(module, ScaleConvolution):
        return _Dense(module)
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, ScaleConvolution) and not isinstance(parent, _Dense):
                setattr(parent, name, _Dense(child))
    return module


class _Dense(nn.Module):
    def __init__(self, layer: ScaleConvolution) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        run = reference.scale_lift if layer.weight.ndim == 3 else reference.scale_conv
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
