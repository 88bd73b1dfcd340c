"""Training schedules, and the settings of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data.mnist_scale import SPLITS
from ..models import list_models


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam on cross-entropy, with a learning rate over the part of the training done."""

    epochs: int
    batch: int
    learning_rate: float
    schedule: str
    label_smoothing: float = 0.0
    weights: str = "best"  # that are tested: best on validation, or last

    def optimiser(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Adam with torch's defaults."""
        return torch.optim.Adam(parameters, lr=self.learning_rate)

    def steps(self, images: int, processes: int = 1) -> int:
        """Batches of an epoch; refuses numbers of images that leave a process without work."""
        left = images % self.batch
        if 0 < left < max(2, processes) or self.batch < processes:
            raise ValueError(
                f"every process needs an image of every batch, and a batch norm two: the last batch has {left}, "
                f"{processes} processes share it; choose another --limit or fewer --devices"
            )
        return -(-images // self.batch)

    def factor(self, part: float) -> float:
        """The learning rate over its largest value, when this part of the training is done."""
        return _SCHEDULES[self.schedule](part)


def _steps(part: float) -> float:
    """A tenth after every third; the rounding error of a part does not count."""
    return 0.1 ** int(3 * part + 1e-9)


def _one_cycle(part: float) -> float:
    """Up along a line in the first quarter, down along a line to zero."""
    return min(part / 0.25, (1 - part) / 0.75)


_SCHEDULES: dict[str, Callable[[float], float]] = {"steps": _steps, "one-cycle": _one_cycle}

RECIPES = {
    "paper": Recipe(epochs=60, batch=128, learning_rate=0.01, schedule="steps"),
    "fast": Recipe(epochs=7, batch=64, learning_rate=0.002, schedule="one-cycle", label_smoothing=0.1, weights="last"),
    "quick": Recipe(epochs=4, batch=50, learning_rate=0.005, schedule="one-cycle", label_smoothing=0.1, weights="last"),
}
MODELS = [*list_models("mnist"), *list_models("digits")]


def _setting(default: Any, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Settings:
    """What a run computes: these fix every weight."""

    model: str = _setting("mnist/disco", f"network: {', '.join(MODELS)}")
    split: str = _setting("0", f"realisation of MNIST-scale: {', '.join(SPLITS)}")
    augment: bool = _setting(False, 'scale training images by a random factor from 0.5 to 2 (the paper\'s "+")')
    recipe: str = _setting(
        "fast", "schedule: paper (60 epochs in three steps), fast (one cycle of 7) or quick (of 4, for small networks)"
    )
    epochs: int | None = _setting(None, "another number of epochs; the schedule is stretched to it")
    limit: int | None = _setting(None, "training and validation images at most, for trials")
    seed: int = _setting(0, "of weights, order, dropout and augmentation")

    def __post_init__(self) -> None:
        _check("--model", self.model, MODELS)
        _check("--split", self.split, SPLITS)
        _check("--recipe", self.recipe, RECIPES)
        for name, value, least in (("epochs", self.epochs, 1), ("limit", self.limit, 2)):
            if value is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, got {value}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"--seed must be from 0 to 2^32 - 1, got {self.seed}")

    @property
    def full_recipe(self) -> Recipe:
        """The recipe with the number of epochs that this run has."""
        recipe = RECIPES[self.recipe]
        return recipe if self.epochs is None else dataclasses.replace(recipe, epochs=self.epochs)

    @property
    def command(self) -> str:
        """The command that starts such a run."""
        words = ["disco train mnist-scale"]
        for name, value in dataclasses.asdict(self).items():
            if value is True:
                words.append(f"--{name}")
            elif value is not None and value is not False:
                words.append(f"--{name} {value}")
        return " ".join(words)


def _check(option: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}, got {value!r}")
