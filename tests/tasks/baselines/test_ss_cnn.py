from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from scale_disco.tasks.baselines.ss_cnn import SteerableBasis, SteerableConv2d
from tests.golden import assert_near, golden, loaded

MNIST = (range(7, 18, 2), 11, (0.5, 1, 2))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("sscnn_mnist56", MNIST), ("sscnn_stl_conv1", ((3, 5, 7), 3, (1,))), ("sscnn_stl_block", ((3,), 3, (1,)))],
)
def test_agrees_with_the_authors(shared, name, settings):
    data = golden(shared, name)
    weight = torch.stack([data["mult_real"], data["mult_imag"]]).permute(2, 3, 0, 1, 4).flatten(2)
    layer = loaded(SteerableConv2d(1, 2, *settings), **{"lift.weight": weight})
    for k, kernel in enumerate(layer.lift.kernels()):
        assert_near(kernel, data[f"W{k}"], 2e-7)
    assert_near(layer(data["x"]).relu(), data["y"])


def test_scaling_is_a_phase_rotation():
    """On the full grid, a kernel of real weights is its wave shifted along the logarithm of the radius."""
    basis = SteerableBasis([9, 17], 17)
    small, large = (stencil.functions for stencil in basis.stencils)
    assert basis.scales[1] == 1
    torch.testing.assert_close(large[:9].flatten(1).norm(dim=1), torch.ones(9, dtype=torch.float64))
    angle = -2 * math.pi / math.log(math.sqrt(2) * 8) * math.log(9 / 17)
    inner = large[:, 4:13, 4:13]
    torch.testing.assert_close(small[:9], math.cos(angle) * inner[:9] + math.sin(angle) * inner[9:])


def test_maximum_over_sizes_with_a_stride():
    layer = SteerableConv2d(2, 3, [3, 5], 3, stride=2).double()
    x = torch.randn(1, 2, 12, 12, dtype=torch.float64)
    responses = [F.conv2d(x, kernel, None, 2, kernel.shape[-1] // 2) for kernel in layer.lift.kernels()]
    torch.testing.assert_close(layer(x), torch.stack(responses).amax(0))


def test_large_kernels_agree_by_fft():
    layer = SteerableConv2d(20, 3, *MNIST).double()
    x = torch.randn(1, 20, 14, 14, dtype=torch.float64)
    responses = [F.conv2d(x, kernel, padding=kernel.shape[-1] // 2) for kernel in layer.lift.kernels()]
    torch.testing.assert_close(layer(x), torch.stack(responses).amax(0))


def test_gradients():
    layer = SteerableConv2d(1, 1, [3, 5], 3).double()
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (x, layer.lift.weight))


def test_weights_are_initialized_as_the_authors_do():
    weight = SteerableConv2d(16, 32, *MNIST).lift.weight.detach()
    bound = math.sqrt(2 / (9 * 16 * 32))
    assert weight.shape == (32, 16, 54)
    assert 0.99 * bound < float(weight.abs().max()) <= bound


def test_the_unused_parameter_is_counted():
    layer = SteerableConv2d(4, 6, *MNIST)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 55 * 4 * 6
    layer(torch.randn(1, 4, 20, 20)).sum().backward()
    assert layer.unused.grad is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SteerableBasis([3, 4], 3), r"SteerableBasis: sizes must be odd, at least one, got \[3, 4\]"),
        (lambda: SteerableBasis([], 3), r"SteerableBasis: sizes must be odd, at least one, got \[\]"),
        (lambda: SteerableBasis([3], 3, []), r"SteerableBasis: orders must be positive numbers, .* got \[\]"),
        (lambda: SteerableBasis([5, 3], 3), "Scales: scales must be in ascending order"),
        (lambda: SteerableConv2d(2, 2, [3], 3)(torch.rand(1, 3, 8, 8)), "SteerableLift2d: .* with C = 2, got shape"),
    ],
)
def test_invalid_arguments_raise_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
