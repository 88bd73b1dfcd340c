"""The first scale is the given network, whatever was done to it, or the conversion is refused."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scale_disco import Scales, bake, to_scale_equivariant
from scale_disco.convert import layers
from scale_disco.convert.layers import FoldedConv
from scale_disco.functional import _winograd
from tests.convert.test_layers import lifted

SCALES = Scales([1, 2**0.5, 2])
indexed_max = partial(F.max_pool2d, return_indices=True)


def conv(channels=8):
    return nn.Conv2d(channels, channels, 3, padding=1)


def changed(attributes, *arguments, **options):
    """A convolution whose attributes were changed after its construction."""
    layer = nn.Conv2d(2, 4, *arguments, **options).double()
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # of the ordinary convolution
@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"padding": (1, 2)},
        {"padding": 2},
        {"padding": [1]},
        {"padding": "same"},
        {"padding": "valid"},
        {"stride": 2, "padding": (0, 1)},
        {"stride": [2], "dilation": (2,)},
        {"dilation": 2},
        {"dilation": (1, 3), "padding": "same"},
        {"_reversed_padding_repeated_twice": [2, 0, 1, 3]},
        {"_reversed_padding_repeated_twice": (1, 1, -1, 0)},
        {"padding_mode": "zeros"},
        {"padding_mode": "replicate"},
        {"kernel_size": (7, 7), "in_channels": 5, "out_channels": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("padding", [1, "same"], ids=str)
def test_convolutions_are_converted_by_what_they_do_now(attributes, padding, mode, side):
    layer = changed(attributes, side, padding=padding, padding_mode=mode)
    x = torch.randn(2, 2, 24, 20, dtype=torch.float64)
    try:
        expected = layer(x)
    except RuntimeError:  # strides with padding "same"
        return
    assert torch.equal(lifted(FoldedConv(layer, SCALES), x)[:, :, 0], expected)


def test_changed_groups_and_pointwise_strides():
    layer = changed({"groups": 1}, 3, groups=2)
    layer.weight = nn.Parameter(torch.randn(4, 2, 3, 3, dtype=torch.float64))
    x = torch.randn(1, 2, 9, 9, dtype=torch.float64)
    assert torch.equal(lifted(FoldedConv(layer, SCALES), x)[:, :, 0], layer(x))
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1)).double()
    net[1].stride = 2
    converted = to_scale_equivariant(net, SCALES, project=None, downsampling="centered")
    assert converted(x).shape == (1, 4, 3, 4, 4)


class SegNet(nn.Module):
    """Unpools to the places of the maxima, by modules or by functions."""

    def __init__(self, modules):
        super().__init__()
        self.down, self.deep, self.up = nn.Conv2d(3, 8, 3, padding=1), conv(), nn.Conv2d(8, 2, 3, padding=1)
        self.pool = nn.MaxPool2d(2, return_indices=True) if modules else partial(indexed_max, kernel_size=2)
        self.unpool = nn.MaxUnpool2d(2) if modules else partial(F.max_unpool2d, kernel_size=2)

    def forward(self, x):
        x = self.down(x)
        pooled, places = self.pool(self.deep(x))
        return self.up(self.unpool(self.deep(pooled), places, output_size=x.shape))


@pytest.mark.parametrize("modules", [True, False])
def test_places_of_maxima_are_those_of_the_network(modules, monkeypatch):
    """Transforms round differently, and another place can be the maximum: so these networks do not use them."""
    transformed = []

    def is_faster(x, kernel, dilation):
        transformed.append(kernel)
        return kernel.shape[-1] == 3

    monkeypatch.setattr(_winograd, "is_faster", is_faster)
    torch.manual_seed(0)
    net, x = SegNet(modules).eval(), torch.randn(2, 3, 32, 32)
    with pytest.warns(UserWarning, match="max pooling windows stay the same at all scales"):
        converted = to_scale_equivariant(net, SCALES, project=None)
    with torch.no_grad():
        for network in (converted, converted.with_scales((1, 2)), bake(converted)):
            assert torch.equal(network(x)[:, :, 0], net(x))
        assert not transformed
        ordinary = to_scale_equivariant(nn.Sequential(net.down, net.deep), SCALES, project=None)
        torch.testing.assert_close(ordinary(x)[:, :, 0], net.deep(net.down(x)))
    assert transformed


@pytest.mark.parametrize("pooling", ["average", "growing"])
def test_indices_of_other_pools_are_refused(pooling):
    for modules, name in ((True, "pool (MaxPool2d that returns indices)"), (False, "max_pool2d_with_indices outside")):
        with pytest.raises(ValueError, match=re.escape(name)):
            to_scale_equivariant(SegNet(modules), SCALES, pooling=pooling)


class Watched(nn.Module):
    """Does something else as soon as its convolution is not torch's own."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = conv(), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x = self.conv(x)
        return self.head(x if type(self.conv) is nn.Conv2d else x[..., :1] + 0 * x)


def watched(tail=()):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Watched(), *tail)


POOLED = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 5)]


@pytest.mark.parametrize("project", ["auto", "decision", None, "2", "1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_first_scale_that_differs_is_refused(project, dtype):
    net, x = watched(POOLED).to(dtype), torch.randn(2, 3, 16, 16, dtype=dtype)
    if project == "1":  # what follows is ordinary
        assert to_scale_equivariant(net, SCALES, project=project, example=x)(x).shape == (2, 5)
        return
    text = "the first scale of the converted Sequential differs from its output; the first module that differs is "
    for strict in (True, False):
        with pytest.raises(ValueError, match=f"^to_scale_equivariant: {text}2.head$"):
            to_scale_equivariant(net, SCALES, project=project, example=x, strict=strict)


def test_options_that_change_the_first_scale_may_do_so():
    for options in ({"pooling": "average"}, {"downsampling": "centered"}):
        net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
        assert to_scale_equivariant(net, SCALES, project=None, **options)(torch.randn(1, 3, 32, 32)).shape[2] == 3


def test_wrong_layers_are_named(monkeypatch):
    layout_of = layers._layout_of

    def old_padding(layer):
        layout = layout_of(layer)
        return layout if layer.in_channels == 3 else layout._replace(pads=(((0, 2), (1, 1)),))

    monkeypatch.setattr(layers, "_layout_of", old_padding)
    with pytest.raises(ValueError, match=r"the first module that differs is 2$"):
        to_scale_equivariant(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), conv()), SCALES)


class Chaotic(nn.Module):
    """Rounds differently for other batch sizes, by a tenth of its output; with `mixes` it depends on other images."""

    def __init__(self, mixes=False):
        super().__init__()
        self.conv, self.head, self.mixes = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5), mixes

    def forward(self, x):
        x = self.conv(x) * len(x) * (1 / 3) / (len(x) * (1 / 3))
        x = x - 0.01 * x.mean(0, keepdim=True) if self.mixes else x
        return self.head(10 * torch.sin(1e6 * x).mean((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounding_is_not_a_dependence_on_the_batch(dtype):
    torch.manual_seed(0)
    net, x = Chaotic().to(dtype), torch.randn(2, 3, 16, 16, dtype=dtype)
    with torch.no_grad():
        difference = (net(torch.cat([x] * 3))[:2] - net(x)).abs().max() / net(x).abs().max()
    assert difference > 0.02 or dtype == torch.float64
    assert to_scale_equivariant(net, SCALES, example=x)(x).shape == (2, 5)
    with pytest.raises(ValueError, match="depends on the other images of the batch"):
        to_scale_equivariant(Chaotic(mixes=True).to(dtype), SCALES, example=x)


def test_networks_that_need_their_precision_are_compared_in_it():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return self.conv(x.float()) - 0.01 * x.float().mean(0, keepdim=True)[:, :1]

    with pytest.raises(ValueError, match="depends on the other images of the batch"):
        to_scale_equivariant(Single(), SCALES)
