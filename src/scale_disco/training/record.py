"""The folder of a run, and what it says about itself.

run.json           settings, versions, machine, times, results
best.safetensors   weights of the epoch with the lowest validation error
last.ckpt          everything needed to go on
epochs.csv         a line per epoch
tensorboard/       the same, and the loss of single steps
test.json          what `disco test` measured
answers.npz        the class that the network gave to every image
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch

from ..files import write
from .recipe import Settings

RECORD, BEST, LAST, EPOCHS = "run.json", "best.safetensors", "last.ckpt", "epochs.csv"
TESTED, ANSWERS = "test.json", "answers.npz"


def read_record(run: Path) -> dict[str, Any]:
    """The record of a run."""
    path = run / RECORD
    if not path.is_file():
        raise FileNotFoundError(f"{run}: no training run: it has no {RECORD}")
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        Settings(**record["settings"])
        record["status"], record["epochs"], record["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or no record of a training run ({error})") from error
    return record


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `last.ckpt` holds; nothing in it is executed."""
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint["state_dict"]
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged, or no checkpoint ({str(error).splitlines()[0]})") from error
    return checkpoint


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write the record of a run, whole or not at all."""
    write(run / RECORD, f"{json.dumps(record, indent=1)}\n".encode())
