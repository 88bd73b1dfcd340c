"""Result files: round trips, and files of other toolkits under all their names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.tracking.data.sequences import Sequence
from scale_disco.tasks.tracking.results import Result, read_result, read_results, write_result

BOXES = torch.tensor([[9.0, 19, 30, 40], [10.5, 18.25, 31, 41], [12, 17, 32, 42]], dtype=torch.float64)
ROWS = [[10, 20, 30, 40], [11.5, 19.25, 31, 41], [13, 18, 32, 42]]  # counted from 1


def sequence(name="Car4", boxes=BOXES):
    return Sequence(name, tuple(Path(f"{number:04}.jpg") for number in range(len(boxes))), boxes)


def text(rows=ROWS, separator=","):
    return "".join(f"{separator.join(map(str, row))}\n" for row in rows)


@given(boxes=st.lists(st.tuples(*[st.floats(-1e4, 1e4)] * 4), min_size=1, max_size=4), data=st.data())
def test_results_survive_a_round_trip(tmp_path_factory, boxes, data):
    folder = tmp_path_factory.mktemp("results")
    boxes = torch.tensor(boxes, dtype=torch.float64)
    seconds = torch.tensor(data.draw(st.lists(st.floats(0, 1e3), min_size=len(boxes), max_size=len(boxes)))).double()
    write_result(folder, "Car4", Result(boxes, seconds))
    again = read_result(folder, sequence(boxes=boxes))
    assert torch.allclose(again.boxes, boxes, rtol=0, atol=6e-5)
    assert torch.allclose(again.seconds, seconds, rtol=0, atol=1e-9)
    assert np.allclose(np.loadtxt(folder / "Car4.txt", delimiter=",", ndmin=2) - [1, 1, 0, 0], boxes, rtol=0, atol=6e-5)
    assert np.loadtxt(folder / "times" / "Car4_time.txt", ndmin=1).shape == (len(boxes),)


def test_written_boxes_count_from_one(tmp_path):
    write_result(tmp_path, "Car4", Result(BOXES, torch.tensor([0.5, 0.25, 0.125])))
    assert (tmp_path / "Car4.txt").read_text().splitlines()[1] == "11.5000,19.2500,31.0000,41.0000"
    assert (tmp_path / "times" / "Car4_time.txt").read_text() == "0.500000000\n0.250000000\n0.125000000\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["Car4.txt", "Car4_time.txt", "times"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("Car4.txt", text(ROWS[:2])),
        ("Car4.txt", text()[:-5]),
        ("Car4.txt", text().replace("31", "x")),
        ("Car4.txt", text([[50, 50, 30, 40], *ROWS[1:]])),
        ("Car4.txt", ""),
        ("Car4.txt", "\udcff"),
        ("times/Car4_time.txt", "0.5\n0.5\n"),
        ("times/Car4_time.txt", "0.5\n0.5\n-1\n"),
        ("times/Car4_time.txt", "0.5\n0.5\nnan\n"),
        ("times/Car4_time.txt", "0.5\n0.5\n0.5 s\n"),
    ],
)
def test_incomplete_results_raise(tmp_path, file, content):
    write_result(tmp_path, "Car4", Result(BOXES, torch.ones(3)))
    read_result(tmp_path, sequence())
    (tmp_path / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match="Car4"):
        read_result(tmp_path, sequence())
    (tmp_path / file).unlink()
    with pytest.raises(FileNotFoundError, match="Car4"):
        read_result(tmp_path, sequence())


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Car4", "Car4.txt"),
        ("Car4", "car4.txt"),
        ("CarDark", "carDark.txt"),
        ("FaceOcc1", "faceocc1.txt"),
        ("Jogging-1", "Jogging-1.txt"),
        ("Jogging-2", "Jogging.2.txt"),
        ("Jogging-1", "Jogging_1.txt"),
        ("Skating2-2", "skating2_2.txt"),
        ("Human4", "Human4-2.txt"),
        ("Human4", "human4_2.txt"),
        ("Human4", "Human4.txt"),
        ("GOT-10k_Val_000001", "GOT-10k_Val_000001.txt"),
    ],
)
def test_file_names_of_all_toolkits_are_recognized(tmp_path, name, file):
    for other in ("Jogging-3.txt", "skating2.txt", "human.txt", "attributes.json", "Car40.txt"):
        (tmp_path / other).write_text("not these\n")
    (tmp_path / file).write_text(text())
    results = read_results(tmp_path, [sequence(name)])
    assert list(results) == [name]
    assert torch.equal(results[name].boxes, BOXES)
    assert results[name].seconds is None


@pytest.mark.parametrize("separator", [",", "\t", " ", ";", ", ", "   "])
def test_any_separator_is_read(tmp_path, separator):
    content = text(separator=separator).replace("\n", "\r\n")
    (tmp_path / "Car4.txt").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert torch.equal(read_results(tmp_path, [sequence()])["Car4"].boxes, BOXES)


def test_exact_names_win_and_ambiguous_ones_raise(tmp_path):
    (tmp_path / "car4.txt").write_text(text([[0, 0, 1, 1]] * 3))
    (tmp_path / "Car4.txt").write_text(text())
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("file names differ by more than case here")
    assert torch.equal(read_results(tmp_path, [sequence()])["Car4"].boxes, BOXES)
    (tmp_path / "Car4.txt").rename(tmp_path / "CAR4.txt")
    with pytest.raises(ValueError, match=r"both CAR4\.txt and car4\.txt are results of Car4"):
        read_results(tmp_path, [sequence()])


@pytest.mark.parametrize(("first", "start"), [(1.0, 1), (0.0, 0), (0.5, 0), (1.5, 1), (30.0, 1), (-5.0, 1)])
def test_the_first_box_decides_whether_boxes_count_from_zero(tmp_path, first, start):
    rows = BOXES.clone()
    rows[:, :2] += start
    rows[0, :2] = BOXES[0, :2] + first
    (tmp_path / "Car4.txt").write_text(text(rows.tolist()))
    assert torch.equal(read_results(tmp_path, [sequence()])["Car4"].boxes, BOXES)


def test_empty_and_nan_boxes_are_read(tmp_path):
    (tmp_path / "Car4.txt").write_text("10,20,30,40\n0,0,0,0\nNaN,NaN,NaN,NaN\n")
    boxes = read_results(tmp_path, [sequence()])["Car4"].boxes
    assert boxes[1].tolist() == [-1, -1, 0, 0]
    assert boxes[2].isnan().all()


def test_times_are_read_if_available(tmp_path):
    (tmp_path / "times").mkdir()
    (tmp_path / "car4.txt").write_text(text())
    (tmp_path / "times" / "car4_time.txt").write_text("1\n0.5\n0.25\n")
    assert read_results(tmp_path, [sequence()])["Car4"].seconds.tolist() == [1, 0.5, 0.25]
    (tmp_path / "times" / "car4_time.txt").write_text("1\n0.5\n")
    with pytest.raises(ValueError, match=r"car4_time\.txt: expected a line for each of 3 frames of Car4, got 2"):
        read_results(tmp_path, [sequence()])


def test_json_files_of_the_benchmark_are_read(tmp_path):
    run = {"tracker": "KCF", "seqName": "Car4", "resType": "rect", "startFrame": 1, "res": ROWS}
    file = tmp_path / "Car4.json"
    for document in ([run], run, {"type": "rect", "res": ROWS}):
        file.write_text(json.dumps(document))
        assert torch.equal(read_results(tmp_path, [sequence()])["Car4"].boxes, BOXES)
    for content, message in (
        ("[", "Car4.json is not JSON"),
        ("[]", 'expected the boxes .* in "res"'),
        ('{"res": [1, 2]}', 'expected the boxes .* in "res"'),
        ('{"res": [[1, 2, 3]]}', "line 1: expected four numbers"),
        ('{"res": [[1, 2, 3, null]]}', "line 1: expected four numbers"),
        (json.dumps(run | {"resType": "ivtAff"}), "of the type \"rect\" are supported, got 'ivtAff'"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_results(tmp_path, [sequence()])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(ROWS[:2]), "expected a line for each of 3 frames of Car4, got 2"),
        (text([*ROWS, *ROWS]), "expected a line for each of 3 frames of Car4, got 6"),
        ("", "expected a line for each of 3 frames of Car4, got 0"),
        ("10,20,30,40\n1,2,3\n5,6,7,8\n", "line 2: expected four numbers x, y, w, h, got '1,2,3'"),
        ("10,20,30,40\n1,2,inf,3\n5,6,7,8\n", "line 2: expected four numbers"),
        ("10,20,30,40\n\n5,6,7,8\n", "line 2: expected four numbers"),
    ],
)
def test_invalid_files_raise_one_line(tmp_path, content, message):
    (tmp_path / "Car4.txt").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_results(tmp_path, [sequence()])
    assert "\n" not in str(caught.value)


def test_missing_results_are_named(tmp_path):
    (tmp_path / "Car4.txt").write_text(text())
    with pytest.raises(FileNotFoundError, match=r"no results for 2 of 3 sequences, .* of David, Jogging-1$"):
        read_results(tmp_path, [sequence(name) for name in ("Car4", "David", "Jogging-1")])
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        read_results(tmp_path / "nowhere", [sequence()])
