from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco.export import bake
from scale_disco.tasks.baselines.sicnn import ColumnBatchNorm2d, ColumnConv2d, ColumnLift2d, rescaling
from tests.golden import assert_near, assert_same_with_gradients, golden, loaded

MNIST = (0.3, 0.45, 0.67, 1.0, 1.49, 2.23, 3.33)
STL = (0.67, 1.0, 1.5)


def resized(image: Tensor, factor: float, mode: str) -> Tensor:
    """Interpolate images, then pad with zeros or crop."""
    side = image.shape[-1]
    image = F.interpolate(image, scale_factor=factor, mode=mode, align_corners=True if mode == "bilinear" else None)
    before = math.floor((side - image.shape[-1]) / 2)
    return F.pad(image, [before, side - image.shape[-1] - before] * 2)


def literal_kernels(weight: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Kernels of all columns, [S, C', C, m, m], from weights [C', C, k, k]."""
    side = weight.shape[-1]
    margin = math.ceil((int(side * scales[-1]) - side) / 2)
    padded = F.pad(weight, [margin] * 4)
    made = []
    for scale in scales:
        kernel = padded if scale == 1 else resized(padded, scale, "nearest" if scale > 1 else "bilinear")
        made.append(kernel * (padded.abs().sum((2, 3)) / kernel.abs().sum((2, 3)))[..., None, None])
    return torch.stack(made)


# The authors interpolate in single precision, and the few taps of the smallest scales do not average its error.
def test_lift_agrees_with_the_authors(shared):
    data = golden(shared, "sicnn_mnist")
    assert_near(literal_kernels(data["weight"], MNIST).flatten(0, 1), data["kernel"], 5e-7)
    layer = loaded(ColumnLift2d(1, 2, 7, MNIST), weight=data["weight"].flatten(2))
    assert_near(layer(data["x"]).movedim(2, 1).flatten(1, 2), data["y"], 3e-6)


def test_columns_agree_with_the_authors(shared):
    data = golden(shared, "sicnn_stl")
    layer = loaded(ColumnConv2d(2, 3, 3, STL, stride=2), weight=data["weight"].flatten(2)[:, :, None])
    x = data["x"].unflatten(1, (3, 2)).movedim(1, 2)
    assert_near(layer(x).movedim(2, 1).flatten(1, 2), data["y"])


@pytest.mark.parametrize(("scales", "side"), [(MNIST, 7), (STL, 3), ((0.5, 1, 2), 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_equals_the_formula(scales, side, stride):
    lift = ColumnLift2d(2, 3, side, scales, stride).double()
    conv = ColumnConv2d(2, 3, side, scales, stride).double()
    image = torch.randn(2, 2, 15, 17, dtype=torch.float64, requires_grad=True)
    maps = torch.randn(2, 2, len(scales), 15, 17, dtype=torch.float64, requires_grad=True)

    def slow(columns: list[Tensor], weight: Tensor) -> Tensor:
        kernels = literal_kernels(weight.reshape(3, 2, side, side), scales)
        padding = kernels.shape[-1] // 2
        return torch.stack(
            [F.conv2d(x, kernel, None, stride, padding) for x, kernel in zip(columns, kernels, strict=True)], 2
        )

    assert_same_with_gradients(lift(image), slow([image] * len(scales), lift.weight), [image, lift.weight])
    assert_same_with_gradients(conv(maps), slow(list(maps.unbind(2)), conv.weight), [maps, conv.weight])


def test_large_kernels_agree_by_fft():
    conv = ColumnConv2d(20, 3, 7, MNIST).double()
    maps = torch.randn(1, 20, 7, 14, 14, dtype=torch.float64, requires_grad=True)
    kernels = literal_kernels(conv.weight.reshape(3, 20, 7, 7), MNIST)
    slow = [F.conv2d(x, kernel, padding=11) for x, kernel in zip(maps.unbind(2), kernels, strict=True)]
    assert_same_with_gradients(conv(maps), torch.stack(slow, 2), [maps, conv.weight])


def test_small_scales_have_few_taps():
    assert ColumnLift2d(1, 1, 7, MNIST).basis.support == (3, 5, 5, 7, 11, 17, 23)


def test_gradients():
    layer = ColumnLift2d(1, 2, 3, STL).double()
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (x, layer.weight))


def test_one_pixel_is_the_same_in_all_columns():
    conv = ColumnConv2d(2, 3, 1, MNIST, stride=2)
    nn.init.zeros_(conv.weight[:1])  # not divided by its norm
    maps = torch.randn(2, 2, 7, 8, 8)
    for k, column in enumerate(conv(maps).unbind(2)):
        torch.testing.assert_close(column, F.conv2d(maps[:, :, k], conv.weight, stride=2))


def test_weights_are_initialized_as_those_of_conv2d():
    torch.manual_seed(1)
    plain = nn.Conv2d(8, 16, 7, bias=False).weight
    torch.manual_seed(1)
    torch.testing.assert_close(ColumnConv2d(8, 16, 7, MNIST).weight.flatten(), plain.flatten())


def test_every_column_has_its_own_norm():
    maps = torch.randn(4, 2, 3, 8, 8) * torch.tensor([1.0, 10, 100])[:, None, None]
    norm, plain = ColumnBatchNorm2d(2, 3), nn.BatchNorm2d(6)
    y = plain(maps.movedim(2, 1).flatten(1, 2)).unflatten(1, (3, 2)).movedim(1, 2)
    torch.testing.assert_close(norm(maps), y)
    torch.testing.assert_close(torch.cat([column.running_var for column in norm]), plain.running_var)
    assert sum(parameter.numel() for parameter in norm.parameters()) == 12
    assert norm(maps).movedim(2, 0).is_contiguous()


def test_baking_keeps_the_matched_kernels():
    layer = ColumnLift2d(1, 2, 3, STL).eval()
    x = torch.randn(1, 1, 8, 8)
    torch.testing.assert_close(bake(layer)(x), layer(x))


@pytest.mark.parametrize("side", [4, 7, 23])
@pytest.mark.parametrize("factor", [0.3, 0.67, 1, 1.49, 3.33])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_rescaling_is_interpolation(side, factor, mode):
    image = torch.randn(1, 1, side, side, dtype=torch.float64)
    matrix = rescaling(side, factor, mode)
    torch.testing.assert_close(
        matrix @ image @ matrix.T, resized(image, factor, {"linear": "bilinear"}.get(mode, mode))
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ColumnLift2d(1, 1, 4, STL), "kernel_size must be odd, got 4"),
        (lambda: ColumnLift2d(1, 1, 3, [2, 1]), "Scales: scales must be in ascending order"),
        (lambda: ColumnConv2d(1, 1, 3, STL)(torch.rand(1, 1, 2, 8, 8)), "ColumnConv2d: .* S = 3 .* got shape"),
        (lambda: ColumnBatchNorm2d(2, 3)(torch.rand(1, 2, 2, 8, 8)), r"S = 3 \(its columns\), got shape"),
        (lambda: rescaling(2, 0.3), "rescaling: 2 pixels scaled by 0.3 leave none"),
    ],
)
def test_invalid_arguments_raise_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
