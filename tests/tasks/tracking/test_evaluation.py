"""Metrics of trackers against got10k and by hand, and evaluations that are killed and resumed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.tracking.data.otb_lists import OTB50, OTB100, OTB2013, SCALE_VARIATION
from scale_disco.tasks.tracking.data.sequences import Sequence, read_sequences
from scale_disco.tasks.tracking.evaluation import (
    center_distance,
    mean_score,
    overall,
    overlap,
    run,
    scale_error,
    scale_rule,
    score,
    varies_in_scale,
)
from scale_disco.tasks.tracking.results import Result, read_results, write_result
from scale_disco.tasks.tracking.tracker import StaticBoxTracker, TrackedBox
from tests.conftest import ROOT, SHARED
from tests.tasks.tracking.sequences import moving, write_otb

pytest.importorskip("PIL")


def doubles(rows):
    return torch.as_tensor(rows, dtype=torch.float64).reshape(-1, 4)


def sequence(boxes, name="Car"):
    return Sequence(name, tuple(Path(f"{number:04}.png") for number in range(len(boxes))), doubles(boxes))


def perfect(truth):
    return truth.clone()


def static(truth):
    return truth[:1].repeat(len(truth), 1)


def drifting(truth):
    """Boxes that drift and grow."""
    steps = torch.arange(len(truth), dtype=torch.float64)[:, None]
    return truth + steps * doubles([[0.37, -0.21, 0.05, 0.11]])


def shrinking(truth):
    """Boxes that shrink to a negative size."""
    boxes = truth.clone()
    boxes[:, 2:] -= torch.arange(len(truth), dtype=torch.float64)[:, None] * 3
    return boxes


TRACKERS = {"perfect": perfect, "static": static, "drifting": drifting, "shrinking": shrinking}


class Replay:
    """Returns given boxes."""

    scale, lost = 1.0, False

    def __init__(self, results):
        self.results = results
        self.first_boxes = []

    def init(self, image, box):
        self.first_boxes.append(box)
        self.remaining = [tuple(row) for row in self.results[len(self.first_boxes) - 1][1:].tolist()]

    def update(self, image):
        return TrackedBox(self.remaining.pop(0), 1.0)


@pytest.fixture(scope="module")
def got10k():
    """Its experiment on OTB, without downloading the data set."""
    pytest.importorskip("got10k", reason="got10k is the reference for these metrics")
    from got10k.experiments import ExperimentOTB

    def of(sequences, results, reports):
        experiment = object.__new__(ExperimentOTB)
        experiment.nbins_iou, experiment.nbins_ce = 21, 51
        experiment.result_dir, experiment.report_dir = str(results), str(reports)
        experiment.dataset = Got10kDataset(sequences)
        return experiment

    return of


class Got10kDataset:
    """Sequences in the format of got10k, with boxes counted from 1."""

    def __init__(self, sequences):
        self.sequences = sequences
        self.seq_names = [sequence.name for sequence in sequences]

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        sequence = self.sequences[index]
        return list(map(str, sequence.frames)), sequence.boxes.numpy() + np.array([1, 1, 0, 0])


@pytest.fixture(scope="module", params=["synthetic", "real"])
def videos(request):
    """Random walks, and sequences of OTB if available; their frames are not read."""
    if request.param == "real":
        folder = SHARED / "data" / "otb"
        if not folder.is_dir():
            pytest.skip("no ../shared/data/otb with sequences of OTB")
        return read_sequences(folder)
    generator = torch.Generator().manual_seed(0)
    walks = torch.randn(3, 40, 4, dtype=torch.float64, generator=generator).cumsum(1) * 4
    walks[..., 2:] = 60 * (walks[..., 2:] / 30).exp2()
    walks = walks.round(decimals=2)
    return [sequence(walk[: 20 + 10 * index], f"Walk{index}") for index, walk in enumerate(walks)]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_curves_equal_those_of_got10k(videos, tracker, got10k):
    oracle = got10k(videos, "", "")
    for video in videos:
        boxes = TRACKERS[tracker](video.boxes)
        ours = score(Result(boxes, None), video)
        success, precision = oracle._calc_curves(*oracle._calc_metrics(boxes.numpy(), video.boxes.numpy()))
        assert np.abs(ours.success.numpy() - success).max() < 1e-6
        assert np.abs(ours.precision.numpy() - precision).max() < 1e-6
        assert ours.frames == len(video.frames)
        if tracker == "perfect":
            assert ours.auc == pytest.approx(20 / 21, abs=1e-12)
            assert (ours.precision_20, ours.success_rate, ours.scale_error) == (1, 1, 0)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_got10k_reports_the_same_metrics_from_our_files(videos, tracker, got10k, tmp_path, monkeypatch):
    seconds = {video.name: 0.01 + 0.001 * torch.arange(len(video.frames)).double() for video in videos}
    for video in videos:
        write_result(tmp_path / "ours", video.name, Result(TRACKERS[tracker](video.boxes), seconds[video.name]))
    results = read_results(tmp_path / "ours", videos)
    ours = {video.name: score(results[video.name], video) for video in videos}
    oracle = got10k(videos, tmp_path, tmp_path / "reports")
    monkeypatch.setattr(oracle, "plot_curves", lambda _: None)
    theirs = oracle.report(["ours"])["ours"]
    total = mean_score(list(ours.values()))
    for mine, other in [(total, theirs["overall"]), *((ours[name], row) for name, row in theirs["seq_wise"].items())]:
        assert mine.auc == pytest.approx(other["success_score"], abs=1e-6)
        assert mine.precision_20 == pytest.approx(other["precision_score"], abs=1e-6)
        assert mine.success_rate == pytest.approx(other["success_rate"], abs=1e-6)
        assert mine.frame_fps == pytest.approx(other["speed_fps"], rel=1e-6)
        assert mine.success.tolist() == pytest.approx(other["success_curve"], abs=1e-6)
        assert mine.precision.tolist() == pytest.approx(other["precision_curve"], abs=1e-6)


# On a grid of quarters sums are exact, and so are the metrics.
QUARTERS = st.integers(-2000, 2000).map(lambda number: number / 4)
ANY_BOX = st.tuples(*[QUARTERS] * 4)
BOX = st.tuples(QUARTERS, QUARTERS, *[st.integers(1, 2000).map(lambda number: number / 4)] * 2)
PAIRS = st.lists(st.tuples(ANY_BOX, ANY_BOX), min_size=1, max_size=8)


@given(PAIRS)
def test_overlap_is_symmetric_and_between_0_and_1(pairs):
    boxes, others = (doubles(rows) for rows in zip(*pairs, strict=True))
    values = overlap(boxes, others)
    assert torch.equal(values, overlap(others, boxes))
    assert ((values >= 0) & (values <= 1)).all()


@given(PAIRS, QUARTERS, QUARTERS)
def test_metrics_are_shift_invariant(pairs, x, y):
    boxes, others = (doubles(rows) for rows in zip(*pairs, strict=True))
    shift = doubles([[x, y, 0, 0]])
    for metric in (overlap, center_distance, scale_error):
        assert torch.equal(metric(boxes, others), metric(boxes + shift, others + shift))


@given(st.lists(BOX, min_size=1, max_size=8))
def test_the_overlap_of_a_box_with_itself_is_1(boxes):
    boxes = doubles(boxes)
    assert torch.allclose(overlap(boxes, boxes), torch.ones(len(boxes), dtype=torch.float64), atol=1e-12)


NUMBERS = st.floats(-1e4, 1e4) | st.integers(-50, 50).map(float)


@given(st.lists(st.tuples(st.tuples(*[NUMBERS] * 4), st.tuples(*[NUMBERS] * 4)), min_size=1, max_size=8))
def test_overlap_and_distance_equal_those_of_got10k(pairs):
    metrics = pytest.importorskip("got10k.utils.metrics", reason="got10k is the reference for these metrics")
    boxes, others = (doubles(rows) for rows in zip(*pairs, strict=True))
    assert np.array_equal(overlap(boxes, others).numpy(), metrics.rect_iou(boxes.numpy(), others.numpy()))
    distances = metrics.center_error(boxes.numpy(), others.numpy())
    assert np.allclose(center_distance(boxes, others).numpy(), distances, rtol=1e-12, atol=0)


def test_scale_error_is_in_octaves_and_finite():
    truth = doubles([[0, 0, 10, 10]] * 6)
    boxes = doubles([[5, 5, 20, 20], [0, 0, 5, 5], [0, 0, 40, 2.5], [0, 0, 0, 0], [0, 0, -3, -3], [math.nan] * 4])
    pixel = math.log2(10)
    assert scale_error(boxes, truth).tolist() == pytest.approx([1, 1, 0, pixel, pixel, pixel])


def test_frames_without_ground_truth_are_ignored():
    boxes = [[0, 0, 10, 10], [math.nan] * 4, [5, 0, 10, 10], [math.nan] * 4]
    predicted = doubles([[0, 0, 10, 10], [90, 90, 1, 1], [5, 0, 20, 20], [0, 0, 0, 0]])
    ours, counted = score(Result(predicted, None), sequence(boxes)), sequence([boxes[0], boxes[2]])
    again = score(Result(predicted[[0, 2]], None), counted)
    assert (ours.frames, ours.scale_error, ours.auc) == (2, pytest.approx(0.5), again.auc)
    assert torch.equal(ours.precision, again.precision)


def test_nan_boxes_are_failures():
    boxes = doubles([[0, 0, 10, 10], [math.nan] * 4])
    ours = score(Result(boxes, None), sequence([[0, 0, 10, 10]] * 2))
    assert ours.success.tolist() == [0.5] * 20 + [0]
    assert ours.precision.tolist() == [0.5] * 51


def test_both_definitions_of_fps():
    video = sequence([[0, 0, 10, 10]] * 4)
    ours = score(Result(video.boxes, torch.tensor([0.5, 0.1, 0.2, 0.2]).double()), video)
    assert ours.fps == pytest.approx(3 / 1.0)
    assert ours.frame_fps == pytest.approx((2 + 10 + 5 + 5) / 4)
    slow = score(Result(video.boxes, torch.tensor([1.0, 1, 1, 1]).double()), video)
    unknown = score(Result(video.boxes, None), video)
    assert (unknown.fps, unknown.frame_fps) == (None, None)
    assert score(Result(video.boxes, torch.zeros(4).double()), video).fps is None
    mean = mean_score([ours, slow, unknown])
    assert mean.fps == pytest.approx((3 + 0.75) / 2)
    assert mean.frame_fps == pytest.approx((5.5 + 1) / 2)
    assert json.loads(json.dumps(mean.document(curves=True)))["fps"] == mean.fps
    with pytest.raises(ValueError, match="at least one score"):
        mean_score([])


def test_sequences_have_the_same_weight():
    good = sequence([[0, 0, 10, 10]] * 9, "good")
    bad = sequence([[0, 0, 10, 10]], "bad")
    scores = {"good": score(Result(good.boxes, None), good), "bad": score(Result(bad.boxes + 100, None), bad)}
    assert overall(scores, [good, bad])["all"][1].auc == pytest.approx((20 / 21 + 0) / 2)


def test_scale_variation_by_attribute_and_by_boxes():
    assert len(SCALE_VARIATION & set(OTB2013)) == 28  # as in the paper of OTB
    assert set(OTB100) >= SCALE_VARIATION
    assert len(SCALE_VARIATION) == 65
    assert len(SCALE_VARIATION & set(OTB50)) == 38
    steady, growing = [[0, 0, 10, 10]] * 3, [[0, 0, 10, 10], [math.nan] * 4, [0, 0, 40, 10]]
    assert [varies_in_scale(sequence(boxes)) for boxes in (steady, growing)] == [False, True]
    assert varies_in_scale(sequence(steady, "CarScale"))
    assert not varies_in_scale(sequence(growing, "Deer"))
    assert scale_rule([sequence(steady, "Deer")]) == "by OTB's attribute SV"
    assert scale_rule([sequence(steady)]).startswith("where the largest true sqrt(w h) is at least 2 times")
    both = [sequence(steady, "Deer"), sequence(growing)]
    assert scale_rule(both).startswith("by OTB's attribute SV, and of other names where")
    scores = {video.name: score(Result(video.boxes, None), video) for video in both}
    groups = overall(scores, both)
    assert {name: count for name, (count, _) in groups.items()} == {"all": 2, "scale variation": 1, "other": 1}
    assert "scale variation" not in overall(scores, both[:1])


@pytest.fixture
def three(tmp_path):
    """Three small videos."""
    for name, frames in (("A", 4), ("B", 3), ("C", 5)):
        write_otb(tmp_path / "videos", name, moving(frames))
    return read_sequences(tmp_path / "videos")


def test_a_run_writes_and_returns_the_results(three, tmp_path):
    calls = []
    tracker = Replay([drifting(video.boxes) for video in three])
    results = run(
        tracker, three, tmp_path / "new" / "drift", fingerprint="drift", progress=lambda *at: calls.append(at)
    )
    assert tracker.first_boxes == [(2, 1, 4, 5)] * 3
    assert calls == [(done, 12) for done in range(1, 13)]
    for video in three:
        assert torch.allclose(results[video.name].boxes, drifting(video.boxes), rtol=0, atol=6e-5)
        assert (results[video.name].seconds > 0).all()
    again = run(StaticBoxTracker(), three, tmp_path / "new" / "drift", fingerprint="drift", progress=calls.append)
    assert all(map(torch.equal, *zip(*((again[name].boxes, results[name].boxes) for name in results), strict=True)))
    assert len(calls) == 12


def test_only_unfinished_sequences_are_tracked(three, tmp_path):
    run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="x")
    (tmp_path / "out" / "B.txt").unlink()
    (tmp_path / "out" / "times" / "C_time.txt").write_text("1\n")
    tracker = Replay([drifting(video.boxes) for video in three[1:]])
    results = run(tracker, three, tmp_path / "out", fingerprint="x")
    assert len(tracker.first_boxes) == 2
    assert torch.equal(results["A"].boxes, static(three[0].boxes))
    assert torch.allclose(results["C"].boxes, drifting(three[2].boxes), rtol=0, atol=6e-5)


def test_results_of_another_tracker_raise(three, tmp_path):
    run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="weights 1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.txt")}
    with pytest.raises(
        ValueError, match="another tracker, weights 1, this one is weights 2: use another result folder"
    ):
        run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="weights 2")
    for content in ("{", "[]"):
        (tmp_path / "out" / "tracker.json").write_text(content)
        with pytest.raises(ValueError, match="another tracker, unknown"):
            run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="weights 1")
    (tmp_path / "out" / "tracker.json").unlink()
    with pytest.raises(ValueError, match=r"unknown tracker, without tracker\.json"):
        run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="weights 1")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.txt")} == before


def test_unreadable_frames_are_named_and_finished_results_remain(three, tmp_path):
    broken, gone = three[1].frames[1], three[2].frames[3]
    content = broken.read_bytes()
    broken.write_bytes(b"no image")
    gone.rename(gone.with_suffix(".away"))
    with pytest.raises(ValueError, match=r"^B, frame 2 of 3: cannot read .*0002\.png: ") as caught:
        run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="x")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.txt")) == ["A.txt"]
    broken.write_bytes(content)
    with pytest.raises(ValueError, match=r"^C, frame 4 of 5: cannot read .*0004\.png: No such file"):
        run(StaticBoxTracker(), three, tmp_path / "out", fingerprint="x")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.txt")) == ["A.txt", "B.txt"]


@pytest.mark.parametrize("box", [(math.nan, 0, 1, 1), (0, math.inf, 1, 1), (1, 1, 1)])
def test_invalid_boxes_of_a_tracker_raise(three, tmp_path, box):
    class Wrong(StaticBoxTracker):
        def update(self, image):
            return TrackedBox(box, 1.0)

    with pytest.raises(
        ValueError, match=r"^A, frame 2 of 4: the tracker returned the box .*expected four finite numbers"
    ):
        run(Wrong(), three, tmp_path / "out", fingerprint="x")


@pytest.mark.parametrize("box", [[-2, -3, 4, 5], [10, 6, 40, 50], [900, 3, 4, 5], [1, 1, 0.25, 0.25]])
def test_unusual_ground_truth_is_passed_to_the_tracker(tmp_path, box):
    write_otb(tmp_path / "videos", "Odd", [box] * 3)
    videos = read_sequences(tmp_path / "videos")
    tracker = Replay([videos[0].boxes])
    results = run(tracker, videos, tmp_path / "out", fingerprint="x")
    assert tracker.first_boxes == [tuple(videos[0].boxes[0].tolist())]
    assert score(results["Odd"], videos[0]).success_rate == 1


def test_errors_of_a_tracker_name_sequence_and_frame(three, tmp_path):
    class Choosy(StaticBoxTracker):
        def init(self, image, box):
            raise ValueError(f"Choosy: not the box {box}")

    with pytest.raises(ValueError, match=r"^A, frame 1 of 4: Choosy: not the box \(2\.0, 1\.0, 4\.0, 5\.0\)$"):
        run(Choosy(), three, tmp_path / "out", fingerprint="x")


class Wanderer:
    """A deterministic function of the frames; it may be slow."""

    scale, lost = 1.0, False

    def __init__(self, pause=0.0):
        self.pause = pause

    def init(self, image, box):
        self.box = box

    def update(self, image):
        time.sleep(self.pause)
        x, y, w, h = self.box
        self.box = (x + 0.3, y + float(image[0, 0, 0]) / 100, w * 1.01, h * 0.99)
        return TrackedBox(self.box, 1.0)


# A process that prints the progress after each frame, and waits after the sixth.
WAITING = """
import sys
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.evaluation import run
from tests.tasks.tracking.test_evaluation import Wanderer
def tell(done, total):
    print(done, total, flush=True)
    if done == 6:  # in the middle of B
        sys.stdin.read()
run(Wanderer(), read_sequences(sys.argv[1]), sys.argv[2], fingerprint="w", progress=tell)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_run_resumes_with_the_same_results(three, tmp_path):
    call = [sys.executable, "-c", WAITING, str(tmp_path / "videos"), str(tmp_path / "killed")]
    process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    while process.stdout.readline().strip() != "6 12":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdin.close(), process.stdout.close()
    assert [path.name for path in (tmp_path / "killed").glob("*.txt")] == ["A.txt"]
    before, calls = (tmp_path / "killed" / "A.txt").stat().st_mtime_ns, []
    resumed = run(Wanderer(), three, tmp_path / "killed", fingerprint="w", progress=lambda *at: calls.append(at))
    assert calls == [(done, 8) for done in range(1, 9)]  # of B and C alone
    assert (tmp_path / "killed" / "A.txt").stat().st_mtime_ns == before
    uninterrupted = run(Wanderer(), three, tmp_path / "whole", fingerprint="w")
    for video in three:
        assert torch.equal(resumed[video.name].boxes, uninterrupted[video.name].boxes)
        name = f"{video.name}.txt"
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
