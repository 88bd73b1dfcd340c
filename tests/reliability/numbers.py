"""Layers, networks and values to be tried, and how near two ways to the same number must be."""

from __future__ import annotations

import math
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

CLOSE = {torch.float32: 3e-5, torch.float64: 1e-12}  # times the largest number that an image gives
LARGEST = 1e15  # of a value, so that the variance of many is a number in single precision
PRECISIONS = ("single", "double", "bfloat16")
FAMILIES = {
    "discrete": DiscreteBasis,
    "hermite": HermiteBasis,
    "bspline": BSplineBasis,
    "fourier": FourierBesselBasis,
    "radial": LogRadialBasis,
}
SCALE_SETS = ((1,), (1, 2), (1, 2**0.5, 2), (0.5, 1, 2))  # sampled functions vanish on pixels below the first
KINDS = ("zeros", "constant", "denormal", "one size", "all sizes", "same images")


@lru_cache
def basis(family: str, kernel_size: int, scales: tuple[float, ...], dims: int) -> Basis:
    return FAMILIES[family](kernel_size, scales, **({"spatial_dims": dims} if family == "discrete" else {}))


@dataclass(frozen=True)
class Problem:
    """A scale convolution, and what its input is like but for its size."""

    layer: ScaleConvolution
    options: dict[str, Any]

    def shape(self, batch: int, space: tuple[int, ...]) -> tuple[int, ...]:
        scales = () if self.layer.lifting else (len(self.layer.basis.scales),)
        return (batch, self.layer.in_channels, *scales, *space)

    def dense(self, x: Tensor) -> Tensor:
        """What its dense twin gives."""
        twin = reference.scale_lift if self.layer.lifting else reference.scale_conv
        return twin(x, self.layer.weight, self.layer.basis, self.layer.bias, **self.options)


@st.composite
def problems(draw) -> Problem:
    """Any scale convolution: of one channel or many groups, one scale or more, on every kind of basis."""
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
    return Problem(randomised(layer, draw(st.integers(0, 9))), options)


def randomised(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)
    return module


def values(kind: str, shape: tuple[int, ...], seed: int = 0, largest: float = LARGEST) -> Tensor:
    """Finite numbers of a kind in double precision, none above the largest."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    low, high = -45.0, math.log10(largest)
    if kind == "zeros":
        return torch.zeros_like(noise)
    if kind == "constant":  # every channel another
        return noise[:1, :, *[slice(1)] * (len(shape) - 2)].expand(shape).clone() * largest
    if kind == "denormal":
        return noise * 1e-40
    if kind == "same images":
        return noise[:1].expand(shape).clone()
    sizes = torch.rand(shape if kind == "all sizes" else (), generator=generator, dtype=torch.float64)
    return noise * 10 ** (low + (high - low) * sizes)


def arithmetic(module: nn.Module, x: Tensor, precision: str) -> tuple[nn.Module, Tensor, AbstractContextManager[Any]]:
    """A module, its input, and what to run it in."""
    if precision == "double":
        return module.double(), x.double(), nullcontext()
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    return module.float(), x.float(), context


def not_finite(module: nn.Module, x: Tensor, precision: str, run: Any = None) -> list[str]:
    """Names of what is not finite: outputs, buffers, and gradients of input and parameters."""
    module, x, context = arithmetic(module, x, precision)
    x = x.detach().requires_grad_()
    module.zero_grad()
    with context:
        outputs = [y for y in tree_leaves((run or module)(x)) if isinstance(y, Tensor)]
    learned = [y.float().mean() for y in outputs if y.requires_grad]
    if learned:
        sum(learned).backward()
    found = {f"output {number}": y for number, y in enumerate(outputs)} | {"gradient of the input": x.grad}
    found |= dict(module.named_buffers())
    found |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    return [name for name, tensor in found.items() if tensor is not None and not tensor.isfinite().all()]


def deviation(found: Tensor, expected: Tensor, least: float = 1e-30) -> float:
    """The largest difference, over the largest number that the image gives, or at least one; both [B, ...]."""
    assert found.shape == expected.shape
    if found.numel() == 0:
        return 0.0
    found, expected = (one.detach().double().reshape(len(one), -1) for one in (found, expected))
    return float(((found - expected).abs().amax(1) / expected.abs().amax(1).clamp_min(least)).max())


def apart(module: Any, x: Tensor, seed: int = 0, least: float = 1e-30) -> float:
    """How far results are from those of the whole batch, for images alone, in another order, and in two parts."""
    whole = tree_leaves(module(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    half = max(1, len(x) // 3)
    found = [
        [torch.cat(parts) for parts in zip(*(tree_leaves(module(x[k : k + 1])) for k in range(len(x))), strict=True)],
        [y[order.argsort()] for y in tree_leaves(module(x[order]))],
        [torch.cat(parts) for parts in zip(*(tree_leaves(module(p)) for p in (x[:half], x[half:])), strict=True)],
    ]
    return max(deviation(y, want, least) for ys in found for y, want in zip(ys, whole, strict=True))


@dataclass(frozen=True)
class Fast:
    """A layer that runs by a fast path on a batch, and directly on an image alone."""

    build: Any
    shape: tuple[int, ...]
    path: str
    folded: int = 0  # scales along the batch

    def layer(self, dtype: torch.dtype = torch.float32) -> Any:
        layer = randomised(self.build()).to(dtype)
        count = self.folded
        return (lambda x: unfold(layer(fold(x)), count)) if count else layer

    def input(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Images of very different sizes of values."""
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        sizes = 10 ** torch.linspace(-6, 6, len(x), dtype=torch.float64)
        return (x * sizes.reshape(-1, *[1] * (x.ndim - 1))).to(dtype)


FAST = {
    "tiles of 3x3": Fast(lambda: snn.ScaleConv2d(128, 256, DiscreteBasis(3, [1, 2])), (4, 128, 2, 16, 16), "_winograd"),
    "tiles of 5x5": Fast(
        lambda: snn.ScaleLift2d(128, 128, DiscreteBasis(3, [1, 2**0.5], support=5)), (5, 128, 15, 16), "_winograd"
    ),
    "tiles, folded": Fast(
        lambda: FoldedConv(nn.Conv2d(128, 256, 3, padding=1), Scales([1, 2])), (4, 128, 2, 16, 16), "_winograd", 2
    ),
    "spectra": Fast(lambda: snn.ScaleConv2d(16, 4, HermiteBasis.preset("mnist")), (16, 16, 4, 20, 20), "_fft"),
}
