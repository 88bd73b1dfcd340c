from __future__ import annotations

import pytest
import torch
from torch import nn

from scale_disco import resample
from scale_disco.tasks.generalization.profiles import PretrainedStages, cached_profiles, scale_profiles
from tests.conftest import SHARED


class Edges(nn.Module):
    """A stand-in for a pretrained network."""

    sha256 = "0"

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x / 255).relu()


def test_profiles_are_means_of_shrunk_images():
    net, images = Edges(), [torch.randint(0, 256, (3, height, 40), dtype=torch.uint8) for height in (40, 48)]
    profiles = scale_profiles(net, images, [0.5, 1, 2])
    assert profiles.shape == (2, 4, 3)
    shrunk = resample(images[1][None].float(), 1 / 2, antialias=True)
    assert torch.equal(profiles[1, :, 2], net(shrunk).mean((2, 3))[0])
    with pytest.raises(ValueError, match="image 0 of 40 x 40 pixels shrunk by 4 is below 16 pixels"):
        scale_profiles(net, images, [1, 4])


def test_profiles_are_cached(tmp_path, monkeypatch):
    net, images = Edges(), [torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8)]
    first = cached_profiles(net, images, [1, 2], key="a", cache=tmp_path)
    monkeypatch.setattr(Edges, "forward", lambda self, x: 1 / 0)
    assert torch.equal(cached_profiles(net, images, [1, 2], key="a", cache=tmp_path), first)
    with pytest.raises(ZeroDivisionError):
        cached_profiles(net, images, [1, 2], key="b", cache=tmp_path)


def test_pretrained_stages_see_what_the_weights_expect():
    path = SHARED / "data" / "resnet50" / "resnet50_caffe_fp16.safetensors"
    if not path.is_file():
        pytest.skip("no weights of a ResNet-50 in ../shared/data/resnet50")
    net = PretrainedStages(path)
    red, blue = (torch.zeros(1, 3, 64, 64) for _ in range(2))
    red[:, 0], blue[:, 2] = 255, 255
    maps = net(torch.cat([red, blue]))
    assert maps.shape == (2, 512, 8, 8)
    assert net.mean.flatten().tolist() == pytest.approx([123.68, 116.779, 103.939])
    assert not torch.allclose(maps[0], maps[1])
