"""Malformed and malicious files, for every reader: documented errors, bounded memory, nothing executed or written."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

from scale_disco.basis import Basis
from scale_disco.hub import ScaleModel
from scale_disco.models import create_model
from scale_disco.models.checkpoints import read_weights
from tests.conftest import PATIENCE
from tests.reliability.malformed import write_files
from tests.reliability.readers import READERS
from tests.reliability.readers.datasets import MINI, mini_file
from tests.reliability.readers.images import solid_png
from tests.reliability.readers.runs import PREDICTIONS, run_command, run_files
from tests.reliability.readers.weights import hub_files

ROOT = Path(__file__).resolve().parents[2]

# Inputs of the long suite; fewer for slow readers.
INPUTS = {
    "IDX": 7000, "MNIST": 2000, "MNIST-scale": 1500, "STL-10": 3000, "STL-10 archive": 3000, "class folders": 3000,
    "class folders, cached": 5000, "image folder": 6000, "frames": 6000, "photos": 6000,
    "images to zoom": 3000, "depth": 4000, "OTB sequences": 6000, "tracking results": 6000, "tracker.json": 4000,
    "zoom.json": 6000, "videos": 4000, "weights": 6000, "basis": 5000, "dense basis": 5000, "hub folder": 1500,
    "run.json, test.json": 6000, "networks of runs": 1500, "cached predictions": 5000, "YAML settings": 5000,
    "cached fields": 6000, "cached copies": 4000, "cached windows": 4000,
}  # fmt: skip
_SHARE = 40  # the short suite reads one in so many

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory through the Linux kernel")


def fuzz(counts: dict[str, int], *, thorough: bool = False) -> list[dict[str, Any]]:
    """Fuzz readers with so many inputs each, in a process of their own; return figures."""
    arguments = [f"{name}={count}" for name, count in counts.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"THOROUGH": "1"} if thorough else {})}
    process = subprocess.run(
        [sys.executable, "-m", "tests.reliability.malformed", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace", timeout=4 * PATIENCE, check=False,
    )  # fmt: skip
    assert process.returncode == 0, f"exit code {process.returncode}\n{process.stderr[-8000:]}"
    figures = [json.loads(line) for line in process.stdout.splitlines()]
    assert [row["reader"] for row in figures] == list(counts)
    return figures


def test_every_reader_is_fuzzed():
    assert set(INPUTS) == set(READERS)
    assert sum(INPUTS.values()) >= 100_000


@pytest.mark.parametrize("part", range(3))
def test_malformed_files_are_refused(part):
    """In three processes: a library that crashes takes its process with it."""
    names = list(READERS)[part::3]
    for row in fuzz({name: INPUTS[name] // _SHARE for name in names}):
        assert row["inputs"] >= INPUTS[row["reader"]] // _SHARE // 2  # hypothesis may exhaust a small space of inputs
        assert row["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_malformed_files_are_refused(name, record_figures):
    (row,) = fuzz({name: INPUTS[name]}, thorough=True)
    columns = ("inputs", "refused", "accepted", "peak MB", "seconds")
    record_figures("malformed files", name, **{key: row[key] for key in columns})
    assert row["inputs"] >= INPUTS[name]


WATCHED = """
import os, time
from pathlib import Path
from tests.reliability import guard
guard.CPU_SECONDS = 0.2
if "sleep" in {0!r}:
    guard.WALL_SECONDS = 1.0
watch = guard.Guard()
try:
    with watch.watching(Path("tests")):
        {0}
except PermissionError:
    print(*watch.violations)
"""
FORBIDDEN = {
    "while True: pass": "timeout ('0.2 s of CPU time',)",
    "time.sleep(60)": "timeout ('1.0 s',)",
    "os.system('true')": "os.system",
    "os.mkdir('/outside')": "os.mkdir ('/outside'",
    "exec(compile('1', 'a file', 'exec'))": "exec ('a file'",
}


@pytest.mark.parametrize("action", FORBIDDEN)
def test_guard_refuses(action):
    process = subprocess.run(
        [sys.executable, "-c", WATCHED.format(action)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith(FORBIDDEN[action])


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write_torch(path: Path, ran: Path) -> Callable[[], object]:
    """Write a file with a payload; return the unsafe call that would execute it."""
    torch.save({"state_dict": {"weight": Payload(ran)}}, path)
    return lambda: torch.load(path, weights_only=False)


def write_pickle(path: Path, ran: Path) -> Callable[[], object]:
    path.write_bytes(pickle.dumps(Payload(ran)))
    return lambda: pickle.loads(path.read_bytes())


def write_numpy(path: Path, ran: Path) -> Callable[[], object]:
    np.savez(path, test=np.array([Payload(ran)], dtype=object))
    return lambda: np.load(path, allow_pickle=True)["test"]


def write_yaml(path: Path, ran: Path) -> Callable[[], object]:
    path.write_text(f"epochs: !!python/object/apply:os.mkdir [{json.dumps(str(ran))}]\n")
    return lambda: yaml.unsafe_load(path.read_text())


class EntryPoint(NamedTuple):
    """A call that reads a file of this name, which may contain a payload, and the other files that it needs."""

    name: str
    write: Callable[[Path, Path], Callable[[], object]]
    read: Callable[[Path], object]
    others: Callable[[], dict[str, bytes]] = dict


def command(line: str) -> Callable[[Path], None]:
    """Return a call of `disco`; IN stands for the folder."""
    return lambda folder: run_command(*(word.replace("IN", str(folder)) for word in line.split()))


def stopped_run() -> dict[str, bytes]:
    """Return a run that can be resumed, with its data."""
    record = json.loads(run_files()["run.json"])
    record["settings"] |= {"split": "mini", "epochs": 2}
    return {"run.json": json.dumps(record | {"status": "running"}).encode(), MINI: mini_file()}


def sequence() -> dict[str, bytes]:
    frames = {f"Car/img/000{number}.png": solid_png(number) for number in (1, 2, 3)}
    return {**frames, "Car/groundtruth_rect.txt": b"10,10,20,20\n" * 3}


ENTRY_POINTS = {
    "read_weights": EntryPoint("a.pth", write_torch, lambda folder: read_weights(folder / "a.pth")),
    "read_weights, with another suffix": EntryPoint(
        "a.safetensors", write_pickle, lambda at: read_weights(at / "a.safetensors")
    ),
    "create_model": EntryPoint("a.pth", write_torch, lambda at: create_model("resnet18/cnn", pretrained=at / "a.pth")),
    "Basis.load": EntryPoint("a.safetensors", write_pickle, lambda folder: Basis.load(folder / "a.safetensors")),
    "from_pretrained": EntryPoint("model.safetensors", write_pickle, ScaleModel.from_pretrained, hub_files),
    "cached predictions": EntryPoint(PREDICTIONS, write_numpy, READERS["cached predictions"].read),
    "MNIST-scale": EntryPoint(MINI, write_numpy, READERS["MNIST-scale"].read),
    "disco equivariance": EntryPoint("a.npz", write_numpy, READERS["dense basis"].read),
    "disco train --resume": EntryPoint(
        "last.ckpt", write_torch, command("train mnist-scale --resume --out IN --data IN --device cpu"), stopped_run
    ),
    "disco train --config": EntryPoint(
        "a.yaml", write_yaml, command("train mnist-scale --config IN/a.yaml --print-config")
    ),
    "disco train --pretrained": EntryPoint(
        "a.pth",
        write_torch,
        command("train tracker --data IN --pretrained IN/a.pth --holdout 0 --out IN/run"),
        sequence,
    ),
    "disco test": EntryPoint("last.ckpt", write_torch, command("test IN --checkpoint last --device cpu"), stopped_run),
    "disco test, best": EntryPoint(
        "best.safetensors", write_pickle, command("test IN --checkpoint best --device cpu"), run_files
    ),
    "disco scene --pretrained": EntryPoint(
        "a.pth",
        write_torch,
        command("scene IN/Car/img/0001.png --pretrained IN/a.pth --out IN/out --device cpu"),
        sequence,
    ),
    "disco track --pretrained": EntryPoint(
        "a.pth", write_torch, command("track IN/Car --tracker track/disco --pretrained IN/a.pth --out IN/out"), sequence
    ),
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_payload_is_not_executed(tmp_path, entry_point):
    folder, ran = tmp_path / "files", tmp_path / "ran"
    folder.mkdir()
    name, write, read, others = ENTRY_POINTS[entry_point]
    write_files(folder, others())
    execute = write(folder / name, ran)
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        read(folder)
    assert name in str(caught.value)  # refused for this file and not for another reason
    assert not ran.exists()
    execute()
    assert ran.is_dir()  # the payload works
