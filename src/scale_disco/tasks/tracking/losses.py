"""Losses of trackers, and the module that trains them."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runs.batches import Batch, Dataset
from ..runs.modules import TrainingModule
from ..runs.options import RunOptions
from .networks import STRIDE, Siamese
from .options import TrackerOptions

_RADIUS = 2.0  # cells around the target that are positive, L1 distance
_TEMPERATURE = 20.0  # factor of cosines before the softmax
_CALIBRATION_PAIRS = 16
_TOLERANCE = 1.0  # cells from the target to the maximum of a correct prediction


class TrackerModule(TrainingModule):
    """Trains a tracker to find the object of a template and its scale; the last stages first.

    Stages that are never unfrozen keep their weights.
    """

    network: Siamese

    def __init__(self, network: nn.Module, options: RunOptions, *, steps: int) -> None:
        assert isinstance(options, TrackerOptions)
        super().__init__(network, options, steps=steps)
        self.options = options
        stages = options.trained_stages(self.recipe.epochs - 1)
        self._unfreeze(stages)
        self.unfreezes = options.trained_stages(0) < stages

    def _unfreeze(self, count: int) -> None:
        """Train the last stages, and freeze all others."""
        self.network.requires_grad_(False).eval()
        for stage in self.network.stages()[:count]:
            stage.requires_grad_(True).train(self.options.unfreezing.norms)

    def prepare(self, dataset: Dataset) -> None:
        """Scale the scores of an untrained network to logits: positive cells above zero, others below."""
        if not self.options.unfreezing.calibrate:
            return
        scores, positive = [], []
        with torch.no_grad():
            for row in range(min(_CALIBRATION_PAIRS, len(dataset))):
                maps = self.network(*dataset.read([row], 0).chunk(2, 1)).place
                scores.append(maps)
                positive.append(positive_cells(dataset.targets([row], 0)[:, :2], maps.shape[-1]))
        scale_scores(self.network, torch.cat(scores), torch.cat(positive))

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._unfreeze(self.options.trained_stages(self.current_epoch))

    def trainable(self) -> Iterable[nn.Parameter]:
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def compute_loss(self, batch: Batch) -> Tensor:
        scores = self.network(*batch.images.chunk(2, 1))
        shift, octaves = batch.labels[:, :2], batch.labels[:, 2]
        place_loss = triplet_loss if self.options.model == "track/trisiam" else balanced_loss
        loss = place_loss(scores.place, positive_cells(shift, scores.place.shape[-1]))
        if scores.shifts is not None:
            steps = self.network.template_octaves
            loss = loss + self.options.scale_weight * shift_loss(scores.shifts, shift, octaves, steps)
        return loss

    def predict(self, batch: Batch) -> Tensor:
        scores: Tensor = self.tested(*batch.images.chunk(2, 1)).place
        return scores

    def errors(self, predictions: Tensor, batch: Batch) -> Tensor:
        return distance(predictions, batch.labels[:, :2]) > _TOLERANCE


def scale_scores(network: Siamese, scores: Tensor, positive: Tensor) -> None:
    """Change gain and offset such that these scores [B, H, W] have a std of 1 over negative cells, and a zero halfway
    between the means of positive and negative ones."""
    negative_scores = scores[~positive]
    factor = 1 / negative_scores.std()
    middle = (scores[positive].mean() + negative_scores.mean()) / 2
    network.gain.mul_(factor)
    network.offset.sub_(middle).mul_(factor)


def target_cells(shift: Tensor, side: int) -> Tensor:
    """Return the x and y of objects in a score map of a given side, [B, 2], from their shifts in pixels."""
    return (side - 1) / 2 + shift / STRIDE


def positive_cells(shift: Tensor, side: int) -> Tensor:
    """Return the cells near the objects, bool [B, side, side], from their shifts in pixels [B, 2]."""
    cells = torch.arange(side, device=shift.device)
    x, y = (target_cells(shift, side)[:, :, None] - cells).abs().unbind(1)  # [B, side]
    return x[:, None, :] + y[:, :, None] <= _RADIUS


def balanced_loss(scores: Tensor, positive: Tensor) -> Tensor:
    """Binary cross-entropy of logits [B, H, W]; positive and negative cells weigh the same in every map."""
    losses = F.binary_cross_entropy_with_logits(scores, positive.to(scores.dtype), reduction="none")
    return (_masked_mean(losses, positive) + _masked_mean(losses, ~positive)).mean() / 2


def triplet_loss(scores: Tensor, positive: Tensor) -> Tensor:
    """Mean of log(1 + exp(negative - positive)) over all pairs of a positive and a negative cell of a map (Dong and
    Shen 2018)."""
    scores, positive = scores.flatten(1), positive.flatten(1)
    losses = F.softplus(scores[:, None, :] - scores[:, :, None])  # [B, positive, negative]
    return _masked_mean(losses, positive[:, :, None] & ~positive[:, None, :]).mean()


def shift_loss(cosines: Tensor, shift: Tensor, octaves: Tensor, steps: Sequence[float]) -> Tensor:
    """Cross-entropy of cosines [B, J, H, W] over all places and scales; targets are interpolated linearly.

    Objects have a shift from the center in pixels [B, 2] and a change of scale in octaves [B]; `steps` are the J
    changes of scale of the maps, ascending.
    """
    side = cosines.shape[-1]
    cells = list(range(side))
    x, y = (_interpolation(center, cells) for center in target_cells(shift, side).unbind(1))
    targets = torch.einsum("bj,by,bx->bjyx", _interpolation(octaves, steps), y, x)
    return F.cross_entropy(_TEMPERATURE * cosines.flatten(1), targets.flatten(1).to(cosines.dtype))


def _interpolation(values: Tensor, points: Sequence[float]) -> Tensor:
    """Return weights of linear interpolation between points, [B] -> [B, J]; values are clamped to the ends."""
    grid = torch.tensor(points, dtype=values.dtype, device=values.device)
    values = values.clamp(grid[0], grid[-1])[:, None]
    return (1 - (values - grid).abs() / (grid[1] - grid[0])).clamp(min=0)


def distance(scores: Tensor, shift: Tensor) -> Tensor:
    """Return the distance from the maximum of every map [B, H, W] to the object, in cells, [B]."""
    side = scores.shape[-1]
    best = scores.flatten(1).argmax(1)
    offset = torch.stack([best % side, best // side], 1) - target_cells(shift, side)
    return torch.hypot(offset[:, 0], offset[:, 1])


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the masked values of every row, [B, ...] -> [B]."""
    total: Tensor = (values * mask).flatten(1).sum(1)
    return total / mask.flatten(1).sum(1)
