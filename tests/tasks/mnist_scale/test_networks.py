from __future__ import annotations

import pytest
import torch

from scale_disco import Scales, with_scales
from scale_disco.models import create_model, list_models
from scale_disco.nn.conv import ScaleConvolution
from scale_disco.tasks.mnist_scale.networks import CornerMaxPool, CornerMixedPool

# The counts of the authors' networks (Table 1 rounds them to thousands).
PARAMETERS = {
    "mnist/cnn": 494_549,
    "mnist/sicnn": 496_639,
    "mnist/si-convnet": 494_549,
    "mnist/sevf": 475_475,
    "mnist/dss": 494_359,
    "mnist/ss-cnn": 493_688,
    "mnist/sesn-hermite": 494_549,
    "mnist/sesn-bspline": 494_549,
    "mnist/sesn-fourier": 494_549,
    "mnist/sesn-radial": 494_549,
    "mnist/disco": 494_549,
    "mnist/disco-decide": 494_549,
    "mnist/decimated": 494_549,
    "mnist/decimated-decide": 494_549,
}


def test_all_networks_of_table_1_are_listed():
    assert set(list_models("mnist")) == set(PARAMETERS)
    assert set(PARAMETERS) <= set(list_models())


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_parameters_of_the_paper_and_gradients(name):
    net = create_model(name)
    assert sum(parameter.numel() for parameter in net.parameters()) == PARAMETERS[name]
    images = torch.rand(2, 1, 28, 28)
    scores = net(images)
    assert scores.shape == (2, 10)
    scores.square().sum().backward()
    for key, parameter in net.named_parameters():
        if "unused" in key:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    net.eval()
    with torch.inference_mode():
        assert net(torch.rand(1, 1, 56, 56)).shape == (1, 10)  # larger images


@pytest.mark.parametrize("name", ["mnist/disco", "mnist/sesn-hermite", "mnist/sesn-bspline"])
def test_bases_for_augmentation_differ(name):
    first, second = (
        next(
            module
            for module in create_model(name, augmented=augmented).modules()
            if isinstance(module, ScaleConvolution)
        )
        for augmented in (False, True)
    )
    assert first.basis.fingerprint != second.basis.fingerprint


def test_weights_are_initialized_as_the_authors_do():
    layers = [module for module in create_model("mnist/disco").modules() if isinstance(module, ScaleConvolution)]
    for layer, fan_in in zip(layers, (49, 32 * 49, 63 * 49), strict=True):
        assert 0.95 * fan_in**-0.5 < layer.weight.abs().max() <= fan_in**-0.5
        assert not layer.bias.any()


@pytest.mark.parametrize("pool", [CornerMaxPool(), CornerMixedPool()])
def test_last_pool_grows_with_the_feature_map(pool):
    x = torch.randn(2, 3, 14, 14)
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(pool(large), pool(x))


def test_last_pools_are_those_of_the_authors():
    x = torch.randn(2, 3, 14, 14)
    expected = torch.nn.Sequential(torch.nn.MaxPool2d(7, 1), torch.nn.AvgPool2d(2, 4))(x)
    torch.testing.assert_close(CornerMixedPool()(x), expected)
    torch.testing.assert_close(CornerMaxPool()(x), torch.nn.MaxPool2d(8, padding=2)(x))


def test_invalid_names_and_sizes_raise():
    with pytest.raises(ValueError, match=r"create_model: expected one of mnist/cnn, .*, got 'disco'"):
        create_model("disco")
    with pytest.raises(ValueError, match=r"expected square maps of a multiple of 14 pixels .* got 15x15"):
        create_model("mnist/cnn")(torch.rand(2, 1, 30, 30))


@pytest.mark.parametrize("name", ["mnist/decimated", "mnist/decimated-decide"])
def test_decimated_networks_take_enlarged_images(name):
    """Enlarged by 2^(1/3), 2^(2/3) and 2, maps have 17, 22 and 27 pixels, which the last pool does not take."""
    net = create_model(name).eval()
    images = torch.rand(2, 1, 28, 28)
    for enlarge in range(4):
        more = with_scales(net, Scales.geometric(2 ** (1 / 3), 4 + enlarge, start=2 ** (-enlarge / 3)))
        assert more(images).shape == (2, 10)
        if not enlarge:
            assert torch.equal(more(images), net(images))


@pytest.mark.parametrize("name", ["mnist/disco-decide", "mnist/decimated-decide"])
def test_every_scale_decides(name):
    """The decision is the mean of the probabilities of all scales, each that of the network with this scale alone."""
    net = create_model(name).eval()
    images = torch.rand(2, 1, 28, 28)
    steps = Scales.geometric(2 ** (1 / 3), 4)
    pair = with_scales(net, steps[:2])(images).exp()
    first = with_scales(net, steps[:1])(images).exp()
    assert torch.allclose(pair.sum(1), torch.ones(2))
    second = 2 * pair - first
    assert (second > 0).all()
    assert torch.allclose(second.sum(1), torch.ones(2))
    assert not torch.allclose(first, second, atol=1e-5, rtol=0)
