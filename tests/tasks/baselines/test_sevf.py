from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco.tasks.baselines.sevf import (
    Magnitude,
    VectorBatchNorm2d,
    VectorConv2d,
    VectorLift2d,
    VectorMaxPool2d,
    longest,
    magnitude,
)
from tests.golden import assert_near, assert_same_with_gradients, golden, loaded


def test_agrees_with_the_authors(shared):
    data = golden(shared, "sevf")

    def expect(field: Tensor, u: str, v: str) -> None:
        assert_near(field, torch.stack([data[u], data[v]], 2))

    field = loaded(VectorLift2d(1, 3, 7), weight=data["w1"])(data["x"])
    expect(field, "u1", "v1")
    field = VectorMaxPool2d(2)(field)
    expect(field, "pool_u", "pool_v")
    norm = VectorBatchNorm2d(3)
    field = norm(field)
    expect(field, "bn_u", "bn_v")
    assert_near(norm.running_var, data["running_var"].flatten())
    field = loaded(VectorConv2d(3, 2, 7), weight=torch.stack([data["w2u"], data["w2v"]], 2))(field)
    expect(field, "u2", "v2")


def test_equals_the_formula():
    layer = VectorConv2d(2, 3, 3).double()
    x = torch.randn(1, 2, 2, 14, 14, dtype=torch.float64, requires_grad=True)
    wu, wv = layer.weight.unbind(2)
    angles = [level * 2 * math.pi / 3 / 7 for level in range(-4, 4)]
    responses = []
    for level, angle in zip(range(-4, 4), angles, strict=True):
        turned = (wu * math.cos(angle) + wv * math.sin(angle), wv * math.cos(angle) - wu * math.sin(angle))
        parts = []
        for component, kernel in zip(x.unbind(2), turned, strict=True):
            resized = F.interpolate(component, [round(14 * 1.26**level)] * 2, mode="bilinear")
            parts.append(F.interpolate(F.conv2d(resized, kernel, padding=1), [14, 14], mode="bilinear"))
        responses.append(sum(parts))
    largest, which = torch.stack(responses).max(0)
    angle = torch.tensor(angles, dtype=torch.float64)[which]
    slow = torch.stack([largest.relu() * angle.cos(), largest.relu() * angle.sin()], 2)
    assert_same_with_gradients(layer(x), slow, [x, layer.weight])


def test_pool_selects_vectors():
    x = torch.randn(2, 3, 2, 14, 14)
    y = longest(x, 8, 2)
    assert y.shape == (2, 3, 2, 2, 2)
    torch.testing.assert_close(magnitude(y), F.max_pool2d(magnitude(x), 8, padding=2))
    first = x[0, 0, :, :6, :6].flatten(1)
    torch.testing.assert_close(y[0, 0, :, 0, 0], first[:, first.norm(dim=0).argmax()])


def test_norm_in_evaluation_uses_the_running_variance():
    norm, x = VectorBatchNorm2d(2), torch.randn(4, 2, 2, 6, 6)
    norm(x)
    variance = x.norm(dim=2).var((0, 2, 3))
    torch.testing.assert_close(norm.running_var, 0.5 + 0.5 * variance)
    norm.eval()
    torch.testing.assert_close(norm(x), x / (norm.running_var + 1e-5).sqrt()[:, None, None, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_for_zero_vectors(dtype):
    net = nn.Sequential(
        *(VectorLift2d(1, 3, 3), VectorMaxPool2d(2), VectorBatchNorm2d(3)),
        *(VectorConv2d(3, 4, 3), VectorMaxPool2d(2), VectorBatchNorm2d(4), Magnitude()),
    ).to(dtype)
    images = torch.zeros(4, 1, 16, 16, dtype=dtype)
    images[0, 0, 3:6, 4:7] = 1
    images.requires_grad_()
    net(images).square().sum().backward()
    used = {name: parameter for name, parameter in net.named_parameters() if not name.endswith("unused")}
    for leaf in (images, *used.values()):
        assert bool(leaf.grad.isfinite().all())
        assert bool(leaf.grad.any())
    zeros = torch.zeros(1, 1, 2, 2, 2, dtype=dtype, requires_grad=True)
    magnitude(zeros).sum().backward()
    assert not zeros.grad.any()


def test_gradients():
    layer = VectorConv2d(1, 1, 3).double()
    x = torch.randn(1, 1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (x, layer.weight))
    norm = VectorBatchNorm2d(1).double()
    assert torch.autograd.gradcheck(norm, (x,))


def test_weights_are_initialized_as_those_of_conv2d():
    assert float(VectorConv2d(8, 16, 7).weight.detach().abs().max()) == pytest.approx(1 / math.sqrt(8 * 49), rel=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VectorLift2d(1, 1, 4), "VectorLift2d: kernel_size must be odd, got 4"),
        (lambda: VectorLift2d(1, 1, 3)(torch.rand(1, 2, 8, 8)), "VectorLift2d: .* with C = 1, got shape"),
        (lambda: VectorConv2d(1, 1, 3)(torch.rand(1, 1, 8, 8)), r"VectorConv2d: expected input \[B, C, S, H, W\]"),
        (lambda: VectorBatchNorm2d(1)(torch.rand(1, 1, 2, 1, 1)), "more than one vector per channel, got 1"),
        (lambda: Magnitude()(torch.rand(1, 1, 3, 4, 4)), r"S = 2 \(the components of a vector\), got shape"),
    ],
)
def test_invalid_arguments_raise_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
