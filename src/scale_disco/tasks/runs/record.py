"""The folder of a run, and what it says about itself.

run.json           settings, versions, machine, times, results
best.safetensors   weights of the epoch with the lowest validation error
last.ckpt          everything needed to go on
epochs.csv         a line per epoch
tensorboard/       the same, and the loss of single steps
test.json          what `disco test` measured
answers.npz        the class given to every image by the best weights; answers-last.npz: by the last
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from ...files import plain, read_json, reason, write
from ...models.checkpoints import load_plain
from .experiments import EXPERIMENTS
from .options import RunOptions

RECORD, BEST, LAST, EPOCHS = "run.json", "best.safetensors", "last.ckpt", "epochs.csv"
TESTED, ANSWERS = "test.json", {"best": "answers.npz", "last": "answers-last.npz"}


_RECORD: dict[str, Any] = {
    "status": str,
    "settings": dict,
    "data": str,
    "versions": dict,
    "machine": str,
    "epochs": list,
    "results": dict,
}
_EPOCH: dict[str, Any] = {
    "epoch": int,
    "training loss": float,
    "validation error": (float, NoneType),
    "seconds": (int, float),
}
_TESTED: dict[str, Any] = {
    "settings": dict,
    "checkpoint": str,
    "images": int,
    "errors": int,
    "complete": bool,
    "by scale": list,
    "equivariance error": (float, NoneType),
    "parameters": int,
    "date": str,
}
_BIN: dict[str, Any] = {
    "kind": str,
    "low": (int, float),
    "high": (int, float),
    "images": int,
    "errors": int,
}
_CHECKPOINT: dict[str, Any] = {
    "epoch": int,
    "state_dict": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "loops": dict,
    "callbacks": dict,
    "pytorch-lightning_version": str,
}


def read_record(run: Path) -> dict[str, Any]:
    """The record of a run."""
    path = run / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"{run}: no training run: it has no {RECORD}")
    try:
        record: dict[str, Any] = _checked(read_json(path), _RECORD)
        settings = settings_of(record)
        settings.check_facts(_checked(record.get("facts", {}), settings.facts))
        for row in record["epochs"]:
            _checked(row, _EPOCH)
        if record["status"] == "finished" and not record["epochs"]:
            raise ValueError("it is finished without an epoch")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or no record of a training run ({plain(error)})") from error
    return record


def settings_of(record: dict[str, Any]) -> RunOptions:
    """The settings in a record; the oldest do not name their experiment."""
    experiment = record.get("experiment", "mnist-scale")
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}")
    return _settings(experiment, json.dumps(record["settings"]))


@functools.lru_cache(maxsize=256)  # to check them takes a moment, and a table asks for those of a run many times
def _settings(experiment: str, packed: str) -> RunOptions:
    values = json.loads(packed)
    for field in dataclasses.fields(EXPERIMENTS[experiment]):  # type: ignore[arg-type]
        kinds = _KINDS[str(field.type)]
        if field.name in values and (not isinstance(values[field.name], kinds) or _is_odd(values[field.name], kinds)):
            raise ValueError(f"{field.name} is of another kind")
    return EXPERIMENTS[experiment](**values)


def _is_odd(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, bool) and bool not in kinds  # a bool is an int in Python


_KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "str": (str,),
    "float": (int, float),
    "int | None": (int, NoneType),
    "str | None": (str, NoneType),
    "float | None": (int, float, NoneType),
}


def check_experiment(run: Path, record: dict[str, Any], experiment: str) -> None:
    """Refuse a run of another experiment."""
    if (before := settings_of(record).experiment) != experiment:
        raise ValueError(f"{run} is a run of {before}, got {experiment}")


def read_tested(run: Path) -> dict[str, Any] | None:
    """What was measured on a run; None if nothing was."""
    path = run / TESTED
    if not path.is_file():
        return None
    try:
        tested: dict[str, Any] = _checked(read_json(path), _TESTED)
        if settings_of(tested) != settings_of(read_record(run)):
            raise ValueError("it belongs to a run of other settings")
        if any(set(_checked(one, _BIN)) != set(_BIN) for one in tested["by scale"]):
            raise ValueError("by scale has other keys")
        for part in (tested, *tested["by scale"]):
            if not 0 <= part["errors"] <= part["images"] or not part["images"]:
                raise ValueError(f"{part['errors']} errors on {part['images']} images")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: damaged; make it anew: disco test {shlex.quote(str(run))} ({plain(error)})"
        ) from error
    return tested


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `last.ckpt` holds; nothing in it is executed."""
    try:
        return _checked(load_plain(path), _CHECKPOINT)
    except pickle.UnpicklingError as error:  # torch's own words advise to execute it
        raise ValueError(f"{path}: not a checkpoint of a run: it holds more than weights and numbers") from error
    except MemoryError:
        raise
    except Exception as error:  # a foreign file makes torch raise anything
        raise ValueError(f"{path}: damaged, or no checkpoint of a run ({plain(reason(error))})") from error


def _checked(value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """A dictionary that has at least these keys, with values of these kinds."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a dictionary, got {type(value).__name__}")
    for key, kind in kinds.items():
        if key not in value or not isinstance(value[key], kind):
            raise ValueError(f"{key} is missing or of another kind")
    return value


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write the record of a run, whole or not at all."""
    write(run / RECORD, f"{json.dumps(record, indent=1)}\n".encode())
