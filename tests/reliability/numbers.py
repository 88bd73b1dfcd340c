"""Layers, networks and inputs for numerical tests, and their tolerances."""

from __future__ import annotations

import math
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from scale_disco import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis, Scales
from scale_disco import nn as snn
from scale_disco.convert.layers import FoldedConv
from scale_disco.fold import fold, unfold
from scale_disco.functional import reference
from scale_disco.functional.layout import PADDING_MODES
from scale_disco.nn.conv import ScaleConvolution

CLOSE = {torch.float32: 3e-5, torch.float64: 1e-12}  # times the largest output of an image
LARGEST = 1e15  # of a value: larger ones overflow the variance of a batch norm in float32
PRECISIONS = ("float32", "float64", "bfloat16")
FAMILIES = {
    "discrete": DiscreteBasis,
    "hermite": HermiteBasis,
    "bspline": BSplineBasis,
    "fourier": FourierBesselBasis,
    "radial": LogRadialBasis,
}
SCALE_SETS = ((1,), (1, 2), (1, 2**0.5, 2), (0.5, 1, 2))  # sampled bases vanish between pixels at scales below 1
KINDS = ("zeros", "constant", "denormal", "one magnitude", "all magnitudes", "identical images")


LARGEST_SIDE = {1: 30, 2: 14, 3: 7}  # of small images, by spatial dimensions


@lru_cache
def basis(family: str, kernel_size: int, scales: tuple[float, ...], dims: int) -> Basis:
    return FAMILIES[family](kernel_size, scales, **({"spatial_dims": dims} if family == "discrete" else {}))


@dataclass(frozen=True)
class Problem:
    """A scale convolution with the options that its dense reference needs."""

    layer: ScaleConvolution
    options: dict[str, Any]

    def shape(self, batch: int, space: tuple[int, ...]) -> tuple[int, ...]:
        scales = () if self.layer.lifting else (len(self.layer.basis.scales),)
        return (batch, self.layer.in_channels, *scales, *space)

    def dense(self, x: Tensor) -> Tensor:
        """Return the output of its dense reference."""
        twin = reference.scale_lift if self.layer.lifting else reference.scale_conv
        return twin(x, self.layer.weight, self.layer.basis, self.layer.bias, **self.options)


@st.composite
def problems(draw) -> Problem:
    """Draw a scale convolution: any channels, groups, scales and kind of basis."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    dims = draw(st.integers(1, 3)) if family == "discrete" else 2
    sides, sets = ((1, 2, 3), SCALE_SETS) if family == "discrete" else ((3, 5), SCALE_SETS[:-1])
    chosen = basis(family, draw(st.sampled_from(sides)), draw(st.sampled_from(sets)), dims)
    groups = draw(st.integers(1, 4))
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    options = {
        "stride": draw(st.integers(1, 3)),
        "padding": draw(st.sampled_from(["same", "same", "valid", 2])),
        "groups": groups,
        "padding_mode": draw(st.sampled_from(sorted(PADDING_MODES))),
    }
    extent = draw(st.sampled_from([None, *range(1, len(chosen.scales) + 1)]))
    kind = getattr(snn, f"Scale{'Lift' if extent is None else 'Conv'}{dims}d")
    rest = {} if extent is None else {"scale_extent": extent}
    layer = kind(*channels, chosen, bias=draw(st.booleans()), **options, **rest)
    return Problem(randomized(layer, draw(st.integers(0, 9))), options)


@st.composite
def sized(draw):
    """Draw a scale convolution and the size of images."""
    problem = draw(problems())
    dims = problem.layer.spatial_dims
    return problem, draw(st.tuples(*[st.integers(1, LARGEST_SIDE[dims])] * dims))


def randomized(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)
    return module


def values(kind: str, shape: tuple[int, ...], seed: int = 0, largest: float = LARGEST) -> Tensor:
    """Return finite float64 values of a kind, none above `largest` in magnitude."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    low, high = -45.0, math.log10(largest)
    if kind == "zeros":
        return torch.zeros_like(noise)
    if kind == "constant":  # per channel
        return noise[:1, :, *[slice(1)] * (len(shape) - 2)].expand(shape).clone() * largest
    if kind == "denormal":
        return noise * 1e-40
    if kind == "identical images":
        return noise[:1].expand(shape).clone()
    exponents = torch.rand(shape if kind == "all magnitudes" else (), generator=generator, dtype=torch.float64)
    return noise * 10 ** (low + (high - low) * exponents)


def dims_of(case):
    return int(case.name[-2])


def output_of(layer, x):
    """Return the output of a layer, None if it refuses the image as too small, in one line."""
    try:
        return layer(x)
    except ValueError as error:
        if not re.fullmatch(
            rf"({type(layer).__name__}|scale convolution): [^\n]*(smaller|at least|can pad)[^\n]*", str(error)
        ):
            raise
    return None


def in_precision(module: nn.Module, x: Tensor, precision: str) -> tuple[nn.Module, Tensor, AbstractContextManager[Any]]:
    """Return a module and its input in a precision, and the context to run it in."""
    if precision == "float64":
        return module.double(), x.double(), nullcontext()
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    return module.float(), x.float(), context


def non_finite(module: nn.Module, x: Tensor, precision: str, run: Any = None) -> list[str]:
    """Return the names of non-finite outputs, buffers and gradients of input and parameters."""
    module, x, context = in_precision(module, x, precision)
    x = x.detach().requires_grad_()
    module.zero_grad()
    with context:
        outputs = [y for y in tree_leaves((run or module)(x)) if isinstance(y, Tensor)]
    losses = [y.float().mean() for y in outputs if y.requires_grad]
    if losses:
        sum(losses).backward()
    tensors = {f"output {number}": y for number, y in enumerate(outputs)} | {"gradient of the input": x.grad}
    tensors |= dict(module.named_buffers())
    tensors |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    return [name for name, tensor in tensors.items() if tensor is not None and not tensor.isfinite().all()]


def relative_error(actual: Tensor, expected: Tensor, least: float = 1e-30) -> float:
    """Return the largest difference relative to the largest output of the image, or to `least`; both [B, ...]."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return 0.0
    actual, expected = (y.detach().double().reshape(len(y), -1) for y in (actual, expected))
    return float(((actual - expected).abs().amax(1) / expected.abs().amax(1).clamp_min(least)).max())


def batch_error(module: Any, x: Tensor, seed: int = 0, least: float = 1e-30) -> float:
    """Compare outputs of single images, of a permuted and of a split batch with those of the batch."""
    whole = tree_leaves(module(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    third = max(1, len(x) // 3)
    variants = [
        [torch.cat(parts) for parts in zip(*(tree_leaves(module(x[k : k + 1])) for k in range(len(x))), strict=True)],
        [y[order.argsort()] for y in tree_leaves(module(x[order]))],
        [torch.cat(parts) for parts in zip(*(tree_leaves(module(p)) for p in (x[:third], x[third:])), strict=True)],
    ]
    return max(relative_error(y, want, least) for ys in variants for y, want in zip(ys, whole, strict=True))


@dataclass(frozen=True)
class FastCase:
    """A layer that takes a fast path on a batch, and the direct one on a single image."""

    build: Any
    shape: tuple[int, ...]
    path: str
    folded: int = 0  # number of scales along the batch

    def layer(self, dtype: torch.dtype = torch.float32) -> Any:
        layer = randomized(self.build()).to(dtype)
        count = self.folded
        return (lambda x: unfold(layer(fold(x)), count)) if count else layer

    def input(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return images of very different magnitudes."""
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        magnitudes = 10 ** torch.linspace(-6, 6, len(x), dtype=torch.float64)
        return (x * magnitudes.reshape(-1, *[1] * (x.ndim - 1))).to(dtype)


FAST = {
    "Winograd 3x3": FastCase(
        lambda: snn.ScaleConv2d(128, 256, DiscreteBasis(3, [1, 2])), (4, 128, 2, 16, 16), "_winograd"
    ),
    "Winograd 5x5": FastCase(
        lambda: snn.ScaleLift2d(128, 128, DiscreteBasis(3, [1, 2**0.5], support=5)), (5, 128, 15, 16), "_winograd"
    ),
    "Winograd, folded": FastCase(
        lambda: FoldedConv(nn.Conv2d(128, 256, 3, padding=1), Scales([1, 2])), (4, 128, 2, 16, 16), "_winograd", 2
    ),
    "FFT": FastCase(lambda: snn.ScaleConv2d(16, 4, HermiteBasis.preset("mnist")), (16, 16, 4, 20, 20), "_fft"),
}
