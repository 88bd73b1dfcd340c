from __future__ import annotations

import json

import numpy as np
import pytest

from scale_disco.tasks.generalization.digits import (
    LARGE_SCALES,
    PARTS,
    PIXELS,
    STIR_SIZES,
    SizedDigits,
    build_large_scale,
    build_stir,
    load,
    path_of,
    pixel_hash,
    placed,
    save,
)
from scale_disco.tasks.io import arrays
from scale_disco.tasks.io.mnist import Digits, read_mnist
from tests.conftest import SHARED

skimage = pytest.importorskip("skimage")


@pytest.fixture(scope="module")
def mnist():
    """70,000 digits: random blobs, of which the recipes use a few."""
    random = np.random.default_rng(0)
    labels = np.tile(np.arange(10, dtype=np.uint8), 7000)
    images = np.zeros((70_000, 28, 28), np.uint8)
    images[:, 6:22, 8:20] = random.integers(0, 256, (70_000, 16, 12), dtype=np.uint8)
    return Digits(images, labels, np.ones(70_000))


@pytest.fixture(scope="module")
def stir(mnist):
    return build_stir(mnist, 1)


@pytest.fixture(scope="module")
def large(mnist):
    return build_large_scale(mnist, {"train": 3, "val": 2, "test": 2})


def test_stir_follows_the_published_recipe(mnist, stir):
    """The recipe in the authors' order, with numpy's global generator."""
    from skimage.filters import gaussian
    from skimage.transform import resize

    train, test = (mnist.images[:60_000], mnist.labels[:60_000]), (mnist.images[60_000:], mnist.labels[60_000:])
    state = np.random.get_state()
    np.random.seed(42)
    try:
        for label in range(10):
            for size in range(64, 16, -1):
                for part, (images, labels), index in (("train", train, 0), ("val", train, 1), ("test", test, 0)):
                    of_class = images[labels == label]
                    np.random.RandomState(42).shuffle(of_class)
                    x, y = np.random.randint(0, 64 - size + 1, 2)
                    image = resize(of_class[index], (size, size), order=3, preserve_range=True)
                    image = gaussian(np.pad(image, ((y, 64 - size - y), (x, 64 - size - x))), sigma=7 / 8 * size / 28)
                    image = 2 / np.pi * np.arctan(0.02 * (image - 128))
                    image = 255 * (image - image.min()) / (image.max() - image.min())
                    assert np.array_equal(stir[part].images[size - 17, label], image.astype(np.uint8))
                    assert stir[part].labels[label] == label
    finally:
        np.random.set_state(state)


def test_building_leaves_the_global_generator_alone(mnist):
    before = np.random.get_state()[1].copy()
    build_stir(mnist, 1)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.slow
def test_stir_of_mnist_has_the_recorded_pixels():
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    whole = read_mnist(SHARED / "data" / "mnist")
    assert pixel_hash(build_stir(whole)) == PIXELS["stir-mnist"]
    assert pixel_hash(build_large_scale(whole)) == PIXELS["mnist-large-scale"]


def test_large_scale_centers_and_crops(mnist, large):
    assert large["train"].sizes.tolist() == [28, 56, 112]
    assert large["test"].images.shape == (len(LARGE_SCALES), 2, 112, 112)
    assert np.array_equal(large["test"].images[4, 1], placed(mnist.images[60_001], 28, 112))
    assert np.array_equal(large["train"].images[1, 2], placed(mnist.images[2], 56, 112))
    assert np.array_equal(large["val"].images[0, 0], placed(mnist.images[59_998], 28, 112))
    largest, half = large["test"].images[-1, 0].astype(float), large["test"].images[-5, 0].astype(float)
    enlarged = np.kron(half[28:84, 28:84], np.ones((2, 2)))  # the center of scale 4, twice as large
    assert np.corrcoef(largest.ravel(), enlarged.ravel())[0, 1] > 0.95


def test_digits_are_where_and_as_large_as_said():
    digit = np.full((28, 28), 255, np.uint8)
    image = placed(digit, 20, 64, (10, 30)) > 127
    rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (10, 29, 30, 49)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((28, 28)), 20, 64), "expected a digit uint8"),
        ((np.zeros((28, 28), np.uint8), 0, 64), "size and canvas must be positive, got 0 and 64"),
        ((np.zeros((28, 28), np.uint8), 20, 64, (50, 0)), "do not fit on a canvas of 64"),
    ],
)
def test_placing_checks_its_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        placed(*arguments)


@pytest.mark.parametrize("count", [0, 1001, 3001])
def test_counts_of_stir_are_checked(mnist, count):
    with pytest.raises(ValueError, match=f"stir-mnist: count must be .* class 0, got {count}"):
        build_stir(mnist, count)


@pytest.mark.parametrize(("part", "count"), [("train", 60_000), ("val", 0), ("test", 10_001)])
def test_counts_of_large_scale_are_checked(mnist, part, count):
    with pytest.raises(ValueError, match="mnist-large-scale: expected 1 to 10,000 test digits"):
        build_large_scale(mnist, {"train": 1, "val": 1, "test": 1} | {part: count})


@pytest.mark.parametrize("name", ["stir-mnist", "mnist-large-scale"])
def test_files_come_back_and_name_their_origin(name, stir, large, tmp_path):
    parts = stir if name == "stir-mnist" else large
    path = save(tmp_path, name, parts, source="blobs")
    back = load(tmp_path, name)
    for part in PARTS:
        for ours, theirs in zip(parts[part], back[part], strict=True):
            assert np.array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
    with np.load(path) as arrays:
        note = json.loads(arrays["note"].tobytes())
    assert (note["source"], note["pixels"]) == ("blobs", pixel_hash(parts))
    assert pixel_hash(parts) != PIXELS[name]


def test_damaged_files_are_one_line(stir, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file; create it: disco data generalization"):
        load(tmp_path, "stir-mnist")
    path = save(tmp_path, "stir-mnist", stir, source="blobs")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged or foreign: .*create it again") as error:
        load(tmp_path, "stir-mnist")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="must be one of stir-mnist, mnist-large-scale, got 'emoji'"):
        path_of(tmp_path, "emoji")


def test_swapped_images_fail_the_checksum(stir, tmp_path, monkeypatch):
    train = stir["train"]
    swapped = stir | {"train": SizedDigits(train.images[:, ::-1].copy(), train.labels, train.sizes)}
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "checksum", lambda arrays, start="": "0")
        save(tmp_path, "stir-mnist", swapped, source="blobs")
    with pytest.raises(ValueError, match="checksum mismatch"):
        load(tmp_path, "stir-mnist")


def test_other_shapes_are_refused(stir, tmp_path):
    train = stir["train"]
    for broken, what in (
        (SizedDigits(train.images[:-1], train.labels, train.sizes), "images must be uint8"),
        (SizedDigits(train.images, train.labels + 3, train.sizes), "labels must be 0 to 9"),
        (SizedDigits(train.images, train.labels, train.sizes + 1), "sizes must be int64"),
    ):
        with pytest.raises(ValueError, match=f"stir-mnist, train: {what}"):
            save(tmp_path, "stir-mnist", stir | {"train": broken}, source="blobs")
    assert len(STIR_SIZES) == 48
