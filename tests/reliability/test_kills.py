"""Killed commands leave complete files and no processes, and the same call resumes to the same result."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from scale_disco.cli import main
from tests.conftest import PATIENCE
from tests.reliability import kills
from tests.reliability.kills import (
    Command,
    KillCounts,
    disco,
    kill_repeatedly,
    processes_of,
    remaining_processes,
    start,
)
from tests.tasks.quickstart.test_quickstart import SCRIPT as QUICKSTART
from tests.tasks.quickstart.test_quickstart import TRIAL
from tests.tasks.scene.commands.test_scene import write_image, write_video
from tests.tasks.tracking.sequences import moving, write_otb

for extra in ("lightning", "mlxtend", "matplotlib", "av"):
    pytest.importorskip(extra, reason="commands to kill need scale-disco[train,plot,demo,video]")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")

# Small inputs take so little time that most kills would come too late: these commands are slower.
SLOW_SCENE = """
import sys, time
from scale_disco import cli
from scale_disco.tasks.scene.commands import scene
from tests.tasks.scene.estimators import Waves
class Slow(Waves):
    def maps(self, images):
        time.sleep(0.1)
        return super().maps(images)
scene.open_estimator = lambda options: Slow()
assert scene._SAVED
scene._SAVED = 0.0
sys.exit(cli.main(sys.argv[1:]))
"""
SLOW_OTB = """
import sys
from scale_disco.cli import main
from scale_disco.tasks.tracking.commands import otb
from tests.tasks.tracking.test_evaluation import Wanderer
otb.open_tracker = lambda options: Wanderer(0.02)
sys.exit(main(sys.argv[1:]))
"""
SAVED_OFTEN = """
import sys
from scale_disco.cli import main
from scale_disco.tasks.runs import evaluate
assert evaluate._SAVE_INTERVAL
evaluate._SAVE_INTERVAL = 0.0
sys.exit(main(sys.argv[1:]))
"""


def program(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def resume_option(out):
    return ["--resume"] if (out / "run.json").is_file() else []


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["data", "mnist-scale", "--split", "mini", "--out", "data"]) == 0
        options = ["--split", "mini", "--limit", "96", "--threads", "1", "--model", "mnist/cnn", "--epochs", "1"]
        assert main(["train", "mnist-scale", *options, "--out", "run"]) == 0
    for number in range(12):
        write_image(folder / "images" / f"{number:02}.png", size=(64, 96))
    write_video(folder / "video.mp4", count=20, size=(64, 96))
    for name in "ABCDEFGH":
        write_otb(folder / "videos", name, moving(12))
    return folder


def commands(folder):
    """Return the commands that run for a while and can be resumed."""
    train = ["--data", folder / "data", "--split", "mini", "--limit", 96, "--threads", 1, "--model", "mnist/cnn"]
    zoom = ["--count", 8, "--frames", 6, "--test-count", 4, "--test-frames", 8, "--size", "160x120"]

    def test_call(out):
        if not out.exists():
            shutil.copytree(folder / "run", out)
        return program(SAVED_OFTEN, "test", out, "--limit", 1000, "--outside", 250, "--threads", 1)

    return [
        Command(
            "training",
            lambda out: disco("train", "mnist-scale", *train, "--epochs", 8, "--out", out, *resume_option(out)),
        ),
        Command("data, MNIST-scale", lambda out: disco("data", "mnist-scale", "--split", "mini", "--out", out)),
        Command("data, zoom", lambda out: disco("data", "zoom", *zoom, "--out", out)),
        Command("evaluation, networks", test_call),
        Command("evaluation, trackers", lambda out: program(SLOW_OTB, "otb", folder / "videos", "--results", out)),
        Command("scene, images", lambda out: program(SLOW_SCENE, "scene", folder / "images", "--out", out)),
        Command("scene, video", lambda out: program(SLOW_SCENE, "scene", folder / "video.mp4", "--out", out)),
        Command("quickstart", lambda out: program(QUICKSTART, *TRIAL, "--out", out)),
    ]


NAMES = [command.name for command in commands(Path())]


@pytest.fixture(scope="module")
def outcomes(inputs, tmp_path_factory, request):
    """Every command killed once, two at a time."""
    seed = random.randrange(2**32)
    print("seed", seed)
    with ThreadPoolExecutor(2) as threads:
        yield {
            command.name: threads.submit(
                kill_repeatedly, command, tmp_path_factory.mktemp("kills"), kills=1, seed=seed + number
            )
            for number, command in enumerate(commands(inputs))
        }


@pytest.mark.parametrize("name", NAMES)
def test_killed_command_resumes_to_the_same_result(name, outcomes: dict[str, Future[KillCounts]]):
    assert outcomes[name].result().finished == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_kills(name, inputs, tmp_path, record_figures):
    (command,) = [command for command in commands(inputs) if command.name == name]
    seed = random.randrange(2**32)
    print("seed", seed)
    counts = kill_repeatedly(command, tmp_path, kills=10, seed=seed)
    assert counts.killed == 10
    assert counts.finished
    record_figures(
        "kills", name, kills=counts.killed, finished=counts.finished, seed=seed, seconds=round(counts.seconds)
    )


@pytest.mark.parametrize("kind", kills.SIGNALS)
def test_all_processes_of_a_training_end(kind, inputs, tmp_path):
    """Even if only the first of them is killed."""
    options = ["--data", inputs / "data", "--split", "mini", "--limit", 96, "--threads", 1, "--model", "mnist/cnn"]
    process = start(disco("train", "mnist-scale", *options, "--epochs", 400, "--devices", 2, "--out", tmp_path / "run"))
    end = time.monotonic() + PATIENCE
    while process.poll() is None and not (tmp_path / "run" / "epochs.csv").is_file() and time.monotonic() < end:
        time.sleep(0.05)
    assert len(processes_of(process.pid)) >= 2
    process.send_signal(kind)
    process.communicate(timeout=PATIENCE)
    assert process.returncode in (-kind, 128 + kind)
    assert remaining_processes(process.pid) == []


def test_incomplete_and_changed_files_are_detected(inputs, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(inputs / "run", out)
    whole = kills.contents(out)
    assert kills.contents(inputs / "run") == whole
    for path in out.iterdir():
        if path.is_file():
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            with pytest.raises((ValueError, RuntimeError, AssertionError, SafetensorError)):
                kills.contents(out)
            path.write_bytes(content)
    assert kills.contents(out) == whole
    checkpoint = torch.load(out / "last.ckpt", weights_only=True)
    next(iter(checkpoint["state_dict"].values())).view(-1)[0] += 1e-6
    torch.save(checkpoint, out / "last.ckpt")
    assert kills.differences(kills.contents(out), whole) == "last.ckpt"


def test_remaining_processes_are_detected():
    process = start(["sh", "-c", "sleep 600 & sleep 600"])
    end = time.monotonic() + PATIENCE
    # A fork that has not called exec yet has the command line of its parent.
    while processes_of(process.pid).count("sleep 600 ") < 2 and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    try:
        assert processes_of(process.pid) == ["sleep 600 ", "sleep 600 "]
    finally:
        subprocess.run(["pkill", "-9", "-s", str(process.pid)], check=True)
        process.communicate()
