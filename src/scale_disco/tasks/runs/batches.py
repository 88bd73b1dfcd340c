"""What networks are shown, in batches: in an order and with an augmentation that depend on seed and epoch alone."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data
from torch.utils.data import DataLoader, Sampler

_EVALUATED, _PIXELS = 250, 400_000  # images, and their pixels, at a time where nothing is learned


class Dataset(ABC):
    """What a network is shown, some rows at a time, and what it is to answer."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows of an epoch."""

    @property
    @abstractmethod
    def pixels(self) -> int:
        """Of an image, which say what it costs."""

    @abstractmethod
    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Images [B, C, H, W] from where they are kept."""

    @abstractmethod
    def answers(self, rows: Sequence[int], epoch: int) -> Tensor:
        """What is right for these images, [B, ...]."""

    def prepared(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        """What has been read as a network takes it; done where the network is."""
        return images


class LabeledDataset(Dataset):
    """Images with labels."""

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def answers(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(self.labels[rows].astype(np.int64))


class Batch(NamedTuple):
    """Images as they were read, what is right, rows; and the share in the gradient, 1 on average over the parts."""

    images: Tensor
    labels: Tensor
    rows: list[int]
    share: float


class _Key(NamedTuple):
    epoch: int
    rows: list[int]
    share: float


def seed_of(*parts: int) -> int:
    """One seed from several numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1


def training_batches(
    shown: Dataset, batch: int, *, seed: int, parts: int = 1, rank: int = 0, world: int = 1, pin: bool = False
) -> DataLoader[Batch]:
    """Batches in a new order every epoch.

    Args:
        shown: The images.
        batch: Images of a step.
        seed: Of the order.
        parts: Of a batch that come one after the other.
        rank: Which of the processes this is.
        world: Processes, each of which has its share of every part.
        pin: Keep batches in memory that a GPU reads faster.
    """
    order = _Order(len(shown), batch, seed, parts, rank, world)
    return _loader(shown, order, pin)


def evaluation_batches(shown: Dataset, *, rank: int = 0, world: int = 1, pin: bool = False) -> DataLoader[Batch]:
    """All images once, in their order; each process has its share."""
    rows = list(range(len(shown)))[rank::world]
    size = at_a_time(shown, _EVALUATED)
    keys = [_Key(0, rows[start : start + size], 1.0) for start in range(0, len(rows), size)]
    return _loader(shown, keys, pin)


def at_a_time(shown: Dataset, most: int) -> int:
    """How many images a network is shown at once where nothing is learned: fewer where they are large."""
    return min(most, max(1, _PIXELS // shown.pixels))


def _loader(shown: Dataset, keys: Sampler[_Key] | list[_Key], pin: bool) -> DataLoader[Batch]:
    # The generator is there so that the loader draws nothing from the global one.
    return DataLoader(_Set(shown), sampler=keys, batch_size=None, generator=torch.Generator(), pin_memory=pin)


class _Order(Sampler[_Key]):
    """Rows of every batch of an epoch. Lightning calls `set_epoch`."""

    def __init__(self, count: int, batch: int, seed: int, parts: int, rank: int, world: int) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self.parts, self.rank, self.world = parts, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.batch) * self.parts

    def __iter__(self) -> Iterator[_Key]:
        generator = torch.Generator().manual_seed(seed_of(self.seed, self.epoch))
        for whole in torch.split(torch.randperm(self.count, generator=generator), self.batch):
            for part in torch.tensor_split(whole, self.parts):
                mine = part[self.rank :: self.world].tolist()
                yield _Key(self.epoch, mine, len(mine) * self.world * self.parts / len(whole))


class _Set(data.Dataset[Batch]):
    def __init__(self, shown: Dataset) -> None:
        self.shown = shown

    def __getitem__(self, key: _Key) -> Batch:
        images, answers = self.shown.read(key.rows, key.epoch), self.shown.answers(key.rows, key.epoch)
        return Batch(images, answers, key.rows, key.share)
