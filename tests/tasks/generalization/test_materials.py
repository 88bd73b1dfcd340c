from __future__ import annotations

import numpy as np
import pytest

from scale_disco.tasks.generalization.materials import read_kth_tips
from tests.conftest import SHARED

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    """Two materials, nine distances, three conditions; distances and conditions are in the pixels."""
    for number, material in enumerate(("cotton", "linen"), 11):
        (tmp_path / material).mkdir()
        for distance in range(1, 10):
            for condition in (1, 4, 7):
                pixels = np.full((100, 80), 20 * distance + condition, np.uint8)
                Image.fromarray(pixels).save(tmp_path / material / f"{number}-scale_{distance}_im_{condition}_grey.png")
    return tmp_path


def test_reads_materials_distances_and_conditions(folder):
    data = read_kth_tips(folder, 90)
    assert data.classes == ("cotton", "linen")
    assert len(data.images) == 54
    assert np.bincount(data.labels).tolist() == [27, 27]
    for image, distance, condition in zip(data.images, data.distances, data.conditions, strict=True):
        assert image.shape == (3, 90, 80)  # cropped where it is larger
        assert (image == 20 * distance + condition).all()


def test_missing_doubled_and_foreign_files_are_one_line(folder):
    path = folder / "linen" / "12-scale_3_im_4_grey.png"
    doubled = path.with_name("13-scale_3_im_7_grey.png")
    doubled.write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="linen has two images of the same distance and condition"):
        read_kth_tips(folder)
    doubled.unlink()
    foreign = path.rename(path.with_name("linen.png"))
    with pytest.raises(ValueError, match=r"linen.png is not named MATERIAL/N-scale_D_im_I_grey.png"):
        read_kth_tips(folder)
    foreign.unlink()
    with pytest.raises(ValueError, match="linen has no image of distance 3, condition 4"):
        read_kth_tips(folder)
    with pytest.raises(ValueError, match="expected a subfolder of each material, got cotton"):
        read_kth_tips(folder / "cotton")
    with pytest.raises(ValueError, match="side must be at least 64, got 10"):
        read_kth_tips(folder, 10)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_kth_tips(folder / "silk")


def test_reads_the_data_base():
    if not (SHARED / "data" / "kth_tips").is_dir():
        pytest.skip("no ../shared/data/kth_tips with images of KTH-TIPS")
    data = read_kth_tips(SHARED / "data" / "kth_tips")
    assert len(data.classes) == 10
    assert np.bincount(data.distances).tolist() == [0] + [len(data.images) // 9] * 9
