"""Relative scale of images: synthetic profiles, resized textures and real photos of known distances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scale_disco import resample
from scale_disco.tasks.io.images import read_image
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.scene.compare import (
    SHORTEST,
    ImageProfile,
    check_image,
    compare_profiles,
    image_profiles,
    relative_scale,
)
from scale_disco.tasks.scene.networks import create

OCTAVE = 4  # scales per octave


@pytest.fixture(scope="module")
def estimator():
    """The network with random weights, enough for even textures."""
    return create("shift")


@pytest.fixture(scope="module")
def lawn():
    return 255 * photos()[5].expand(3, -1, -1)


def resized(image, factor):
    return resample(image[None], factor, antialias=True)[0]


def profiles_of(octaves, scales=13):
    """Profiles of images whose contents are known octaves larger, at scales from 1 on."""
    generator, fine = torch.Generator().manual_seed(0), 4  # values per scale
    rough = torch.rand(64, 1, 60 * fine, generator=generator)
    smooth = torch.nn.functional.avg_pool1d(rough, 9 * fine, 1)[:, 0]  # over the logarithm of the size of the content
    base = smooth[:, :, None] * (1 + 0.02 * torch.rand(*smooth.shape, 4, generator=generator))
    starts = [fine * 20 - round(fine * OCTAVE * each) for each in octaves]
    return [ImageProfile(0, base[:, start : start + fine * scales : fine]) for start in starts]


def test_shifted_profiles_give_their_shifts():
    octaves = [0.0, 0.5, -0.1875, 1.75, 1.1875]
    result = compare_profiles(profiles_of(octaves))
    truth = torch.tensor(octaves, dtype=torch.float64)
    assert (result.octaves - truth).abs().max() < 0.02
    assert (result.pairs - (truth[:, None] - truth)).abs().max() < 0.03
    assert torch.equal(result.pairs, -result.pairs.T)
    assert result.uncertainty[0] == 0
    assert result.uncertainty[1:].max() < 0.1


def test_first_scales_count():
    """An image twice as large with the same content has the same responses, from a scale an octave further on."""
    profile, other = profiles_of([0, 0])
    result = compare_profiles([profile, other._replace(first=OCTAVE)])
    assert result.octaves[1] == pytest.approx(1, abs=0.02)


def test_a_chain_of_small_differences_supports_a_large_one():
    """Images of 13 scales can be compared over 2 1/4 octaves; here the first and the last differ by four."""
    truth = torch.arange(0, 5, dtype=torch.float64) - 4
    octaves = [*truth.tolist(), *(truth[1:] - 0.5).tolist()]
    result = compare_profiles(profiles_of(octaves))
    truth = torch.tensor(octaves, dtype=torch.float64)
    assert (result.pairs[0, 4] + 4).abs() > 1.7
    assert (result.octaves - (truth - truth[0])).abs().max() < 0.03


def test_what_differs_at_the_best_shift_makes_it_uncertain():
    """All channels and windows are the same, so that all replicates of the bootstrap are."""
    bump = torch.exp(-(torch.arange(-10.0, 11).square()) / 20)[None, :, None].expand(8, -1, 4)
    image, farther = ImageProfile(0, bump[:, 2:15]), ImageProfile(0, bump[:, 4:17])
    assert compare_profiles([image, farther]).octaves[1] == pytest.approx(-0.5, abs=0.01)
    assert compare_profiles([image, farther]).uncertainty[1] < 1e-6
    weaker = compare_profiles([image, farther._replace(responses=0.8 * farther.responses)])
    assert weaker.octaves[1] == pytest.approx(-0.5, abs=0.1)
    assert weaker.uncertainty[1] > 0.005


def test_beyond_the_range_the_uncertainty_is_infinite():
    growing = torch.arange(1.0, 40)[None, :, None].expand(8, -1, 4) ** torch.linspace(1, 2, 8)[:, None, None]
    result = compare_profiles([ImageProfile(0, growing[:, :8]), ImageProfile(0, growing[:, 30:38])])
    assert result.uncertainty.tolist() == [0, math.inf]


@pytest.mark.parametrize("factor", [0.5, 0.6, 1.5])
def test_resized_texture(factor, estimator, lawn):
    result = relative_scale([lawn, resized(lawn, factor)], estimator)
    assert result.octaves[1] == pytest.approx(math.log2(factor), abs=0.15)
    swapped = relative_scale([resized(lawn, factor), lawn], estimator)
    assert swapped.octaves[1] == pytest.approx(-result.octaves[1].item(), abs=1e-6)


def test_same_image_twice(estimator, lawn):
    result = relative_scale([lawn.to(torch.uint8), lawn.to(torch.uint8)], estimator)
    assert result.octaves.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert result.uncertainty[1] < 0.1


def test_uncertainty_is_larger_for_different_content(estimator, lawn):
    rocket = 255 * photos()[4].expand(3, -1, -1)
    copy, other = relative_scale([lawn, resized(lawn, 0.7), rocket], estimator).uncertainty[1:]
    assert other > 2 * copy


def test_profiles_have_the_scales_that_sizes_allow(estimator, lawn):
    assert [each.first for each in image_profiles([lawn, resized(lawn, 4)], estimator)] == [-2, 4]
    small, oblong = image_profiles([lawn[:, :SHORTEST, :SHORTEST], lawn.repeat(1, 1, 12)[:, :SHORTEST]], estimator)
    assert (small.first, small.responses.shape) == (-2, (512, 7, 4))
    assert (oblong.first, oblong.responses.shape[1]) == (-2, 7)


def test_progress_and_errors(estimator, lawn):
    calls = []
    relative_scale([lawn[:, :64, :64]] * 2, estimator, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]
    with pytest.raises(ValueError, match="relative_scale: expected two or more images, got 1"):
        relative_scale([lawn], estimator)
    with pytest.raises(ValueError, match=r"image 1 must be \[3, H, W\], got shape \(1, 160, 160\)"):
        relative_scale([lawn, lawn[:1]], estimator)
    with pytest.raises(ValueError, match="image 0 is too small: 60 x 47 pixels, needs 48 each way"):
        relative_scale([lawn[:, :47, :60], lawn], estimator)
    plain = torch.full((3, 64, 64), 90.0)
    with pytest.raises(ValueError, match="wall has no texture to compare: the standard deviation of its luma is 0 of"):
        check_image("wall", plain)
    plain[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="no texture"):
        check_image("wall", plain)


@pytest.mark.parametrize("material", ["sponge", "cracker"])
def test_real_distances(material, shared):
    """Nine photos of a material from 14 to 56 cm."""
    folder, weights = shared / "data/kth_tips" / material, shared / "data/resnet50/resnet50_caffe_fp16.safetensors"
    if not folder.is_dir() or not weights.is_file():
        pytest.skip("no KTH-TIPS or no ImageNet weights in ../shared")
    paths = [next(folder.glob(f"*-scale_{distance}_im_1_*.png")) for distance in range(1, 10)]
    result = relative_scale([read_image(path) for path in paths], create("shift", pretrained=weights))
    gradient = np.polyfit(-np.arange(9) / 4, result.octaves.numpy(), 1)[0]
    assert (result.octaves.diff() < 0).all()
    assert gradient == pytest.approx(1, abs=0.1)
