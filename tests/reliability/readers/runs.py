"""Readers of run folders, prediction caches and YAML settings."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as save_tensors

from scale_disco.cli import main
from scale_disco.models import create_model
from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.runs.evaluate import _PredictionCache, trained
from scale_disco.tasks.runs.record import METADATA, read_checkpoint, read_record, read_tested
from scale_disco.tasks.stl10.options import Stl10Options
from scale_disco.tasks.stl10.training import make_model
from tests.reliability.malformed import Files, Reader, files_of
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import (
    HUGE,
    Payload,
    as_file,
    header_seed,
    malformed_json,
    malformed_tensors,
    npy,
    npy_header,
    npz,
    npz_cases,
    relabeled,
    torch_file,
    zip_bomb,
)
from tests.reliability.readers.weights import malformed_torch_files, pickle_seed
from tests.tasks.runs.folders import write_run

PREDICTIONS = "answers.npz"


@cache
def run_files(experiment: str = "mnist-scale") -> dict[str, bytes]:
    """Return the folder of a run with random weights."""

    def write(folder: Path) -> None:
        if experiment == "mnist-scale":
            write_run(folder, "run", MnistScaleOptions("mnist/cnn", recipe="paper", epochs=1), 50)
            network = create_model("mnist/cnn")
        else:
            options = Stl10Options("stl10/wrn", depth=10, width=1, epochs=1)
            metadata = {"name": "x", "classes": ["a", "b"], "mean": [0.5] * 3, "train": "", "test": ""}
            metadata |= {"deviation": [0.5] * 3}
            write_run(folder, "run", options, 50, metadata=metadata)
            network = make_model(options, metadata)
        state = network.state_dict()
        tensors = {name: tensor.numpy() for name, tensor in state.items()}
        (folder / "run/best.safetensors").write_bytes(save_tensors(tensors))
        checkpoint = {
            "epoch": 1,
            "state_dict": {f"network.{name}": tensor for name, tensor in state.items()},
            "optimizer_states": [],
            "lr_schedulers": [],
            "loops": {},
            "callbacks": {},
            "pytorch-lightning_version": "2.6",
        }
        (folder / "run/last.ckpt").write_bytes(torch_file(checkpoint))

    return {name.removeprefix("run/"): content for name, content in files_of(write).items()}


def read_run(folder: Path) -> None:
    read_record(folder)
    read_tested(folder)


def read_network(folder: Path) -> None:
    for checkpoint in ("best", "last"):
        trained(folder, checkpoint)
    read_checkpoint(folder / "last.ckpt")


def with_record(metadata: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **values: Any) -> Files:
    """Return a run of stl10 whose record has other values."""
    files = run_files("stl10")
    record = json.loads(files["run.json"])
    record["settings"] |= settings or {}
    record[METADATA] |= metadata or {}
    return {**files, "run.json": json.dumps(record | values).encode()}


def record_seeds() -> list[Seed]:
    return [*seeds_of(run_files(), "run.json", "test.json"), *seeds_of(run_files("stl10"), "run.json", "test.json")]


def record_cases() -> dict[str, Files]:
    files = run_files()
    settings = {
        "a depth of 6 * 10^9 + 4": {"depth": 6 * 10**9 + 4},
        "a depth of 10^400": {"depth": 10**400},
        "a width of 10^18": {"width": 10**18},
        "a width of 10^400": {"width": 10**400},
        "10^400 epochs": {"epochs": 10**400},
        "a seed of 10^400": {"seed": 10**400},
        "an escape sequence as the model": {"model": "\x1b[2J\n"},
        "an escape sequence as a setting": {"\x1b[2J\n": 1},
    }
    return {
        **as_file("run.json", malformed_json() | {"a folder": None}, files),
        **relabeled("tested", as_file("test.json", malformed_json(), files)),
        **{case: with_record(settings=values) for case, values in settings.items()},
        "an escape sequence as the experiment": with_record(experiment=["\x1b[2J"]),
    }


def network_seeds() -> list[Seed]:
    files = run_files()
    return [
        *seeds_of(files, "best.safetensors", "last.ckpt"),
        header_seed(files, "best.safetensors"),
        pickle_seed(files, "last.ckpt"),
        *seeds_of(run_files("stl10"), "run.json"),
    ]


def network_cases() -> dict[str, Files]:
    files = run_files()
    return {
        **as_file("best.safetensors", malformed_tensors() | {"a folder": None}, files),
        **relabeled("last", as_file("last.ckpt", malformed_torch_files(), files)),
        "a width of 10^6": with_record(settings={"width": 10**6}),
        "a width of 1000": with_record(settings={"width": 1000}),
        "a depth of 100,000": with_record(settings={"depth": 100_006}),
        "a million classes": with_record({"classes": ["a"] * 10**6}),
        "no classes": with_record({"classes": []}),
    }


def prediction_seeds() -> list[Seed]:
    key = _PredictionCache(Path("x"), "key", 10).key
    arrays = {"weights": np.frombuffer(key, np.uint8), "test": np.arange(10, dtype=np.uint8)}
    members = {name: npy(array) for name, array in arrays.items()}
    files = {PREDICTIONS: npz(**members)}

    def with_member(content: bytes, name: str) -> bytes:
        return npz(**{**members, name: content})

    return [
        *seeds_of(files),
        *(Seed(files, PREDICTIONS, members[name], partial(with_member, name=name)) for name in members),
    ]


def read_predictions(folder: Path) -> None:
    predictions = _PredictionCache(folder / PREDICTIONS, "key", 10).read()
    assert all(array.ndim == 1 for array in predictions.values())


def prediction_cases() -> dict[str, Files]:
    key = npy(np.frombuffer(b"key", np.uint8))
    objects = npy_header("(1,)", "|O") + pickle.dumps(Payload())
    overflow = npy_header("(9223372036854775807, 9223372036854775807)")
    return as_file(
        PREDICTIONS,
        {
            **npz_cases("weights"),
            "a bomb of predictions": zip_bomb("test.npy", others={"weights.npy": key}),
            "objects": npz(weights=objects),
            "objects as predictions": npz(weights=key, test=objects),
            "an absurd shape": npz(weights=key, test=npy_header("(1099511627776,)")),
            "a shape that overflows": npz(weights=key, test=overflow),
            "a single array": npy(np.zeros(3)),
        },
    )


class CommandError(ValueError):
    """The message of a command that ended with an error of its user."""


def run_command(*arguments: str) -> None:
    """Run `disco`; raise its message if it ends with an error that a user can fix."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    message = err.getvalue().removesuffix("\n")
    if code not in (0, 1, 2) or "out of memory" in message:
        raise AssertionError(f"exit code {code}: {message:.1000}")
    if code:
        raise CommandError(message)


def yaml_seeds() -> list[Seed]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(["train", "mnist-scale", "--print-config"])
    contents = (out.getvalue().encode(), b"epochs: 2\nseed: 1\n", b'{"epochs": 3}')
    return [Seed({"a.yaml": content}, "a.yaml", content) for content in contents]


def read_yaml(folder: Path) -> None:
    run_command("train", "mnist-scale", "--config", str(folder / "a.yaml"), "--print-config")


def yaml_cases() -> dict[str, Files]:
    pairs = list(zip("abcdefghi", "bcdefghij", strict=True))
    laughs = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairs)
    merges = "a: &a {x: 1}\n" + "".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in pairs)
    lists = b", ".join(line.split(b": ", 1)[1] for line in laughs.encode().splitlines())
    return as_file(
        "a.yaml",
        {
            "empty": b"",
            "a billion laughs": laughs.encode(),
            "a billion laughs as a list": b"[" + lists + b"]",
            "a billion merges": merges.encode(),
            "a value that contains itself": b"epochs: &a [*a]\n",
            "a document that contains itself": b"&a [*a]\n",
            "deep nesting": b"[" * 50_000,
            "deep values": b"epochs: " + b"[" * 5_000 + b"]" * 5_000,
            "deep blocks": b"- " * 50_000,
            "a payload": b"epochs: !!python/object/apply:os.mkdir [ran]\n",
            "a payload with a full tag": b"!<tag:yaml.org,2002:python/object/new:os.mkdir> [ran]\n",
            "a number of 5000 digits": b"epochs: " + b"9" * 5000,
            "a number of a million digits": b"epochs: " + b"9" * 10**6,
            "an empty integer": b"epochs: !!int ''\n",
            "an invalid boolean": b"augment: !!bool x\n",
            "an invalid date": b"epochs: 2001-99-99\n",
            "sexagesimals": b"epochs: " + b"1:" * 3000 + b"1",
            "a list as a key": b"? [a, b]\n: 1\n",
            "an escape sequence as a key": b'"\\e[2J": 1\n',
            "an escape sequence as a value": b'model: "\\e[2J"\n',
            "another experiment": b'experiment: "\\e[2J"\n',
            "binary": bytes(range(256)),
            "another encoding": "epochs: 0\n".encode("utf-16"),
            "longer than any valid file": HUGE,
            "a folder": None,
        },
    )


READERS = {
    "run.json, test.json": Reader(read_run, record_seeds, record_cases),
    "networks of runs": Reader(read_network, network_seeds, network_cases),
    "cached predictions": Reader(read_predictions, prediction_seeds, prediction_cases),
    "YAML settings": Reader(read_yaml, yaml_seeds, yaml_cases, named=False),
}
