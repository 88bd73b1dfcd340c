"""Training on MNIST-scale, the experiment of Table 1."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...convert import with_scales
from ...models import create_model
from ...scales import Scales
from ..equivariance.bases import SETTINGS, error_of_layers
from ..io.mnist import SIDE, Digits
from ..io.samples import scaled_digits
from ..runs.batches import LabeledDataset, combined_seed
from ..runs.experiments import Evaluation, Experiment, ScaleBin, TrainingData, scales_label
from .data import FACTORS, load, scaled
from .options import RESCALABLE, MnistScaleOptions

_MEAN, _STD = 0.0607, 0.2161
_AUGMENTATION = (0.5, 2.0)
# Scales outside the training range, and the canvas that holds them.
_OUTSIDE = {"smaller": ((0.15, 0.3), SIDE), "larger": ((1.0, 2.0), 2 * SIDE)}
_LARGEST = (2.0, 4.0), 4 * SIDE  # for networks with more scales
_EDGES = {
    "test": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    "smaller": [0.15, 0.2, 0.25, 0.3],
    "larger": [1.0, 1.2, 1.4, 1.6, 1.8, 2.0],
    "largest": [2.0, 2.5, 3.0, 3.5, 4.0],
}


def make_data(options: MnistScaleOptions, folder: Path) -> TrainingData:
    """Read the training and validation images of a split."""
    parts = load(folder, options.split)
    train, validation = (Digits(*(column[: options.limit] for column in parts[name])) for name in ("train", "val"))
    return TrainingData(DigitDataset(train, options.seed if options.augment else None), DigitDataset(validation), {})


def make_model(options: MnistScaleOptions, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the network."""
    return create_model(options.model, augmented=options.augment)


def make_evaluation(
    options: MnistScaleOptions,
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    limit: int | None,
    outside: int,
    test_scales: int | None = None,
    enlarge: int = 0,
) -> Evaluation:
    """Return the test images, and images of scales outside the training range.

    With `test_scales` the network is tested with more scales as well, on these and on still larger digits.
    """
    parts = load(folder, options.split)
    sets = {"test": Digits(*(column[:limit] for column in parts["test"]))}
    for kind, (factors, side) in _OUTSIDE.items():
        if outside:
            sets[kind] = _rescaled(parts["rest"], outside, factors, side)
    variants = {}
    for scales, kinds in _more_scales(test_scales, enlarge) if outside else []:
        for kind in kinds:
            name = f"{kind}, {scales_label(scales)}"
            if kind == "largest":
                sets[name] = _rescaled(parts["rest"], max(1, outside // 4), *_LARGEST)
            else:
                sets[name] = Digits(*(column[:outside] for column in sets[kind]))
            variants[name] = partial(with_scales, scales=scales)
    images = scaled_digits(parts["rest"].images, 64, 0)
    return Evaluation(
        sets={kind: DigitDataset(digits) for kind, digits in sets.items()},
        total=len(parts["test"].labels),
        classes=10,
        same_data=True,
        cache_key="",
        bins=lambda kind, errors: _bins(kind, sets[kind].factors, errors),
        equivariance_error=partial(error_of_layers, images=images, scales=SETTINGS["mnist"], border=0),
        variants=variants,
    )


EXPERIMENT = Experiment(
    MnistScaleOptions,
    make_data,
    make_model,
    make_evaluation,
    subject="digits",
    training_scales=FACTORS,
    rescalable=RESCALABLE,
)


class DigitDataset(LabeledDataset):
    """Digits; with a seed, each is scaled by another random factor every epoch."""

    def __init__(self, digits: Digits, seed: int | None = None) -> None:
        self.images, self.labels, self.seed = digits.images, digits.labels, seed
        self.pixels = int(self.images[0].size)

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        images = self.images[rows]
        if self.seed is not None:
            factors = (random.Random(combined_seed(self.seed, epoch, row)).uniform(*_AUGMENTATION) for row in rows)
            images = np.stack([scaled(image, factor) for image, factor in zip(images, factors, strict=True)])
        return normalize(images)


def normalize(images: np.ndarray) -> Tensor:
    """Normalize images uint8 [N, H, W] for the networks, [N, 1, H, W]."""
    return ((torch.tensor(images, dtype=torch.float32) / 255 - _MEAN) / _STD)[:, None]


def _more_scales(count: int | None, enlarge: int) -> Iterator[tuple[Scales, Sequence[str]]]:
    """Generate other sets of scales to test with, and the kinds of digits: larger ones, and smaller ones enlarged."""
    step = SETTINGS["mnist"][1]
    if count is not None:
        yield Scales.geometric(step, count), ("test", "larger", "largest")
        if enlarge:
            yield Scales.geometric(step, count + enlarge, start=step**-enlarge), ("test", "smaller")


def _rescaled(digits: Digits, count: int, factors: tuple[float, float], side: int) -> Digits:
    """Return digits at random other scales; a smaller count gives the first of a larger one."""
    generator = random.Random(0)
    rows = list(range(len(digits.labels)))
    generator.shuffle(rows)
    rows = rows[:count]
    drawn = [generator.uniform(*factors) for _ in rows]
    images = [scaled(digits.images[row], factor, side) for row, factor in zip(rows, drawn, strict=True)]
    return Digits(np.stack(images), digits.labels[rows], np.array(drawn))


def _bins(kind: str, factors: np.ndarray, errors: np.ndarray) -> list[ScaleBin]:
    edges = _EDGES[kind.partition(",")[0]]
    bins = []
    for low, high in pairwise(edges):
        inside = (factors >= low) & ((factors < high) | (high == edges[-1]))
        if inside.any():
            bins.append(ScaleBin(kind, low, high, int(inside.sum()), int(errors[inside].sum())))
    return bins
