from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scale_disco import DiscreteBasis, HermiteBasis, functional
from scale_disco.functional import _fft as spectral
from scale_disco.functional.layout import lay_out
from scale_disco.nn import ScaleConv2d
from tests.golden import assert_same_with_gradients


@pytest.mark.parametrize("side", [1, 7, 15, 23])
@pytest.mark.parametrize("shape", [(14, 14), (28, 28), (9, 17), (1, 5)])
def test_equals_a_plain_convolution(side, shape):
    x = torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(4, 3, side, side, dtype=torch.float64, requires_grad=True)
    slow = F.conv2d(x, kernel, padding=side // 2)
    assert_same_with_gradients(spectral.correlate(x, kernel), slow, [x, kernel])


@pytest.fixture
def transformed(monkeypatch):
    """Sides of the kernels that were transformed."""
    seen = []
    correlate = spectral.correlate
    monkeypatch.setattr(spectral, "correlate", lambda x, kernel: seen.append(kernel.shape[-1]) or correlate(x, kernel))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_agree_with_and_without_transforms(dtype, transformed):
    layer = ScaleConv2d(16, 4, HermiteBasis.preset("mnist"), dtype=dtype)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(16, 16, 4, 20, 20, dtype=dtype, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    fast = layer(x)
    assert transformed == [15]  # the largest of 7, 9, 11 and 15
    with functional.direct():
        direct = layer(x)
    assert transformed == [15]
    size = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(fast, direct, rtol=size, atol=size * direct.abs().max().item())
    gradient = torch.randn_like(fast)
    for a, b in zip(
        torch.autograd.grad(fast, inputs, gradient), torch.autograd.grad(direct, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=size, atol=size * b.abs().max().item())


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"padding": "valid"}, {"padding": 5}, {"padding_mode": "circular"}, {"groups": 2}]
)
@pytest.mark.parametrize("scales", [[1], [1, 2]])
def test_other_layouts_run_directly(scales, options, transformed):
    chosen = {"stride": 1, "padding": "same", "groups": 1, "padding_mode": "zeros"} | options
    layout = lay_out("test", DiscreteBasis(15, scales), **chosen)
    kernels = [torch.randn(4, 32 // layout.groups, 15, 15)] * len(scales)
    functional.lift(torch.randn(16, 32, 40, 40), kernels, None, layout)
    assert transformed == []


CASES = {
    "small kernel": (16, 16, 20, 13, torch.float32, 0),
    "even kernel": (16, 16, 20, 16, torch.float32, 0),
    "few channels": (16, 15, 20, 15, torch.float32, 0),
    "few images": (15, 16, 20, 15, torch.float32, 0),
    "large map": (16, 16, 65, 15, torch.float32, 0),
    "half precision": (16, 16, 20, 15, torch.bfloat16, 0),
    "all large": (16, 16, 20, 15, torch.float32, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_fft_runs_only_where_it_is_faster(case, transformed):
    batch, channels, side, size, dtype, times = CASES[case]
    layout = lay_out("test", DiscreteBasis(size, [1]), 1, "same", 1, "zeros")
    functional.lift(
        torch.randn(batch, channels, side, side, dtype=dtype),
        [torch.randn(1, channels, size, size, dtype=dtype)],
        None,
        layout,
    )
    assert len(transformed) == times


def test_fft_is_limited_by_memory():
    x = torch.empty(16, 1024, 64, 64, device="meta")
    assert not spectral.is_faster(x, torch.empty(1024, 1024, 15, 15, device="meta"))
    x, kernel = torch.empty(16, 16, 64, 64), torch.empty(1, 16, 15, 15)
    assert spectral.is_faster(x, kernel)
    assert not spectral.is_faster(x, kernel.expand(1024, -1, -1, -1))


def test_a_dilated_kernel_runs_directly(transformed):
    layout = lay_out("test", DiscreteBasis(15, [1, 2]), 1, "same", 1, "zeros")
    kernel = torch.randn(1, 16, 15, 15)
    functional.lift(torch.randn(16, 16, 40, 40), [kernel, kernel], None, layout)
    assert transformed == [15]
