"""Memory, file handles, threads and processes do not grow in long runs."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from scale_disco import DiscreteBasis
from scale_disco.cli import main
from scale_disco.nn import ScaleConv2d, ScaleLift2d
from tests.reliability.memory import bytes_per_step, measure_command, open_resources, resident_bytes
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("lightning", "mlxtend", "av"):
    pytest.importorskip(extra, reason="long runs need scale-disco[train,plot,demo,video]")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")

MODULE, TRACKER = (
    "scale_disco.tasks.runs.modules.ClassifierModule",
    "scale_disco.tasks.tracking.tracker.SiameseTracker",
)
BATCH = 64 * 28 * 28 * 4  # bytes of a batch of digits: what a reference to every batch would leak
FRAME = 64 * 48 * 3  # bytes of a video frame
LEAK = 5_000  # bytes per step that count as a leak


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    """A tracker trained on four pairs."""
    folder = tmp_path_factory.mktemp("tracker")
    videos = write_videos(folder / "videos", 4)
    arguments = [
        "train",
        "tracker",
        "--data",
        videos,
        "--model",
        "track/siamfc",
        "--pairs",
        4,
        "--batch",
        2,
        "--epochs",
        1,
    ]
    assert main([*map(str, arguments), "--holdout", "0", "--threads", "1", "--out", str(folder / "run")]) == 0
    return folder / "run"


def training(data, folder, epochs, *, leak=0):
    arguments = ["train", "mnist-scale", "--data", data, "--split", "mini", "--model", "digits/cnn", "--threads", 1]
    arguments += ["--epochs", epochs, "--out", folder / "run"]
    return measure_command(folder / "memory.json", MODULE, "training_step", arguments, leak=leak)


def tracking(tracker, folder, frames, mode):
    video = write_video(folder / "video.mp4", frames)
    arguments = ["track", video, "--box", "4,12,8,8", "--tracker", tracker, "--mode", mode, "--threads", 1]
    arguments += ["--out", folder / "track"]
    return measure_command(folder / "memory.json", TRACKER, "update", arguments)


def figures_of(run):
    memory = run["memory"]
    leaked = {name: count - run["before"][name] for name, count in run["after"].items()}
    return {"steps": len(memory), "bytes per step": bytes_per_step(memory), "MB": max(memory) // 10**6} | leaked


@pytest.mark.slow
def test_training_for_2000_steps(data, tmp_path, record_figures):
    run = training(data, tmp_path, 50)
    record_figures("long runs", "training", **figures_of(run))
    assert len(run["memory"]) >= 2000
    assert bytes_per_step(run["memory"]) < LEAK


@pytest.mark.slow
def test_tracking_for_5000_frames(tracker, tmp_path, record_figures):
    run = tracking(tracker, tmp_path, 5001, "fixed")
    record_figures("long runs", "tracking", **figures_of(run))
    assert len(run["memory"]) == 5000
    assert bytes_per_step(run["memory"]) < LEAK


def test_short_training_does_not_leak(data, tmp_path):
    run = training(data, tmp_path, 8)
    assert bytes_per_step(run["memory"]) < BATCH / 2
    assert run["after"]["children"] == run["before"]["children"] == 0


def test_leak_of_a_training_is_detected(data, tmp_path):
    assert bytes_per_step(training(data, tmp_path, 4, leak=4 * BATCH)["memory"]) > 2 * BATCH


def test_short_tracking_does_not_leak(tracker, tmp_path):
    assert bytes_per_step(tracking(tracker, tmp_path, 60, "pyramid")["memory"]) < 10 * FRAME


def test_finished_trainings_release_their_resources(data, tmp_path):
    """File handles, threads and processes."""
    after = []
    for number in range(4):
        arguments = ["train", "mnist-scale", "--data", data, "--split", "mini", "--limit", 96, "--model", "mnist/cnn"]
        arguments += ["--epochs", 1, "--threads", 1, "--out", tmp_path / str(number), "--quiet"]
        assert main(list(map(str, arguments))) == 0
        after.append(open_resources())
    assert after[1] == after[2] == after[3]


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # of torch, whenever oneDNN is switched
@pytest.mark.parametrize("steps", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_images_of_changing_sizes_do_not_leak(steps, record_figures):
    """Nothing is cached per size; without oneDNN, which caches kernels of some thousand sizes."""
    torch.manual_seed(0)
    basis, generator, memory = DiscreteBasis(3, [1, 2**0.5, 2]), np.random.default_rng(0), []
    net = torch.nn.Sequential(ScaleLift2d(1, 4, basis), torch.nn.ReLU(), ScaleConv2d(4, 4, basis, scale_extent=2))
    with torch.backends.mkldnn.flags(enabled=False):
        for _ in range(steps):
            height, width = generator.integers(16, 64, 2)
            net(torch.rand(2, 1, int(height), int(width))).mean().backward()
            memory.append(resident_bytes())
    if steps >= 2000:
        row = "layers on images of changing sizes"
        record_figures("long runs", row, steps=steps, **{"bytes per step": bytes_per_step(memory)})
        assert bytes_per_step(memory) < LEAK
    assert bytes_per_step(memory) < 2 * 64 * 64 * 4 * 4 * 3  # a feature map
