from __future__ import annotations

import gzip

import numpy as np
import pytest

from scale_disco.data.mnist_scale import PARTS, PIXELS, Digits, build, read_mnist, shrunk

pytest.importorskip("sklearn")
pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def mnist():
    from tests.conftest import SHARED

    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    return read_mnist(SHARED / "data" / "mnist")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_realisations_are_the_authors(mnist, seed):
    before = np.random.get_state()[1].copy()
    reports = []
    parts = build(mnist, seed, lambda done, total: reports.append((done, total)))  # checks the hash of the pixels
    assert {name: len(digits.labels) for name, digits in parts.items()} == PARTS
    for digits in parts.values():
        assert np.bincount(digits.labels, minlength=10).min() > 0.08 * len(digits.labels)
    assert reports[-1] == (62_000, 62_000)
    assert np.array_equal(np.random.get_state()[1], before)


def test_other_pixels_are_refused(mnist, monkeypatch):
    monkeypatch.setattr("scale_disco.data.mnist_scale.shrunk", lambda image, factor: image)
    with pytest.raises(ValueError, match=f"the authors' have {PIXELS[1]}"):
        build(mnist, 1)


def test_pixel_14_stays_where_it_is():
    image = np.zeros((28, 28), np.uint8)
    image[12:17, 12:17] = 200
    for factor in (0.4, 0.7, 1.0):
        small = shrunk(image, factor)
        assert small[14, 14] >= 200
        assert small.sum() == pytest.approx(image.sum() * factor**2, rel=0.25)
    assert np.array_equal(shrunk(image, 1.0), image)


def test_only_the_papers_realisations_exist():
    with pytest.raises(ValueError, match="realisations 0 to 5, got 6"):
        build(Digits(np.empty((0, 28, 28), np.uint8), np.empty(0, np.uint8)), 6)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte or train-images-idx3-ubyte\.gz in"):
        read_mnist(tmp_path)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for name in names:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(ValueError, match="not MNIST's train-images-idx3-ubyte: its checksum is another"):
        read_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"other")[:-3])
    with pytest.raises(ValueError, match="damaged gzip file"):
        read_mnist(tmp_path)
