"""The module that trains readouts."""

import torch
from torch import Tensor, nn

from ..runs.batches import Batch, Dataset
from ..runs.modules import TrainingModule
from ..runs.options import RunOptions
from .copies import LOSSES
from .options import SceneTrainOptions
from .readout import Equivariant, Readout
from .training import ProfilePairDataset

_PREPARATION_PAIRS = 1024  # from which the readout takes the strength of channels
_TOLERANCE = 0.25  # octaves of error of a correct prediction


class ReadoutModule(TrainingModule):
    """Trains a readout to predict the change of scale between two copies of an image.

    A readout that shares its weights along the scale axis predicts it from every scale, and from the profile of the
    second copy rolled along the axis. So it sees changes of scale that no pair of copies has.
    """

    network: Readout

    def __init__(self, network: nn.Module, options: RunOptions, *, steps: int) -> None:
        assert isinstance(options, SceneTrainOptions)
        super().__init__(network, options, steps=steps)
        self.pair_loss = LOSSES[options.loss]

    def prepare(self, dataset: Dataset) -> None:
        """Give the readout the strength of channels, and the fingerprint of the backbone."""
        assert isinstance(dataset, ProfilePairDataset)
        profiles = dataset.read(range(min(_PREPARATION_PAIRS, len(dataset))), 0).flatten(0, 1)
        self.network.prepare(profiles, dataset.fingerprint)

    def compute_loss(self, batch: Batch) -> Tensor:
        profiles, others = batch.images.unbind(1)
        loss = self.pair_loss(self.network.compare(profiles, others), batch.labels)
        if isinstance(self.network, Equivariant):
            votes, other_votes = self.network.votes(torch.cat([profiles, others]))[0].chunk(2)
            rolled = other_votes.roll(int(torch.randint(votes.shape[1], ())), 1)
            loss = loss + self.pair_loss(votes - rolled, batch.labels[:, None].expand_as(votes))
        return loss

    def predict(self, batch: Batch) -> Tensor:
        tested = self.tested
        assert isinstance(tested, Readout)
        return tested.compare(*batch.images.unbind(1))

    def errors(self, predictions: Tensor, batch: Batch) -> Tensor:
        return (predictions - batch.labels).abs() > _TOLERANCE
