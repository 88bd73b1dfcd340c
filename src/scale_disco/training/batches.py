"""Digits to batches: in an order and with an augmentation that depend on seed and epoch alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..data.mnist_scale import Digits, scaled

_MEAN, _DEVIATION = 0.0607, 0.2161
_AUGMENTATION = (0.5, 2.0)
_EVALUATED = 250  # images at a time where nothing is learned

Key = tuple[int, list[int]]  # epoch, rows


def seed_of(*parts: int) -> int:
    """One seed from several numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1


def normalised(images: np.ndarray) -> Tensor:
    """Images uint8 [N, H, W] as the networks take them, [N, 1, H, W]."""
    return ((torch.tensor(images, dtype=torch.float32) / 255 - _MEAN) / _DEVIATION)[:, None]


def training_batches(
    digits: Digits, batch: int, *, seed: int, augment: bool, rank: int = 0, world: int = 1
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Batches in a new order every epoch, of which each process has its share."""
    return DataLoader(
        _DigitSet(digits, seed if augment else None),
        sampler=_Order(len(digits.labels), batch, seed, rank, world),
        batch_size=None,
        generator=torch.Generator(),  # so that the loader draws nothing from the global one
    )


def evaluation_batches(digits: Digits, *, rank: int = 0, world: int = 1) -> DataLoader[tuple[Tensor, Tensor]]:
    """All digits once, in their order; each process has its share."""
    rows = list(range(len(digits.labels)))[rank::world]
    keys = [(0, rows[start : start + _EVALUATED]) for start in range(0, len(rows), _EVALUATED)]
    return DataLoader(_DigitSet(digits, None), sampler=keys, batch_size=None, generator=torch.Generator())


class _Order(Sampler[Key]):
    """Rows of every batch of an epoch. Lightning calls `set_epoch`."""

    def __init__(self, count: int, batch: int, seed: int, rank: int, world: int) -> None:
        self.count, self.batch, self.seed, self.rank, self.world = count, batch, seed, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.count // self.batch)

    def __iter__(self) -> Iterator[Key]:
        generator = torch.Generator().manual_seed(seed_of(self.seed, self.epoch))
        for rows in torch.split(torch.randperm(self.count, generator=generator), self.batch):
            yield self.epoch, rows[self.rank :: self.world].tolist()


class _DigitSet(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, digits: Digits, seed: int | None) -> None:
        self.digits, self.seed = digits, seed

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        epoch, rows = key
        images = self.digits.images[rows]
        if self.seed is not None:
            factors = (random.Random(seed_of(self.seed, epoch, row)).uniform(*_AUGMENTATION) for row in rows)
            images = np.stack([scaled(image, factor) for image, factor in zip(images, factors, strict=True)])
        return normalised(images), torch.from_numpy(self.digits.labels[rows].astype(np.int64))
