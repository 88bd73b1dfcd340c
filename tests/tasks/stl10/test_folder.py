from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scale_disco.tasks.stl10 import folder as module
from scale_disco.tasks.stl10.folder import read_folder
from scale_disco.tasks.stl10.images import ImageSet, statistics
from scale_disco.tasks.stl10.load import load_images
from scale_disco.tasks.stl10.options import FORMATS
from tests.conftest import SHARED

Image = pytest.importorskip("PIL.Image", reason="images need scale-disco[plot]")

SIDE = 12


def pixels(seed, height=SIDE, width=SIDE):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def draw(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


@pytest.fixture
def root(tmp_path):
    """Two classes with three and two training images, one and two test images."""
    root = tmp_path / "mine"
    for part, counts in (("train", {"zebra": 3, "ant": 2}), ("test", {"zebra": 1, "ant": 2})):
        for name, count in counts.items():
            for index in range(count):
                draw(root / part / name / f"{index}.png", pixels((part == "test", name == "ant", index)))
    return root


def classed(tmp_path, counts):
    """A folder of classes without train and test; every image has its own color."""
    for name, count in counts.items():
        for index in range(count):
            draw(tmp_path / name / f"{index}.png", np.full((2, 2, 3), index, np.uint8))
    return tmp_path


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def decoded(monkeypatch):
    """Names of the decoded images."""
    names = []
    plain = module.decode
    monkeypatch.setattr(module, "decode", lambda path, side: names.append(path.name) or plain(path, side))
    return names


def test_classes_are_sorted_and_pixels_kept(root):
    (root / "train" / "ant" / "notes.txt").write_text("not an image")
    (root / "train" / ".hidden").mkdir()
    (root / "train" / "ant" / ".0.png").write_bytes(b"left by some program")
    parts = read_folder(root, SIDE)
    assert list(parts) == ["train", "test"]
    train, test = parts["train"], parts["test"]
    assert train.classes == test.classes == ("ant", "zebra")
    assert train.labels.tolist() == [0, 0, 1, 1, 1]
    assert test.labels.tolist() == [0, 0, 1]
    assert train.labels.dtype == train.images.dtype == np.uint8
    assert train.name == test.name == "folder/mine"
    for image, seed in (
        (train.images[1], (False, True, 1)),
        (train.images[4], (False, False, 2)),
        (test.images[2], (True, False, 0)),
    ):
        assert np.array_equal(image, pixels(seed).transpose(2, 0, 1))
    assert (train.mean, train.std) == (test.mean, test.std) == statistics(train.images)


def test_statistics_are_those_of_the_pixels():
    images = np.random.default_rng(0).integers(0, 256, (300, 3, 5, 7), np.uint8)
    mean, std = statistics(images.swapaxes(2, 3))
    assert mean == pytest.approx((images / 255).mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx((images / 255).std((0, 2, 3)).tolist(), abs=1e-12)
    with pytest.raises(ValueError, match="expected images"):
        statistics(images[:0])


def test_other_sizes_are_center_cropped_and_antialiased(tmp_path):
    stripes = np.zeros((40, 100, 3), np.uint8)
    stripes[:, :30] = stripes[:, 70:] = (255, 0, 0)  # left and right of the center square, which is finely striped
    stripes[:, 30:70:2] = 200
    for part in ("train", "test"):
        draw(tmp_path / part / "a" / "wide.png", stripes)
        draw(tmp_path / part / "a" / "tall.png", stripes.swapaxes(0, 1))
        draw(tmp_path / part / "b" / "small.png", np.full((5, 4, 3), 77, np.uint8))
    tall, wide, small = read_folder(tmp_path, 10)["train"].images
    for image in (tall, wide):
        assert image.shape == (3, 10, 10)
        assert np.abs(image[:, 2:-2, 2:-2].astype(int) - 100).max() < 25  # the mean of the stripes, no red
    assert set(small.flat) == {77}


def test_gray_palette_transparent_and_rotated_images(tmp_path):
    gray = np.arange(36, dtype=np.uint8).reshape(6, 6)
    turned = Image.fromarray(np.stack([gray, gray, gray], -1))
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned clockwise
    for part in ("train", "test"):
        folder = tmp_path / part / "a"
        draw(folder / "0.png", gray)
        draw(folder / "1.png", np.stack([gray, gray, gray, gray], -1))
        Image.fromarray(gray).convert("P").save(folder / "2.png")
        Image.fromarray(gray > 17).save(folder / "3.png")
        turned.save(folder / "4.png", exif=exif)
        draw(tmp_path / part / "b" / "0.png", gray)
    images = read_folder(tmp_path, 6)["test"].images
    for image in images[:3]:
        assert np.array_equal(image, np.stack([gray] * 3))
    assert np.array_equal(images[3][1], (gray > 17) * 255)
    assert np.array_equal(images[4][2], np.rot90(gray, -1))


def test_unreadable_images_are_listed_in_one_line(root):
    bad = [root / "train" / "ant" / f"bad{index}.jpg" for index in range(4)]
    bad[0].write_bytes(b"")
    bad[1].write_bytes(b"not an image\nat all")
    draw(bad[2], pixels(0, 50, 50))
    bad[2].write_bytes(bad[2].read_bytes()[:-500])
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(bad[3].with_suffix(".png"))
    with pytest.raises(ValueError, match="4 of 12 images cannot be read") as caught:
        read_folder(root, SIDE)
    message = one_line(caught)
    assert all(str(path) in message for path in bad[:3])
    assert message.endswith(" and 1 more; fix or remove them")
    for path in bad[:3]:
        path.unlink()
    with pytest.raises(ValueError, match=r"1 of 9 .*bad3.png: more than 8 bits per channel: mode I;16; fix"):
        read_folder(root, SIDE)


def test_progress_and_threads(root, monkeypatch):
    reports = []
    alone = read_folder(root, SIDE, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(done, 8) for done in range(1, 9)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert np.array_equal(read_folder(root, SIDE)["train"].images, alone["train"].images)


def test_val_is_used_if_there_is_no_test(root):
    expected = read_folder(root, SIDE)["test"]
    (root / "test").rename(root / "val")
    assert np.array_equal(read_folder(root, SIDE)["test"].images, expected.images)


def test_invalid_layouts_are_refused(root, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has train and test already"):
        read_folder(root, test_share=0.5)
    with pytest.raises(ValueError, match="side must be at least 1, got 0"):
        read_folder(root, 0)
    shutil.rmtree(root / "test" / "ant")
    with pytest.raises(ValueError, match=r"at least two classes in .*test, got 1"):
        read_folder(root)
    draw(root / "test" / "bee" / "0.png", pixels(0))
    with pytest.raises(ValueError, match="must have the same classes, one lacks 'ant'"):
        read_folder(root)
    shutil.rmtree(root / "test")
    with pytest.raises(FileNotFoundError, match="neither test nor val"):
        read_folder(root)
    (root / "train" / "empty").mkdir()
    (root / "test").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images in .*empty"):
        read_folder(root)


def test_a_folder_without_parts_is_split_by_names(tmp_path):
    root = classed(tmp_path, {"a": 20, "b": 10, "c": 2})
    with pytest.raises(ValueError, match=r"expected train/CLASS and test/CLASS in .*, such as 0\.2"):
        read_folder(root)
    parts = read_folder(root, 2, test_share=0.2)
    assert np.bincount(parts["test"].labels).tolist() == [4, 2, 1]
    assert np.bincount(parts["train"].labels).tolist() == [16, 8, 1]
    chosen = {part: data.images[data.labels == 0][:, 0, 0, 0].tolist() for part, data in parts.items()}
    assert sorted(chosen["train"] + chosen["test"]) == list(range(20))
    assert chosen["test"] == [0, 15, 19, 8]  # of the smallest sha256 of "a/0.png", "a/1.png"...
    assert read_folder(root, 2, test_share=0.99)["train"].labels.tolist() == [0, 1, 2]
    for share in (0, 1, float("nan")):
        with pytest.raises(ValueError, match="must be between 0 and 1"):
            read_folder(root, test_share=share)
    (root / "c" / "0.png").unlink()
    with pytest.raises(ValueError, match="c needs at least two images"):
        read_folder(root, test_share=0.2)


def test_many_classes_have_labels(tmp_path):
    root = classed(tmp_path, {f"{label:03}": 2 for label in range(257)})
    labels = read_folder(root, 1, test_share=0.5)["test"].labels
    assert labels.tolist() == list(range(257))


def same(sets, others):
    for part in ("train", "test"):
        for a, b in zip(sets[part], others[part], strict=True):
            assert np.array_equal(a, b)


def test_images_are_decoded_once(root, tmp_path, decoded):
    cache = tmp_path / "images.safetensors"
    first = read_folder(root, SIDE, cache=cache)
    assert len(decoded) == 8
    same(read_folder(root, SIDE, cache=cache), first)
    assert len(decoded) == 8
    root = root.rename(tmp_path / "moved")
    assert np.array_equal(read_folder(root, SIDE, cache=cache)["test"].images, first["test"].images)
    assert len(decoded) == 8


@pytest.mark.parametrize("change", ["pixels", "time", "name", "new", "side"])
def test_a_change_replaces_the_cache(root, tmp_path, decoded, change):
    cache = tmp_path / "images.safetensors"
    read_folder(root, SIDE, cache=cache)
    decoded.clear()
    path = root / "train" / "ant" / "0.png"
    if change == "pixels":
        draw(path, pixels(99))
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "name":
        path.rename(path.with_name("9.png"))
    elif change == "new":
        draw(path.with_name("9.png"), pixels(99))
    side = SIDE + (change == "side")
    same(read_folder(root, side, cache=cache), read_folder(root, side))
    assert len(decoded) == 2 * (8 + (change == "new"))
    read_folder(root, side, cache=cache)
    assert len(decoded) == 2 * (8 + (change == "new"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda old: old[:-1],
        lambda old: old[:20],
        lambda old: b"",
        lambda old: b"foreign",
        lambda old: old[:-100] + bytes([old[-100] ^ 1]) + old[-99:],
        lambda old: old.replace(b"pictures 1", b"pictures 2"),
        lambda old: old.replace(b"uint8", b"uint9").replace(b'"U8"', b'"I8"'),
    ],
)
def test_damaged_caches_are_refused_and_kept(root, tmp_path, damage):
    cache = tmp_path / "images.safetensors"
    read_folder(root, SIDE, cache=cache)
    content = damage(cache.read_bytes())
    cache.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged or foreign: .*; delete it to decode again") as caught:
        read_folder(root, SIDE, cache=cache)
    assert one_line(caught).startswith(str(cache))
    assert cache.read_bytes() == content


def test_caches_are_written_atomically(root, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"cannot write .*missing"):
        read_folder(root, SIDE, cache=tmp_path / "missing" / "images.safetensors")

    def full(path, content):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=r"cannot write .*images.safetensors: No space left on device"):
        read_folder(root, SIDE, cache=tmp_path / "images.safetensors")
    assert sorted(tmp_path.iterdir()) == before


def test_without_pillow_the_extra_is_named(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[plot\]"'):
        read_folder(root, SIDE)


def test_formats_have_one_interface(root):
    assert FORMATS == ("stl10", "folder")
    parts = load_images(root, "folder", side=SIDE)
    assert all(isinstance(part, ImageSet) for part in parts.values())
    with pytest.raises(ValueError, match="must be one of stl10, folder, got 'jpeg'"):
        load_images(root, "jpeg")
    with pytest.raises(ValueError, match="folds are those of stl10"):
        load_images(root, "folder", fold=1)
    for options in ({"side": 32}, {"test_share": 0.5}):
        with pytest.raises(ValueError, match="stl10 has images of 96 pixels and its own test images"):
            load_images(root, **options)


def test_a_subset_of_rows(root):
    train = read_folder(root, SIDE)["train"]
    subset = train.take(np.array([4, 0]))
    assert subset.labels.tolist() == [1, 0]
    assert np.array_equal(subset.images, train.images[[4, 0]])
    assert subset.classes == train.classes


def test_scenes_of_96_pixels(tmp_path):
    scenes = SHARED / "data" / "scenes96"
    if not scenes.is_dir():
        pytest.skip("no ../shared/data/scenes96")
    parts = load_images(scenes, "folder")
    classes = ("buildings", "forest", "glacier", "mountain", "sea", "street")
    assert parts["train"].classes == classes
    assert parts["train"].images.shape == (3_000, 3, 96, 96)
    assert np.bincount(parts["train"].labels).tolist() == [500] * 6
    assert np.bincount(parts["test"].labels).tolist() == [250] * 6
    assert parts["train"].name == "folder/scenes96"
    first = sorted((scenes / "test" / "sea").iterdir())[0]
    with Image.open(first) as image:
        assert np.array_equal(parts["test"].images[4 * 250], np.asarray(image).transpose(2, 0, 1))
