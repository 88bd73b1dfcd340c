"""The experiment of Table 1: digits of many scales."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models import create_model, list_models
from ..equivariance.networks import error_of_layers
from ..io.samples import scaled_digits
from ..runs.batches import LabeledDataset, seed_of
from ..runs.options import Evaluation, Progress, RunOptions, ScaleBin, TrainingData, setting
from ..runs.recipe import Recipe
from .data import FACTORS, SIDE, SPLITS, Digits, load, scaled
from .networks import SCALES

_MEAN, _DEVIATION = 0.0607, 0.2161
_AUGMENTATION = (0.5, 2.0)
# Scales outside the training range, and the canvas that holds them.
_OUTSIDE = {"smaller": ((0.15, 0.3), SIDE), "larger": ((1.0, 2.0), 2 * SIDE)}
_EDGES = {
    "test": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "smaller": [0.15, 0.2, 0.25, 0.3],
    "larger": [1.0, 1.2, 1.4, 1.6, 1.8, 2.0],
}

RECIPES = {
    "paper": Recipe(epochs=60, batch=128, learning_rate=0.01, schedule="steps"),
    "fast": Recipe(epochs=7, batch=64, learning_rate=0.002, schedule="one-cycle", label_smoothing=0.1, weights="last"),
    "quick": Recipe(epochs=4, batch=50, learning_rate=0.005, schedule="one-cycle", label_smoothing=0.1, weights="last"),
}
MODELS = [*list_models("mnist"), *list_models("digits")]


@dataclass(frozen=True)
class MnistScaleOptions(RunOptions):
    """RunOptions of a run on MNIST-scale."""

    experiment = "mnist-scale"
    subject = "digits"
    seen = FACTORS
    models = MODELS
    recipes = RECIPES
    named = ("model", "split", "recipe", "seed")
    words = {"split": SPLITS}  # noqa: RUF012

    model: str = setting("mnist/disco", f"network: {', '.join(MODELS)}")
    split: str = setting("0", f"realisation of MNIST-scale: {', '.join(SPLITS)}")
    augment: bool = setting(False, 'scale training images by a random factor from 0.5 to 2 (the paper\'s "+")')
    recipe: str = setting(
        "fast", "schedule: paper (60 epochs in three steps), fast (one cycle of 7) or quick (of 4, for small networks)"
    )
    epochs: int | None = setting(None, "another number of epochs; the schedule is stretched to it")
    limit: int | None = setting(None, "training and validation images at most, for trials")
    seed: int = setting(0, "of weights, order and augmentation")

    @property
    def folder(self) -> str:
        augment = "+" if self.augment else ""
        return f"{self.model.replace('/', '-')}{augment}-{self.split}-{self.recipe}-{self.seed}"

    def lesson(self, data: Path, *, cache: Path | None = None, progress: Progress | None = None) -> TrainingData:
        if cache is not None:
            raise ValueError("--cache keeps the decoded pictures of stl10 --format folder")
        parts = load(data, self.split)
        train, validation = (Digits(*(column[: self.limit] for column in parts[name])) for name in ("train", "val"))
        return TrainingData(DigitDataset(train, self.seed if self.augment else None), DigitDataset(validation), {})

    def network(self, facts: Mapping[str, Any]) -> nn.Module:
        return create_model(self.model, augmented=self.augment)

    def exam(self, data: Path, facts: Mapping[str, Any], *, limit: int | None, outside: int) -> Evaluation:
        parts = load(data, self.split)
        sets = {"test": Digits(*(column[:limit] for column in parts["test"]))}
        for kind, (factors, side) in _OUTSIDE.items():
            if outside:
                sets[kind] = _rescaled(parts["rest"], outside, factors, side)
        return Evaluation(
            {kind: DigitDataset(digits) for kind, digits in sets.items()},
            len(parts["test"].labels),
            10,
            True,
            "",
            lambda kind, errors: _bins(kind, sets[kind].factors, errors),
            # The bases of SESN hold rounded scales, which stand for these.
            partial(error_of_layers, images=scaled_digits(parts["rest"].images, 64, 0), scales=SCALES, border=0),
        )


class DigitDataset(LabeledDataset):
    """Digits, each scaled anew every epoch if there is a seed for that."""

    def __init__(self, digits: Digits, seed: int | None = None) -> None:
        self.images, self.labels, self.seed = digits.images, digits.labels, seed

    @property
    def pixels(self) -> int:
        return int(self.images[0].size)

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        images = self.images[rows]
        if self.seed is not None:
            factors = (random.Random(seed_of(self.seed, epoch, row)).uniform(*_AUGMENTATION) for row in rows)
            images = np.stack([scaled(image, factor) for image, factor in zip(images, factors, strict=True)])
        return normalised(images)


def normalised(images: np.ndarray) -> Tensor:
    """Images uint8 [N, H, W] as the networks take them, [N, 1, H, W]."""
    return ((torch.tensor(images, dtype=torch.float32) / 255 - _MEAN) / _DEVIATION)[:, None]


def _rescaled(digits: Digits, count: int, factors: tuple[float, float], side: int) -> Digits:
    """Some digits at other scales; fewer of them are the first of more."""
    draw = random.Random(0)
    rows = list(range(len(digits.labels)))
    draw.shuffle(rows)
    rows = rows[:count]
    chosen = [draw.uniform(*factors) for _ in rows]
    images = [scaled(digits.images[row], factor, side) for row, factor in zip(rows, chosen, strict=True)]
    return Digits(np.stack(images), digits.labels[rows], np.array(chosen))


def _bins(kind: str, factors: np.ndarray, errors: np.ndarray) -> list[ScaleBin]:
    edges = _EDGES[kind]
    last = edges[-1]
    found = []
    for low, high in pairwise(edges):
        inside = (factors >= low) & ((factors < high) | (high == last))
        if inside.any():
            found.append(ScaleBin(kind, low, high, int(inside.sum()), int(errors[inside].sum())))
    return found
