"""Work that goes on for long holds no more at its end than near its start."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from scale_disco import DiscreteBasis
from scale_disco.cli import main
from scale_disco.nn import ScaleConv2d, ScaleLift2d
from tests.reliability.memory import held, resident, slope, watched_run
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("lightning", "mlxtend", "av"):
    pytest.importorskip(extra, reason="long runs need scale-disco[train,plot,demo,video]")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")

LEARNER, TRACKER = (
    "scale_disco.tasks.runs.modules.ClassifierModule",
    "scale_disco.tasks.tracking.tracker.SiameseTracker",
)
BATCH = 64 * 28 * 28 * 4  # bytes of a batch of digits: what a careless line would keep of every step
FRAME = 64 * 48 * 3  # of a frame of the video
LEAK = 5_000  # bytes a step that must not be lost


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    """The run of a tracker that has hardly learned."""
    folder = tmp_path_factory.mktemp("tracker")
    videos = write_videos(folder / "videos", 4)
    words = ["train", "tracker", "--root", videos, "--model", "track/siamfc", "--pairs", 4, "--batch", 2, "--epochs", 1]
    assert main([*map(str, words), "--holdout", "0", "--threads", "1", "--out", str(folder / "run")]) == 0
    return folder / "run"


def training(data, folder, epochs, *, leak=0):
    words = ["train", "mnist-scale", "--data", data, "--split", "mini", "--model", "digits/cnn", "--threads", 1]
    words += ["--epochs", epochs, "--out", folder / "run"]
    return watched_run(folder / "seen.json", LEARNER, "training_step", words, leak=leak)


def tracking(tracker, folder, frames, mode):
    film = write_video(folder / "film.mp4", frames)
    words = ["track", film, "--box", "4,12,8,8", "--tracker", tracker, "--mode", mode, "--threads", 1]
    words += ["--out", folder / "track"]
    return watched_run(folder / "seen.json", TRACKER, "update", words)


def told(found):
    """Figures of a run."""
    more = {name: count - found["before"][name] for name, count in found["after"].items()}
    return {"steps": len(found["seen"]), "bytes a step": slope(found["seen"]), "MB": max(found["seen"]) // 10**6} | more


@pytest.mark.slow
def test_training_for_2000_steps(data, tmp_path, note):
    found = training(data, tmp_path, 50)
    note("long runs", "training", **told(found))
    assert len(found["seen"]) >= 2000
    assert slope(found["seen"]) < LEAK


@pytest.mark.slow
def test_tracking_for_5000_frames(tracker, tmp_path, note):
    found = tracking(tracker, tmp_path, 5001, "fixed")
    note("long runs", "tracking", **told(found))
    assert len(found["seen"]) == 5000
    assert slope(found["seen"]) < LEAK


def test_training_for_a_while(data, tmp_path):
    found = training(data, tmp_path, 8)
    assert slope(found["seen"]) < BATCH / 2
    assert found["after"]["children"] == found["before"]["children"] == 0


def test_what_training_loses_is_seen(data, tmp_path):
    """So that the others can fail."""
    assert slope(training(data, tmp_path, 4, leak=4 * BATCH)["seen"]) > 2 * BATCH


def test_tracking_for_a_while(tracker, tmp_path):
    assert slope(tracking(tracker, tmp_path, 60, "pyramid")["seen"]) < 10 * FRAME


def test_runs_one_after_the_other_hold_no_more(data, tmp_path):
    """File handles, threads and processes of a training are gone with it."""
    after = []
    for number in range(4):
        words = ["train", "mnist-scale", "--data", data, "--split", "mini", "--limit", 96, "--model", "mnist/cnn"]
        words += ["--epochs", 1, "--threads", 1, "--out", tmp_path / str(number), "--quiet"]
        assert main(list(map(str, words))) == 0
        after.append(held())
    assert after[1] == after[2] == after[3]


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # torch, whenever oneDNN is switched
@pytest.mark.parametrize("steps", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_images_of_changing_sizes(steps, note):
    """Nothing is kept for every size; oneDNN, which keeps kernels of some thousand sizes, is left out here."""
    torch.manual_seed(0)
    basis, generator, seen = DiscreteBasis(3, [1, 2**0.5, 2]), np.random.default_rng(0), []
    net = torch.nn.Sequential(ScaleLift2d(1, 4, basis), torch.nn.ReLU(), ScaleConv2d(4, 4, basis, scale_extent=2))
    with torch.backends.mkldnn.flags(enabled=False):
        for _ in range(steps):
            height, width = generator.integers(16, 64, 2)
            net(torch.rand(2, 1, int(height), int(width))).mean().backward()
            seen.append(resident())
    if steps >= 2000:
        note("long runs", "layers on images of changing sizes", steps=steps, **{"bytes a step": slope(seen)})
        assert slope(seen) < LEAK
    assert slope(seen) < 2 * 64 * 64 * 4 * 4 * 3  # a map of every step
