"""Training on digits of some sizes, testing on all: STIR-MNIST and MNIST Large Scale."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import create_model
from ...scales import Scales
from ..runs.batches import LabeledDataset, combined_seed
from ..runs.experiments import Evaluation, Experiment, ScaleBin, TrainingData, scales_label
from .digits import SizedDigits, load
from .options import STEPS, GeneralizationOptions

_AUGMENTATION = 2.0  # largest factor of scale augmentation, and one over the smallest
_INK = 8  # pixels above it belong to the digit


def make_data(options: GeneralizationOptions, folder: Path) -> TrainingData:
    """Read the training and validation digits of the sizes in training."""
    parts = load(folder, options.data_set)
    train, validation = (
        SizedDigitDataset(*_of_sizes(parts[name], *options.training_sizes, options.limit), seed)
        for name, seed in (("train", options.seed if options.augment else None), ("val", None))
    )
    return TrainingData(train, validation, {})


def make_model(options: GeneralizationOptions, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the network with its scales in training."""
    return _model(options, options.scale_set(options.scales))


def make_evaluation(
    options: GeneralizationOptions,
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    limit: int | None,
    outside: int,
    test_scales: int | None = None,
    enlarge: int = 0,
) -> Evaluation:
    """Return the test digits of all sizes, twice if the network has a set of scales: "test", and with other scales.

    `limit` is the number of images in each; without `outside` the second is left out. `test_scales` and `enlarge` are
    those of the run unless they are given.
    """
    test = load(folder, options.data_set)["test"]
    images, labels, sizes = _of_sizes(test, int(test.sizes[0]), int(test.sizes[-1]), limit)
    dataset = SizedDigitDataset(images, labels, sizes)
    variants: dict[str, Callable[[nn.Module], nn.Module]] = {}
    if test_scales is None:
        test_scales, enlarge = options.test_scales, options.enlarge
    more = options.scale_set(test_scales, enlarge)
    if outside and more is not None:
        variants[scales_label(more)] = partial(_with_scales, options, more)
    return Evaluation(
        sets={"test": dataset, **dict.fromkeys(variants, dataset)},
        total=test.images.shape[0] * test.images.shape[1],
        classes=10,
        same_data=True,
        cache_key="" if limit is None else f"{limit} images",  # a limit takes others than the first rows of all
        bins=lambda kind, errors: _bins(kind, sizes, errors),
        equivariance_error=lambda network: None,
        variants=variants,
    )


EXPERIMENT = Experiment(
    GeneralizationOptions, make_data, make_model, make_evaluation, subject="digits, in pixels", rescalable=STEPS
)


class SizedDigitDataset(LabeledDataset):
    """Digits; with a seed, each is scaled by another random factor and moved every epoch."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, sizes: np.ndarray, seed: int | None = None) -> None:
        self.images, self.labels, self.sizes, self.seed = images, labels, sizes, seed
        self.pixels = int(images[0].size)

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        images = torch.from_numpy(self.images[rows]).float()[:, None] / 255
        if self.seed is None:
            return images
        generators = [random.Random(combined_seed(self.seed, epoch, row)) for row in rows]
        return torch.stack(list(map(rescaled, images, generators)))


def rescaled(image: Tensor, generator: random.Random) -> Tensor:
    """Scale a digit by a random factor from 1/2 to 2 that keeps it on the canvas, and put it at a random place.

    [1, H, H] -> [1, H, H], zeros around the digit.
    """
    side = image.shape[1]
    ink = image[0] > _INK / 255
    rows, columns = (torch.nonzero(ink.any(axis)).flatten() for axis in (1, 0))
    if not len(rows):
        return image
    box = image[:, int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    factor = min(_AUGMENTATION ** generator.uniform(-1, 1), side / max(box.shape[1:]))
    height, width = (min(side, max(1, round(size * factor))) for size in box.shape[1:])
    digit = F.interpolate(box[None], (height, width), mode="bicubic", antialias=True)[0].clamp(0, 1)
    top, left = generator.randint(0, side - height), generator.randint(0, side - width)
    canvas = torch.zeros_like(image)
    canvas[:, top : top + height, left : left + width] = digit
    return canvas


def _model(options: GeneralizationOptions, scales: Scales | None) -> nn.Module:
    if scales is None:
        return create_model(options.model)
    return create_model(options.model, scales=scales, head=options.head)


def _with_scales(options: GeneralizationOptions, scales: Scales, network: nn.Module) -> nn.Module:
    """Return a network of other scales with the same weights."""
    other = _model(options, scales).to(next(network.parameters()).device)
    for ours, theirs in zip(other.parameters(), network.parameters(), strict=True):
        ours.data.copy_(theirs)
    return other.eval().requires_grad_(False)


def _of_sizes(digits: SizedDigits, low: int, high: int, limit: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images [N, H, W], labels and sizes of a range of sizes; a limit takes the same number of every size."""
    chosen = (digits.sizes >= low) & (digits.sizes <= high)
    count = len(digits.labels)
    rows = np.arange(count)
    if limit is not None:
        rows = np.linspace(0, count - 1, min(count, max(1, limit // int(chosen.sum())))).astype(int)  # of all classes
    images = digits.images[chosen][:, rows]
    sizes = np.repeat(digits.sizes[chosen], len(rows))
    return images.reshape(-1, *images.shape[2:]), np.tile(digits.labels[rows], int(chosen.sum())), sizes


def _bins(kind: str, sizes: np.ndarray, errors: np.ndarray) -> list[ScaleBin]:
    return [
        ScaleBin(kind, float(size), float(size), int((sizes == size).sum()), int(errors[sizes == size].sum()))
        for size in np.unique(sizes)
    ]
