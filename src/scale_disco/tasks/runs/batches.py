"""Datasets and batches, in an order and with an augmentation that depend on nothing but seed and epoch."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data
from torch.utils.data import DataLoader, Sampler

_BATCH, _PIXELS = 250, 400_000  # maximum number of images, and of their pixels, in a batch without gradients


class Batch(NamedTuple):
    """Images as read, targets and rows; and the weight of its gradient, 1 on average over micro-batches."""

    images: Tensor
    labels: Tensor
    rows: list[int]
    weight: float


_Key = tuple[int, list[int], float]  # epoch, rows, weight


class Dataset(data.Dataset[Batch], ABC):
    """Images with targets, read several rows at a time."""

    pixels: int  # of an image, which bound the batch size without gradients

    @abstractmethod
    def __len__(self) -> int:
        """Rows per epoch."""

    @abstractmethod
    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Return images [B, C, H, W] as they are stored."""

    @abstractmethod
    def targets(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Return targets [B, ...]."""

    def transform(self, images: Tensor, rows: Sequence[int], epoch: int) -> Tensor:
        """Return what the network takes, from images that were read; runs on the network's device."""
        return images

    def __getitem__(self, key: _Key) -> Batch:
        epoch, rows, weight = key
        return Batch(self.read(rows, epoch), self.targets(rows, epoch), rows, weight)


class LabeledDataset(Dataset):
    """Images with labels."""

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def targets(self, rows: Sequence[int], epoch: int) -> Tensor:
        return torch.from_numpy(self.labels[rows].astype(np.int64))


def combined_seed(*parts: int) -> int:
    """Return one seed from several numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1


def training_batches(
    dataset: Dataset, batch: int, *, seed: int, parts: int = 1, rank: int = 0, world: int = 1, pin: bool = False
) -> DataLoader[Batch]:
    """Return a loader of batches in a new order every epoch.

    Batches are divided into `parts` micro-batches, and these between `world` processes, of which this is the `rank`-th.
    """
    return _loader(dataset, _BatchSampler(len(dataset), batch, seed, parts, rank, world), pin)


def evaluation_batches(dataset: Dataset, *, rank: int = 0, world: int = 1, pin: bool = False) -> DataLoader[Batch]:
    """Return a loader of all images once, in order; processes share them."""
    rows = list(range(len(dataset)))[rank::world]
    size = evaluation_batch_size(dataset, _BATCH)
    keys: list[_Key] = [(0, rows[start : start + size], 1.0) for start in range(0, len(rows), size)]
    return _loader(dataset, keys, pin)


def evaluation_batch_size(dataset: Dataset, maximum: int) -> int:
    """Return the batch size without gradients: smaller for larger images."""
    return min(maximum, max(1, _PIXELS // dataset.pixels))


def _loader(dataset: Dataset, keys: Sampler[_Key] | list[_Key], pin: bool) -> DataLoader[Batch]:
    # With a generator of its own, the loader draws nothing from the global one.
    return DataLoader(dataset, sampler=keys, batch_size=None, generator=torch.Generator(), pin_memory=pin)


class _BatchSampler(Sampler[_Key]):
    """Rows of every micro-batch of an epoch. Lightning calls `set_epoch`."""

    def __init__(self, count: int, batch: int, seed: int, parts: int, rank: int, world: int) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self.parts, self.rank, self.world = parts, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.batch) * self.parts

    def __iter__(self) -> Iterator[_Key]:
        generator = torch.Generator().manual_seed(combined_seed(self.seed, self.epoch))
        for batch in torch.split(torch.randperm(self.count, generator=generator), self.batch):
            for part in torch.tensor_split(batch, self.parts):
                rows = part[self.rank :: self.world].tolist()
                yield self.epoch, rows, len(rows) * self.world * self.parts / len(batch)
