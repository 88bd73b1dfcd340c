from __future__ import annotations

import pytest
import torch

from scale_disco.models import create_model, list_models
from scale_disco.nn.conv import ScaleConvolution


@pytest.mark.parametrize("name", list_models("digits"))
@pytest.mark.parametrize("side", [28, 45, 56])
def test_networks_have_the_same_parameters_and_take_any_image(name, side):
    net = create_model(name)
    assert sum(parameter.numel() for parameter in net.parameters()) == 25_826
    assert net(torch.randn(2, 1, side, side)).shape == (2, 10)


@pytest.mark.parametrize("kind", ["disco", "sesn-hermite"])
@pytest.mark.parametrize("augmented", [False, True])
def test_bases_are_those_of_the_large_networks(kind, augmented):
    def spec(family):
        layers = create_model(f"{family}/{kind}", augmented=augmented).modules()
        return [layer.basis.spec for layer in layers if isinstance(layer, ScaleConvolution)]

    assert spec("digits") == spec("mnist")
    assert len(spec("digits")) == 3


def test_scores_are_invariant_to_position():
    """The classifier sees the largest response, wherever it is."""
    net = create_model("digits/disco").eval()
    image = torch.zeros(1, 1, 120, 120)
    image[..., 52:68, 52:68] = torch.rand(16, 16)
    with torch.no_grad():
        assert torch.allclose(net(image), net(image.roll((4, -4), (2, 3))), atol=1e-5)
