"""How a read-out learns: by how much two copies of a picture differ in size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..runs.batches import Batch, Dataset
from ..runs.modules import TrainingModule
from ..runs.options import RunOptions
from .copies import LOSSES
from .readout import Equivariant, Readout
from .training import ProfilePairDataset, SceneOptions

_SAMPLE = 1024  # pairs from which a read-out learns how strong channels are
_NEAR = 0.25  # octaves that an answer may be off and is not wrong


class ReadoutModule(TrainingModule):
    """Learns to tell by how much copies were resized.

    Where weights are shared along the axis, every scale has to tell it: those of one copy and of the other, at any
    distance along the axis. So the axis shows sizes that no copy has.
    """

    network: Readout

    def __init__(self, network: nn.Module, settings: RunOptions, *, steps: int) -> None:
        assert isinstance(settings, SceneOptions)
        super().__init__(network, settings, steps=steps)
        self.compare = LOSSES[settings.loss]

    def prepare(self, shown: Dataset) -> None:
        """Let the read-out know how strong channels are, and of which network."""
        assert isinstance(shown, ProfilePairDataset)
        self.network.prepare(shown.read(range(min(_SAMPLE, len(shown))), 0).flatten(0, 1), shown.fingerprint)

    def loss_of(self, batch: Batch) -> Tensor:
        profiles, others = batch.images.unbind(1)
        loss = self.compare(self.network.compare(profiles, others), batch.labels)
        if isinstance(self.network, Equivariant):
            one, other = self.network.votes(torch.cat([profiles, others]))[0].chunk(2)
            turned = other.roll(int(torch.randint(one.shape[1], ())), 1)
            loss = loss + self.compare(one - turned, batch.labels[:, None].expand_as(one))
        return loss

    def answers_to(self, batch: Batch) -> Tensor:
        tested = self.tested
        assert isinstance(tested, Readout)
        return tested.compare(*batch.images.unbind(1))

    def wrong(self, answers: Tensor, batch: Batch) -> Tensor:
        return (answers - batch.labels).abs() > _NEAR
