"""Options of training runs: frozen dataclasses, whose fields are the options of `disco train`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..options import FRACTION, NON_NEGATIVE, SEED, CheckedOptions, at_least, flag, option
from .recipe import PRECISIONS, Recipe


@dataclass(frozen=True)
class RunOptions(CheckedOptions):
    """Options of every experiment. With the data, they determine a run."""

    checks_files = False  # records outlive the files that a run started from
    experiment: ClassVar[str]
    recipes: ClassVar[Mapping[str, Recipe]]
    named: ClassVar[tuple[str, ...]]  # options that `command` names even at their defaults
    summary: ClassVar[str]  # and examples: of the help of `disco train`
    examples: ClassVar[str]
    caches: ClassVar[bool] = False  # whether `make_data` takes `cache` and `progress`

    model: str
    recipe: str
    epochs: int | None = option(
        None, "number of epochs, to which the schedule is scaled (default: the recipe's)", rule=at_least(1)
    )
    limit: int | None = option(
        None, "maximum number of training images (or videos), for quick trials (default: all)", rule=at_least(2)
    )
    seed: int = option(0, "random seed for initialization, data order and augmentation", rule=SEED)
    precision: str = option("32", "32, or 16 or bf16 for mixed precision (16 on GPUs only)", choices=PRECISIONS)

    @classmethod
    @cache
    def fields(cls) -> Mapping[str, dataclasses.Field[Any]]:
        """Return the fields by name: the model, options of the experiment, shared ones, limit and seed."""
        shared = {each.name for each in dataclasses.fields(NetworkOptions)}
        ordered = sorted(
            dataclasses.fields(cls),
            key=lambda each: (each.name != "model", each.name in shared, each.name in ("limit", "seed", "precision")),
        )
        return {each.name: each for each in ordered}

    @classmethod
    def data_file(cls, folder: Path, values: Mapping[str, Any]) -> tuple[Path, str] | None:
        """Return a file that the data folder must have for these options, and the command that creates it."""
        return None

    @property
    def base_recipe(self) -> Recipe:
        """The named recipe."""
        return self.recipes[self.recipe]

    @property
    def full_recipe(self) -> Recipe:
        """The recipe of this run, the named one with the values that other options override."""
        values = {theirs: getattr(self, ours, None) for ours, theirs in _OVERRIDES.items()}
        changes = {name: value for name, value in values.items() if value is not None}
        return dataclasses.replace(self.base_recipe, **changes)

    @property
    def run_name(self) -> str:
        """The default name of the run folder."""
        return f"{self.model.replace('/', '-')}-{self.recipe}-{self.seed}"

    @property
    def command(self) -> str:
        """The command that starts this run."""
        given = [
            flag(name) if value is True else f"{flag(name)} {value}"
            for name, value in self.as_dict().items()
            if name in self.named or value != self.fields()[name].default
        ]
        return " ".join([f"disco train {self.experiment}", *given])

    def as_dict(self) -> dict[str, Any]:
        """Return the options by name."""
        return {name: getattr(self, name) for name in self.fields()}


# Options that override a value of the recipe: the names of both.
_OVERRIDES = {name: name for name in ("epochs", "batch", "accumulate", "learning_rate", "weight_decay", "precision")}
_OVERRIDES |= {"smoothing": "label_smoothing", "ema": "average"}


@dataclass(frozen=True)
class OptimizerOptions(RunOptions):
    """Options of experiments with a batch size, a learning rate and a validation set of their own."""

    holdout: float = option(0.1, "fraction of the images (or videos) held out for validation", rule=FRACTION)
    batch: int | None = option(None, "batch size, in images or pairs (default: the recipe's)", rule=at_least(2))
    learning_rate: float | None = option(None, "peak learning rate (default: the recipe's)", rule=NON_NEGATIVE)

    def holdout_count(self, total: int, what: str, *, least: int = 1) -> int:
        """Return how many of `total` are held out; ValueError if none, or less than `least` are left to train on."""
        count = round(self.holdout * total)
        if self.holdout and not 0 < count <= total - least:
            rule = f"at least 1 is needed, and {least} for training; use --holdout 0 for no validation set"
            raise ValueError(f"--holdout {self.holdout} of {total} {what} leaves {count} for validation: {rule}")
        return count


@dataclass(frozen=True)
class NetworkOptions(OptimizerOptions):
    """Options of experiments that train a whole network."""

    accumulate: int = option(1, "gradient accumulation steps", rule=at_least(1))
    weight_decay: float | None = option(None, "weight decay (default: the recipe's)", rule=NON_NEGATIVE)
    ema: float = option(0.0, "EMA decay of the weights, such as 0.999; the EMA is evaluated", rule=FRACTION)
