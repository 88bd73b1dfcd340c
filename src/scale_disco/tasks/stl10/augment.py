"""The paper's augmentation of images, on whole batches: random crops, horizontal flips, and cutout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Draws(NamedTuple):
    """Random values of every image: int64 [B] each, except `flip`, bool [B]."""

    top: np.ndarray  # of the crop in the padded image
    left: np.ndarray
    flip: np.ndarray
    row: np.ndarray  # center of the square
    column: np.ndarray


@dataclass(frozen=True)
class Augmentation:
    """Random crop of the zero-padded image, random horizontal flip, normalization, and cutout.

    The result depends on nothing but the seed, the epoch and the row of the image: not on batches, processes, devices
    or versions of libraries.

    Example:
        >>> augment = Augmentation(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> images = torch.full((2, 3, 96, 96), 255, dtype=torch.uint8)
        >>> augment(images, [7, 8], seed=0, epoch=3).unique().tolist()
        [-2.0, 0.0, 2.0]
    """

    mean: tuple[float, ...]  # of every channel, for values in [0, 1]
    std: tuple[float, ...]
    padding: int = 12
    flip: float = 0.5  # probability
    cutout: int = 32  # side of the square; its center is anywhere, what lies outside the image is dropped

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            rule = "mean and std need a value for each channel, std above 0"
            raise ValueError(f"Augmentation: {rule}, got {self.mean} and {self.std}")
        if self.padding < 0 or self.cutout < 0 or not 0 <= self.flip <= 1:
            rule = "padding and cutout must be at least 0 and flip from 0 to 1"
            raise ValueError(f"Augmentation: {rule}, got {self.padding}, {self.cutout}, {self.flip}")

    def __call__(self, images: Tensor, rows: Sequence[int], *, seed: int, epoch: int) -> Tensor:
        """Return augmented images: uint8, or float in [0, 1], [B, C, H, W] -> float [B, C, H, W].

        `rows` are the indices of the images in the dataset.
        """
        self._check(images)
        if len(rows) != len(images):
            raise ValueError(f"Augmentation: expected a row for each of {len(images)} images, got {len(rows)}")
        draws = self.draws(rows, *images.shape[2:], seed=seed, epoch=epoch)
        out = self.normalize(_crop(images, draws, self.padding))
        top, left = (draws.row - self.cutout // 2).tolist(), (draws.column - self.cutout // 2).tolist()
        for image, y, x in zip(out, top, left, strict=True):
            image[:, max(y, 0) : max(y + self.cutout, 0), max(x, 0) : max(x + self.cutout, 0)] = 0
        return out

    def normalize(self, images: Tensor) -> Tensor:
        """Return normalized images: uint8, or float in [0, 1], [B, C, H, W] -> float [B, C, H, W]."""
        self._check(images)
        white = 1.0 if images.is_floating_point() else 255.0
        out = images.clone() if images.is_floating_point() else images.float()
        mean, std = (out.new_tensor(values)[:, None, None] * white for values in (self.mean, self.std))
        return out.sub_(mean).mul_(1 / std)

    def draws(self, rows: Sequence[int], height: int, width: int, *, seed: int, epoch: int) -> Draws:
        """Return the random values of images by their rows."""
        counts = (2 * self.padding + 1, 2 * self.padding + 1, 1, height, width)
        uniform = _uniform(np.asarray(rows, np.uint64), len(counts), seed, epoch)
        top, left, _, row, column = (uniform * np.array(counts)[:, None]).astype(np.int64)
        return Draws(top, left, uniform[2] < self.flip, row, column)

    def _check(self, images: Tensor) -> None:
        channels = len(self.mean)
        is_image = images.dtype == torch.uint8 or images.is_floating_point()
        if images.ndim != 4 or images.shape[1] != channels or not is_image:
            rule = f"expected images uint8 or float [B, {channels}, H, W]"
            raise ValueError(f"Augmentation: {rule}, got {images.dtype} {tuple(images.shape)}")


def _crop(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """Return crops of the padded images, flipped where drawn."""
    height, width = images.shape[2:]
    crops, padded = torch.empty_like(images), F.pad(images, [padding] * 4)
    for crop, image, top, left, flip in zip(crops, padded, draws.top, draws.left, draws.flip, strict=True):
        inner = image[:, top : top + height, left : left + width]
        crop.copy_(inner.flip(2) if flip else inner)
    return crops


def _uniform(rows: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Return uniform random values in [0, 1), float64 [count, R], from seed, epoch and row by SplitMix64."""
    key = _splitmix64(_splitmix64(np.array([seed], np.uint64)) + np.uint64(epoch))
    hashed = _splitmix64(_splitmix64(key + rows) + np.arange(count, dtype=np.uint64)[:, None])
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 hash of uint64 values, which wrap around."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: np.ndarray = x ^ (x >> np.uint64(31))
    return hashed
