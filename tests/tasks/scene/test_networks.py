"""A frozen network with a scale axis, and its estimates of scale."""

from __future__ import annotations

import pytest
import torch

from scale_disco import resample
from scale_disco.models import create_model, list_models
from scale_disco.models.resnet import cnn
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.scene.networks import SCALES, Backbone, ScaleEstimator
from scale_disco.tasks.scene.options import BACKBONES
from tests.conftest import SHARED, tiered

WEIGHTS = SHARED / "data/resnet50/resnet50_caffe_fp16.safetensors"


@pytest.fixture(scope="module")
def trained() -> Backbone:
    if not WEIGHTS.is_file():
        pytest.skip("no weights of a ResNet-50 in ../shared/data/resnet50")
    return Backbone(pretrained=WEIGHTS)


def images() -> torch.Tensor:
    return 255 * photos()[:3].expand(-1, 3, -1, -1)


@pytest.mark.parametrize("kind", BACKBONES)
def test_maps_have_the_shape_of_the_paper(kind):
    net = Backbone(kind)
    for height, width in ((64, 96), (65, 71), (20, 130)):
        maps = net(255 * torch.rand(1, 3, height, width))
        assert maps.shape == (1, 512, 9, -(-height // 8), -(-width // 8))
        assert maps.isfinite().all()


def test_it_stays_frozen_and_is_deterministic():
    net = ScaleEstimator(Backbone(), create_model("scene/profile").readout).train()
    assert not net.backbone.training
    assert net.readout.training
    assert not any(parameter.requires_grad for parameter in net.backbone.parameters())
    image = 255 * torch.rand(1, 3, 64, 64)
    assert torch.equal(net.maps(image), Backbone()(image))


def test_maps_do_not_depend_on_the_batch():
    net = Backbone()
    images = 255 * torch.rand(3, 3, 64, 80)
    assert torch.allclose(net(images)[1:2], net(images[1:2]), atol=1e-4)


def test_the_first_scale_is_the_original_network(trained):
    """Away from the edges, where the original network has zero padding."""
    net = cnn("resnet50", pretrained=WEIGHTS, stride_first=True).eval()
    image = images()[:1]
    x = image.flip(1) - torch.tensor([103.939, 116.779, 123.68])[:, None, None]  # Caffe's pixels
    with torch.no_grad():
        expected = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x))))))
        maps = trained(image)[:, :, 0]
    inside = (..., slice(7, -7), slice(7, -7))
    assert torch.allclose(maps[inside], expected[inside], atol=1e-3)


def test_an_octave_moves_profiles_by_four_scales(trained):
    """On the mean over photos; the error of the plain conversion is nearly twice as large."""
    errors = {}
    for kind, net in (("shift", trained), ("as-is", Backbone("as-is", pretrained=WEIGHTS))):
        large, small = (
            net(batch)[..., 2:-2, 2:-2].mean((3, 4)) for batch in (images(), resample(images(), 1 / 2, antialias=True))
        )
        std = large.std(0).mean(1, keepdim=True) + 1e-6  # of a channel over photos
        errors[kind] = ((small[..., :5] - large[..., 4:]).abs() / std).mean().item()
    assert errors["shift"] < 0.65 * errors["as-is"]


def test_the_size_of_resized_photos_is_read_without_training(trained):
    net = ScaleEstimator(trained, create_model("scene/shift").readout)
    whole = net.maps(images()).mean((3, 4))
    for octaves in (0.25, 1.0):
        small = net.maps(resample(images(), 2**-octaves, antialias=True)).mean((3, 4))
        predicted = net.readout.compare(whole, small)
        assert (predicted - octaves).abs().median() < 0.15


def test_models_are_listed_and_created():
    assert list_models("scene") == [
        f"scene/{name}" for name in ("argmax", "centroid", "profile", "equivariant", "matched", "shift", "first-scale")
    ]
    net = create_model("scene/argmax", backbone="as-is")
    assert net(255 * torch.rand(2, 3, 64, 64)).shape == (2,)
    assert (net.cell, net.window) == (8, 64)


@pytest.mark.parametrize("kind", tiered(BACKBONES, lambda kind: kind == "shift"))
def test_reach_is_the_radius_of_the_receptive_field(kind):
    net, size = Backbone(kind), 640
    image = 255 * torch.rand(1, 3, 64, size)
    other = image.clone()
    other[..., size - 16 :] = 0
    touched = (net(image) - net(other)).abs().amax((0, 1, 2, 3)) > 1e-5
    first = int(touched.nonzero().min())
    assert first * 8 >= size - 16 - net.reach - 8
    assert first * 8 <= size - 16 - net.reach // 2  # and it is tight
    assert create_model("scene/shift", backbone=kind).reach == net.reach


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="Backbone: kind must be one of shift, as-is, hermite, got 'odd'"):
        Backbone("odd")
    with pytest.raises(ValueError, match="sha256 is the checksum of a file of weights"):
        Backbone(sha256="0" * 64)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Backbone(pretrained="nowhere.safetensors")


def test_other_weights_are_refused(trained):
    with pytest.raises(ValueError, match="expected sha256 0000"):
        Backbone(pretrained=WEIGHTS, sha256="0" * 64)
    assert str(SCALES) in trained.fingerprint
    assert trained.fingerprint != Backbone().fingerprint
