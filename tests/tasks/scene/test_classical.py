"""The classical estimate: waves twice as long are an octave larger, in images of any size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.scene.classical import READS, WIDTHS, Laplacian, laplacian
from scale_disco.tasks.scene.field import cell_field, scale_field
from tests.tasks.scene.estimators import chirp


def waves(length, side=96, contrast=100.0, turn=0.3):
    places = torch.arange(side, dtype=torch.float32)
    phase = 2 * math.pi / length * (math.cos(turn) * places + math.sin(turn) * places[:, None])
    return (127 + contrast * torch.sin(phase)).expand(1, 3, side, side)


@pytest.mark.parametrize("turn", [0.0, 0.3, math.pi / 4])
@pytest.mark.parametrize(("read", "most"), [("largest", 0.1), ("mean", 0.35)])
def test_waves_twice_as_long_are_an_octave_larger(read, most, turn):
    estimator = Laplacian(read)
    short, long = (estimator(waves(length, turn=turn)).item() for length in (4, 8))
    assert long - short == pytest.approx(1, abs=most)


@given(st.floats(3.8, 8), st.floats(5, 120))
def test_the_peak_of_the_energy_is_that_of_theory(length, contrast):
    octaves = Laplacian("largest")(waves(length, contrast=contrast)).item()
    assert octaves == pytest.approx(math.log2(length / (math.sqrt(2) * math.pi) / WIDTHS[0]), abs=0.08)


@pytest.mark.parametrize("read", READS)
def test_the_field_of_a_chirp_increases(read):
    image, truth = chirp(96, 400, 0.7)
    row = scale_field(Laplacian(read), image).octaves[48]
    assert torch.corrcoef(torch.stack([row, truth]))[0, 1] > 0.98
    assert 0.2 < row[-40] - row[40] < 0.7


def test_strips_give_the_field_of_the_whole(monkeypatch):
    image = (255 * torch.rand(3, 400, 80)).byte()
    whole = cell_field(Laplacian(), image)
    monkeypatch.setattr("scale_disco.tasks.scene.field._BUDGET", 80 * 250)
    torch.testing.assert_close(cell_field(Laplacian(), image), whole)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("value", [0.0, 200.0, 255.0])
def test_a_constant_image_has_no_energy_and_finite_octaves(read, value):
    estimator, image = Laplacian(read), torch.full((1, 3, 40, 64), value)
    assert estimator.maps(image).max() < 1e-6
    reading = estimator.read(estimator.maps(image).flatten(3).permute(0, 3, 1, 2)[0])
    assert reading.octaves.isfinite().all()
    assert (reading.sharpness < 0.1).all()


def test_energies_fit_into_half_precision():
    checks = (torch.arange(64) // 8 % 2 + torch.arange(64)[:, None] // 8 % 2) % 2 * 255.0
    maps = Laplacian().maps(checks.expand(1, 3, 64, 64))
    assert maps.max() < 0.6 * torch.finfo(torch.float16).max


@given(st.integers(1, 40), st.integers(1, 40))
def test_images_smaller_than_the_filter(height, width):
    maps = Laplacian().maps(255 * torch.rand(2, 3, height, width))
    assert maps.shape == (2, 1, len(WIDTHS), math.ceil(height / 8), math.ceil(width / 8))
    assert maps.isfinite().all()


def test_edges_are_continued_by_mirror_images():
    image = torch.rand(1, 1, 20, 24)
    twice = torch.cat([image, image.flip(2)], 2)
    twice = torch.cat([twice.flip(3), twice], 3)
    torch.testing.assert_close(laplacian(twice, 2.0)[:, :, :20, 24:], laplacian(image, 2.0))
