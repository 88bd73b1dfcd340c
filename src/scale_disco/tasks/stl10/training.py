"""The experiment of Tables 2 and 3: photographs of 96x96 pixels, of STL-10 or of the user."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...files import reason
from ...models import create_model, default_options, list_models
from ..equivariance.bases import SETTINGS
from ..equivariance.networks import error_of_layers
from ..runs.batches import LabeledDataset
from ..runs.options import Evaluation, Progress, RunOptions, ScaleBin, TrainingData, setting
from ..runs.recipe import PRECISIONS, Recipe
from .augment import Augmentation
from .data import SIDE, read_stl10
from .folder import ImageFile, contents, decode, list_images
from .images import ImageSet
from .load import FORMATS, load_images

_SIZES = (0.5, 2**-0.5, 2**0.5, 2.0)  # of test images over those in training
_MEASURED = 64  # images on which the error of a basis is measured

_SGD: dict[str, Any] = {"optimiser": "sgd", "weights": "last", "weight_decay": 5e-4}
RECIPES = {
    "paper": Recipe(epochs=1000, batch=128, learning_rate=0.1, schedule="drops", **_SGD),
    "fast": Recipe(epochs=30, batch=32, learning_rate=0.05, schedule="cosine", **_SGD),
}
# Where the authors' script differs from the rest of the paper.
_OWN: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "stl10/disco"): {"batch": 64, "learning_rate": 0.05, "weight_decay": 1e-3}
}
_MODELS = list_models("stl10")


@dataclass(frozen=True)
class Stl10Options(RunOptions):
    """RunOptions of a run on STL-10, or on pictures in folders."""

    experiment = "stl10"
    subject = "images"
    seen = (1.0, 1.0)
    models = _MODELS
    recipes = RECIPES
    named = ("model", "depth", "width", "recipe", "seed")
    words = {  # noqa: RUF012
        "format": FORMATS,
        "precision": PRECISIONS,
        "layout": ("projected", "plain", "interscale"),
        "pools": ("max", "mean", "blur", "stride"),
    }
    facts = {"name": str, "classes": list, "mean": list, "deviation": list, "train": str, "test": str}  # noqa: RUF012

    model: str = setting("stl10/disco", f"network: {', '.join(_MODELS)}")
    depth: int = setting(16, "convolutions of the network on its longest way: 10, 16, 22...")
    width: int = setting(8, "channels over those of the thinnest network")
    dropout: float = setting(0.3, "part of the numbers that are dropped in every block")
    layout: str | None = setting(None, "of SESN and DISCO, where scales meet: projected (default), plain, interscale")
    pools: str | None = setting(None, "of DISCO, how maps get smaller: max (default), mean, blur or stride")
    basis_steps: int | None = setting(None, "of DISCO: stop the descent to its basis after so many steps (Table 3)")
    format: str = setting("stl10", "of the data: stl10 (its binary files) or folder (pictures in a folder per class)")
    side: int = setting(SIDE, "of format folder: pixels to which pictures are cut and resized")
    fold: int | None = setting(None, "of STL-10: train on one of its ten folds, 0 to 9")
    test_share: float | None = setting(None, "of a folder without parts: share of every class that is for the test")
    holdout: float = setting(0.0, "share of the training images that is kept for validation")
    recipe: str = setting("fast", "schedule: paper (1000 epochs, four drops) or fast (30, a cosine)")
    epochs: int | None = setting(None, "another number of epochs; the schedule is stretched to it")
    batch: int | None = setting(None, "another number of images of a step")
    accumulate: int = setting(1, "parts of a batch computed one after the other, where memory is short")
    learning_rate: float | None = setting(None, "another one, at its largest")
    weight_decay: float | None = setting(None, "another one")
    smoothing: float = setting(0.0, "of labels, such as 0.1")
    ema: float = setting(0.0, "decay of a moving average of the weights, such as 0.999, which is then tested")
    precision: str = setting("32", "of the arithmetic: 32, 16 or bf16 (mixed with 32, for GPUs)")
    limit: int | None = setting(None, "training images at most, for trials")
    seed: int = setting(0, "of weights, order and augmentation")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("batch", 2), ("accumulate", 1), ("side", 16), ("basis_steps", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{_option(name)} must be at least {least}, got {value}")
        for name in ("holdout", "smoothing", "ema"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name} must be from 0 to below 1, got {value}")
        for name in ("learning_rate", "weight_decay"):
            if (value := getattr(self, name)) is not None and not 0 <= value < float("inf"):
                raise ValueError(f"--{_option(name)} must be a number from 0 on, got {value}")
        known = default_options(self.model)
        for name, value in self._special().items():
            if value is not None and name not in known:
                raise ValueError(f"--{_option(name)} is not an option of {self.model}")
        with torch.device("meta"):  # the network has rules of its own
            create_model(self.model, depth=self.depth, width=self.width, dropout=self.dropout)

    @property
    def full_recipe(self) -> Recipe:
        recipe = dataclasses.replace(
            super().full_recipe,
            **_OWN.get((self.recipe, self.model), {}),
            label_smoothing=self.smoothing,
            average=self.ema,
            precision=self.precision,
            accumulate=self.accumulate,
        )
        given = {name: getattr(self, name) for name in ("batch", "learning_rate", "weight_decay")}
        return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})

    @property
    def folder(self) -> str:
        steps = "" if self.basis_steps is None else f"-{self.basis_steps}"
        return f"{self.model.replace('/', '-')}{steps}-{self.depth}-{self.width}-{self.recipe}-{self.seed}"

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any]) -> None:
        for name, kind in (("classes", str), ("mean", (int, float)), ("deviation", (int, float))):
            if not facts[name] or not all(isinstance(value, kind) for value in facts[name]):
                raise ValueError(f"{name} is empty or of another kind")

    def lesson(self, data: Path, *, cache: Path | None = None, progress: Progress | None = None) -> TrainingData:
        chosen: dict[str, Any] = {"side": self.side, "fold": self.fold, "test_share": self.test_share}
        if cache is not None and self.format != "folder":
            raise ValueError("--cache keeps the decoded pictures of --format folder")
        parts = load_images(data, self.format, cache=cache, progress=progress, **chosen)
        train = parts["train"]
        facts = {
            "name": train.name,
            "classes": list(train.classes),
            "mean": list(train.mean),
            "deviation": list(train.deviation),
            "train": _checksum(train),
            "test": _checksum(parts["test"]) if self.format == "stl10" else contents(self._pictures(data)),
        }
        order = _order(len(train.labels), None)
        held = round(self.holdout * len(order))
        if self.holdout and not 0 < held < len(order) - 1:
            raise ValueError(
                f"--holdout {self.holdout} of {len(order)} images keeps {held} for validation: "
                "there must be one at least, and two to train on"
            )
        augment = _augmentation(facts, train.images.shape[-1])
        kept = train.take(order[held:][: self.limit])
        validation = ImageDataset(train.take(order[:held][: self.limit]), augment) if held else None
        return TrainingData(ImageDataset(kept, augment, self.seed), validation, facts)

    def network(self, facts: Mapping[str, Any]) -> nn.Module:
        options = {name: value for name, value in self._special().items() if value is not None}
        return create_model(
            self.model,
            depth=self.depth,
            width=self.width,
            classes=len(facts["classes"]),
            dropout=self.dropout,
            **options,
        )

    def exam(self, data: Path, facts: Mapping[str, Any], *, limit: int | None, outside: int) -> Evaluation:
        sizes = {"test": 1.0, **{f"{size:.2f}": size for size in _SIZES if outside}}
        augment = _augmentation(facts, self.side)
        sets: dict[str, LabeledDataset] = {}
        if self.format == "folder":
            pictures = self._pictures(data)
            count, classes, key = len(pictures), list_images(data, self.test_share).classes, contents(pictures)
            for kind, size in sizes.items():
                rows = _order(count, limit if kind == "test" else outside)
                sets[kind] = ImageFileDataset([pictures[row] for row in rows], augment, round(size * self.side))
        else:
            test = read_stl10(data, "test")
            count, classes, key = len(test.labels), test.classes, _checksum(test)
            for kind, size in sizes.items():
                rows = _order(count, limit if kind == "test" else outside)
                sets[kind] = ImageDataset(test.take(rows), augment, side=round(size * SIDE))
        if list(classes) != facts["classes"]:
            raise ValueError(
                f"{data}: the network was trained on {len(facts['classes'])} classes ({facts['classes'][0]}...), "
                f"these images have {len(classes)} ({classes[0]}...)"
            )
        first = list(range(min(_MEASURED, len(sets["test"].labels))))
        images = sets["test"].prepared(sets["test"].read(first, 0), first, 0)
        return Evaluation(
            sets,
            count,
            len(classes),
            key == facts["test"],
            key,
            lambda kind, errors: [_bin(sizes[kind], errors)],
            partial(error_of_layers, images=images.mean(1, keepdim=True), scales=SETTINGS["stl10"], border=0.25),
        )

    def _pictures(self, data: Path) -> list[ImageFile]:
        """Those for the test."""
        return [picture for picture in list_images(data, self.test_share).pictures if picture.part == "test"]

    def _special(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("layout", "pools", "basis_steps")}


class ImageDataset(LabeledDataset):
    """Images in memory: augmented if there is a seed for that, else normalised, and of another side if one is given."""

    def __init__(
        self, images: ImageSet, augment: Augmentation, seed: int | None = None, side: int | None = None
    ) -> None:
        self.images, self.labels = images.images, images.labels
        self.augment, self.seed, self.side = augment, seed, side or images.images.shape[-1]

    @property
    def pixels(self) -> int:
        return self.side**2

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(self.images[rows])

    def prepared(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        if self.seed is not None:
            return self.augment(images, rows, seed=self.seed, epoch=epoch)
        images = self.augment.normalised(images)
        if self.side == images.shape[-1]:
            return images
        return F.interpolate(images, (self.side, self.side), mode="bicubic", antialias=True)


class ImageFileDataset(LabeledDataset):
    """Pictures read from their files when they are shown, at the side that is asked for."""

    def __init__(self, pictures: list[ImageFile], augment: Augmentation, side: int) -> None:
        self.labels = np.array([picture.label for picture in pictures])
        self.pictures, self.augment, self.side = pictures, augment, side

    @property
    def pixels(self) -> int:
        return self.side**2

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(np.stack([self._decoded(self.pictures[row].path) for row in rows]))

    def prepared(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        return self.augment.normalised(images)

    def _decoded(self, path: Path) -> np.ndarray:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, on odd metadata
                return decode(path, self.side)
        except Exception as error:  # a damaged picture makes Pillow raise a dozen kinds
            raise ValueError(f"{path}: this picture cannot be read ({reason(error)}); mend or remove it") from error


def _augmentation(facts: Mapping[str, Any], side: int) -> Augmentation:
    """The paper's for 96 pixels, in proportion to others; a channel that is the same everywhere is left as it is."""
    mean, deviation = tuple(facts["mean"]), tuple(value or 1.0 for value in facts["deviation"])
    return Augmentation(mean, deviation, padding=round(side / 8), cutout=round(side / 3))


def _order(count: int, limit: int | None) -> np.ndarray:
    """Rows in an order in which the first are some of every class; fewer of them are the first of more."""
    return np.random.default_rng(0).permutation(count)[:limit]


def _bin(size: float, errors: np.ndarray) -> ScaleBin:
    kind = "test" if size == 1 else "smaller" if size < 1 else "larger"
    return ScaleBin(kind, size, size, len(errors), int(errors.sum()))


def _checksum(images: ImageSet) -> str:
    state = hashlib.sha256(np.ascontiguousarray(images.images).data)
    state.update(np.ascontiguousarray(images.labels).data)
    return state.hexdigest()


def _option(name: str) -> str:
    return name.replace("_", "-")
