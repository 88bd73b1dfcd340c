"""No command uses the network unless asked to. Commands of test_kills.py run offline there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.reliability.kills import ROOT, offline_environment
from tests.tasks.runs.folders import write_run
from tests.tasks.tracking.sequences import moving, write_otb
from tests.tasks.tracking.video_files import write_video

# All commands in one process, since starting one takes seconds.
CALLS = """
import json, pkgutil, sys
import scale_disco
from scale_disco.cli import main
for module in pkgutil.walk_packages(scale_disco.__path__, "scale_disco."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
print(json.dumps([main(words) for words in json.loads(sys.argv[1])]), file=sys.stderr)
"""


def run_offline(*commands):
    """Run commands in a process without network access; return exit codes and standard error."""
    arguments = json.dumps([list(map(str, command)) for command in commands])
    process = subprocess.run(
        [sys.executable, "-c", CALLS, arguments], capture_output=True, text=True, cwd=ROOT, env=offline_environment()
    )
    assert process.returncode == 0, process.stderr
    *messages, codes = process.stderr.splitlines()
    return json.loads(codes), "\n".join(messages)


def test_imports_and_commands_use_no_network(tmp_path):
    for extra in ("matplotlib", "lightning", "av", "huggingface_hub"):
        pytest.importorskip(extra)
    from scale_disco.tasks.mnist_scale.options import MnistScaleOptions

    runs = write_run(tmp_path / "runs", "disco", MnistScaleOptions(), errors=900)
    write_otb(tmp_path / "videos", "A", moving(3))
    video = write_video(tmp_path / "video.mp4", 4)
    codes, stderr = run_offline(
        ["basis", "--scales", 1, 1.5, "--out", tmp_path / "basis.safetensors", "--plot", tmp_path / "basis.png"],
        ["equivariance", "--limit", 1, "--channels", 1],
        ["table", "mnist-scale", runs],
        ["track", video, "--box", "4,12,8,8", "--out", tmp_path / "track"],
        ["otb", tmp_path / "videos", "--results", tmp_path / "results"],
        ["completion", "bash"],
        ["help"],
    )
    assert codes == [0] * 7, stderr


def test_network_access_is_detected(tmp_path):
    codes, stderr = run_offline(
        *(["data", name, "--download", "--out", tmp_path / name] for name in ("mnist-scale", "stl10"))
    )
    assert codes == [1, 1]
    assert stderr.count("\n") == 1
    assert all("network access: socket." in line for line in stderr.splitlines())
