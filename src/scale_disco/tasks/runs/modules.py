"""A network under training, as Lightning wants it: what all have in common, and those that tell classes apart."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode
from torchmetrics import MeanMetric

from .batches import Batch, Dataset, seed_of
from .options import RunOptions


class NonFiniteError(ValueError):
    """Training came to a value that is no finite number."""


class TrainingModule(L.LightningModule):
    """Trains a network by a recipe; what happens in an epoch depends on the weights, the seed and the epoch alone.

    Args:
        network: That is trained.
        settings: How; its seed is that of dropout, too.
        steps: Of an epoch.
    """

    waiting = False  # whether parameters learn only in later epochs

    def __init__(self, network: nn.Module, settings: RunOptions, *, steps: int) -> None:
        super().__init__()
        recipe = settings.full_recipe
        self.network, self.recipe, self.steps, self.seed = network, recipe, steps, settings.seed
        self.loss, self.error = MeanMetric(), MeanMetric()
        self.average: AveragedModel | None = None
        if recipe.average:
            fold = get_ema_multi_avg_fn(recipe.average)  # type: ignore[no-untyped-call]
            self.average = AveragedModel(network, multi_avg_fn=fold, use_buffers=True).requires_grad_(False)

    def prepare(self, shown: Dataset) -> None:
        """Make a new network ready to learn from what it will be shown."""

    @abstractmethod
    def loss_of(self, batch: Batch) -> Tensor:
        """What gets smaller by training, a mean over a batch."""

    @abstractmethod
    def answers_to(self, batch: Batch) -> Tensor:
        """What the tested network says, [B, ...]."""

    @abstractmethod
    def wrong(self, answers: Tensor, batch: Batch) -> Tensor:
        """Which answers are wrong, bool [B]."""

    @property
    def tested(self) -> nn.Module:
        """The network with the weights that count."""
        if self.average is None:
            return self.network
        network: nn.Module = self.average.module
        return network

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(seed_of(self.seed, self.current_epoch, self.global_rank))  # of dropout

    def training_step(self, batch: Batch, index: int) -> Tensor:
        with _together(self.trainer.world_size):
            loss = self.loss_of(batch)
        if not loss.isfinite():
            raise NonFiniteError(f"the loss is {loss.item()} in step {self.global_step + 1}, {self._kept()}")
        self.loss.update(loss.detach(), len(batch.labels))
        self.log("training loss", self.loss, on_step=False, on_epoch=True)
        self.log("loss of a step", loss.detach())
        return loss * batch.share

    def _kept(self) -> str:
        """The epoch at hand, and what is there of those before it, in words."""
        done = self.current_epoch
        kept = f"epoch {done} is kept, and --resume goes on after it" if done else "no epoch is kept"
        return f"in epoch {done + 1} of {self.recipe.epochs}; {kept}; smaller steps or other data may help"

    def check_weights(self) -> None:
        """Refuse weights that are no numbers, before they take the place of those that are."""
        for network in (self.network, self.tested):
            for name, tensor in network.state_dict().items():
                if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
                    raise NonFiniteError(f"{name} is no number after step {self.global_step}, {self._kept()}")

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.average is not None:
            self.average.update_parameters(self.network)

    def validation_step(self, batch: Batch, index: int) -> None:
        answers = self.answers_to(batch)
        if not answers.isfinite().all():  # which could be right by chance
            self.check_weights()
            raise NonFiniteError(f"an answer is no number after step {self.global_step}, {self._kept()}")
        self.error.update(self.wrong(answers, batch).float())
        self.log("validation error", self.error, prog_bar=True)

    def learned(self) -> Iterable[nn.Parameter]:
        """Parameters that training changes."""
        return self.network.parameters()

    def configure_optimizers(self) -> Any:
        total = self.steps * self.recipe.epochs
        optimiser = self.recipe.over(self.learned())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: self.recipe.factor(step / total))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ClassifierModule(TrainingModule):
    """Learns to tell classes apart, by cross-entropy."""

    def loss_of(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.network(batch.images), batch.labels, label_smoothing=self.recipe.label_smoothing)

    def answers_to(self, batch: Batch) -> Tensor:
        scores: Tensor = self.tested(batch.images)
        return scores

    def wrong(self, answers: Tensor, batch: Batch) -> Tensor:
        return answers.argmax(1) != batch.labels


def _together(processes: int) -> AbstractContextManager[object]:
    return SharedStatistics() if processes > 1 else nullcontext()


class SharedStatistics(TorchFunctionMode):
    """Inside it batch norms take mean and variance over the batches of all processes.

    Two processes then learn what one would with the same whole batch. Unlike torch's SyncBatchNorm it works on CPUs and
    leaves the modules as they are.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_shared_batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))


def _shared_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    dtype, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    others = [0, *range(2, x.ndim)]
    count = torch.tensor(x.numel() // x.shape[1], device=x.device)
    dist.all_reduce(count)
    mean = _total(x.sum(others)) / count
    centred = x - _channels(mean, x)
    variance = _total(centred.square().sum(others)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * count / (count - 1), momentum)
    scale = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    out = centred * _channels(scale, x)
    return (out if bias is None else out + _channels(bias, x)).to(dtype)


class _Total(torch.autograd.Function):
    """The sum over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _total(values: Tensor) -> Tensor:
    total: Tensor = _Total.apply(values)  # type: ignore[no-untyped-call]
    return total


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape([1, -1] + [1] * (x.ndim - 2))
