"""Readouts of the scale axis."""

from __future__ import annotations

import pytest
import torch

from scale_disco import Scales
from scale_disco.tasks.scene.readout import READOUTS, Equivariant, Matched, Shift, _Sums

SCALES = Scales.geometric(2**0.25, 9)
CHANNELS = 6


def profiles(octaves, seed=0, count=9):
    """Smooth bumps along the axis, one per channel, shifted by octaves [N]: [N, C, S]."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(CHANNELS, generator=generator) * 2
    heights = 1 + torch.rand(CHANNELS, generator=generator)
    places = torch.arange(count) / 4
    distance = places - centers[:, None] - torch.as_tensor(octaves, dtype=torch.float32)[:, None, None]
    return heights[:, None] * (-(distance**2) / 0.5).exp() + 0.3


def readout(name):
    torch.manual_seed(0)
    return READOUTS[name](CHANNELS, SCALES).eval()


@pytest.mark.parametrize("name", READOUTS)
def test_every_readout_compares_and_reads(name):
    inputs = profiles(torch.linspace(-0.5, 0.5, 5))
    net = readout(name)
    assert net.compare(inputs[:3], inputs[2:]).shape == (3,)
    reading = net.read(inputs)
    assert reading.octaves.shape == reading.sharpness.shape == (5,)
    assert reading.octaves.isfinite().all()
    assert ((reading.sharpness >= 0) & (reading.sharpness <= 1)).all()


@pytest.mark.parametrize("name", READOUTS)
def test_comparison_is_antisymmetric(name):
    net, x, y = readout(name), profiles([0.3, -0.2, 0.0]), profiles([0.0, 0.4, 0.0], seed=1)
    assert torch.allclose(net.compare(x, y), -net.compare(y, x), atol=1e-5)
    assert torch.allclose(net.compare(x, x), torch.zeros(3), atol=1e-5)


@pytest.mark.parametrize("name", READOUTS)
def test_zeros_and_single_profiles_give_finite_values(name):
    net = readout(name)
    for inputs in (torch.zeros(4, CHANNELS, 9), torch.rand(1, CHANNELS, 9)):
        assert all(values.isfinite().all() for values in net.read(inputs))
        assert net.compare(inputs, inputs).isfinite().all()


@pytest.mark.parametrize("octaves", [-1.25, -0.5, -0.1, 0.0, 0.3, 1.0])
def test_shift_compares_without_training(octaves):
    predicted = Shift(CHANNELS, SCALES).compare(profiles([octaves]), profiles([0.0]))
    assert predicted.item() == pytest.approx(octaves, abs=0.03)


def test_shift_reads_profiles_of_one_image():
    """Two octaves in total, more than a direct comparison of two profiles covers."""
    octaves = torch.linspace(-1, 1, 41)
    predicted = Shift(CHANNELS, SCALES).read(profiles(octaves)).octaves
    assert (predicted - predicted.mean() - octaves).abs().max() < 0.1


@pytest.mark.parametrize("count", [2, 4, 9])
def test_few_profiles_are_read_like_many(count):
    octaves = torch.linspace(-0.5, 0.5, count)
    predicted = Shift(CHANNELS, SCALES).read(profiles(octaves)).octaves
    assert (predicted - predicted.mean() - octaves).abs().max() < 0.1


def test_brightness_of_a_window_is_ignored():
    bright = torch.tensor([1.0, 4.0, 0.5])[:, None, None]
    net = Shift(CHANNELS, SCALES)
    net.prepare(profiles([0.0]), "synthetic")
    plain, changed = (
        net.compare(inputs, profiles([0.0] * 3)) for inputs in (profiles([0.5] * 3), bright * profiles([0.5] * 3))
    )
    assert (plain - changed).abs().max() < 0.15


def test_windows_without_weight_are_ignored():
    octaves, other = torch.linspace(-0.5, 0.5, 21), profiles(torch.zeros(40), seed=5)
    inputs = torch.cat([profiles(octaves), other])
    weights = torch.cat([torch.ones(21), torch.zeros(40)])
    predicted = Shift(CHANNELS, SCALES).read(inputs, weights).octaves[:21]
    assert (predicted - predicted.mean() - octaves).abs().max() < 0.1


def test_costs_are_variances_of_differences():
    """The fast computation by sums of products against the definition."""
    torch.manual_seed(0)
    net, x, y = Shift(CHANNELS, SCALES), torch.rand(3, CHANNELS, 9), torch.rand(3, CHANNELS, 9)
    cross = torch.einsum("ncs,ncl->nsl", x, y)
    costs = net._costs(_Sums.of(x), _Sums.of(y), cross)
    for number, shift in enumerate(net.shifts.tolist()):
        places = [k for k in range(9) if 0 <= k - shift <= 8]
        low = [int(k - shift // 1) - (1 if shift % 1 else 0) for k in places]
        fraction = (-shift) % 1
        shifted = torch.stack(
            [y[..., at] if not fraction else torch.lerp(y[..., at], y[..., at + 1], fraction) for at in low], -1
        )
        expected = (x[..., places] - shifted).flatten(1).var(1, correction=0)
        assert torch.allclose(costs[:, number], expected, atol=1e-5)


def test_a_shifted_profile_shifts_the_output_of_equivariant():
    net = readout("equivariant")
    long = profiles([0.0, 0.3], count=13)
    net.typical.fill_(1.0)
    votes, _ = net.votes(long[:, :, :9])
    moved, _ = net.votes(long[:, :, 4:])  # an octave smaller
    assert torch.allclose(votes[:, 4:], moved[:, :5] + 1, atol=1e-5)


def test_matched_learns_and_extrapolates():
    """Trained on a quarter of an octave, with channels of noise, it predicts a whole one."""
    torch.manual_seed(0)
    net = Matched(2 * CHANNELS, SCALES)

    def noisy(octaves):
        clean = profiles(octaves)
        return torch.cat([clean, 3 * torch.rand(len(clean), CHANNELS, 9)], 1)

    net.prepare(noisy(torch.zeros(64)), "synthetic")
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        octaves = 0.25 * (2 * torch.rand(2, 64) - 1)
        loss = (net.compare(noisy(octaves[0]), noisy(octaves[1])) - (octaves[0] - octaves[1])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    far = torch.tensor([-1.0, -0.5, 0.5, 1.0]).repeat(16)
    predicted = net.compare(noisy(far), noisy(torch.zeros(64)))
    assert (predicted @ far / (far @ far)).item() > 0.8


def test_argmax_is_the_papers():
    net = readout("argmax")
    assert [tuple(p.shape) for p in net.parameters()] == [(256, CHANNELS), (256,), (1, 256), (1,)]
    inputs = profiles([0.0, 0.5])
    assert torch.equal(net(inputs), net(7 * inputs.square()))  # only the positions of maxima matter


def test_scales_must_grow_by_one_factor():
    with pytest.raises(ValueError, match=r"Readout: expected 4 or more geometric scales, got Scales\(1, 2, 3, 4\)"):
        Equivariant(4, Scales([1, 2, 3, 4]))
    with pytest.raises(ValueError, match="4 or more"):
        Shift(4, Scales([1, 2, 4]))


@pytest.mark.parametrize("name", READOUTS)
def test_readouts_are_created_on_the_meta_device(name):
    with torch.device("meta"):
        empty = READOUTS[name](6, SCALES)
    assert {key: value.shape for key, value in empty.state_dict().items()} == {
        key: value.shape for key, value in READOUTS[name](6, SCALES).state_dict().items()
    }
