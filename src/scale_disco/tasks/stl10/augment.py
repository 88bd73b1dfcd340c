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
            raise ValueError(
                f"Augmentation: mean and std need a value for each channel, std above 0, got {self.mean} and {self.std}"
            )
        if self.padding < 0 or self.cutout < 0 or not 0 <= self.flip <= 1:
            raise ValueError(
                "Augmentation: padding and cutout must be at least 0 and flip from 0 to 1, "
                f"got {self.padding}, {self.cutout}, {self.flip}"
            )

    def __call__(self, images: Tensor, rows: Sequence[int], *, seed: int, epoch: int) -> Tensor:
        """Return augmented images: uint8, or float in [0, 1], [B, C, H, W] -> float [B, C, H, W].

        `rows` are the indices of the images in the dataset.
        """
        self._check(images)
        if len(rows) != len(images):
            raise ValueError(f"Augmentation: expected a row for each of {len(images)} images, got {len(rows)}")
        draws = self.draws(rows, *images.shape[2:], seed=seed, epoch=epoch)
        on_cpu = images.device.type == "cpu" and images.dtype != torch.bfloat16  # which numpy does not know
        crop, cut = (_crop_on_cpu, _cut_on_cpu) if on_cpu else (_crop, _cut)
        out = self.normalize(crop(images, draws, self.padding))
        cut(out, draws, self.cutout)
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
            raise ValueError(
                f"Augmentation: expected images uint8 or float [B, {channels}, H, W], "
                f"got {images.dtype} {tuple(images.shape)}"
            )


def _crop(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """Return crops of the padded images, flipped where drawn; on any device."""
    height, width = images.shape[2:]
    order = np.where(draws.flip[:, None], np.arange(width)[::-1], np.arange(width))
    batch = torch.arange(len(images), device=images.device)
    rows = torch.from_numpy(draws.top[:, None] + np.arange(height)).to(images.device)
    columns = torch.from_numpy(draws.left[:, None] + order).to(images.device)
    padded = F.pad(images, [padding] * 4).permute(0, 2, 3, 1)
    return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _crop_on_cpu(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """The same without indices: on CPUs, copying a slice of each image is several times faster."""
    height, width = images.shape[2:]
    source = images.detach().numpy()
    out = np.zeros(source.shape, source.dtype)
    down, right = (draws.top - padding).tolist(), (draws.left - padding).tolist()
    for canvas, image, y, x, flip in zip(out, source, down, right, draws.flip, strict=True):
        target = canvas[:, :, ::-1] if flip else canvas
        target[:, max(-y, 0) : max(height - y, 0), max(-x, 0) : max(width - x, 0)] = image[
            :, max(y, 0) : max(height + y, 0), max(x, 0) : max(width + x, 0)
        ]
    return torch.from_numpy(out)


def _cut(images: Tensor, draws: Draws, side: int) -> None:
    """Set a square of every image to zero, in place; on any device."""

    def inside(center: np.ndarray, length: int) -> Tensor:
        offset = np.arange(length) - (center - side // 2)[:, None]
        return torch.from_numpy((offset >= 0) & (offset < side)).to(images)

    rows, columns = inside(draws.row, images.shape[2]), inside(draws.column, images.shape[3])
    images.mul_(1 - rows[:, None, :, None] * columns[:, None, None, :])


def _cut_on_cpu(images: Tensor, draws: Draws, side: int) -> None:
    """The same, touching nothing but the squares."""
    top, left = (draws.row - side // 2).tolist(), (draws.column - side // 2).tolist()
    for image, y, x in zip(images.numpy(), top, left, strict=True):
        image[:, max(y, 0) : max(y + side, 0), max(x, 0) : max(x + side, 0)] = 0


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
