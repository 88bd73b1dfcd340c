from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scale_disco.tasks.stl10 import augment as module
from scale_disco.tasks.stl10.augment import Augmentation
from scale_disco.tasks.stl10.data import MEAN, STD

AUGMENT = Augmentation(MEAN, STD)

# Computed with Python's own integers.
GOLDEN = [[21, 22, 11], [10, 3, 24], [False, True, True], [48, 90, 79], [76, 25, 5]]


def batch(count=16, height=96, width=96):
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


def one_by_one(augment, images, rows, *, seed, epoch):
    """Pad, crop, flip, normalize and cut out, image by image."""
    height, width = images.shape[2:]
    mean, std = (torch.tensor(values)[:, None, None] for values in (augment.mean, augment.std))
    out = []
    draws = augment.draws(rows, height, width, seed=seed, epoch=epoch)
    for image, top, left, flip, row, column in zip(images, *(values.tolist() for values in draws), strict=True):
        crop = F.pad(image, [augment.padding] * 4)[:, top : top + height, left : left + width]
        crop = crop.flip(2) if flip else crop
        crop = (crop.float() / 255 - mean) / std
        half = augment.cutout // 2
        crop[:, max(row - half, 0) : max(row + half, 0), max(column - half, 0) : max(column + half, 0)] = 0
        out.append(crop)
    return torch.stack(out)


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 0}, {"padding": 3, "cutout": 0}, {"flip": 1.0}, {"cutout": 8, "padding": 40}, {"cutout": 200}],
)
@pytest.mark.parametrize("shape", [(96, 96), (20, 33)])
def test_agrees_with_one_image_after_the_other(options, shape):
    augment, images, rows = Augmentation(MEAN, STD, **options), batch(16, *shape), list(range(100, 116))
    augmented = augment(images, rows, seed=1, epoch=2)
    assert augmented.dtype == torch.float32
    torch.testing.assert_close(augmented, one_by_one(augment, images, rows, seed=1, epoch=2), rtol=0, atol=1e-5)


def test_half_precision_is_kept():
    floats = batch(40) / 255
    expected = AUGMENT(floats, range(40), seed=0, epoch=0)
    augmented = AUGMENT(floats.bfloat16(), range(40), seed=0, epoch=0)
    assert augmented.dtype == torch.bfloat16
    torch.testing.assert_close(augmented.float(), expected, rtol=0, atol=0.05)


def test_other_devices_keep_the_images():
    images = torch.empty(2, 3, 9, 9, device="meta", dtype=torch.uint8)
    augmented = AUGMENT(images, [0, 1], seed=0, epoch=0)
    assert augmented.device.type == "meta"
    assert augmented.shape == images.shape


def test_augmentation_depends_on_seed_epoch_and_row_alone():
    images, rows = batch(12), [5, 3, 900, 4_999, 0, 17, 21, 22, 23, 24, 25, 26]
    whole = AUGMENT(images, rows, seed=7, epoch=3)
    order = torch.randperm(12)
    mixed = AUGMENT(images[order], [rows[place] for place in order], seed=7, epoch=3)
    assert torch.equal(mixed, whole[order])
    alone = AUGMENT(images[4:5], rows[4:5], seed=7, epoch=3)
    assert torch.equal(alone, whole[4:5])
    for seed, epoch in ((8, 3), (7, 4)):
        assert not torch.equal(AUGMENT(images, rows, seed=seed, epoch=epoch), whole)


def test_nothing_global_is_drawn_and_nothing_given_is_changed():
    images = batch()
    before, state, numpys = images.clone(), torch.get_rng_state(), np.random.get_state()[1].copy()
    AUGMENT(images, range(16), seed=0, epoch=0)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpys)
    floats = images.float() / 255
    original = floats.clone()
    AUGMENT(floats, range(16), seed=0, epoch=0)
    AUGMENT.normalize(floats)
    assert torch.equal(floats, original)


def test_draws_are_fair():
    draws = AUGMENT.draws(range(100_000), 96, 80, seed=0, epoch=0)
    for values, count in ((draws.top, 25), (draws.left, 25), (draws.row, 96), (draws.column, 80)):
        shares = np.bincount(values, minlength=count) * count / len(values)
        assert len(shares) == count
        assert abs(shares - 1).max() < 0.15  # five standard deviations of a count of 1,000
    assert abs(draws.flip.mean() - 0.5) < 0.01
    columns = np.stack([values.astype(float) for values in draws])
    assert np.abs(np.corrcoef(columns) - np.eye(5)).max() < 0.015
    later = AUGMENT.draws(range(100_000), 96, 80, seed=0, epoch=1)
    other = AUGMENT.draws(range(100_000), 96, 80, seed=1, epoch=0)
    for first, second in ((draws, later), (draws, other), (later, other)):
        assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.015 for a, b in zip(first, second, strict=True))
        assert all(abs(np.corrcoef(a[1:], b[:-1])[0, 1]) < 0.015 for a, b in zip(first, second, strict=True))


def test_draws_never_change():
    draws = AUGMENT.draws([0, 1, 4_999], 96, 96, seed=2**32 - 1, epoch=999)
    assert [values.tolist() for values in draws] == GOLDEN


def test_the_mixing_function_is_splitmix64():
    """Its reference outputs from state 1234567, which grows by a constant."""
    step = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + index * step) % 2**64 for index in range(3)], np.uint64)
    assert module._splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_square_is_cut_at_the_border_and_has_the_mean_color():
    augment = Augmentation((0.25, 0.5, 0.75), (0.1, 0.2, 0.3), padding=0)
    out = augment(torch.full((400, 3, 96, 96), 255, dtype=torch.uint8), range(400), seed=0, epoch=0)
    zero = out == 0
    assert torch.equal(zero[:, :1].expand_as(zero), zero)
    draws = augment.draws(range(400), 96, 96, seed=0, epoch=0)
    for cut, row, column in zip(zero[:, 0], draws.row, draws.column, strict=True):
        height, width = (min(center + 16, 96) - max(center - 16, 0) for center in (row, column))
        assert int(cut.sum()) == height * width
    assert int(zero[:, 0].sum((1, 2)).min()) < 600 < 1024 == int(zero[:, 0].sum((1, 2)).max())


def test_padding_is_black_before_normalization():
    out = Augmentation((0.5,) * 3, (0.25,) * 3, cutout=0)(
        torch.full((64, 3, 96, 96), 255, dtype=torch.uint8), range(64), seed=0, epoch=0
    )
    assert set(out.unique().tolist()) == {-2.0, 2.0}
    assert 0 < float((out == -2).float().mean()) < 0.25


def test_bytes_and_floats_agree_and_strides_do_not_matter():
    images = batch()
    expected = AUGMENT(images, range(16), seed=0, epoch=0)
    floats = AUGMENT(images.double() / 255, range(16), seed=0, epoch=0)
    assert floats.dtype == torch.float64
    torch.testing.assert_close(floats.float(), expected, rtol=0, atol=1e-5)
    columns = images.transpose(2, 3).contiguous().transpose(2, 3)  # as STL-10's files have them
    assert torch.equal(AUGMENT(columns, range(16), seed=0, epoch=0), expected)
    last = images.to(memory_format=torch.channels_last)
    assert torch.equal(AUGMENT(last, range(16), seed=0, epoch=0), expected)


def test_test_images_are_only_normalized():
    images = batch()
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    torch.testing.assert_close(AUGMENT.normalize(images), (images / 255 - mean) / std, rtol=0, atol=1e-5)


def test_no_images_are_no_trouble():
    assert AUGMENT(batch(0), [], seed=0, epoch=0).shape == (0, 3, 96, 96)


@pytest.mark.parametrize(
    "options",
    [{"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)}, {"padding": -1}, {"cutout": -1}, {"flip": 1.5}],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=r"^Augmentation: "):
        Augmentation(**{"mean": MEAN, "std": STD, **options})


@pytest.mark.parametrize(
    ("images", "rows"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), [0, 1]),
        (torch.zeros(2, 1, 8, 8), [0, 1]),
        (torch.zeros(3, 8, 8), [0, 1, 2]),
        (torch.zeros(2, 3, 8, 8), [0]),
    ],
)
def test_other_images_are_refused(images, rows):
    with pytest.raises(ValueError, match=r"^Augmentation: expected "):
        AUGMENT(images, rows, seed=0, epoch=0)
