"""A trained network on the test digits, and on digits smaller and larger than any it was trained on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ..data.mnist_scale import SIDE, Digits, load, scaled
from ..data.pictures import scaled_digits
from ..equivariance import basis_error
from ..files import reason, write
from ..models import create_model
from ..models.dss import DilatedScaleConv2d
from ..models.mnist import SCALES
from ..nn import ScaleLift2d
from ..nn.conv import ScaleConvolution
from ..report import deviation, machine, today, versions
from .batches import normalised
from .recipe import Settings
from .record import ANSWERS, BEST, LAST, TESTED, read_checkpoint, read_record

_OPEN = 255  # the answer to an image that was not shown yet
_CHUNK, _SAVED_EVERY = 125, 20.0  # images, seconds
# Scales outside the training range, and the canvas that holds them.
_OUTSIDE = {"smaller": ((0.15, 0.3), SIDE), "larger": ((1.0, 2.0), 2 * SIDE)}
_EDGES = {
    "test": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "smaller": [0.15, 0.2, 0.25, 0.3],
    "larger": [1.0, 1.2, 1.4, 1.6, 1.8, 2.0],
}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bin:
    """Errors on digits of a range of scales."""

    kind: str
    low: float
    high: float
    images: int
    errors: int

    @property
    def error(self) -> float:
        return self.errors / self.images

    @property
    def deviation(self) -> float:
        """The binomial standard deviation of the error."""
        return deviation(self.errors, self.images)


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

    A test of all images with the weights that the recipe names, of a finished run, is written into its folder as
    `test.json`.

    Args:
        run: Folder of the run.
        data: Folder of the realisations; the one that the run was trained on by default.
        checkpoint: "best" or "last" weights; those of the recipe by default.
        limit: Test images at most; all by default.
        outside: Digits at most on either side of the training range.
        device: Where the network runs.
        progress: Called with the images done and to do.
    """
    record = read_record(run)
    settings = Settings(**record["settings"])
    checkpoint = checkpoint or settings.full_recipe.weights
    network, fingerprint = trained(run, checkpoint, settings)
    parts = load(data or Path(record["data"]), settings.split)
    sets = {"test": Digits(*(column[:limit] for column in parts["test"]))}
    for kind, (factors, side) in _OUTSIDE.items():
        if outside:
            sets[kind] = _rescaled(parts["rest"], outside, factors, side)
    start = time.monotonic()
    answers = _answers(network.to(device), sets, run / ANSWERS[checkpoint], fingerprint, device, progress)
    errors = {kind: answers[kind] != digits.labels for kind, digits in sets.items()}
    result = {
        "settings": dataclasses.asdict(settings),
        "checkpoint": checkpoint,
        "epochs": len(record["epochs"]),
        "complete": record["status"] == "finished" and len(errors["test"]) == len(parts["test"].labels),
        "images": len(errors["test"]),
        "errors": int(errors["test"].sum()),
        "by scale": [
            dataclasses.asdict(one)
            for kind, digits in sets.items()
            for one in _bins(kind, digits.factors, errors[kind])
        ],
        "equivariance error": _equivariance(network, parts["rest"]),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": round(time.monotonic() - start, 1),
        "versions": versions(),
        "machine": machine(),
        "date": today(),
    }
    if result["complete"] and checkpoint == settings.full_recipe.weights:
        write(run / TESTED, f"{json.dumps(result, indent=1)}\n".encode())
    return result


def trained(run: Path, checkpoint: str, settings: Settings) -> tuple[nn.Module, str]:
    """The network of a run, ready for use, and a fingerprint of its weights."""
    names = {"best": BEST, "last": LAST}
    if checkpoint not in names:
        raise ValueError(f"--checkpoint must be best or last, got {checkpoint!r}")
    path = run / names[checkpoint]
    if not path.is_file():
        raise FileNotFoundError(f"{run}: no {path.name} yet: the run has not finished an epoch; train on with --resume")
    network = create_model(settings.model, augmented=settings.augment)
    whole = read_checkpoint(path)["state_dict"] if checkpoint == "last" else None
    try:
        state = load_file(path) if whole is None else {key.removeprefix("network."): whole[key] for key in whole}
        network.load_state_dict(state)
    except Exception as error:  # whatever a foreign file makes readers and load_state_dict raise
        raise ValueError(f"{path}: damaged, or not of {settings.model} ({reason(error)})") from error
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return network.eval().requires_grad_(False), digest


def bins_of(result: dict[str, Any]) -> list[Bin]:
    """The error over the scale of digits, from what `evaluate` gave."""
    return [Bin(**one) for one in result["by scale"]]


def _rescaled(digits: Digits, count: int, factors: tuple[float, float], side: int) -> Digits:
    """Some digits at other scales; fewer of them are the first of more."""
    draw = random.Random(0)
    rows = list(range(len(digits.labels)))
    draw.shuffle(rows)
    rows = rows[:count]
    chosen = [draw.uniform(*factors) for _ in rows]
    images = [scaled(digits.images[row], factor, side) for row, factor in zip(rows, chosen, strict=True)]
    return Digits(np.stack(images), digits.labels[rows], np.array(chosen))


def _bins(kind: str, factors: np.ndarray, errors: np.ndarray) -> list[Bin]:
    edges = _EDGES[kind]
    last = edges[-1]
    found = []
    for low, high in pairwise(edges):
        inside = (factors >= low) & ((factors < high) | (high == last))
        if inside.any():
            found.append(Bin(kind, low, high, int(inside.sum()), int(errors[inside].sum())))
    return found


def _answers(
    network: nn.Module,
    sets: dict[str, Digits],
    path: Path,
    fingerprint: str,
    device: torch.device | str,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """The class that the network gives to every image; kept in a file, from which later calls go on."""
    kept = _kept(path, fingerprint)
    for kind, digits in sets.items():
        before = kept.get(kind, np.empty(0, np.uint8))
        missing = max(len(digits.labels) - len(before), 0)
        kept[kind] = np.concatenate([before, np.full(missing, _OPEN, np.uint8)])
    answers = {kind: kept[kind][: len(digits.labels)] for kind, digits in sets.items()}  # views
    todo = [
        (kind, slice(start, start + _CHUNK))
        for kind in sets
        for start in range(0, len(answers[kind]), _CHUNK)
        if (answers[kind][start : start + _CHUNK] == _OPEN).any()
    ]
    pixels = {kind: digits.images[0].size for kind, digits in sets.items()}  # what an image costs
    total, done, saved = sum(pixels[kind] for kind, _ in todo), 0, time.monotonic()
    for kind, rows in todo:
        with torch.inference_mode():
            images = normalised(sets[kind].images[rows]).to(device)
            answers[kind][rows] = network(images).argmax(1).cpu().numpy()
        done += pixels[kind]
        if progress is not None:
            progress(done, total)
        if time.monotonic() - saved > _SAVED_EVERY:
            _keep(path, fingerprint, kept)
            saved = time.monotonic()
    _keep(path, fingerprint, kept)
    return answers


def _keep(path: Path, fingerprint: str, answers: dict[str, np.ndarray]) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, weights=np.frombuffer(fingerprint.encode(), np.uint8), **answers)  # type: ignore[arg-type]
    write(path, packed.getvalue())


def _kept(path: Path, fingerprint: str) -> dict[str, np.ndarray]:
    """Answers of earlier calls with the same weights."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if archive["weights"].tobytes() != fingerprint.encode():
                return {}
            kept = {kind: archive[kind] for kind in archive.files if kind in _EDGES}
    except FileNotFoundError:
        return {}
    except Exception as error:  # a damaged zip file makes zipfile and zlib raise a dozen kinds
        raise ValueError(f"{path}: damaged; delete it to test anew ({reason(error)})") from error
    for kind, answers in kept.items():
        if answers.dtype != np.uint8 or answers.ndim != 1 or not np.isin(answers, [*range(10), _OPEN]).all():
            raise ValueError(f"{path}: damaged; delete it to test anew ({kind} has other answers than classes)")
    return kept


def _equivariance(network: nn.Module, digits: Digits) -> float | None:
    """Eq. 14 of a scale convolution with random weights on the network's basis, on 64 scaled digits.

    None for networks whose layers are not of that kind, as in the paper's table.
    """
    layers = [part for part in network.modules() if isinstance(part, ScaleConvolution)]
    if not layers or type(layers[0]) not in (ScaleLift2d, DilatedScaleConv2d):
        return None
    basis = layers[0].basis
    # The bases of SESN hold rounded scales, which stand for these.
    scales = SCALES if len(basis.scales) == len(SCALES) else basis.scales
    return basis_error(basis, scaled_digits(digits.images, 64, 0), scales=scales, border=0)
