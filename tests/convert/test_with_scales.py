from __future__ import annotations

import pytest
import torch
from torch import nn

from scale_disco import DiscreteBasis, HermiteBasis, Scales, bake, hermite_mixing, to_scale_equivariant, with_scales
from scale_disco.nn import (
    ScaleAvgPool2d,
    ScaleBatchNorm2d,
    ScaleBlurPool2d,
    ScaleConv2d,
    ScaleDecision,
    ScaleLift2d,
    ScaleMaxPool2d,
)
from tests.convert.networks import images, network, sequential

FEW, MANY = Scales.geometric(2, 2), Scales.geometric(2, 3)


class Head(nn.Module):
    """Largest response of every channel at every scale, and a decision at every scale."""

    def __init__(self):
        super().__init__()
        self.linear, self.decision = nn.Linear(8, 5), ScaleDecision()

    def forward(self, x):
        return self.decision(self.linear(x.amax((3, 4)).movedim(2, 1)).movedim(1, 2))


def layers(scales, extent=1, mixed=False):
    basis = DiscreteBasis(3, scales, prior="white")
    basis = basis.mix(hermite_mixing(3, 0.9)).normalized() if mixed else basis
    torch.manual_seed(0)
    return nn.Sequential(
        *(ScaleLift2d(3, 8, basis), ScaleBatchNorm2d(8), nn.ReLU(), ScaleBlurPool2d(scales)),
        *(ScaleConv2d(8, 8, basis, scale_extent=extent), ScaleAvgPool2d(3, 1, 1, scales=scales), nn.ReLU()),
        *(ScaleConv2d(8, 8, DiscreteBasis(1, scales)), ScaleMaxPool2d(3, 1, 1, scales=scales), Head()),
    ).eval()


@pytest.mark.parametrize("mixed", [False, True])
def test_layers_compute_what_layers_of_the_new_scales_compute(mixed):
    few, many, x = layers(FEW, mixed=mixed), layers(MANY, mixed=mixed), torch.randn(2, 3, 32, 32)
    changed = with_scales(few, MANY)
    torch.testing.assert_close(changed(x), many(x))
    assert list(changed.state_dict()) == list(few.state_dict())
    assert changed[0].basis.scales == changed[3].scales == changed[5].scales == MANY
    assert few[0].basis.scales == FEW
    torch.testing.assert_close(with_scales(changed, FEW)(x), few(x))


def test_solved_stencils_are_those_of_the_new_scales():
    few, many = (ScaleLift2d(3, 4, DiscreteBasis(3, Scales.geometric(2**0.5, count))) for count in (2, 5))
    many.load_state_dict({"weight": few.weight, "bias": few.bias}, strict=False)
    x = torch.randn(1, 3, 24, 24)
    changed = with_scales(few, Scales.geometric(2**0.5, 5))
    torch.testing.assert_close(changed(x), many(x))
    assert [name for name, _ in changed.named_buffers()] == [name for name, _ in many.named_buffers()]
    changed.load_state_dict(many.state_dict())  # the note about the basis is that of the new one
    assert changed.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize("pooling", ["as-is", "growing"])
@pytest.mark.parametrize("antialias", [False, True])
def test_converted_networks_compute_what_a_conversion_to_the_new_scales_computes(pooling, antialias):
    options = {"pooling": pooling, "antialias": antialias, "project": "decision"}
    net, x = network("sequential"), images("sequential")
    few, many = (to_scale_equivariant(net, scales, **options) for scales in (FEW, MANY))
    changed = few.with_scales(MANY)
    with torch.no_grad():
        few(x)  # fills the cache of kernels
        torch.testing.assert_close(changed(x), many(x))
        assert not torch.allclose(changed(x), few(x))
    assert changed.scales == MANY
    assert list(changed.state_dict()) == list(net.state_dict())


@pytest.mark.parametrize("kind", ["resnet18", "dense, strided 7x7", "heads"])
@pytest.mark.parametrize("grid", ["full", "decimated"])
def test_every_place_of_projection_gets_the_new_number_of_scales(kind, grid):
    net, x = network(kind), images(kind)
    few, many = (to_scale_equivariant(net, scales, grid=grid, example=x) for scales in (FEW, MANY))
    with torch.no_grad():
        torch.testing.assert_close(few.with_scales(MANY)(x), many(x))


def test_weights_are_copied():
    net = layers(FEW)
    changed = with_scales(net, MANY)
    nn.init.zeros_(changed[0].weight)
    assert net[0].weight.any()
    inner = nn.ModuleDict({"body": to_scale_equivariant(sequential(), FEW)})
    assert with_scales(inner, MANY)["body"].scales == MANY


def test_extents_above_one_keep_their_steps():
    x = torch.randn(1, 3, 32, 32)
    assert with_scales(layers(FEW, extent=2), MANY)(x).shape == (1, 5)
    with pytest.raises(ValueError, match=r"ScaleConv2d: scale_extent 2 needs the steps of Scales\(1, 2\), got Scales"):
        with_scales(layers(FEW, extent=2), Scales.geometric(2**0.5, 3))
    with pytest.raises(ValueError, match="scale extent must be an integer from 1 to 1"):
        with_scales(layers(FEW, extent=2), [1])
    with pytest.raises(ValueError, match="FoldedConv: scale_extent 2 needs the steps"):
        to_scale_equivariant(sequential(), FEW, scale_extent=2).with_scales([1, 3])


def test_what_cannot_be_changed_raises_one_line():
    with pytest.raises(ValueError, match=r"expected 1, got 0.5; rescale the image instead"):
        with_scales(layers(FEW), [0.5, 1, 2])
    with pytest.raises(ValueError, match="kernels of a baked network are fixed"):
        with_scales(bake(layers(FEW)), MANY)
    with pytest.raises(ValueError, match="expected a DiscreteBasis, which can be solved again, got a hermite basis"):
        with_scales(ScaleLift2d(3, 4, HermiteBasis(3, [1, 2])), MANY)
    with pytest.raises(ValueError, match="with_scales: Sequential has no layer with scales"):
        with_scales(sequential(), MANY)
