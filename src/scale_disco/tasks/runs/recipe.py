"""How networks are trained: the optimiser, and its learning rate over the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

PRECISIONS = ("32", "16", "bf16")  # the last two mixed with the first


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: with which steps, and a learning rate over the part of them done."""

    epochs: int
    batch: int
    learning_rate: float
    schedule: str
    optimiser: str = "adam"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    average: float = 0.0  # decay of the moving average of the weights, which is what is tested; 0: none
    precision: str = "32"  # bits of the arithmetic, one of PRECISIONS
    clip: float | None = None  # largest norm of all gradients together
    accumulate: int = 1  # parts of a batch that are computed one after the other
    weights: str = "best"  # that are tested: best on validation, or last

    def over(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Adam with torch's defaults, or stochastic gradient descent with a momentum of 0.9: Nesterov's for "sgd"."""
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        nesterov = self.optimiser == "sgd"
        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=0.9, nesterov=nesterov, weight_decay=self.weight_decay
        )

    def steps(self, images: int, processes: int = 1) -> int:
        """Steps of an epoch; refuses numbers of images that leave a process without work."""
        left = images % self.batch or min(images, self.batch)
        if left < max(2, processes) * self.accumulate:
            shared = f"{processes} process{'es share' if processes > 1 else ' has'} it" + (
                f" in {self.accumulate} parts" if self.accumulate > 1 else ""
            )
            raise ValueError(
                f"every process needs an image of every batch, and a batch norm two: the last batch has {left}, "
                f"{shared}; choose another --limit, --pairs or batch, fewer --devices"
                + (" or a smaller --accumulate" if self.accumulate > 1 else "")
            )
        return -(-images // self.batch)

    def factor(self, part: float) -> float:
        """The learning rate over its largest value, when this part of the training is done."""
        if self.schedule == "logarithmic":  # the same all epoch long
            part = math.floor(part * self.epochs + 1e-9) / max(1, self.epochs - 1)
        return _SCHEDULES[self.schedule](part)


def _steps(part: float) -> float:
    """A tenth after every third; the rounding error of a part does not count."""
    return 0.1 ** int(3 * part + 1e-9)


def _drops(part: float) -> float:
    """A fifth after 0.3, 0.4, 0.6 and 0.8 of the training."""
    return 0.2 ** sum(part + 1e-9 >= drop for drop in (0.3, 0.4, 0.6, 0.8))


def _one_cycle(part: float) -> float:
    """Up along a line in the first quarter, down along a line to zero."""
    return min(part / 0.25, (1 - part) / 0.75)


def _cosine(part: float) -> float:
    """Up along a line in the first twentieth, down along a cosine to zero."""
    rise = 0.05
    return part / rise if part < rise else (1 + math.cos(math.pi * (part - rise) / (1 - rise))) / 2


def _logarithmic(part: float) -> float:
    """Down to a thousandth along a line of the logarithm."""
    return math.pow(1e-3, part)


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "steps": _steps,
    "drops": _drops,
    "one-cycle": _one_cycle,
    "cosine": _cosine,
    "logarithmic": _logarithmic,
}
