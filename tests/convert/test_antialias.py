"""Converted networks whose scales see the image at their own resolution."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
from torch import nn

from scale_disco import Scales, bake, resample, to_scale_equivariant
from scale_disco.convert.layers import FoldedLift


def network(dims: int = 2) -> nn.Module:
    conv, pool = ((nn.Conv1d, nn.MaxPool1d), (nn.Conv2d, nn.MaxPool2d), (nn.Conv3d, nn.MaxPool3d))[dims - 1]
    torch.manual_seed(0)
    return nn.Sequential(
        conv(2, 4, 3, padding=1), nn.ReLU(), pool(3, 1, 1), conv(4, 4, 3, padding=1), nn.ReLU()
    ).double()


def converted(scales=(1, 3), dims: int = 2, **options):
    example = torch.zeros(1, 2, *[16] * dims, dtype=torch.float64)
    return to_scale_equivariant(
        network(dims), scales, example=example, project=None, pooling="growing", antialias=True, **options
    )


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_shrunk_image_moves_along_the_scales_exactly(dims):
    """Through kernels, ReLU and maxima, which without it commute with subsampling only."""
    net = converted(dims=dims)
    image = torch.randn(1, 2, *[(96, 60, 45)[dims - 1]] * dims, dtype=torch.float64)
    where, inside = (slice(1, None, 3),) * dims, (slice(6, -6),) * dims
    large = net(image)[:, :, 1][(..., *where)][(..., *inside)]
    small = net(resample(image, 1 / 3, antialias=True))[:, :, 0][(..., *inside)]
    assert large.numel()
    assert (large - small).abs().max() < 1e-10


def test_without_it_the_two_differ():
    plain = to_scale_equivariant(
        network(), (1, 3), example=torch.zeros(1, 2, 16, 16).double(), project=None, pooling="growing"
    )
    image = torch.randn(1, 2, 60, 60, dtype=torch.float64)
    large = plain(image)[:, :, 1, 1::3, 1::3]
    small = plain(resample(image, 1 / 3, antialias=True))[:, :, 0]
    assert (large - small)[..., 4:-4, 4:-4].abs().max() > 0.1


def test_the_first_scale_is_the_network():
    image = torch.randn(2, 2, 32, 32, dtype=torch.float64)
    assert torch.equal(converted((1, 2**0.5, 2))(image)[:, :, 0], network()(image))


def test_means_move_along_the_scales():
    """The means of maps of a shrunk image are those of the next scales: what is too fine for these has no part in."""
    scales = Scales.geometric(2**0.5, 5)
    nets = {
        antialias: to_scale_equivariant(
            network(),
            scales,
            example=torch.zeros(1, 2, 16, 16).double(),
            project=None,
            pooling="growing",
            antialias=antialias,
        )
        for antialias in (True, False)
    }
    torch.manual_seed(1)
    image = torch.randn(1, 2, 256, 256, dtype=torch.float64)
    errors = {}
    for antialias, net in nets.items():
        large = net(image)[..., 32:-32, 32:-32].mean((0, 3, 4))  # [C, S]
        small = net(resample(image, 1 / 2, antialias=True))[..., 16:-16, 16:-16].mean((0, 3, 4))
        errors[antialias] = ((small[:, :3] - large[:, 2:]).norm() / large[:, 2:].norm()).item()
    assert errors[True] < 0.25 * errors[False]


def test_lift_keeps_the_mean_and_the_size():
    lift = FoldedLift(Scales([1, 1.5, 4]), 2)
    flat = torch.full((2, 3, 5, 7), 2.0)
    assert torch.allclose(lift(flat), torch.full((6, 3, 5, 7), 2.0))
    noise = torch.randn(1, 1, 64, 64)
    stds = [scale.std().item() for scale in lift(noise)]
    assert stds[0] == noise.std()
    assert all(a > 1.2 * b for a, b in itertools.pairwise(stds))


def test_antialiased_networks_are_cast_saved_and_baked():
    net = converted((1, 2**0.5, 2))
    assert set(net.state_dict()) == set(network().state_dict())
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = converted((1, 2**0.5, 2))
    other.load_state_dict(torch.load(file, weights_only=True))
    image = torch.randn(1, 2, 24, 24, dtype=torch.float64)
    expected = net(image)
    assert torch.equal(other(image), expected)
    assert torch.allclose(bake(net)(image), expected)
    single = converted((1, 2**0.5, 2)).float()
    assert single(image.float()).dtype == torch.float32
    assert torch.allclose(single.double()(image), expected, atol=1e-6)
