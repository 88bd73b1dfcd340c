"""Options of training runs: frozen dataclasses, whose fields are the options of `disco train`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any, ClassVar, NamedTuple, get_type_hints

from ...files import plain
from .recipe import PRECISIONS, Recipe


class Rule(NamedTuple):
    """Values that an option accepts, with their description for the error message."""

    accepts: Callable[[Any], bool]
    description: str


def at_least(minimum: int) -> Rule:
    """Return the rule of a lower bound."""
    return Rule(lambda value: value >= minimum, f"at least {minimum}")


def between(low: float, high: float) -> Rule:
    """Return the rule of a closed interval."""
    return Rule(lambda value: low <= value <= high, f"from {low} to {high}")


FRACTION = Rule(lambda value: 0 <= value < 1, "from 0 to below 1")
NON_NEGATIVE = Rule(lambda value: 0 <= value < inf, "finite and at least 0")


def option(default: Any, about: str, *, choices: Iterable[str] = (), rule: Rule | None = None) -> Any:
    """Return a field of options, with its help and the values it accepts; None is always accepted."""
    choices = tuple(choices)
    if choices:
        rule = Rule(choices.__contains__, f"one of {', '.join(choices)}")
    return field(default=default, metadata={"help": about, "choices": choices, "rule": rule})


def flag(name: str) -> str:
    """Return the command-line flag of an option."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class RunOptions:
    """Options of every experiment. With the data, they determine a run."""

    experiment: ClassVar[str]
    recipes: ClassVar[Mapping[str, Recipe]]
    named: ClassVar[tuple[str, ...]]  # options that `command` names even at their defaults

    model: str
    recipe: str
    epochs: int | None = option(None, "number of epochs; the learning rate schedule is scaled to it", rule=at_least(1))
    limit: int | None = option(None, "maximum number of training images (or videos), for quick tests", rule=at_least(2))
    seed: int = option(0, "random seed for initialization, data order and augmentation", rule=between(0, 2**32 - 1))

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        for name, each in self.fields().items():
            value, rule = getattr(self, name), each.metadata["rule"]
            if rule is not None and value is not None and not rule.accepts(value):
                raise ValueError(f"{flag(name)} must be {rule.description}, got {plain(repr(value))}")

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields by name: the model, options of the experiment, shared ones, limit and seed."""
        shared = {each.name for each in dataclasses.fields(NetworkOptions)}
        ordered = sorted(
            dataclasses.fields(cls),
            key=lambda each: (each.name != "model", each.name in shared, each.name in ("limit", "seed")),
        )
        return {each.name: each for each in ordered}

    @classmethod
    @cache
    def types(cls) -> dict[str, Any]:
        """Return the types by name, such as `int | None`."""
        hints = get_type_hints(cls)
        return {name: hints[name] for name in cls.fields()}

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
        words = [f"disco train {self.experiment}"]
        for name, each in self.fields().items():
            value = getattr(self, name)
            if value is True:
                words.append(flag(name))
            elif name in self.named or value != each.default:
                words.append(f"{flag(name)} {value}")
        return " ".join(words)

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
    batch: int | None = option(None, "batch size, in images or pairs", rule=at_least(2))
    learning_rate: float | None = option(None, "peak learning rate", rule=NON_NEGATIVE)

    def holdout_count(self, total: int, what: str, *, least: int = 1) -> int:
        """Return how many of `total` are held out; ValueError if none, or less than `least` are left to train on."""
        count = round(self.holdout * total)
        if self.holdout and not 0 < count <= total - least:
            raise ValueError(
                f"--holdout {self.holdout} of {total} {what} leaves {count} for validation: at least 1 is needed, and "
                f"{least} for training; use --holdout 0 for no validation set"
            )
        return count


@dataclass(frozen=True)
class NetworkOptions(OptimizerOptions):
    """Options of experiments that train a whole network."""

    accumulate: int = option(1, "gradient accumulation steps", rule=at_least(1))
    weight_decay: float | None = option(None, "weight decay", rule=NON_NEGATIVE)
    ema: float = option(0.0, "EMA decay of the weights, such as 0.999; the EMA is evaluated", rule=FRACTION)
    precision: str = option("32", "32, 16 or bf16 (mixed precision, for GPUs)", choices=PRECISIONS)
