"""Whatever kills a command, nothing half-done is left, and the same call goes on to the same end."""

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
from tests.reliability import kills
from tests.reliability.kills import Tally, Work, disco, killed_again_and_again, left_over, start
from tests.tasks.quickstart.test_quickstart import SCRIPT as QUICKSTART
from tests.tasks.quickstart.test_quickstart import TRIAL
from tests.tasks.scene.commands.test_scene import write_picture, write_video
from tests.tasks.tracking.sequences import moving, write_otb

for extra in ("lightning", "mlxtend", "matplotlib", "av"):
    pytest.importorskip(extra, reason="commands to kill need scale-disco[train,plot,demo,video]")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")

# Commands on small things take no time, so that most kills would come too late: these take a little longer.
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
scene._SAVED = 0.0
cli._GROUPS = {"scene": (scene,)}
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
evaluate._SAVED_EVERY = 0.0
sys.exit(main(sys.argv[1:]))
"""


def program(script: str, *words: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, words)]


def resumed(out):
    return ["--resume"] if (out / "run.json").is_file() else []


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """What commands read."""
    folder = tmp_path_factory.mktemp("material")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["data", "mnist-scale", "--split", "mini", "--out", "data"]) == 0
        words = ["--split", "mini", "--limit", "96", "--threads", "1", "--model", "mnist/cnn", "--epochs", "1"]
        assert main(["train", "mnist-scale", *words, "--out", "run"]) == 0
    for number in range(12):
        write_picture(folder / "pictures" / f"{number:02}.png", size=(64, 96))
    write_video(folder / "film.mp4", count=20, size=(64, 96))
    for name in "ABCDEFGH":
        write_otb(folder / "videos", name, moving(12))
    return folder


def works(folder):
    """The commands: those that run for a while, and go on where they were."""
    trial = ["--data", folder / "data", "--split", "mini", "--limit", 96, "--threads", 1, "--model", "mnist/cnn"]
    zoom = ["--count", 8, "--frames", 6, "--test-count", 4, "--test-frames", 8, "--size", "160x120"]

    def tested(out):
        if not out.exists():
            shutil.copytree(folder / "run", out)
        return program(SAVED_OFTEN, "test", out, "--limit", 1000, "--outside", 250, "--threads", 1)

    return [
        Work("training", lambda out: disco("train", "mnist-scale", *trial, "--epochs", 8, "--out", out, *resumed(out))),
        Work("data, MNIST-scale", lambda out: disco("data", "mnist-scale", "--split", "mini", "--out", out)),
        Work("data, zoom", lambda out: disco("data", "zoom", *zoom, "--out", out)),
        Work("evaluation, networks", tested),
        Work("evaluation, trackers", lambda out: program(SLOW_OTB, "otb", folder / "videos", "--results", out)),
        Work("scene, pictures", lambda out: program(SLOW_SCENE, "scene", folder / "pictures", "--out", out)),
        Work("scene, video", lambda out: program(SLOW_SCENE, "scene", folder / "film.mp4", "--out", out)),
        Work("quickstart", lambda out: program(QUICKSTART, *TRIAL, "--out", out)),
    ]


NAMES = [work.name for work in works(Path())]


@pytest.fixture(scope="module")
def outcomes(material, tmp_path_factory, request):
    """Every command killed once, two at a time."""
    seed = random.randrange(2**32)
    print("seed", seed)
    with ThreadPoolExecutor(2) as threads:
        yield {
            work.name: threads.submit(
                killed_again_and_again, work, tmp_path_factory.mktemp("kills"), kills=1, seed=seed + number
            )
            for number, work in enumerate(works(material))
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_command_goes_on_to_the_same_end(name, outcomes: dict[str, Future[Tally]]):
    assert outcomes[name].result().finished == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_kills(name, material, tmp_path, note):
    (work,) = [work for work in works(material) if work.name == name]
    seed = random.randrange(2**32)
    print("seed", seed)
    tally = killed_again_and_again(work, tmp_path, kills=10, seed=seed)
    assert tally.killed == 10
    assert tally.finished
    note("kills", name, kills=tally.killed, ends=tally.finished, seed=seed, seconds=round(tally.seconds))


@pytest.mark.parametrize("kind", kills.SIGNALS)
def test_processes_that_share_a_training_end_together(kind, material, tmp_path):
    """Also when only the first of them is killed."""
    words = ["--data", material / "data", "--split", "mini", "--limit", 96, "--threads", 1, "--model", "mnist/cnn"]
    process = start(disco("train", "mnist-scale", *words, "--epochs", 400, "--devices", 2, "--out", tmp_path / "run"))
    end = time.monotonic() + kills.PATIENCE
    while process.poll() is None and not (tmp_path / "run" / "epochs.csv").is_file() and time.monotonic() < end:
        time.sleep(0.05)
    assert len(kills._processes(process.pid)) >= 2
    process.send_signal(kind)
    process.communicate(timeout=kills.PATIENCE)
    assert process.returncode in (-kind, 128 + kind)
    assert left_over(process.pid) == []


def test_the_runner_sees_files_that_are_not_whole(material, tmp_path):
    """What it promises to find, it finds."""
    out = tmp_path / "run"
    shutil.copytree(material / "run", out)
    whole = kills.contents(out)
    assert kills.contents(material / "run") == whole
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


def test_the_runner_sees_processes_that_are_left():
    process = start(["sh", "-c", "sleep 600 & sleep 600"])
    end = time.monotonic() + kills.PATIENCE
    while len(kills._processes(process.pid)) < 3 and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    try:
        assert kills._processes(process.pid) == ["sleep 600 ", "sleep 600 "]
    finally:
        subprocess.run(["pkill", "-9", "-s", str(process.pid)], check=True)
        process.communicate()
