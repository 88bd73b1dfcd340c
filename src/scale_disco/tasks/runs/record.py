"""The folder of a run.

run.json           options, versions, machine, times, results
best.safetensors   weights of the epoch with the lowest validation error
last.ckpt          checkpoint to resume from
epochs.csv         a line per epoch
tensorboard/       the same, and the loss of every tenth step
test.json          results of `disco test`
answers.npz        predicted class of every image with the best weights; answers-last.npz: with the last
"""

import functools
import json
import pickle
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from ...files import plain, read_json, reason, write
from ...models.checkpoints import load_plain
from .experiments import EXPERIMENTS
from .options import RunOptions

RECORD, BEST, LAST, EPOCHS = "run.json", "best.safetensors", "last.ckpt", "epochs.csv"
TESTED, PREDICTIONS = "test.json", {"best": "answers.npz", "last": "answers-last.npz"}
METADATA = "facts"  # the key of the metadata in run.json

# Keys that files must have, with the types of their values.
_RECORD: dict[str, Any] = {"status": str, "data": str, "machine": str, "epochs": list}
_RECORD |= dict.fromkeys(("settings", "versions", "results"), dict)
_EPOCH: dict[str, Any] = {"epoch": int, "training loss": float, "validation error": float | None, "seconds": float}
_TESTED: dict[str, Any] = {"settings": dict, "complete": bool, "by scale": list, "equivariance error": float | None}
_TESTED |= {"checkpoint": str, "date": str, "images": int, "errors": int, "parameters": int}
_BIN: dict[str, Any] = {"kind": str, "low": float, "high": float, "images": int, "errors": int}
_CHECKPOINT: dict[str, Any] = {"epoch": int, "state_dict": dict, "loops": dict, "callbacks": dict}
_CHECKPOINT |= {"optimizer_states": list, "lr_schedulers": list, "pytorch-lightning_version": str}


def has_type(value: Any, expected: Any) -> bool:
    """Return whether a value has a type such as `int | None` or `list[str]`, as JSON has them.

    int counts as float, bool does not count as int, and `list[...]` must not be empty.

    Example:
        >>> has_type(None, int | None), has_type(3, float), has_type(True, int), has_type([], list[str])
        (True, True, False, False)
    """
    if get_origin(expected) is list:
        (item,) = get_args(expected)
        return isinstance(value, list) and bool(value) and all(has_type(each, item) for each in value)
    types = get_args(expected) or (expected,)
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, (*types, int) if float in types else types)


def _checked(document: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dictionary that has the keys of a schema, with values of its types."""
    if not isinstance(document, dict):
        raise ValueError(f"expected a dictionary, got {type(document).__name__}")
    for key, expected in schema.items():
        if key not in document:
            raise ValueError(f"{key} is missing")
        if not has_type(document[key], expected):
            raise ValueError(f"{key} has the wrong type or is empty")
    return document


def read_record(run: Path, experiment: str | None = None) -> dict[str, Any]:
    """Read the record of a run; ValueError if it is of another experiment than the one named."""
    path = run / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"{run}: not a training run ({RECORD} is missing)")
    try:
        record = _checked(read_json(path), _RECORD)
        recorded = options_of(record).experiment
        _checked(record.get(METADATA, {}), EXPERIMENTS[recorded].metadata)
        for row in record["epochs"]:
            _checked(row, _EPOCH)
        if record["status"] == "finished" and not record["epochs"]:
            raise ValueError("it is finished without an epoch")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or not a run record ({plain(error)})") from error
    if experiment not in (None, recorded):
        raise ValueError(f"{run} is a run of {recorded}, got {experiment}")
    return record


def options_of(record: dict[str, Any]) -> RunOptions:
    """Return the options in a record; the oldest records do not name their experiment."""
    experiment = record.get("experiment", "mnist-scale")
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}")
    return _options(experiment, json.dumps(record["settings"]))


@functools.lru_cache(maxsize=256)  # the checks take a moment, and a table needs the options of a run many times
def _options(experiment: str, packed: str) -> RunOptions:
    options, values = EXPERIMENTS[experiment].options, json.loads(packed)
    _checked(values, {name: expected for name, expected in options.types().items() if name in values})
    return options(**values)


def read_tested(run: Path) -> dict[str, Any] | None:
    """Read the test results of a run; None if it was not tested."""
    path = run / TESTED
    if not path.is_file():
        return None
    try:
        tested = _checked(read_json(path), _TESTED)
        if options_of(tested) != options_of(read_record(run)):
            raise ValueError("it belongs to a run with other options")
        if any(set(_checked(row, _BIN)) != set(_BIN) for row in tested["by scale"]):
            raise ValueError("by scale has other keys")
        for row in (tested, *tested["by scale"]):
            if not 0 <= row["errors"] <= row["images"] or not row["images"]:
                raise ValueError(f"{row['errors']} errors on {row['images']} images")
    except (ValueError, TypeError) as error:
        command = f"disco test {shlex.quote(str(run))}"
        raise ValueError(f"{path}: damaged; write it again with: {command} ({plain(error)})") from error
    return tested


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read `last.ckpt` without executing anything in it."""
    try:
        return _checked(load_plain(path), _CHECKPOINT)
    except pickle.UnpicklingError as error:  # torch's message advises to execute it
        raise ValueError(f"{path}: not a checkpoint of a run: it holds more than weights and numbers") from error
    except MemoryError:
        raise
    except Exception as error:  # a malformed file makes torch raise anything
        raise ValueError(f"{path}: damaged, or not a checkpoint of a run ({plain(reason(error))})") from error


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write the record of a run atomically."""
    write(run / RECORD, f"{json.dumps(record, indent=1)}\n".encode())
