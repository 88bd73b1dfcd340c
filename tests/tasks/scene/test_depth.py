"""Photos with depth: pairs in a folder, meters, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image

from scale_disco.tasks.scene.evaluation import find_pairs, read_depth, read_pair


def write_pair(folder, name, millimeters, size=None):
    """A gray photo and its depth."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    depth = np.asarray(millimeters, np.uint16)
    Image.new("RGB", size or depth.shape[::-1], "gray").save(folder / f"{name}.jpg")
    Image.fromarray(depth).save(folder / f"{name}_depth_mm.png")


def refused(kind, words):
    return pytest.raises(kind, match=f"^depth: .*{re.escape(words)}")


def test_pairs_below_a_folder_in_order(tmp_path):
    depth = np.full((40, 48), 2500)
    depth[:20] = 0
    for name in ("indoor/b", "a", "indoor/a"):
        write_pair(tmp_path, name, depth)
    Image.new("RGB", (40, 40)).save(tmp_path / "without.jpg")
    pairs = find_pairs(tmp_path)
    assert list(pairs) == ["a", "indoor/a", "indoor/b"]
    name, image, meters = read_pair("a", *pairs["a"])
    assert (name, image.shape, image.dtype) == ("a", (3, 40, 48), torch.uint8)
    assert meters[:20].isnan().all()
    assert (meters[20:] == 2.5).all()
    assert meters.dtype == torch.float32


def test_the_whole_range_of_sixteen_bits(tmp_path):
    write_pair(tmp_path, "a", [[0, 1, 32768, 65535]] * 2)
    np.testing.assert_allclose(read_depth(tmp_path / "a_depth_mm.png")[0], [np.nan, 0.001, 32.768, 65.535])


def test_a_folder_without_pairs(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        find_pairs(tmp_path / "nowhere")
    Image.new("RGB", (40, 40)).save(tmp_path / "a.jpg")
    with refused(FileNotFoundError, f"no pairs of NAME.jpg and NAME_depth_mm.png in {tmp_path}"):
        find_pairs(tmp_path)


def test_depth_without_a_photo(tmp_path):
    write_pair(tmp_path, "a", np.ones((40, 40)))
    (tmp_path / "a.jpg").unlink()
    with refused(FileNotFoundError, "a_depth_mm.png has no photo next to it, such as a.jpg"):
        find_pairs(tmp_path)


def test_sizes_that_differ(tmp_path):
    write_pair(tmp_path, "a", np.ones((40, 48)), size=(48, 44))
    with refused(ValueError, "a_depth_mm.png has 48 x 40 pixels, its photo 48 x 44"):
        read_pair("a", *find_pairs(tmp_path)["a"])


def test_files_that_are_no_depth(tmp_path):
    path = tmp_path / "a_depth_mm.png"
    for content in (b"", b"\x89PNG\r\n\x1a\nrest", b"text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^cannot read {re.escape(str(path))}: "):
            read_depth(path)
    Image.new("L", (40, 40)).save(path)
    with pytest.raises(ValueError, match=r"^cannot read .*: expected gray values of 16 bits, got mode L"):
        read_depth(path)


def test_real_pairs(shared):
    folder = shared / "data" / "depth"
    if not folder.is_dir():
        pytest.skip("no photos with depth in ../shared/data/depth")
    pairs = find_pairs(folder)
    assert len(pairs) == 12
    known = {"nyu/basement_00000": (0.733, 3.26), "kitti/object_000000": (0.045, 11.67)}
    for name, (valid, median) in known.items():
        meters = read_pair(name, *pairs[name]).meters
        assert float(meters.isfinite().float().mean()) == pytest.approx(valid, abs=0.001)
        assert float(meters.nanmedian()) == pytest.approx(median, abs=0.01)
