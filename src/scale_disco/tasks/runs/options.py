"""What all experiments have in common: settings that fix a run, what it is trained on and what it is tested on."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import nn

from ...files import plain
from ..io.report import binomial_std
from .batches import Dataset, LabeledDataset
from .recipe import Recipe

Progress = Callable[[int, int], None]


class TrainingData(NamedTuple):
    """What a network is trained on."""

    train: Dataset
    validation: Dataset | None
    facts: dict[str, Any]  # about the data, that the network and its test depend on


@dataclass(frozen=True)
class ScaleBin:
    """Errors on images of a range of scales."""

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
        return binomial_std(self.errors, self.images)


class Evaluation(NamedTuple):
    """What a network is tested on."""

    sets: dict[str, LabeledDataset]  # "test", and others
    images: int  # that the test set has in all
    classes: int
    same: bool  # whether they are of the data set that the network was trained on
    key: str  # differs for other images
    bins: Callable[[str, np.ndarray], list[ScaleBin]]  # from the errors on a set, bool
    equivariance: Callable[[nn.Module], float | None]


class RunOptions(ABC):
    """What a run computes: these fix every weight. Subclasses are frozen dataclasses of the options of a command."""

    experiment: ClassVar[str]
    subject: ClassVar[str]  # what is tested at several scales, in a word
    seen: ClassVar[tuple[float, float]]  # scales in training, from and to
    models: ClassVar[list[str]]
    recipes: ClassVar[Mapping[str, Recipe]]
    named: ClassVar[tuple[str, ...]]  # options that a command always has
    words: ClassVar[Mapping[str, Iterable[str]]] = {}  # that other options take
    facts: ClassVar[Mapping[str, type]] = {}  # about data and start, with the kinds of their values
    learner: ClassVar[str] = "classifier"  # how the network learns, one of `run.LEARNERS`
    test: ClassVar[str] = "disco test RUN"  # the command that tests a run
    kept: ClassVar[str | None] = None  # folder beside runs for what takes long to see of the data, if there is such

    model: str
    recipe: str
    epochs: int | None
    limit: int | None
    seed: int

    def __post_init__(self) -> None:
        """Refuse what no run can have."""
        for name, known in self.suggestions().items():
            if (value := getattr(self, name)) is not None and value not in known:
                raise ValueError(f"--{name} must be one of {', '.join(known)}, got {plain(repr(value))}")
        for name, value, least in (("epochs", self.epochs, 1), ("limit", self.limit, 2)):
            if value is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, got {value}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"--seed must be from 0 to 2^32 - 1, got {self.seed}")

    @classmethod
    def suggestions(cls) -> dict[str, Iterable[str]]:
        """The words that options take, by the names of the options."""
        return {"model": cls.models, "recipe": cls.recipes, **cls.words}

    @property
    def full_recipe(self) -> Recipe:
        """The recipe as this run has it."""
        recipe = self.recipes[self.recipe]
        return recipe if self.epochs is None else dataclasses.replace(recipe, epochs=self.epochs)

    @property
    def command(self) -> str:
        """The command that starts such a run."""
        words = [f"disco train {self.experiment}"]
        for name, value in self.as_dict().items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                words.append(option)
            elif name in self.named or value != getattr(type(self), name):  # the class holds the defaults
                words.append(f"{option} {value}")
        return " ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    @property
    @abstractmethod
    def folder(self) -> str:
        """The name of such a run."""

    @classmethod  # noqa: B027 - some have nothing to refuse
    def check_facts(cls, facts: Mapping[str, Any]) -> None:
        """Refuse facts, of the right names and kinds, that cannot be."""

    @abstractmethod
    def lesson(self, data: Path, *, cache: Path | None = None, progress: Progress | None = None) -> TrainingData:
        """What is trained on.

        Args:
            data: Folder of the data.
            cache: File that keeps what takes long to read.
            progress: Called with what is done and what there is in all.
        """

    def origin(self) -> dict[str, Any]:
        """Facts about what training starts from, asked for once."""
        return {}

    @abstractmethod
    def network(self, facts: Mapping[str, Any]) -> nn.Module:
        """The network, of which only the weights may change in training."""

    def untrained(self, facts: Mapping[str, Any]) -> nn.Module:
        """The network with the weights that training starts from."""
        return self.network(facts)

    @abstractmethod
    def exam(self, data: Path, facts: Mapping[str, Any], *, limit: int | None, outside: int) -> Evaluation:
        """What is tested on.

        Args:
            data: Folder of the data.
            facts: Those of the lesson.
            limit: Test images at most.
            outside: Images at most of other scales, on either side of those in training.
        """


def span(low: float, high: float) -> str:
    """A range of scales, in words.

    Example:
        >>> span(0.3, 0.4), span(2**0.5, 2**0.5)
        ('0.3 to 0.4', '1.414')
    """
    return f"{round(low, 3):g}" if low == high else f"{low:g} to {high:g}"


def setting(default: Any, about: str) -> Any:
    """A field of settings, with its help."""
    return field(default=default, metadata={"help": about})
