"""A trained network on the test images, and on images smaller and larger than any it was trained on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ...files import plain, read_bytes, reason, write
from ...models.checkpoints import check_fit
from ..io.arrays import parse_npz
from ..io.report import machine, today, versions
from .batches import LabeledDataset, at_a_time
from .options import Evaluation, Progress, ScaleBin
from .record import ANSWERS, BEST, LAST, TESTED, read_checkpoint, read_record, read_tested, settings_of

_CHUNK = 125  # images at a time, at most
_LARGEST = 1 << 26  # bytes of a file of answers
_SAVED_EVERY = 20.0  # seconds


def evaluate(
    run: Path,
    *,
    data: Path | None = None,
    checkpoint: str | None = None,
    limit: int | None = None,
    outside: int = 2000,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a run; stopped in between, it goes on where it was.

    A test of all images of the data set that it was trained on, with the weights that the recipe names, of a finished
    run, is written into its folder as `test.json`, unless that has a test of more images.

    Args:
        run: Folder of the run.
        data: Folder of the data; the one that the run was trained on by default.
        checkpoint: "best" or "last" weights; those of the recipe by default.
        limit: Test images at most; all by default.
        outside: Images at most of other scales than those in training, on either side.
        device: Where the network runs.
        progress: Called with the images done and to do.
    """
    record = read_record(run)
    settings = settings_of(record)
    facts = record.get("facts", {})
    checkpoint = checkpoint or settings.full_recipe.weights
    network = trained(run, checkpoint)
    fingerprint = hashlib.sha256(_weights(run, checkpoint).read_bytes()).hexdigest()
    exam = settings.exam(data or Path(record["data"]), facts, limit=limit, outside=outside)
    start = time.monotonic()
    memory = _PredictionCache(run / ANSWERS[checkpoint], fingerprint + exam.key, exam.classes)
    answers = _answers(network.to(device), exam.sets, memory, device, progress)
    errors = {kind: answers[kind] != shown.labels for kind, shown in exam.sets.items()}
    result = {
        "experiment": settings.experiment,
        "settings": settings.as_dict(),
        "checkpoint": checkpoint,
        "epochs": len(record["epochs"]),
        "complete": record["status"] == "finished" and exam.same and len(errors["test"]) == exam.images,
        "images": len(errors["test"]),
        "errors": int(errors["test"].sum()),
        "by scale": [dataclasses.asdict(one) for kind in exam.sets for one in exam.bins(kind, errors[kind])],
        "equivariance error": exam.equivariance(network.cpu()),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": round(time.monotonic() - start, 1),
        "versions": versions(),
        "machine": machine(),
        "date": today(),
    }
    result["not recorded"] = _why_not(run, record, exam, result)
    if result["not recorded"] is None:
        write(run / TESTED, f"{json.dumps(result, indent=1)}\n".encode())
    return result


def _why_not(run: Path, record: dict[str, Any], exam: Evaluation, result: dict[str, Any]) -> str | None:
    """What keeps a result out of the folder of its run."""
    weights = settings_of(record).full_recipe.weights
    if record["status"] != "finished":
        return "the run is not finished"
    if not exam.same:
        return "these are other test images than those beside the training images"
    if not result["complete"]:
        return f"the test has {exam.images} images"
    if result["checkpoint"] != weights:
        return f"the {weights} weights are those that count"
    return "an earlier test had more images" if _recorded(run) > _shown(result) else None


def _recorded(run: Path) -> int:
    """Images of an earlier test; a damaged one does not count."""
    try:
        before = read_tested(run)
    except ValueError:
        return 0
    return 0 if before is None else _shown(before)


def _shown(result: dict[str, Any]) -> int:
    return sum(one["images"] for one in result["by scale"])


def trained(run: Path, checkpoint: str | None = None) -> nn.Module:
    """The network of a run, ready for use.

    Args:
        run: Folder of the run.
        checkpoint: "best" or "last" weights; those of the recipe by default.
    """
    record = read_record(run)
    settings = settings_of(record)
    path = _weights(run, checkpoint or settings.full_recipe.weights)
    facts = record.get("facts", {})
    whole = read_checkpoint(path)["state_dict"] if path.name == LAST else None
    prefix = "average.module." if settings.full_recipe.average else "network."
    try:
        state = load_file(path) if whole is None else _below(whole, prefix)
        with torch.device("meta"):  # settings that somebody made up could ask for more than the memory holds
            check_fit(settings.network(facts), state)
        network = settings.network(facts)
        network.load_state_dict(state)
    except Exception as error:  # whatever a foreign file makes readers and load_state_dict raise
        raise ValueError(f"{path}: damaged, or not of {settings.model} ({plain(reason(error))})") from error
    return network.eval().requires_grad_(False)


def _weights(run: Path, checkpoint: str) -> Path:
    """The file of the weights."""
    names = {"best": BEST, "last": LAST}
    if checkpoint not in names:
        raise ValueError(f"--checkpoint must be best or last, got {checkpoint!r}")
    path = run / names[checkpoint]
    if not path.is_file():
        if checkpoint == "best" and any(row["validation error"] is None for row in read_record(run)["epochs"]):
            raise ValueError(f"{run}: no {path.name}: no images were held out (--holdout) to find it; test the last")
        raise FileNotFoundError(f"{run}: no {path.name} yet: the run has not finished an epoch; train on with --resume")
    return path


def bins_of(result: dict[str, Any]) -> list[ScaleBin]:
    """The errors over the scale, from what `evaluate` gave, from small to large."""
    return sorted((ScaleBin(**one) for one in result["by scale"]), key=lambda one: one.low)


def _below(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _answers(
    network: nn.Module,
    sets: dict[str, LabeledDataset],
    memory: _PredictionCache,
    device: torch.device | str,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """The class that the network gives to every image; kept in a file, from which later calls go on."""
    kept = memory.read()
    for kind, shown in sets.items():
        before = kept.get(kind, np.empty(0, memory.dtype))
        missing = max(len(shown.labels) - len(before), 0)
        kept[kind] = np.concatenate([before, np.full(missing, memory.open, memory.dtype)])
    answers = {kind: kept[kind][: len(shown.labels)] for kind, shown in sets.items()}  # views
    todo = [(kind, rows) for kind, shown in sets.items() for rows in _chunks(shown)]
    todo = [(kind, rows) for kind, rows in todo if (answers[kind][rows] == memory.open).any()]
    total, done, saved = sum(len(rows) * sets[kind].pixels for kind, rows in todo), 0, time.monotonic()
    for kind, rows in todo:
        shown = sets[kind]
        with torch.inference_mode():
            images = shown.prepared(shown.read(rows, 0).to(device), rows, 0)
            values = network(images)
            if not values.isfinite().all():  # else whoever answers nothing is right by chance
                raise ValueError(f"{memory.path.parent}: the network gives values that are no numbers; train it anew")
            answers[kind][rows] = values.argmax(1).cpu().numpy()
        done += len(rows) * shown.pixels
        if progress is not None:
            progress(done, total)
        if time.monotonic() - saved > _SAVED_EVERY:
            memory.write(kept)
            saved = time.monotonic()
    memory.write(kept)
    return answers


def _chunks(shown: LabeledDataset) -> Iterator[range]:
    """Rows that are shown at a time."""
    size = at_a_time(shown, _CHUNK)
    for start in range(0, len(shown.labels), size):
        yield range(start, min(start + size, len(shown.labels)))


class _PredictionCache:
    """The file of the answers that one network gave to one set of images."""

    def __init__(self, path: Path, key: str, classes: int) -> None:
        self.path, self.key, self.classes = path, key.encode(), classes
        self.dtype = np.min_scalar_type(classes)
        self.open = np.iinfo(self.dtype).max  # the answer to an image that was not shown yet

    def write(self, answers: dict[str, np.ndarray]) -> None:
        packed = io.BytesIO()
        np.savez_compressed(packed, weights=np.frombuffer(self.key, np.uint8), **answers)  # type: ignore[arg-type]
        write(self.path, packed.getvalue())

    def read(self) -> dict[str, np.ndarray]:
        """Answers of earlier calls with the same weights and images."""
        try:
            kept = parse_npz(read_bytes(self.path, _LARGEST), _LARGEST)
            if kept.pop("weights").tobytes() != self.key:
                return {}
        except FileNotFoundError:
            return {}
        except Exception as error:  # a damaged zip file makes zipfile and zlib raise a dozen kinds
            raise ValueError(f"{self.path}: damaged; delete it to test anew ({plain(reason(error))})") from error
        for kind, answers in kept.items():
            known = answers.dtype == self.dtype and ((answers < self.classes) | (answers == self.open)).all()
            if not known or answers.ndim != 1:
                raise ValueError(
                    f"{self.path}: damaged; delete it to test anew ({plain(kind)} has other answers than classes)"
                )
        return kept
