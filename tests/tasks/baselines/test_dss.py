from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.special import ive

from scale_disco.tasks.baselines.dss import DilatedScaleConv2d, ScaleSpace, discrete_gaussian
from tests.golden import assert_near, assert_same_with_gradients, golden, loaded


@pytest.mark.parametrize(("name", "sigma", "stride", "extent"), [("dss_mnist", 0.25, 1, 1), ("dss_stl", 0.5, 2, 2)])
def test_agrees_with_the_authors(shared, name, sigma, stride, extent):
    data = golden(shared, name)
    outputs, channels, _, side, _ = data["weights"].shape
    scales = data["lift"].shape[2]
    maps = ScaleSpace(scales, sigma)(data["x"])
    assert_near(maps, data["lift"])
    conv = loaded(
        DilatedScaleConv2d(channels, outputs, side, scales, stride, extent), weight=data["weights"].flatten(3)
    )
    assert_near(conv(maps), data["y"])


@pytest.mark.parametrize("variance", [0.1875, 0.75, 3.75, 15.75, 255.75])
def test_taps_are_bessel_functions(variance):
    taps = discrete_gaussian(variance)
    half = 4 * math.ceil(math.sqrt(variance))
    expected = torch.from_numpy(ive(abs(torch.arange(-half, half + 1).numpy()), variance))
    torch.testing.assert_close(taps, expected / expected.sum(), rtol=0, atol=1e-15)


def test_blur_is_separable_and_its_memory_scale_major():
    x = torch.randn(2, 3, 20, 24, dtype=torch.float64)
    maps = ScaleSpace(3).double()(x)
    taps = discrete_gaussian(3.75)
    kernel = (taps[:, None] * taps).expand(3, 1, -1, -1)
    torch.testing.assert_close(maps[:, :, 0], x)
    torch.testing.assert_close(maps[:, :, 2], F.conv2d(x, kernel, padding=8, groups=3))
    assert maps.movedim(2, 0).is_contiguous()


def test_is_a_dilated_convolution():
    conv = DilatedScaleConv2d(2, 3, 3, scales=3, scale_extent=2).double()
    maps = torch.randn(2, 2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    kernel = conv.weight.reshape(3, 2, 2, 3, 3)
    slow = []
    for k in range(3):
        neighbors = range(k, min(k + 2, 3))
        responses = [F.conv2d(maps[:, :, t], kernel[:, :, t - k], padding=2**k, dilation=2**k) for t in neighbors]
        slow.append(torch.stack(responses).sum(0))
    assert_same_with_gradients(conv(maps), torch.stack(slow, 2), [maps, conv.weight])


def test_he_weights():
    weight = DilatedScaleConv2d(32, 64, 7, scales=2, scale_extent=2).weight
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / (49 * 2 * 32)), rel=0.02)


def test_delta_weights_copy_channels():
    kernel = DilatedScaleConv2d(4, 6, 3, scales=2, scale_extent=2, init="delta").weight.detach()
    center = torch.zeros(6, 4, dtype=torch.bool)  # gcd 2: each half of the outputs reads one half of the inputs
    center[:3, :2] = center[3:, 2:] = True
    assert bool((kernel[..., 4][center] == 1 / 3).all())
    kernel[..., 4][center] = 0
    assert 0.005 < float(kernel.abs().max()) <= 0.01


def test_created_on_the_meta_device():
    with torch.device("meta"):
        assert DilatedScaleConv2d(4, 6, 3, scales=2, init="delta").weight.is_meta


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScaleSpace(0), "ScaleSpace: scales must be an integer >= 1, got 0"),
        (lambda: ScaleSpace(2, -1), "ScaleSpace: sigma must be a positive finite number, got -1"),
        (lambda: ScaleSpace(2)(torch.rand(1, 8, 8)), r"ScaleSpace: expected input \[B, C, H, W\], got shape"),
        (lambda: DilatedScaleConv2d(1, 1, 4, 2), "DilatedScaleConv2d: kernel_size must be odd, got 4"),
        (lambda: DilatedScaleConv2d(1, 1, 3, 2, init="zero"), "init must be one of he, delta, got 'zero'"),
    ],
)
def test_invalid_arguments_raise_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
