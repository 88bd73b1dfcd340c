"""Training on STL-10 or on images in folders, the experiment of Tables 2 and 3."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import create_model
from ..equivariance.bases import SETTINGS, error_of_layers
from ..io.arrays import checksum
from ..io.progress import Progress
from ..runs.batches import LabeledDataset
from ..runs.experiments import Evaluation, Experiment, ScaleBin, TrainingData
from .augment import Augmentation
from .data import read_stl10
from .folder import ImageFile, contents, decode, list_images
from .images import ImageSet
from .load import load_images
from .options import Stl10Options

_SIZES = (0.5, 2**-0.5, 2**0.5, 2.0)  # of test images over those in training
_EQUIVARIANCE_IMAGES = 64


def make_data(
    options: Stl10Options, folder: Path, *, cache: Path | None = None, progress: Progress | None = None
) -> TrainingData:
    """Read the training images, some of them held out for validation."""
    if cache is not None and options.format != "folder":
        raise ValueError("--cache stores the decoded images of --format folder")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in ("side", "fold", "test_share")}
    parts = load_images(folder, options.format, cache=cache, progress=progress, **chosen)
    train, test, folders = parts["train"], parts["test"], options.format == "folder"
    metadata = {
        "name": train.name,
        "classes": list(train.classes),
        "mean": list(train.mean),
        "deviation": list(train.std),  # key of run.json
        "train": checksum((train.images, train.labels)),
        "test": contents(_test_files(options, folder)) if folders else checksum((test.images, test.labels)),
    }
    order = _order(len(train.labels), None)
    count = options.holdout_count(len(order), "images", least=2)
    augment = _augmentation(metadata, train.images.shape[-1])
    training_rows, validation_rows = order[count:][: options.limit], order[:count][: options.limit]
    validation = ImageDataset(train.take(validation_rows), augment) if count else None
    return TrainingData(ImageDataset(train.take(training_rows), augment, options.seed), validation, metadata)


def make_model(options: Stl10Options, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the network for the classes of the data."""
    return create_model(options.model, classes=len(metadata["classes"]), **options.model_options())


def make_evaluation(
    options: Stl10Options, folder: Path, metadata: Mapping[str, Any], *, limit: int | None, outside: int
) -> Evaluation:
    """Return the test images at their own size, and resized."""
    sizes = {"test": 1.0, **{f"{size:.2f}": size for size in _SIZES if outside}}
    augment = _augmentation(metadata, options.side)
    sets: dict[str, LabeledDataset] = {}
    if options.format == "folder":
        files = _test_files(options, folder)
        count, classes, key = len(files), list_images(folder, options.test_share).classes, contents(files)
    else:
        test = read_stl10(folder, "test")
        count, classes, key = len(test.labels), test.classes, checksum((test.images, test.labels))
    for kind, size in sizes.items():
        rows, side = _order(count, limit if kind == "test" else outside), round(size * options.side)
        if options.format == "folder":
            sets[kind] = ImageFileDataset([files[row] for row in rows], augment, side)
        else:
            sets[kind] = ImageDataset(test.take(rows), augment, side=side)
    if list(classes) != metadata["classes"]:
        known = f"{len(metadata['classes'])} classes ({metadata['classes'][0]}...)"
        got = f"these images have {len(classes)} ({classes[0]}...)"
        raise ValueError(f"{folder}: the network was trained on {known}, {got}")
    first = list(range(min(_EQUIVARIANCE_IMAGES, len(sets["test"]))))
    gray = sets["test"].transform(sets["test"].read(first, 0), first, 0).mean(1, keepdim=True)
    return Evaluation(
        sets=sets,
        total=count,
        classes=len(classes),
        same_data=key == metadata["test"],
        cache_key=key,
        bins=lambda kind, errors: [_bin(sizes[kind], errors)],
        equivariance_error=partial(error_of_layers, images=gray, scales=SETTINGS["stl10"], border=0.25),
    )


EXPERIMENT = Experiment(
    Stl10Options,
    make_data,
    make_model,
    make_evaluation,
    metadata=dict(name=str, classes=list[str], mean=list[float], deviation=list[float], train=str, test=str),
)


class ImageDataset(LabeledDataset):
    """Images in memory: augmented if there is a seed, else normalized, and resized if a side is given."""

    def __init__(
        self, images: ImageSet, augment: Augmentation, seed: int | None = None, side: int | None = None
    ) -> None:
        self.images, self.labels = images.images, images.labels
        self.augment, self.seed, self.side = augment, seed, side or images.images.shape[-1]
        self.pixels = self.side**2

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(self.images[rows])

    def transform(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        if self.seed is not None:
            return self.augment(images, rows, seed=self.seed, epoch=epoch)
        images = self.augment.normalize(images)
        if self.side == images.shape[-1]:
            return images
        return F.interpolate(images, (self.side, self.side), mode="bicubic", antialias=True)


class ImageFileDataset(LabeledDataset):
    """Normalized images, read from their files at a given side."""

    def __init__(self, files: list[ImageFile], augment: Augmentation, side: int) -> None:
        self.labels = np.array([file.label for file in files])
        self.files, self.augment, self.side, self.pixels = files, augment, side, side**2

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(np.stack([decode(self.files[row].path, self.side) for row in rows]))

    def transform(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        return self.augment.normalize(images)


def _test_files(options: Stl10Options, folder: Path) -> list[ImageFile]:
    return [file for file in list_images(folder, options.test_share).files if file.part == "test"]


def _augmentation(metadata: Mapping[str, Any], side: int) -> Augmentation:
    """Return the paper's augmentation of 96 pixels, scaled to the side; constant channels are not normalized."""
    mean, std = tuple(metadata["mean"]), tuple(value or 1.0 for value in metadata["deviation"])
    return Augmentation(mean, std, padding=round(side / 8), cutout=round(side / 3))


def _order(count: int, limit: int | None) -> np.ndarray:
    """Return random rows, of all classes alike; a smaller limit gives the first of a larger one."""
    return np.random.default_rng(0).permutation(count)[:limit]


def _bin(size: float, errors: np.ndarray) -> ScaleBin:
    kind = "test" if size == 1 else "smaller" if size < 1 else "larger"
    return ScaleBin(kind, size, size, len(errors), int(errors.sum()))
