"""Lightning modules that train a network by a recipe: their base, and the one of classifiers."""

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode
from torchmetrics import MeanMetric

from .batches import Batch, Dataset, combined_seed
from .options import RunOptions


class NonFiniteError(ValueError):
    """Raised if training meets NaN or infinity."""


class TrainingModule(L.LightningModule):
    """Trains a network by a recipe, with `steps` steps per epoch.

    An epoch depends on nothing but the weights, the seed and the epoch.
    """

    unfreezes = False  # whether parameters are frozen in the first epochs and trained in later ones

    def __init__(self, network: nn.Module, options: RunOptions, *, steps: int) -> None:
        super().__init__()
        recipe = options.full_recipe
        self.network, self.recipe, self.steps, self.seed = network, recipe, steps, options.seed
        self.loss, self.error = MeanMetric(), MeanMetric()
        self.average: AveragedModel | None = None
        if recipe.average:
            fold = get_ema_multi_avg_fn(recipe.average)  # type: ignore[no-untyped-call]
            self.average = AveragedModel(network, multi_avg_fn=fold, use_buffers=True).requires_grad_(False)

    def prepare(self, dataset: Dataset) -> None:
        """Initialize a new network from its training data."""

    @abstractmethod
    def compute_loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over a batch."""

    @abstractmethod
    def predict(self, batch: Batch) -> Tensor:
        """Return the output of the tested network, [B, ...]."""

    @abstractmethod
    def errors(self, predictions: Tensor, batch: Batch) -> Tensor:
        """Return which predictions are wrong, bool [B]."""

    @property
    def tested(self) -> nn.Module:
        """The network that is validated and tested: the moving average if there is one."""
        if self.average is None:
            return self.network
        network: nn.Module = self.average.module
        return network

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(combined_seed(self.seed, self.current_epoch, self.global_rank))  # of dropout

    def training_step(self, batch: Batch, index: int) -> Tensor:
        with SharedStatistics() if self.trainer.world_size > 1 else nullcontext():
            loss = self.compute_loss(batch)
        if not loss.isfinite():
            raise NonFiniteError(f"non-finite loss ({loss.item()}) at step {self.global_step + 1}, {self._progress()}")
        self.loss.update(loss.detach(), len(batch.labels))
        self.log("training loss", self.loss, on_step=False, on_epoch=True)
        self.log("loss of a step", loss.detach())
        return loss * batch.weight

    def _progress(self) -> str:
        """Return the current epoch and what is saved, for error messages."""
        done = self.current_epoch
        saved = f"epoch {done} is saved, and --resume continues after it" if done else "no epoch is saved"
        return f"in epoch {done + 1} of {self.recipe.epochs}; {saved}; a lower learning rate or other data may help"

    def check_weights(self) -> None:
        """Refuse non-finite weights before they overwrite finite ones."""
        for network in (self.network, self.tested):
            for name, tensor in network.state_dict().items():
                if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
                    raise NonFiniteError(f"non-finite {name} after step {self.global_step}, {self._progress()}")

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.average is not None:
            self.average.update_parameters(self.network)

    def validation_step(self, batch: Batch, index: int) -> None:
        predictions = self.predict(batch)
        if not predictions.isfinite().all():  # they could be right by chance
            self.check_weights()
            raise NonFiniteError(f"non-finite predictions after step {self.global_step}, {self._progress()}")
        self.error.update(self.errors(predictions, batch).float())
        self.log("validation error", self.error, prog_bar=True)

    def trainable(self) -> Iterable[nn.Parameter]:
        """Return the parameters that the optimizer updates."""
        return self.network.parameters()

    def configure_optimizers(self) -> Any:
        total = self.steps * self.recipe.epochs
        optimizer = self.recipe.make_optimizer(self.trainable())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.recipe.lr_multiplier(step / total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ClassifierModule(TrainingModule):
    """Trains a classifier with cross-entropy."""

    def compute_loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.network(batch.images), batch.labels, label_smoothing=self.recipe.label_smoothing)

    def predict(self, batch: Batch) -> Tensor:
        logits: Tensor = self.tested(batch.images)
        return logits

    def errors(self, predictions: Tensor, batch: Batch) -> Tensor:
        return predictions.argmax(1) != batch.labels


class SharedStatistics(TorchFunctionMode):
    """Context in which batch norms share mean and variance between all processes.

    Several processes then train as one would on the whole batch. Unlike torch's SyncBatchNorm it works on CPUs and
    leaves the modules unchanged.
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
    axes = [0, *range(2, x.ndim)]
    count = torch.tensor(x.numel() // x.shape[1], device=x.device)
    dist.all_reduce(count)
    mean = _AllReduce.apply(x.sum(axes)) / count  # type: ignore[no-untyped-call]
    centered = x - _channels(mean, x)
    variance = _AllReduce.apply(centered.square().sum(axes)) / count  # type: ignore[no-untyped-call]
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * count / (count - 1), momentum)
    scale = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    out = centered * _channels(scale, x)
    return (out if bias is None else out + _channels(bias, x)).to(dtype)


class _AllReduce(torch.autograd.Function):
    """Sum over all processes, in the forward and the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _AllReduce.forward(ctx, gradients[0])


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape([1, -1] + [1] * (x.ndim - 2))
