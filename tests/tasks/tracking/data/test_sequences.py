"""Sequences: layouts, formats of ground-truth files, and errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scale_disco.tasks.io.images import load_frame
from scale_disco.tasks.tracking.data.otb_lists import LISTS, OTB50, OTB100, OTB2013, RANGES
from scale_disco.tasks.tracking.data.sequences import read_boxes, read_sequence, read_sequences
from tests.tasks.tracking.sequences import lines, moving, write_frames, write_otb


def test_otb_layout_is_read(tmp_path):
    sequence = read_sequence(write_otb(tmp_path, "Car", moving(3)))
    assert sequence.name == "Car"
    assert [frame.name for frame in sequence.frames] == ["0001.png", "0002.png", "0003.png"]
    assert sequence.boxes.dtype == torch.float64
    assert sequence.boxes.tolist() == [[2, 1, 4, 5], [3, 1, 4, 5], [4, 1, 4, 5]]


@pytest.mark.parametrize(("width", "suffix"), [(1, ".png"), (5, ".jpg"), (8, ".bmp"), (4, ".JPG"), (3, ".jpeg")])
def test_frames_of_any_numbering_next_to_the_boxes(tmp_path, width, suffix):
    write_frames(tmp_path / "Car", 11, width=width, suffix=suffix)
    (tmp_path / "Car" / "groundtruth_rect.txt").write_text(lines(moving(11)))
    (tmp_path / "Car" / "cover.png").write_bytes(b"")
    (tmp_path / "Car" / "._0001.jpg").write_bytes(b"")
    frames = read_sequence(tmp_path / "Car").frames
    assert [int(frame.stem) for frame in frames] == list(range(1, 12))


def test_got10k_layout_is_read(tmp_path):
    folder = tmp_path / "GOT-10k_Val_000001"
    write_frames(folder, 3, width=8, suffix=".jpg")
    (folder / "groundtruth.txt").write_text("3.0000,2.5000,4.0000,5.0000\n4,2,4,5\n5,2,4,5\n")
    (folder / "absence.label").write_text("0\n1\n0\n")
    sequence = read_sequence(folder)
    assert sequence.boxes[[0, 2]].tolist() == [[2, 1.5, 4, 5], [4, 1, 4, 5]]
    assert sequence.boxes[1].isnan().all()


@pytest.mark.parametrize("labels", ["0\n1\n", "0\n2\n0\n", "0\nno\n0\n"])
def test_invalid_absence_labels_raise(tmp_path, labels):
    folder = write_otb(tmp_path, "Car", moving(3))
    (folder / "absence.label").write_text(labels)
    with pytest.raises(ValueError, match=r"absence\.label: expected 0 or 1 for each of 3 frames"):
        read_sequence(folder)


SEPARATORS = st.sampled_from([",", "\t", " ", ";", ", ", " ;", "  ", "\t ", " , "])
NUMBERS = st.integers(-500, 500) | st.floats(-500, 500, width=32)
SIZES = st.integers(1, 500) | st.floats(0.125, 500, width=32)


@given(
    boxes=st.lists(st.tuples(NUMBERS, NUMBERS, SIZES, SIZES), min_size=1, max_size=5),
    data=st.data(),
    bom=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n"]),
    tail=st.sampled_from(["", "\n", "\r\n", "\n\n \n\t\n"]),
)
def test_boxes_are_read_with_any_separators(tmp_path_factory, boxes, data, bom, newline, tail):
    written = []
    for box in boxes:
        text = str(box[0]) + "".join(data.draw(SEPARATORS) + str(value) for value in box[1:])
        written.append(data.draw(st.sampled_from(["", " ", "\t"])) + text + data.draw(st.sampled_from(["", " ", ","])))
    path = tmp_path_factory.mktemp("boxes") / "groundtruth_rect.txt"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + (newline.join(written) + tail).encode())
    assert read_boxes(path).tolist() == [list(map(float, box)) for box in boxes]


@given(content=st.binary(max_size=60))
def test_any_bytes_are_boxes_or_a_one_line_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("boxes") / "groundtruth_rect.txt"
    path.write_bytes(content)
    message = ""
    try:
        boxes = read_boxes(path)
    except ValueError as error:
        message = str(error)
    if message:
        assert str(path) in message
        assert "\n" not in message
    else:
        assert boxes.shape == (len(boxes), 4)
        assert not boxes.isinf().any()


@pytest.mark.parametrize("line", ["NaN,NaN,NaN,NaN", "nan 2 4 5", "0,0,0,0", "3,2,4,0", "3,2,-4,5"])
def test_frames_without_a_box_are_nan(tmp_path, line):
    folder = write_otb(tmp_path, "Car", moving(3))
    (folder / "groundtruth_rect.txt").write_text(f"3,2,4,5\n{line}\n5,2,4,5\n")
    boxes = read_sequence(folder).boxes
    assert boxes.isnan().all(1).tolist() == [False, True, False]
    (folder / "groundtruth_rect.txt").write_text(f"{line}\n3,2,4,5\n5,2,4,5\n")
    with pytest.raises(ValueError, match="the first frame must have a box of positive size"):
        read_sequence(folder)


@pytest.mark.parametrize(
    "line", ["", "3,2,4", "3,,2,4,5", "1,2,3,4,5,6,7,8", "three,2,4,5", "3,2,inf,5", "3.2.4.5"], ids=repr
)
def test_invalid_lines_raise(tmp_path, line):
    folder = write_otb(tmp_path, "Car", moving(3))
    (folder / "groundtruth_rect.txt").write_text(f"3,2,4,5\n{line}\n5,2,4,5\n")
    with pytest.raises(ValueError, match=r"groundtruth_rect\.txt, line 2: expected four numbers x, y, w, h, got '"):
        read_sequence(folder)


def test_frames_after_the_last_box_are_skipped_with_a_warning(tmp_path):
    folder = write_otb(tmp_path, "Car", moving(3), frames=5)
    with pytest.warns(UserWarning, match="Car: 5 frames and boxes for 3; the last 2 skipped"):
        sequence = read_sequence(folder)
    assert [frame.stem for frame in sequence.frames] == ["0001", "0002", "0003"]


def test_more_boxes_than_frames_raise(tmp_path):
    folder = write_otb(tmp_path, "Car", moving(3), frames=1)
    with pytest.raises(ValueError, match="has 3 lines for 1 frame: are frames missing"):
        read_sequence(folder)


def test_gaps_in_the_numbering_raise(tmp_path):
    folder = write_otb(tmp_path, "Car", moving(4), frames=6)
    (folder / "img" / "0003.png").unlink()
    (folder / "img" / "0004.png").unlink()
    with pytest.raises(ValueError, match=r"after frame 0002\.png comes 0005\.png; 2 frames missing"):
        read_sequence(folder)


def test_duplicate_frame_numbers_raise(tmp_path):
    folder = write_otb(tmp_path, "Car", moving(3))
    write_frames(folder / "img", 1, width=2)
    with pytest.raises(ValueError, match=r"0001\.png and 01\.png have the same number"):
        read_sequence(folder)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty_ground_truth_raises(tmp_path, content):
    folder = write_otb(tmp_path, "Car", moving(3))
    (folder / "groundtruth_rect.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"groundtruth_rect\.txt is empty"):
        read_sequence(folder)


def test_missing_frames_boxes_or_folders_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_sequence(tmp_path / "Car")
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_sequences(tmp_path / "Car")
    with pytest.raises(ValueError, match="no sequences in"):
        read_sequences(tmp_path)
    (tmp_path / "Car").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no groundtruth_rect\.txt and no groundtruth\.txt"):
        read_sequence(tmp_path / "Car")
    (tmp_path / "Car" / "groundtruth_rect.txt").write_text("1,1,2,2\n")
    with pytest.raises(ValueError, match="no numbered frames in"):
        read_sequence(tmp_path / "Car")


def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: range, boxes: int):
    """Read the sequence David with a smaller range, 4 to 6."""
    monkeypatch.setitem(RANGES, "David", (4, 6))
    return read_sequence(write_otb(tmp_path, "David", moving(boxes), frames=len(frames), first=frames[0]))


@pytest.mark.parametrize(
    ("frames", "boxes"),
    [
        (range(1, 9), 3),  # as in OTB: all frames, boxes of the range
        (range(4, 7), 3),
        (range(1, 4), 3),  # cropped and renumbered
        (range(1, 9), 7),  # boxes from the first frame
        (range(4, 7), 7),
        (range(1, 4), 7),
    ],
)
def test_known_frame_ranges_are_applied(tmp_path, monkeypatch, frames, boxes):
    sequence = cut(tmp_path, monkeypatch, frames, boxes)
    assert len(sequence.frames) == 3
    assert int(sequence.frames[0].stem) == (1 if frames == range(1, 4) else 4)
    assert sequence.boxes[0, 0] == (2 if boxes == 3 else 5)


def test_missing_frames_of_a_range_raise(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="has 3 lines for 2 frames"):
        cut(tmp_path, monkeypatch, range(4, 6), 3)


def test_every_object_of_a_video_is_a_sequence(tmp_path):
    folder = write_otb(tmp_path, "Two", moving(3))
    (folder / "groundtruth_rect.txt").rename(folder / "groundtruth_rect.1.txt")
    (folder / "groundtruth_rect.2.txt").write_text(lines([[1, 1, 2, 2]] * 3))
    first, second = read_sequences(tmp_path)
    assert (first.name, second.name) == ("Two-1", "Two-2")
    assert read_sequence(folder, 2).boxes.tolist() == second.boxes.tolist() == [[0, 0, 2, 2]] * 3
    with pytest.raises(ValueError, match="has 2 objects, choose one: target 1 or 2"):
        read_sequence(folder)
    with pytest.raises(ValueError, match="has no object 3, only 1 or 2"):
        read_sequence(folder, 3)


@pytest.mark.parametrize(("name", "expected"), [("Human4", "Human4"), ("Jogging", "Jogging-2")])
def test_empty_files_of_an_object_are_skipped(tmp_path, name, expected):
    folder = write_otb(tmp_path, name, moving(3))
    (folder / "groundtruth_rect.txt").rename(folder / "groundtruth_rect.2.txt")
    (folder / "groundtruth_rect.1.txt").write_text("\n")
    assert [sequence.name for sequence in read_sequences(tmp_path)] == [expected]


def test_sequences_are_found_in_subfolders_and_sorted(tmp_path):
    write_otb(tmp_path / "b" / "deep", "Alpha", moving(2))
    write_otb(tmp_path, "Beta", moving(2))
    write_otb(tmp_path, ".hidden", moving(2))
    assert [sequence.name for sequence in read_sequences(tmp_path)] == ["Alpha", "Beta"]
    assert [sequence.name for sequence in read_sequences(tmp_path / "Beta")] == ["Beta"]
    write_otb(tmp_path / "b", "Beta", moving(2))
    with pytest.raises(ValueError, match="two sequences are called Beta"):
        read_sequences(tmp_path)


def test_the_working_directory_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(write_otb(tmp_path, "Car", moving(2)))
    assert read_sequence(Path(".")).name == "Car"


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_frames_are_converted_to_rgb(tmp_path, mode):
    path = tmp_path / "0001.png"
    Image.new("RGB", (12, 8), (255, 255, 255)).convert(mode).save(path)
    frame = load_frame(path)
    assert frame.shape == (3, 8, 12)
    assert frame.dtype == torch.uint8
    assert frame.is_contiguous()
    assert (frame == 255).all()


def test_channels_are_rgb(tmp_path):
    Image.new("RGB", (2, 2), (1, 2, 3)).save(tmp_path / "1.png")
    assert load_frame(tmp_path / "1.png")[:, 0, 0].tolist() == [1, 2, 3]


def test_unreadable_frames_raise(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*0001\.png: No such file"):
        load_frame(tmp_path / "0001.png")
    (tmp_path / "0001.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot read .*0001\.png: not an image"):
        load_frame(tmp_path / "0001.png")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "0001.png")
    with pytest.raises(ValueError, match="more than 8 bits per channel"):
        load_frame(tmp_path / "0001.png")
    Image.effect_noise((64, 64), 50).save(tmp_path / "0002.jpg")
    whole = (tmp_path / "0002.jpg").read_bytes()
    (tmp_path / "0002.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cannot read .*0002\.jpg: image file is truncated"):
        load_frame(tmp_path / "0002.jpg")


def test_benchmark_lists_are_complete_and_sorted():
    assert {name: len(names) for name, names in LISTS.items()} == {"OTB2013": 51, "OTB50": 50, "OTB100": 100}
    for names in LISTS.values():
        assert list(names) == sorted(set(names))
    assert set(OTB2013) | set(OTB50) <= set(OTB100)
    assert set(RANGES) <= set(OTB100)


def test_real_sequences_are_read(shared):
    sequences = read_sequences(shared / "data" / "otb")
    assert {sequence.name: len(sequence.frames) for sequence in sequences} == {
        "CarScale": 252, "Couple": 140, "Crossing": 120, "Skiing": 81, "Football1": 74, "Deer": 71, "Singer1": 351,
        "Freeman4": 283, "Matrix": 100, "Jumping": 313,
    }  # fmt: skip
    for sequence in sequences:
        sizes = (sequence.boxes[:, 2] * sequence.boxes[:, 3]).sqrt()
        assert math.isfinite(sizes.max() / sizes.min())
        frame = load_frame(sequence.frames[-1])
        assert (sequence.boxes[:, 0] + sequence.boxes[:, 2] <= frame.shape[2]).all()
