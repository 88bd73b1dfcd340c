"""How a tracker learns: what its scores should be, and how far they are from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runs.batches import Batch, Dataset
from ..runs.modules import TrainingModule
from ..runs.options import RunOptions
from .networks import STRIDE, Siamese
from .training import TrackerOptions

_RADIUS = 2.0  # cells around the true place that are right, along both axes together
_SHARPNESS = 20.0  # of the softmax over cosines
_SAMPLE = 16  # pairs from which a network's scores are scaled
_NEAR = 1.0  # cells from the true place to the best, at most, for an answer that is not wrong


class TrackerModule(TrainingModule):
    """Learns to find the object of a template, and how large it is, by the stages that are open in an epoch.

    Args:
        network: That is trained; stages that never open keep their weights.
        settings: How.
        steps: Of an epoch.
    """

    network: Siamese

    def __init__(self, network: nn.Module, settings: RunOptions, *, steps: int) -> None:
        assert isinstance(settings, TrackerOptions)
        super().__init__(network, settings, steps=steps)
        self.settings = settings
        last = settings.open_stages(self.recipe.epochs - 1)
        self._open(last)
        self.waiting = settings.open_stages(0) < last

    def _open(self, count: int) -> None:
        """Let the last stages learn, and no other."""
        self.network.requires_grad_(False).eval()
        for stage in self.network.stages()[:count]:
            stage.requires_grad_(True).train(self.settings.course.norms)

    def prepare(self, shown: Dataset) -> None:
        """Scale the scores of a network that never tracked to logits: right places above zero, others below."""
        if not self.settings.course.scaled:
            return
        rows = range(min(_SAMPLE, len(shown)))
        place, right = [], []
        with torch.no_grad():
            for row in rows:
                maps = self.network(*shown.read([row], 0).chunk(2, 1)).place
                place.append(maps)
                right.append(right_places(shown.answers([row], 0)[:, :2], maps.shape[-1]))
        scale_scores(self.network, torch.cat(place), torch.cat(right))

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._open(self.settings.open_stages(self.current_epoch))

    def learned(self) -> Iterable[nn.Parameter]:
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def loss_of(self, batch: Batch) -> Tensor:
        scores = self.network(*batch.images.chunk(2, 1))
        shift, octaves = batch.labels[:, :2], batch.labels[:, 2]
        right = right_places(shift, scores.place.shape[-1])
        compare = triplet_loss if self.settings.triplets else balanced_loss
        loss = compare(scores.place, right)
        if scores.shifts is not None:
            loss = loss + self.settings.scale_weight * shift_loss(scores.shifts, shift, octaves, self.network.steps)
        return loss

    def answers_to(self, batch: Batch) -> Tensor:
        place: Tensor = self.tested(*batch.images.chunk(2, 1)).place
        return place

    def wrong(self, answers: Tensor, batch: Batch) -> Tensor:
        return distance(answers, batch.labels[:, :2]) > _NEAR


def scale_scores(network: Siamese, place: Tensor, right: Tensor) -> None:
    """Change gain and offset such that these scores [B, H, W] get a deviation of 1 at wrong cells, and zero lies in
    the middle between the means of right and wrong ones."""
    wrong = place[~right]
    factor = 1 / wrong.std()
    middle = (place[right].mean() + wrong.mean()) / 2
    network.gain.mul_(factor)
    network.offset.sub_(middle).mul_(factor)


def centres(shift: Tensor, side: int) -> Tensor:
    """Where objects are in a map of so many cells a side, from their shifts in pixels: x and y, [B, 2]."""
    return (side - 1) / 2 + shift / STRIDE


def right_places(shift: Tensor, side: int) -> Tensor:
    """Cells near to the objects, bool [B, side, side], from their shifts in pixels [B, 2]."""
    cells = torch.arange(side, device=shift.device)
    x, y = (centres(shift, side)[:, :, None] - cells).abs().unbind(1)  # [B, side]
    return x[:, None, :] + y[:, :, None] <= _RADIUS


def balanced_loss(place: Tensor, right: Tensor) -> Tensor:
    """Binary cross-entropy of logits [B, H, W], half by right cells and half by others in every map."""
    losses = F.binary_cross_entropy_with_logits(place, right.to(place.dtype), reduction="none")
    return (_mean(losses, right) + _mean(losses, ~right)).mean() / 2


def triplet_loss(place: Tensor, right: Tensor) -> Tensor:
    """log(1 + exp(wrong - right)), a mean over all pairs of a right cell and another of a map (Dong and Shen 2018)."""
    place, right = place.flatten(1), right.flatten(1)
    losses = F.softplus(place[:, None, :] - place[:, :, None])  # [B, right, wrong]
    return _mean(losses, right[:, :, None] & ~right[:, None, :]).mean()


def shift_loss(shifts: Tensor, shift: Tensor, octaves: Tensor, steps: Sequence[float]) -> Tensor:
    """Cross-entropy of cosines [B, J, H, W] over all places and sizes.

    What lies between two cells or two steps belongs to both, the more to the nearer.

    Args:
        shifts: Of objects larger by every one of the steps.
        shift: Of the objects from the middle, in pixels, [B, 2].
        octaves: By which they are larger, [B].
        steps: Octaves of every map, ascending.
    """
    side = shifts.shape[-1]
    cells = list(range(side))
    x, y = (_shares(centre, cells) for centre in centres(shift, side).unbind(1))
    right = torch.einsum("bj,by,bx->bjyx", _shares(octaves, steps), y, x)
    return F.cross_entropy(_SHARPNESS * shifts.flatten(1), right.flatten(1).to(shifts.dtype))


def _shares(octaves: Tensor, steps: Sequence[float]) -> Tensor:
    """How much of a size belongs to every step, [B] -> [B, J]; those beyond the ends belong to the ends."""
    points = torch.tensor(steps, dtype=octaves.dtype, device=octaves.device)
    octaves = octaves.clamp(points[0], points[-1])[:, None]
    width = points[1] - points[0]
    return (1 - (octaves - points).abs() / width).clamp(min=0)


def distance(place: Tensor, shift: Tensor) -> Tensor:
    """Cells from the best place of every map [B, H, W] to the true one, [B]."""
    side = place.shape[-1]
    best = place.flatten(1).argmax(1)
    found = torch.stack([best % side, best // side], 1)
    away = found - centres(shift, side)
    return torch.hypot(away[:, 0], away[:, 1])


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean over the chosen values of every row, [B, ...] -> [B]."""
    total: Tensor = (values * chosen).flatten(1).sum(1)
    return total / chosen.flatten(1).sum(1)
