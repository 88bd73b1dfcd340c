from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from scale_disco import Scales, equivariance_error, to_scale_equivariant
from scale_disco.convert import ScaleEquivariant
from scale_disco.convert.layers import FoldedConv
from scale_disco.convert.pools import GrowingMaxPool
from scale_disco.models.resnet import resnet18
from tests.convert.networks import NETWORKS, VGG, Reused, UNet, every_network, images, network, sequential

SCALES = (1, 2**0.5, 2)


def shapes(output):
    return tree_map(lambda x: tuple(x.shape), output)


@every_network
def test_the_first_scale_is_the_network(kind):
    net, x = network(kind), images(kind)
    with torch.no_grad():
        converted = to_scale_equivariant(net, SCALES, project=None, example=x)
        for output, expected in zip(tree_leaves(converted(x)), tree_leaves(net(x)), strict=True):
            assert output.shape == (*expected.shape[:2], 3, *expected.shape[2:])
            torch.testing.assert_close(output[:, :, 0], expected, rtol=1e-5, atol=1e-5)
            for k in (1, 2):
                assert not torch.allclose(output[:, :, k], expected, rtol=1e-3, atol=1e-4)


@every_network
def test_scales_are_reduced_before_the_last_global_pool(kind):
    net, x = network(kind), images(kind)
    converted = to_scale_equivariant(net, SCALES, example=x)
    assert str(converted.place) == NETWORKS[kind][1]
    assert shapes(converted(x)) == shapes(net(x))
    assert converted.unconverted == ()


def test_one_scale_is_the_network():
    net, x = network("resnet18"), images("resnet18")
    with torch.no_grad():
        torch.testing.assert_close(to_scale_equivariant(net, (1,))(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["max", "mean", "logsumexp"])
def test_reduce_selects_the_projection(reduce):
    net, x = sequential().eval(), torch.randn(2, 3, 32, 32)
    body, head = net[:6], net[6:]
    with torch.no_grad():
        maps = to_scale_equivariant(body, SCALES, project=None)(x)
        converted = to_scale_equivariant(net, SCALES, reduce=reduce)
        torch.testing.assert_close(converted(x), head(converted.project(maps)))
        assert converted.project.reduce == reduce


@every_network
def test_checkpoints_load_in_both_directions(kind):
    net, x = network(kind), images(kind)
    converted = to_scale_equivariant(net, SCALES, example=x)
    state = net.state_dict()
    assert list(converted.state_dict()) == list(state)
    changed = {key: value + 0.5 if value.is_floating_point() else value for key, value in state.items()}
    converted.load_state_dict(changed)
    assert all(torch.equal(value, changed[key]) for key, value in converted.state_dict().items())
    net.load_state_dict(converted.state_dict())


def test_checkpoints_keep_their_names_inside_another_network():
    net = sequential()
    outer = nn.ModuleDict({"body": to_scale_equivariant(net, SCALES), "other": nn.Linear(2, 2)})
    assert list(outer.state_dict()) == [*(f"body.{key}" for key in net.state_dict()), "other.weight", "other.bias"]
    outer.load_state_dict({key: torch.zeros_like(value) for key, value in outer.state_dict().items()})
    assert not outer["body"].network[0].weight.any()
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.bias"):
        to_scale_equivariant(net).load_state_dict({k: v for k, v in net.state_dict().items() if k != "0.bias"})


def test_ordinary_checkpoints_load_with_zero_neighbors_and_default_temperature():
    net = sequential().eval()
    converted = to_scale_equivariant(net, SCALES, reduce="logsumexp", scale_extent=2)
    nn.init.ones_(converted.network[4].neighbours)
    converted.load_state_dict(net.state_dict())
    assert not converted.network[4].neighbours.any()
    nn.init.constant_(converted.network[4].neighbours, 0.5)
    nn.init.constant_(converted.project.log_temperature, -1)
    again = to_scale_equivariant(net, SCALES, reduce="logsumexp", scale_extent=2)
    again.load_state_dict(converted.state_dict())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(again(x), converted.eval()(x))


@every_network
def test_the_given_network_is_not_modified(kind):
    net = network(kind).train()
    before, text = copy.deepcopy(net.state_dict()), repr(net)
    converted = to_scale_equivariant(net, SCALES, example=images(kind))
    for parameter in converted.parameters():
        nn.init.zeros_(parameter)
    assert repr(net) == text
    assert net.training
    assert converted.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@every_network
def test_gradients_flow(kind):
    converted = to_scale_equivariant(network(kind), SCALES, example=images(kind)).train()
    sum(output.square().sum() for output in tree_leaves(converted(images(kind, 4)))).backward()
    for name, parameter in converted.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_gradients_are_those_of_the_same_network_written_by_hand():
    conv = nn.Conv2d(2, 3, 3, padding=1).double()
    converted = to_scale_equivariant(nn.Sequential(conv), (1, 2), project=None)
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64, requires_grad=True)
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in (conv.weight, conv.bias))
    by_hand = torch.stack([F.conv2d(x, weight, bias, padding=d, dilation=d) for d in (1, 2)], 2)
    factors = torch.randn_like(by_hand)
    expected = torch.autograd.grad((by_hand * factors).sum(), [weight, bias, x])
    gradients = torch.autograd.grad((converted(x) * factors).sum(), [*converted.parameters(), x])
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_training_reduces_the_loss():
    torch.manual_seed(0)
    converted = to_scale_equivariant(sequential(), SCALES).train()
    x, y = torch.randn(16, 3, 16, 16), torch.randint(5, (16,))
    optimizer = torch.optim.Adam(converted.parameters(), 0.01)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(converted(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_one_layer_is_exact_between_integer_scales():
    conv = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1))
    converted = to_scale_equivariant(conv, (1, 2, 4), project=None).double()
    x = torch.randn(2, 1, 48, 48, dtype=torch.float64)
    assert equivariance_error(converted, x, Scales([1, 2, 4])) < 1e-20


def test_a_whole_network_with_strides_is_exact_under_subsampling():
    """DESIGN: pure subsampling commutes with ReLU and strides."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU()).double()
    converted = to_scale_equivariant(net, (1, 2, 4), project=None, example=torch.randn(1, 1, 64, 64).double())
    x = torch.randn(2, 1, 128, 128, dtype=torch.float64)
    whole, shrunk = converted(x), converted(x[..., ::2, ::2])
    for k in range(2):
        output, expected = shrunk[:, :, k], whole[:, :, k + 1, ::2, ::2]
        inside = (..., slice(8, -8), slice(8, -8))
        torch.testing.assert_close(output[inside], expected[inside], rtol=1e-10, atol=1e-10)


def waves(side):
    """Smooth images, whose shrinking by two is known without resampling."""
    at = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    torch.manual_seed(3)
    phases, tilts = torch.rand(6, 2, dtype=torch.float64) * math.tau, torch.randint(1, 5, (6, 2))
    rows = torch.cos(math.tau * tilts[:, :1] * at + phases[:, :1])
    cols = torch.cos(math.tau * tilts[:, 1:] * at + phases[:, 1:])
    return (rows[:, :, None] * cols[:, None, :])[:, None]


def test_average_pooling_instead_of_strides_and_max_pooling_improves_equivariance():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 7, 2, 3),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1, 2),
    ).double()
    errors = {}
    for pooling in ("as-is", "growing", "average"):
        for downsampling in ("as-is", "centered"):
            options = {"pooling": pooling, "downsampling": downsampling}
            example = torch.randn(1, 1, 64, 64).double()
            converted = to_scale_equivariant(net, (1, 2), project=None, example=example, **options)
            assert converted(example)[:, :, 0].shape == net(example).shape
            if options == {"pooling": "growing", "downsampling": "as-is"}:
                torch.testing.assert_close(converted(example)[:, :, 0], net(example))
            whole, shrunk = converted(waves(256))[:, :, 1], converted(waves(128))[:, :, 0]
            expected = F.avg_pool2d(whole, 2)
            inside = (..., slice(3, -3), slice(3, -3))
            difference = (shrunk - expected)[inside].square().sum() / expected[inside].square().sum()
            errors[pooling, downsampling] = difference.item()
    assert errors["average", "centered"] < 0.2 * errors["as-is", "as-is"]
    assert errors["as-is", "centered"] < 0.6 * errors["as-is", "as-is"]
    assert errors["growing", "centered"] < 0.6 * errors["as-is", "centered"]


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 2, 0), (3, 1, 1), (5, 3, 2)])
@pytest.mark.parametrize("side", [15, 16, 17])
def test_average_pooling_keeps_the_output_size_of_max_pooling(window, side):
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(*window))
    converted = to_scale_equivariant(net, (1, 2), pooling="average")
    x = torch.randn(1, 1, side, side)
    assert converted(x).shape == net(x).shape
    ones = torch.ones(1, 1, side, side)
    torch.testing.assert_close(converted.network[1](ones), net[1](ones))


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 2, 0), (3, 1, 1), (4, 3, 2)])
@pytest.mark.parametrize("side", [1, 2, 5, 16, 17])
def test_growing_pooling_windows_scale_with_the_kernel(window, side):
    """Of a ramp, the largest in a window is its center plus half of its reach, which grows with the scale."""
    size, _, padding = window
    if side + 2 * padding < size:
        pytest.skip("no window fits")
    layer = GrowingMaxPool(nn.MaxPool2d(*window), Scales([1, 1.5, 2]))
    ramp = torch.arange(float(side)).expand(1, 1, side, side)
    output = layer(torch.cat([ramp] * 3))
    own = nn.MaxPool2d(*window)(ramp)
    assert output.isfinite().all()
    assert output.shape == (3, *own.shape[1:])
    assert torch.equal(output[:1], own)
    if side > 10:
        inside = slice(2, -3)
        for k, ratio in enumerate((1, 1.5, 2)):
            torch.testing.assert_close(
                output[k, 0][inside, inside], own[0, 0][inside, inside] + (ratio - 1) * (size - 1) / 2
            )


def test_a_named_projection_leaves_what_follows_ordinary():
    net, x = resnet18(classes=5).eval(), torch.randn(3, 3, 64, 64)
    converted = to_scale_equivariant(net, SCALES, project="layer3", example=x)
    assert str(converted.place) == "after layer3"
    kinds = {name: type(part) for name, part in converted.network.named_modules() if "conv" in name}
    assert kinds["layer3.1.conv2"] is FoldedConv
    assert kinds["layer4.0.conv1"] is nn.Conv2d
    with torch.no_grad():
        maps = x
        for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
            part = converted.network.get_submodule(name)
            maps = to_scale_free(part, torch.cat([maps] * 3) if name == "conv1" else maps)
        expected = net.fc(net.avgpool(net.layer4(maps.unflatten(0, (3, -1)).mean(0))).flatten(1))
        torch.testing.assert_close(converted(x), expected)


def to_scale_free(part, x):
    """A part of a converted network without the hook that reduces scales."""
    return part.forward(x)


def test_projection_after_the_last_call_of_a_layer():
    net = Reused().eval()
    x = torch.randn(2, 3, 16, 16)
    converted = to_scale_equivariant(net, SCALES, project="conv", example=x)
    with torch.no_grad():
        conv = converted.network.conv
        maps = conv.forward(torch.tanh(conv.forward(torch.cat([x] * 3)))).unflatten(0, (3, -1)).mean(0)
        expected = net.head(torch.tanh(maps).mean((2, 3)))
        for _ in range(2):  # calls are counted again in every run
            torch.testing.assert_close(converted(x), expected)


def test_neighbors_are_the_next_larger_scales():
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False).double()
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1).double(), conv)
    converted = to_scale_equivariant(net, (1, 2, 4), project=None, scale_extent=2)
    layer = converted.network[1]
    assert converted.network[0].scale_extent == 1  # it sees the image, the same at all scales
    assert layer.neighbours.shape == (1, *conv.weight.shape)
    x = torch.randn(2, 2, 20, 20, dtype=torch.float64)
    nn.init.normal_(layer.neighbours)
    first = converted.network[0](torch.cat([x] * 3)).unflatten(0, (3, -1))
    for k, step in enumerate((1, 2, 4)):
        expected = F.conv2d(first[k], conv.weight, padding=step, dilation=step)
        if k < 2:
            expected += F.conv2d(first[k + 1], layer.neighbours[0], padding=step, dilation=step)
        torch.testing.assert_close(converted(x)[:, :, k], expected)


def test_scale_extent_warns_of_unequal_steps():
    with pytest.warns(UserWarning, match="to_scale_equivariant: scale_extent 2 assumes equal steps between scales"):
        to_scale_equivariant(sequential(), (1, 2, 3), scale_extent=2)


def test_default_example_has_the_channels_of_the_first_convolution():
    net = nn.Sequential(nn.Conv2d(5, 3, 1), nn.Conv2d(3, 4, 3, padding=1))
    assert to_scale_equivariant(net, (1, 2))(torch.randn(2, 5, 8, 8)).shape == (2, 4, 8, 8)


def test_shared_frozen_and_hooked_layers_stay_so():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    other = nn.Conv2d(3, 3, 3, padding=1)
    other.weight = conv.weight
    conv.bias.requires_grad_(False)
    norm = nn.BatchNorm2d(3).eval()
    seen = []
    other.register_forward_hook(lambda layer, inputs, out: seen.append(out.shape))
    net = nn.Sequential(conv, conv, other, norm)
    converted = to_scale_equivariant(net, (1, 2))
    assert [part.training for part in converted.network] == [True, True, True, False]
    assert converted.training
    assert converted.network[0] is converted.network[1]
    assert converted.network[2].weight is converted.network[0].weight
    assert not converted.network[0].bias.requires_grad
    seen.clear()
    converted(torch.randn(1, 3, 8, 8))
    assert seen == [(2, 3, 8, 8)]


def test_outputs_of_all_kinds():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return y.mean((1, 2, 3)), [y.flatten(1)], None, "text"

    converted = to_scale_equivariant(Many(), SCALES)
    number, (flat,), nothing, text = converted(torch.randn(5, 3, 9, 9))
    assert number.shape == (5,)
    assert flat.shape == (5, 196)
    assert nothing is None
    assert text == "text"
    number, (flat,), *_ = to_scale_equivariant(Many(), SCALES, project=None)(torch.randn(5, 3, 9, 9))
    assert number.shape == (5, 3)
    assert flat.shape == (5, 196, 3)


def test_attributes_of_the_inner_network_raise_helpful_errors():
    converted = to_scale_equivariant(resnet18(classes=5), (1, 2))
    with pytest.raises(AttributeError, match=r"fc is a part of the network: use \.network\.fc"):
        _ = converted.fc
    with pytest.raises(AttributeError, match=r"set \.network\.fc"):
        converted.fc = nn.Linear(512, 3)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = converted.nothing
    converted.network.fc = nn.Linear(512, 3)
    assert converted(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert isinstance(converted, ScaleEquivariant)
    assert "before avgpool" in repr(converted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    net, x = sequential().to(dtype).eval(), torch.randn(2, 3, 16, 16, dtype=dtype)
    with torch.no_grad():
        converted = to_scale_equivariant(net, SCALES, project=None)
        assert converted(x).dtype == dtype
        torch.testing.assert_close(converted(x)[:, :, 0], net(x))
        moved = to_scale_equivariant(sequential(), SCALES).to(dtype)
        assert moved(x).dtype == dtype


def test_unet_maps_are_reduced_at_the_output():
    net, x = UNet().eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        maps = to_scale_equivariant(net, SCALES, project=None, example=x)(x)
        torch.testing.assert_close(to_scale_equivariant(net, SCALES, example=x)(x), maps.mean(2))


def test_a_network_for_one_size_needs_no_example_without_projection():
    """224 pixels do not fit its classifier; without a place to find nothing has to run."""

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 2, 3, padding=1), nn.Linear(128, 5)

        def forward(self, x):
            return self.head(self.conv(x).flatten(1))

    net = Fixed()
    converted = to_scale_equivariant(net, (1, 2), project=None)
    assert converted(torch.randn(2, 3, 8, 8)).shape == (2, 5, 2)
    with pytest.raises(ValueError, match=r"Fixed fails on the example.*pass an input that it accepts as example="):
        to_scale_equivariant(net, (1, 2))
    assert str(to_scale_equivariant(net, (1, 2), example=torch.randn(1, 3, 8, 8)).place) == "after conv"


def test_vgg_is_reduced_before_it_is_flattened():
    net, x = VGG().eval(), torch.randn(2, 3, 32, 32)
    converted = to_scale_equivariant(net, SCALES, example=x)
    with torch.no_grad():
        maps = converted.network.avgpool.forward(converted.network.features(torch.cat([x] * 3)))
        expected = net.classifier(maps.unflatten(0, (3, -1)).mean(0).flatten(1))
        torch.testing.assert_close(converted(x), expected)
