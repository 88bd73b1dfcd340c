"""Copies of images at known sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from scale_disco.tasks.scene.copies import (
    LOSSES,
    Sizes,
    copy_profiles,
    draw_pairs,
    find,
    read_copies,
    resized,
    window_means,
)
from tests.tasks.stl10.binary import files, write


class Means:
    """A network of two scales whose maps are means of cells; counts its calls."""

    fingerprint, calls = "means", 0

    def __call__(self, images):
        Means.calls += 1
        maps = torch.nn.functional.avg_pool2d(images, 8, ceil_mode=True)
        return maps[:, :, None].repeat(1, 1, 2, 1, 1)


def noise(side=96, seed=0):
    return torch.randint(0, 256, (3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def save(folder, *names):
    folder.mkdir(exist_ok=True, parents=True)
    for number, name in enumerate(names):
        Image.fromarray(noise(64, number).permute(1, 2, 0).numpy()).save(folder / name)
    return folder


def test_sizes_are_those_asked_for():
    generator = np.random.default_rng(0)
    wide = np.array([Sizes().draw(generator) for _ in range(2000)])
    assert 0.5 <= wide.min() < 0.51
    assert 1.99 < wide.max() <= 2
    assert abs(wide.mean() - 1.25) < 0.03  # even in the size itself, as in the paper
    octaves = np.log2([Sizes(span=0.25).draw(generator) for _ in range(2000)])
    assert abs(octaves).max() <= 0.25
    assert abs(octaves.mean()) < 0.02


def test_copies_depend_on_seed_and_number_alone():
    first, same, other_seed, other_number = (
        copy_profiles(Means(), noise(), Sizes(copies=3, windows=4, seed=seed), number)
        for seed, number in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert first.profiles.shape == (3, 4, 3, 2)
    assert first.profiles.dtype == torch.float16
    assert all(map(torch.equal, first, same))
    assert not torch.equal(first.octaves, other_seed.octaves)
    assert not torch.equal(first.octaves, other_number.octaves)


def test_large_images_are_only_shrunk():
    sides = []

    class Sides(Means):
        def __call__(self, images):
            sides.append(images.shape[-1])
            return super().__call__(images)

    copy_profiles(Sides(), noise(400), Sizes(copies=8, windows=1))
    assert max(sides) <= 400
    assert min(sides) >= 100


@pytest.mark.parametrize("size", [0.3, 1.0, 1.7])
def test_a_copy_has_its_size_and_the_same_colors(size):
    whole = Image.fromarray(np.full((60, 80, 3), 90, np.uint8))
    generator = np.random.default_rng(0)
    for _ in range(6):
        copy = resized(whole, size, generator)
        assert copy.shape == (3, round(60 * size), round(80 * size))
        assert (copy.float() - 90).abs().max() <= 2


def test_copies_are_resized_in_several_ways():
    whole = Image.fromarray(noise(64).permute(1, 2, 0).numpy())
    generator = np.random.default_rng(0)
    copies = [resized(whole, 0.5, generator).numpy().tobytes() for _ in range(24)]
    assert len(set(copies)) > 12
    assert len({resized(whole, 0.5).numpy().tobytes() for _ in range(3)}) == 1


def test_windows_are_around_their_places():
    maps = torch.arange(20.0).expand(1, 1, 16, 20)
    means = window_means(maps, np.array([[0.5, 0.5], [0.0, 0.0], [1.0, 1.0]]))
    assert means.flatten().tolist() == [9.5, 3.5, 15.5]  # those at the edge are inside
    assert window_means(maps[..., :3, :5], np.array([[0.5, 0.5]])).item() == 2.0  # all of a small map


def test_images_in_a_folder_and_below(tmp_path):
    save(tmp_path, "b.png", "a.jpg")
    save(tmp_path / "more", "c.png", "d.jpg", "e.png")
    (tmp_path / "more" / "c.png").unlink()
    images = find(tmp_path)
    assert [image.name for image in images] == ["a.jpg", "b.png", "more/d.jpg", "more/e.png"]
    assert len({image.fingerprint for image in images}) == 3  # d is a
    assert images[0].read().shape == (3, 64, 64)
    with pytest.raises(FileNotFoundError, match="no images in"):
        find(save(tmp_path / "empty"))


def test_images_of_stl10(tmp_path):
    write(tmp_path, files(train=4))
    images = find(tmp_path)
    assert [image.name for image in images] == ["0", "1", "2", "3"]
    assert images[2].read().shape == (3, 96, 96)


def test_profiles_are_cached(tmp_path):
    images, cache, sizes = (
        find(save(tmp_path / "in", "a.png", "b.png")),
        tmp_path / "cache",
        Sizes(copies=2, windows=2),
    )
    first = read_copies(Means(), images, sizes, cache=cache)
    Means.calls = 0
    steps = []
    again = read_copies(Means(), images, sizes, cache=cache, progress=lambda *step: steps.append(step))
    assert Means.calls == 0
    assert steps == [(1, 2), (2, 2)]
    assert all(
        torch.equal(a, b)
        for before, after in zip(first, again, strict=True)
        for a, b in zip(before, after, strict=True)
    )
    read_copies(Means(), images, Sizes(copies=2, windows=2, seed=1), cache=cache)
    assert Means.calls == 4


def test_a_damaged_cache_file_is_named(tmp_path):
    images, cache, sizes = find(save(tmp_path / "in", "a.png")), tmp_path / "cache", Sizes(copies=2, windows=2)
    read_copies(Means(), images, sizes, cache=cache)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"copies-.*damaged; delete it"):
        read_copies(Means(), images, sizes, cache=cache)


def test_pairs_have_two_copies():
    copies = [copy_profiles(Means(), noise(seed=seed), Sizes(copies=3, windows=4), seed) for seed in range(2)]
    pairs = draw_pairs(copies, 200, np.random.default_rng(0))
    assert (pairs.copies[:, 0] != pairs.copies[:, 1]).all()
    assert set(pairs.images) == {0, 1}
    assert set(pairs.windows) == {0, 1, 2, 3}


def test_losses():
    octaves = torch.tensor([1.0, -1.0])
    for loss in LOSSES.values():
        assert loss(octaves, octaves) == 0
        assert loss(octaves + 0.5, octaves) > 0
    assert LOSSES["ratio"](torch.zeros(1), torch.ones(1)) == 1  # (1 - 2)^2
    assert LOSSES["log"](octaves, -octaves) == LOSSES["log"](-octaves, octaves)
    assert LOSSES["ratio"](torch.tensor([1000.0]), torch.ones(1)).isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 1}, "copies must be at least 2, got 1"),
        ({"windows": 0}, "windows must be at least 1, got 0"),
        ({"span": 0.0}, "span must be above 0 octaves and at most 2, got 0.0"),
        ({"span": float("nan")}, "span must be above 0"),
    ],
)
def test_invalid_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sizes(**options)


def test_unreadable_images_are_skipped(tmp_path):
    folder = save(tmp_path / "in", "a.png", "b.png")
    (folder / "c.png").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipped: cannot read .*c\.png"):
        assert len(read_copies(Means(), find(folder), Sizes(copies=2, windows=2))) == 2
    (folder / "a.png").write_bytes(b"")
    (folder / "b.png").write_bytes(b"")
    with pytest.raises(ValueError, match="none of 3 images can be read"):
        read_copies(Means(), find(folder), Sizes(copies=2, windows=2))


def test_no_copy_is_smaller_than_its_label_says():
    """A strip of 20 pixels cannot be shrunk by two octaves."""
    sides = []

    class Sides(Means):
        def __call__(self, images):
            sides.append(images.shape[-2])
            return super().__call__(images)

    strip = noise(200)[:, :20]
    copies = copy_profiles(Sides(), strip, Sizes(copies=12, windows=1, span=2.0))
    assert min(sides) == 16
    assert all(abs(side - 20 * 2**octaves) <= 1 for side, octaves in zip(sides, copies.octaves.tolist(), strict=True))
