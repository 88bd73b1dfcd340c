"""How networks are trained: the optimizer, and the learning rate schedule."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRECISIONS = ("32", "16", "bf16")  # the last two are mixed precision


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a training run."""

    epochs: int
    batch: int
    learning_rate: float  # peak
    schedule: str
    optimizer: str = "adam"  # "adam", "sgd" (with Nesterov momentum) or "momentum" (without)
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    average: float = 0.0  # decay of the moving average of the weights, which is what is tested; 0: none
    precision: str = "32"  # one of PRECISIONS
    clip: float | None = None  # maximum norm of the gradient
    accumulate: int = 1  # micro-batches per step
    weights: str = "best"  # that are tested: best on validation, or last

    def as_dict(self) -> dict[str, Any]:
        """The recipe as `run.json` stores it, which has a British key."""
        return {"optimiser" if name == "optimizer" else name: value for name, value in dataclasses.asdict(self).items()}

    def make_optimizer(self, parameters: "Iterable[Tensor]") -> "torch.optim.Optimizer":
        """Return Adam with torch's defaults, or SGD with a momentum of 0.9."""
        import torch

        common: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, **common)
        return torch.optim.SGD(parameters, momentum=0.9, nesterov=self.optimizer == "sgd", **common)

    def steps(self, images: int, processes: int = 1) -> int:
        """Return the steps per epoch; ValueError if the last batch leaves a process without work."""
        last = images % self.batch or min(images, self.batch)
        if last < max(2, processes) * self.accumulate:
            rule = "every process needs an image of every batch, and a batch norm needs two"
            got = f"{last}, for {processes} process{'es' if processes > 1 else ''}"
            hint = "choose another --limit, --pairs or batch, fewer --devices"
            if self.accumulate > 1:
                got, hint = f"{got} in {self.accumulate} micro-batches", f"{hint} or a smaller --accumulate"
            raise ValueError(f"{rule}: the last batch has {got}; {hint}")
        return -(-images // self.batch)

    def lr_multiplier(self, progress: float) -> float:
        """Return the learning rate over its peak after this fraction of the training."""
        if self.schedule == "logarithmic":  # constant within an epoch
            progress = math.floor(progress * self.epochs + 1e-9) / max(1, self.epochs - 1)
        return _SCHEDULES[self.schedule](progress)


def _cosine(progress: float) -> float:
    """Linear warm-up over the first twentieth, then cosine decay to zero."""
    warmup = 0.05
    if progress < warmup:
        return progress / warmup
    return (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))) / 2


# 1e-9 absorbs the rounding error of the progress.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "steps": lambda progress: 0.1 ** int(3 * progress + 1e-9),
    "drops": lambda progress: 0.2 ** sum(progress + 1e-9 >= drop for drop in (0.3, 0.4, 0.6, 0.8)),
    # Linear warm-up over the first quarter, then linear decay to zero.
    "one-cycle": lambda progress: min(progress / 0.25, (1 - progress) / 0.75),
    "cosine": _cosine,
    "logarithmic": lambda progress: math.pow(1e-3, progress),
}
