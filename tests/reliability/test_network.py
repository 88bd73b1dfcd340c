"""No command uses the network unless it is asked to. Those that are killed elsewhere are watched there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.reliability.kills import ROOT, watched
from tests.tasks.runs.folders import write_run
from tests.tasks.tracking.sequences import moving, write_otb
from tests.tasks.tracking.video_files import write_video

# All of them in one process, since it takes a while to start one.
CALLS = """
import json, pkgutil, sys
import scale_disco
from scale_disco.cli import main
for module in pkgutil.walk_packages(scale_disco.__path__, "scale_disco."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]), file=sys.stderr)
"""


def calls(*commands):
    """Exit codes of commands, in a process that may not reach out, and what it said."""
    words = json.dumps([list(map(str, command)) for command in commands])
    ended = subprocess.run(
        [sys.executable, "-c", CALLS, words], capture_output=True, text=True, cwd=ROOT, env=watched()
    )
    assert ended.returncode == 0, ended.stderr
    *said, codes = ended.stderr.splitlines()
    return json.loads(codes), "\n".join(said)


def test_no_command_reaches_out(tmp_path):
    """Nor does importing any module."""
    for extra in ("matplotlib", "lightning", "av", "huggingface_hub"):
        pytest.importorskip(extra)
    from scale_disco.tasks.mnist_scale.training import MnistScaleOptions

    runs = write_run(tmp_path / "runs", "disco", MnistScaleOptions(), errors=900)
    write_otb(tmp_path / "videos", "A", moving(3))
    film = write_video(tmp_path / "film.mp4", 4)
    codes, said = calls(
        ["basis", "--scales", 1, 1.5, "--out", tmp_path / "basis.safetensors", "--plot", tmp_path / "basis.png"],
        ["equivariance", "--limit", 1, "--channels", 1],
        ["table", "mnist-scale", runs],
        ["track", film, "--box", "4,12,8,8", "--out", tmp_path / "track"],
        ["otb", tmp_path / "videos", "--results", tmp_path / "results"],
        ["completion", "bash"],
        ["help"],
    )
    assert codes == [0] * 7, said


def test_a_command_that_is_asked_to_does(tmp_path):
    """So that the watch is seen to see."""
    codes, said = calls(*(["data", name, "--download", "--out", tmp_path / name] for name in ("mnist-scale", "stl10")))
    assert codes == [1, 1]
    assert said.count("\n") == 1
    assert all("reached out: socket." in line for line in said.splitlines())
