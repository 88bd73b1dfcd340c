"""Crop pairs: position and scale of the object, augmentation, and dependence on the seed alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scale_disco.tasks.io.images import load_frame
from scale_disco.tasks.tracking.data.pairs import CropPair, cut_pair, draw_pair
from scale_disco.tasks.tracking.data.sequences import Sequence, read_sequences
from tests.tasks.tracking.videos import write_videos

PLAIN = ((1.0, 1.0, 1.0),) * 2


@pytest.fixture(scope="module")
def disc(tmp_path_factory):
    """A bright disc on black: at (50, 40) in the first frame, and at (90, 70), twice as large, in the second."""
    root = tmp_path_factory.mktemp("disc")
    frames, boxes = [], []
    y, x = torch.meshgrid(torch.arange(120) + 0.5, torch.arange(160) + 0.5, indexing="ij")
    for number, (cx, cy, radius) in enumerate([(50, 40, 6), (90, 70, 12)], 1):
        pixels = ((x - cx) ** 2 + (y - cy) ** 2 < radius**2).byte() * 200
        path = root / f"{number:04d}.png"
        Image.fromarray(pixels.numpy()).convert("RGB").save(path)
        frames.append(path)
        boxes.append([cx - radius, cy - radius, 2 * radius, 2 * radius])
    return Sequence("disc", tuple(frames), torch.tensor(boxes, dtype=torch.float64))


def measure(crop):
    """Return the position of the disc in a crop [3, 255, 255], right and down from the center, and its radius."""
    bright = (crop[0] > 100).float()
    positions = torch.arange(255) + 0.5 - 127.5
    total = bright.sum()
    right, down = (bright.sum(0) * positions).sum() / total, (bright.sum(1) * positions).sum() / total
    return float(right), float(down), float((total / math.pi).sqrt())


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("octaves", [-0.6, 0.0, 0.5])
@pytest.mark.parametrize("shift", [(0.0, 0.0), (20.0, -31.0)])
def test_the_object_has_the_shift_and_scale_of_the_pair(disc, shift, octaves, mirrored):
    crops = cut_pair(disc, CropPair(0, 1, shift, octaves, mirrored, False, PLAIN))
    assert crops.shape == (6, 255, 255)
    radius = 127 / 4  # the context doubles a square box
    assert measure(crops[:3]) == pytest.approx((0, 0, radius), abs=0.5)
    assert measure(crops[3:]) == pytest.approx((*shift, radius * 2**octaves), abs=0.5)


def test_outside_of_the_frame_is_its_mean_color(disc):
    crops = cut_pair(disc, CropPair(1, 1, (0.0, 0.0), -1.0, False, False, PLAIN))
    frame = load_frame(disc.frames[1])[0].float()
    assert float(crops[3, 0, 0]) == pytest.approx(float(frame.mean()), abs=1e-3)


def test_color_jitter_stays_in_range_and_gray_is_luma(tmp_path):
    (video,) = read_sequences(write_videos(tmp_path, 1))
    strong = ((2.0, 2.0, 2.0), (0.5, 0.5, 0.5))
    pair = CropPair(0, 3, (3.0, 4.0), 0.2, False, False, PLAIN)
    plain, other = cut_pair(video, pair), cut_pair(video, pair._replace(colors=strong))
    assert other.min() >= 0
    assert other.max() <= 255
    assert not torch.equal(plain[:3], other[:3])
    gray = cut_pair(video, pair._replace(gray=True))
    torch.testing.assert_close(gray[0], gray[2])
    luma = 0.299 * plain[0] + 0.587 * plain[1] + 0.114 * plain[2]
    torch.testing.assert_close(gray[0], luma, atol=1e-3, rtol=1e-4)
    paler = cut_pair(video, pair._replace(colors=((1.0, 1.0, 0.5),) * 2))
    torch.testing.assert_close(paler[:3], (plain[:3] + luma) / 2, atol=1e-3, rtol=1e-4)


def video_of(boxed):
    """A video without images that has boxes in some frames."""
    boxes = torch.full((len(boxed), 4), math.nan, dtype=torch.float64)
    boxes[torch.tensor(boxed)] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    return Sequence("video", (), boxes)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 2**63), st.floats(0, 64), st.floats(0, 2))
def test_frames_have_a_box_and_are_at_most_100_apart(others, seed, shift, zoom):
    video = video_of([True, *others])
    pair = draw_pair(video, seed, shift=shift, zoom=zoom)
    assert not video.boxes[[pair.template, pair.search]].isnan().any()
    assert abs(pair.template - pair.search) <= 100
    assert max(map(abs, pair.shift)) <= shift
    assert abs(pair.octaves) <= zoom
    assert pair == draw_pair(video, seed, shift=shift, zoom=zoom)


def test_augmentations_are_uniformly_distributed():
    video = video_of([True] * 250)
    pairs = [draw_pair(video, seed, shift=32, zoom=0.6) for seed in range(4000)]

    def mean(values):
        values = list(values)
        return sum(values) / len(values)

    assert mean(pair.template for pair in pairs) == pytest.approx(124.5, abs=5)
    near = [pair for pair in pairs if 100 <= pair.template < 150]  # all 201 frames around are there
    assert mean(abs(pair.search - pair.template) for pair in near) == pytest.approx(50, abs=6)
    for axis in (0, 1):
        assert mean(pair.shift[axis] for pair in pairs) == pytest.approx(0, abs=1.5)
        assert mean(abs(pair.shift[axis]) for pair in pairs) == pytest.approx(16, abs=0.8)
    assert mean(abs(pair.octaves) for pair in pairs) == pytest.approx(0.3, abs=0.015)
    assert mean(pair.mirrored for pair in pairs) == pytest.approx(0.5, abs=0.04)
    assert mean(pair.gray for pair in pairs) == pytest.approx(0.1, abs=0.02)
    factors = [factor for pair in pairs for crop in pair.colors for factor in crop]
    assert 0.95 <= min(factors) < 0.951
    assert 1.049 < max(factors) <= 1.05


def test_an_unreadable_frame_is_named(tmp_path):
    (video,) = read_sequences(write_videos(tmp_path, 1))
    video.frames[2].write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot read .*0003\.png") as error:
        cut_pair(video, CropPair(0, 2, (0.0, 0.0), 0.0, False, False, PLAIN))
    assert "\n" not in str(error.value)
