"""Files that nobody meant, for every reader: only documented errors, bounded memory, nothing run, nothing written."""

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
from tests.reliability.malformed import put
from tests.reliability.malformed_readers import READERS, called, hub_files, mini_parts, plain_png, run_files

ROOT = Path(__file__).resolve().parents[2]

# Inputs of the long suite; fewer where one takes longer.
INPUTS = {
    "IDX": 7000, "MNIST": 2000, "MNIST-scale": 1500, "STL-10": 3000, "STL-10 archive": 3000, "class folders": 3000,
    "class folders, cached": 5000, "picture folder": 6000, "frames": 6000, "photographs": 6000,
    "pictures to zoom": 3000, "depth": 4000, "OTB sequences": 6000, "results of trackers": 6000, "tracker.json": 4000,
    "zoom.json": 6000, "videos": 4000, "weights": 6000, "basis": 5000, "dense basis": 5000, "hub folder": 1500,
    "run.json, test.json": 6000, "networks of runs": 1500, "answers.npz": 5000, "YAML settings": 5000,
    "kept fields": 6000, "kept copies": 4000, "kept windows": 4000,
}  # fmt: skip
_SHARE = 40  # of those is tried every time

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited and measured as Linux does it")


def tried(counts: dict[str, int], *, thorough: bool = False) -> list[dict[str, Any]]:
    """Figures of readers with so many inputs each, from a process of its own."""
    words = [f"{name}={count}" for name, count in counts.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"THOROUGH": "1"} if thorough else {})}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.reliability.malformed", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace", timeout=1500, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stderr[-8000:]}"
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [row["reader"] for row in figures] == list(counts)
    return figures


def test_every_reader_is_tried():
    assert set(INPUTS) == set(READERS)
    assert sum(INPUTS.values()) >= 100_000


@pytest.mark.parametrize("part", range(3))
def test_some_hostile_files(part):
    """In three processes, since a library that crashes would take those beside it with it."""
    names = list(READERS)[part::3]
    for row in tried({name: INPUTS[name] // _SHARE for name in names}):
        assert row["inputs"] >= INPUTS[row["reader"]] // _SHARE // 2  # a small space of inputs may be exhausted
        assert row["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_hostile_files(name, note):
    (row,) = tried({name: INPUTS[name]}, thorough=True)
    note("hostile files", name, **{key: row[key] for key in ("inputs", "refused", "accepted", "peak MB", "seconds")})
    assert row["inputs"] >= INPUTS[name]


class Payload:
    """Makes a folder when it is read as a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def of_torch(path: Path, ran: Path) -> Callable[[], object]:
    """Write a file with a payload; the call that runs it."""
    torch.save({"state_dict": {"weight": Payload(ran)}}, path)
    return lambda: torch.load(path, weights_only=False)


def of_pickle(path: Path, ran: Path) -> Callable[[], object]:
    path.write_bytes(pickle.dumps(Payload(ran)))
    return lambda: pickle.loads(path.read_bytes())


def of_numpy(path: Path, ran: Path) -> Callable[[], object]:
    np.savez(path, test=np.array([Payload(ran)], dtype=object))
    return lambda: np.load(path, allow_pickle=True)["test"]


def of_yaml(path: Path, ran: Path) -> Callable[[], object]:
    path.write_text(f"epochs: !!python/object/apply:os.mkdir [{json.dumps(str(ran))}]\n")
    return lambda: yaml.unsafe_load(path.read_text())


class Entrance(NamedTuple):
    """What takes a file of a name and may find a payload in it, and the files that it needs beside it."""

    name: str
    write: Callable[[Path, Path], Callable[[], object]]
    read: Callable[[Path], object]
    others: Callable[[], dict[str, bytes]] = dict


def command(words: str) -> Callable[[Path], None]:
    """A call of disco; IN is the folder."""
    return lambda folder: called(*(word.replace("IN", str(folder)) for word in words.split()))


def begun() -> dict[str, bytes]:
    """A run that can go on, with its data."""
    record = json.loads(run_files()["run.json"])
    record["settings"] |= {"split": "mini", "epochs": 2}
    said = json.dumps(record | {"status": "running"}).encode()
    return {"run.json": said, "mnist-scale-mini.npz": mini_parts()["file"]}


def video() -> dict[str, bytes]:
    frames = {f"Car/img/000{number}.png": plain_png(number) for number in (1, 2, 3)}
    return {**frames, "Car/groundtruth_rect.txt": b"10,10,20,20\n" * 3}


ENTRANCES = {
    "read_weights": Entrance("a.pth", of_torch, lambda folder: read_weights(folder / "a.pth")),
    "read_weights, by another name": Entrance(
        "a.safetensors", of_pickle, lambda at: read_weights(at / "a.safetensors")
    ),
    "create_model": Entrance("a.pth", of_torch, lambda at: create_model("resnet18/cnn", pretrained=at / "a.pth")),
    "Basis.load": Entrance("a.safetensors", of_pickle, lambda folder: Basis.load(folder / "a.safetensors")),
    "from_pretrained": Entrance("model.safetensors", of_pickle, ScaleModel.from_pretrained, hub_files),
    "answers.npz": Entrance("answers.npz", of_numpy, READERS["answers.npz"].read),
    "MNIST-scale": Entrance("mnist-scale-mini.npz", of_numpy, READERS["MNIST-scale"].read),
    "disco equivariance": Entrance("a.npz", of_numpy, READERS["dense basis"].read),
    "disco train --resume": Entrance(
        "last.ckpt", of_torch, command("train mnist-scale --resume --out IN --data IN --device cpu"), begun
    ),
    "disco train --config": Entrance("a.yaml", of_yaml, command("train mnist-scale --config IN/a.yaml --print-config")),
    "disco train --pretrained": Entrance(
        "a.pth", of_torch, command("train tracker --root IN --pretrained IN/a.pth --holdout 0 --out IN/run"), video
    ),
    "disco test": Entrance("last.ckpt", of_torch, command("test IN --checkpoint last --device cpu"), begun),
    "disco test, best": Entrance(
        "best.safetensors", of_pickle, command("test IN --checkpoint best --device cpu"), run_files
    ),
    "disco scene --pretrained": Entrance(
        "a.pth", of_torch, command("scene IN/Car/img/0001.png --pretrained IN/a.pth --out IN/out --device cpu"), video
    ),
    "disco track --weights": Entrance(
        "a.pth", of_torch, command("track IN/Car --tracker track/disco --weights IN/a.pth --out IN/out"), video
    ),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_payload_does_not_run(tmp_path, entrance):
    folder, ran = tmp_path / "files", tmp_path / "ran"
    folder.mkdir()
    one = ENTRANCES[entrance]
    put(folder, one.others())
    run = one.write(folder / one.name, ran)
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        one.read(folder)
    assert one.name in str(caught.value)  # it is refused for this, and not for something else
    assert not ran.exists()
    run()
    assert ran.is_dir()  # else this proves nothing
