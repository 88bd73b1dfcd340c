from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.scene import field as field_module
from scale_disco.tasks.scene.field import Field, cell_field, color_range, enlarged, scale_field, weighted_quantile
from tests.tasks.scene.estimators import Waves, chirp


def flat(height, width, value=90):
    return torch.full((3, height, width), value, dtype=torch.uint8)


def blocks(height, width):
    """Random squares of 16 pixels, with energy at all scales."""
    small = torch.randint(0, 256, (3, height // 16 + 1, width // 16 + 1), dtype=torch.uint8)
    return small.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :height, :width]


def test_growing_waves_are_measured_in_octaves():
    image, truth = chirp(96, 400)
    field = scale_field(Waves(), image)
    assert field.octaves.dtype == field.confidence.dtype == torch.float32
    assert field.octaves.shape == field.confidence.shape == (96, 400)
    inner = slice(48, -48)  # windows at the edges are moved inwards
    octaves, expected = field.octaves.mean(0)[inner], truth[inner]
    slope = ((octaves - octaves.mean()) * (expected - expected.mean())).sum() / (
        expected - expected.mean()
    ).square().sum()
    assert 0.85 < slope < 1.15
    assert (octaves - octaves.mean() - expected + expected.mean()).abs().max() < 0.2
    assert (field.octaves - field.octaves.mean(0)).abs().max() < 0.2  # nothing changes from top to bottom


def test_an_octave_more_where_the_image_is_enlarged():
    image, _ = chirp(128, 128, 0)
    large = image.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :128, :128]
    field = scale_field(Waves(), torch.cat([image, large], 2))
    assert field.octaves[:, 160:].median() - field.octaves[:, :96].median() == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("size", [(200, 120), (203, 117), (64, 300), (250, 64)])
@pytest.mark.parametrize("window", [None, 32, 128])
def test_strips_equal_the_whole_image(size, window, monkeypatch):
    image = blocks(*size)
    whole = Waves()
    expected = cell_field(whole, image, window=window)
    assert len(whole.seen) == 1
    monkeypatch.setattr(field_module, "_BUDGET", 1)
    parts, done = Waves(), []
    field = cell_field(parts, image, window=window, progress=lambda *rows: done.append(rows))
    assert len(parts.seen) == len(done) == math.ceil(size[0] / parts.reach) > 1
    assert done[-1] == (size[0], size[0])
    assert done == sorted(done)
    torch.testing.assert_close(field, expected, rtol=0, atol=1e-4)


def test_a_margin_too_small_changes_the_field(monkeypatch):
    image = blocks(200, 100)
    expected = cell_field(Waves(), image)
    monkeypatch.setattr(field_module, "_BUDGET", 1)
    short = Waves()
    short.reach = 8
    assert (cell_field(short, image).octaves - expected.octaves).abs().max() > 1e-3


def test_work_and_memory_of_strips(monkeypatch):
    monkeypatch.setattr(field_module, "_BUDGET", 64 * 400)
    work = {}
    for height in (400, 800, 1600):
        estimator = Waves()
        cell_field(estimator, torch.zeros(3, height, 64))
        assert all(shape[2] * shape[3] <= 64 * 400 for shape in estimator.seen)
        work[height] = sum(shape[2] for shape in estimator.seen)
    assert work[400] == 400
    assert work[1600] / work[800] == pytest.approx(2, rel=0.25)


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    window=st.integers(16, 100),
    fraction=st.floats(0.05, 1),
    levels=st.sampled_from([1, 2, 256]),
)
def test_fields_are_finite_for_any_image(height, width, window, fraction, levels):
    image = torch.randint(0, levels, (3, height, width), dtype=torch.uint8)
    field = scale_field(Waves(), image, window=window, step=max(1, int(fraction * window)))
    assert field.octaves.shape == field.confidence.shape == (height, width)
    assert field.octaves.isfinite().all()
    assert field.confidence.min() >= 0
    assert field.confidence.max() <= 1


@pytest.mark.parametrize("value", [0, 90, 255])
def test_a_constant_image_is_zero_without_confidence(value):
    field = scale_field(Waves(), flat(70, 90, value))
    assert field.octaves.abs().max() == 0
    assert field.confidence.max() == 0
    colored = flat(40, 50)
    colored[0] = 7
    assert scale_field(Waves(), colored).confidence.max() == 0


def test_edges_and_lines_have_less_confidence_than_texture():
    """A white line across a texture, and a texture of the same contrast."""
    torch.manual_seed(0)
    image = (127 + 20 * torch.randn(3, 30, 60)).repeat_interleave(8, 1).repeat_interleave(8, 2).clamp(0, 255)
    image[:, :, 160:] = 90 + torch.randn(240, 320).clamp(-2, 2)  # plain
    image[:, :, 318:324] = 250
    confidence = scale_field(Waves(), image.to(torch.uint8)).confidence
    assert confidence[:, :120].median() > 0.3
    assert confidence[:, 300:340].max() < 0.15


def test_sky_has_no_confidence_and_no_weight(monkeypatch):
    monkeypatch.setattr("scale_disco.tasks.scene.field._DIRECTED", 0.0)  # the waves are parallel
    image, _ = chirp(128, 128, 0)
    sky = 200 + torch.randint(-2, 3, (3, 256, 128))
    field = scale_field(Waves(), torch.cat([sky.to(torch.uint8), image], 1))
    assert field.confidence[:160].max() < 0.1
    assert field.confidence[300:].min() > 0.2
    assert field.octaves[300:].abs().max() < 0.1  # the median is that of the waves, though there is more of the sky


def test_the_median_is_zero():
    image, _ = chirp(128, 300)
    field = cell_field(Waves(), image)
    assert weighted_quantile(field.octaves, field.confidence, 0.5) == pytest.approx(0, abs=1e-6)
    assert field.octaves.min() < -0.5 < 0.5 < field.octaves.max()


def test_weighted_quantiles():
    values, weights = torch.tensor([5.0, 1.0, 3.0]), torch.tensor([0.0, 2.0, 2.0])
    assert [weighted_quantile(values, weights, fraction) for fraction in (0.0, 0.5, 0.9, 1.0)] == [1, 1, 3, 3]
    assert weighted_quantile(values, torch.zeros(3), 0.5) == 0


def test_the_color_range_is_that_of_confident_places():
    octaves, confidence = torch.linspace(-3, 3, 601), torch.zeros(601)
    confidence[200:401] = 0.5  # from -1 to 1
    assert color_range(Field(octaves, confidence)) == pytest.approx(0.98, abs=0.02)
    assert color_range(Field(octaves / 100, confidence)) == 0.5
    assert color_range(Field(octaves, 0 * confidence)) == 0.5


def test_non_finite_octaves_are_ignored():
    class Broken(Waves):
        def read(self, profiles, weights=None):
            octaves, sharpness = super().read(profiles)
            octaves[::2], sharpness[1::4] = math.nan, math.inf
            return octaves, sharpness

    image, _ = chirp(128, 200)
    field = scale_field(Broken(), image)
    assert field.octaves.isfinite().all()
    assert field.confidence.isfinite().all()


def test_enlarging_keeps_centers_of_cells():
    octaves = torch.arange(12.0).reshape(3, 4)
    large = enlarged(Field(octaves, torch.ones(3, 4)), 8, (20, 29))
    assert large.octaves.shape == (20, 29)
    assert large.octaves[11:13, 11:13].mean() == octaves[1, 1]  # the center of a cell
    assert large.octaves.is_contiguous()


def test_floats_give_the_field_of_bytes():
    image, _ = chirp(70, 90)
    torch.testing.assert_close(scale_field(Waves(), image), scale_field(Waves(), image.double()))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"window": 15}, "window must be at least two cells, 16 pixels, got 15"),
        ({"step": 0}, "step must be from 1 to the window, 64 pixels, got 0"),
        ({"step": 65}, "step must be from 1 to the window, 64 pixels, got 65"),
        ({"window": 32, "step": 40}, "step must be from 1 to the window, 32 pixels, got 40"),
    ],
)
def test_invalid_windows_are_refused(about, message):
    with pytest.raises(ValueError, match=f"scale_field: {message}"):
        scale_field(Waves(), flat(64, 64), **about)


@pytest.mark.parametrize("shape", [(64, 64), (1, 64, 64), (3, 0, 64), (1, 3, 64, 64)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"scale_field: expected an image \[3, H, W\], got shape"):
        scale_field(Waves(), torch.zeros(shape))
