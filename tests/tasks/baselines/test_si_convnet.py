from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_disco.tasks.baselines.si_convnet import RescalingConv2d
from tests.golden import assert_near, assert_same_with_gradients, golden, loaded
from tests.tasks.baselines.test_sicnn import MNIST, resized


def literal(layer: RescalingConv2d, x: Tensor) -> Tensor:
    """Rescale whole images, convolve, rescale back."""
    responses = []
    for scale in layer.scales:
        y = F.conv2d(resized(x, scale, "bilinear"), layer.weight, layer.bias, layer.stride, layer.padding)
        responses.append(resized(y, 1 / scale, "bilinear"))
    return torch.stack(responses).max(0).values


# The authors interpolate in single precision.
@pytest.mark.parametrize(
    ("name", "scales", "stride", "padding"),
    [("siconvnet_mnist", MNIST, 1, 3), ("siconvnet_stl_stride2", (0.5, 1, 2), 2, 1)],
)
def test_agrees_with_the_authors(shared, name, scales, stride, padding):
    data = golden(shared, name)
    parameters = {key: data[key] for key in ("weight", "bias") if key in data}
    outputs, channels, side, _ = data["weight"].shape
    layer = RescalingConv2d(channels, outputs, side, scales, stride, padding, bias="bias" in data)
    loaded(layer, **parameters)
    assert_near(layer(data["x"]), data["y"], 3e-6)
    assert_near(literal(layer, data["x"]), data["y"], 1e-6)


@pytest.mark.parametrize("side", [14, 15, 28])
@pytest.mark.parametrize(("stride", "padding"), [(1, 3), (2, 3), (1, 0)])
def test_skipping_unused_pixels_changes_nothing(side, stride, padding):
    layer = RescalingConv2d(2, 3, 7, MNIST, stride, padding).double()
    x = torch.randn(2, 2, side, side, dtype=torch.float64, requires_grad=True)
    assert_same_with_gradients(layer(x), literal(layer, x), [x, layer.weight, layer.bias])


def test_images_need_not_be_square():
    layer = RescalingConv2d(1, 2, 3, (0.5, 1, 2), padding=1)
    x = torch.randn(1, 1, 12, 20)
    torch.testing.assert_close(layer(x.mT), _transposed(layer)(x).mT)


def _transposed(layer: RescalingConv2d) -> RescalingConv2d:
    copy = RescalingConv2d(1, 2, 3, (0.5, 1, 2), padding=1)
    return loaded(copy, weight=layer.weight.detach().mT, bias=layer.bias.detach())


def test_gradients():
    layer = RescalingConv2d(1, 1, 3, (0.5, 1, 2), padding=1).double()
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, layer.weight, layer.bias))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RescalingConv2d(1, 1, 3, [1, 0.5]), "Scales: scales must be in ascending order"),
        (lambda: RescalingConv2d(2, 1, 3, [1])(torch.rand(1, 3, 8, 8)), "RescalingConv2d: .* with C = 2, got shape"),
        (lambda: RescalingConv2d(1, 1, 1, [0.3])(torch.rand(1, 1, 3, 3)), "3 pixels scaled by 0.3 leave none"),
    ],
)
def test_invalid_arguments_raise_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
