"""The paper's augmentation of photographs, on whole batches: crops, mirror images, and a square cut out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Draws(NamedTuple):
    """What is random about every image: int64 [B] each, but for the mirror, bool [B]."""

    top: np.ndarray  # of the crop in the padded image
    left: np.ndarray
    mirror: np.ndarray
    row: np.ndarray  # centre of the square
    column: np.ndarray


@dataclass(frozen=True)
class Augmentation:
    """A random crop of the zero-padded image, a mirror image half the time, normalised, with one square set to zero.

    What happens to an image depends on the seed, the epoch and the row of the image alone, whatever batch, process,
    device or version of a library it meets.

    Example:
        >>> augment = Augmentation(mean=(0.5, 0.5, 0.5), deviation=(0.25, 0.25, 0.25))
        >>> images = torch.full((2, 3, 96, 96), 255, dtype=torch.uint8)
        >>> augment(images, [7, 8], seed=0, epoch=3).unique().tolist()
        [-2.0, 0.0, 2.0]
    """

    mean: tuple[float, ...]  # of every channel, for values in [0, 1]
    deviation: tuple[float, ...]
    padding: int = 12
    mirror: float = 0.5  # how often
    cutout: int = 32  # side of the square, whose centre is anywhere and whose rest beyond the border is dropped

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if len(self.mean) != len(self.deviation) or not all(value > 0 for value in self.deviation):
            raise ValueError(
                "Augmentation: mean and deviation need a number for each channel, deviations above 0, "
                f"got {self.mean} and {self.deviation}"
            )
        if self.padding < 0 or self.cutout < 0 or not 0 <= self.mirror <= 1:
            raise ValueError(
                "Augmentation: padding and cutout must be at least 0 and mirror from 0 to 1, "
                f"got {self.padding}, {self.cutout}, {self.mirror}"
            )

    def __call__(self, images: Tensor, rows: Sequence[int], *, seed: int, epoch: int) -> Tensor:
        """Images as a network is trained on them: uint8, or float in [0, 1], [B, C, H, W] -> float [B, C, H, W].

        Args:
            images: The batch.
            rows: Which images of the data set they are.
            seed: Of the training.
            epoch: Every one has its own crops.
        """
        self._check(images)
        if len(rows) != len(images):
            raise ValueError(f"Augmentation: expected a row for each of {len(images)} images, got {len(rows)}")
        draws = self.draws(rows, *images.shape[2:], seed=seed, epoch=epoch)
        host = images.device.type == "cpu" and images.dtype != torch.bfloat16  # which numpy does not know
        crop, cut = (_crop_on_host, _cut_on_host) if host else (_crop, _cut)
        out = self.normalised(crop(images, draws, self.padding))
        cut(out, draws, self.cutout)
        return out

    def normalised(self, images: Tensor) -> Tensor:
        """Images as a network is tested on them: uint8, or float in [0, 1], [B, C, H, W] -> float [B, C, H, W]."""
        self._check(images)
        white = 1.0 if images.is_floating_point() else 255.0
        out = images.clone() if images.is_floating_point() else images.float()
        mean, deviation = (out.new_tensor(values)[:, None, None] * white for values in (self.mean, self.deviation))
        return out.sub_(mean).mul_(1 / deviation)

    def draws(self, rows: Sequence[int], height: int, width: int, *, seed: int, epoch: int) -> Draws:
        """What is random about images of some rows."""
        crops = 2 * self.padding + 1
        top, left, mirror, row, column = _uniform(np.asarray(rows, np.uint64), len(Draws._fields), seed, epoch)

        def place(uniform: np.ndarray, count: int) -> np.ndarray:
            return (uniform * count).astype(np.int64)

        return Draws(
            place(top, crops), place(left, crops), mirror < self.mirror, place(row, height), place(column, width)
        )

    def _check(self, images: Tensor) -> None:
        channels = len(self.mean)
        if images.ndim != 4 or images.shape[1] != channels or not _is_image(images):
            raise ValueError(
                f"Augmentation: expected images uint8 or float [B, {channels}, H, W], "
                f"got {images.dtype} {tuple(images.shape)}"
            )


def _crop(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """Crops of the padded images, mirrored where drawn so; on any device."""
    height, width = images.shape[2:]
    backwards = np.where(draws.mirror[:, None], np.arange(width)[::-1], np.arange(width))
    batch = torch.arange(len(images), device=images.device)
    rows = torch.from_numpy(draws.top[:, None] + np.arange(height)).to(images.device)
    columns = torch.from_numpy(draws.left[:, None] + backwards).to(images.device)
    padded = F.pad(images, [padding] * 4).permute(0, 2, 3, 1)
    return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def _crop_on_host(images: Tensor, draws: Draws, padding: int) -> Tensor:
    """The same without indices: on CPUs one copy of a slice for each image is several times faster."""
    height, width = images.shape[2:]
    whole = images.detach().numpy()
    out = np.zeros(whole.shape, whole.dtype)
    down, right = (draws.top - padding).tolist(), (draws.left - padding).tolist()
    for canvas, image, y, x, mirror in zip(out, whole, down, right, draws.mirror, strict=True):
        target = canvas[:, :, ::-1] if mirror else canvas
        target[:, max(-y, 0) : max(height - y, 0), max(-x, 0) : max(width - x, 0)] = image[
            :, max(y, 0) : max(height + y, 0), max(x, 0) : max(width + x, 0)
        ]
    return torch.from_numpy(out)


def _cut(images: Tensor, draws: Draws, side: int) -> None:
    """Set a square of every image to zero, as far as it is inside; on any device."""

    def inside(centre: np.ndarray, length: int) -> Tensor:
        place = np.arange(length) - (centre - side // 2)[:, None]
        return torch.from_numpy((place >= 0) & (place < side)).to(images)

    rows, columns = inside(draws.row, images.shape[2]), inside(draws.column, images.shape[3])
    images.mul_(1 - rows[:, None, :, None] * columns[:, None, None, :])


def _cut_on_host(images: Tensor, draws: Draws, side: int) -> None:
    """The same, touching the squares only."""
    top, left = (draws.row - side // 2).tolist(), (draws.column - side // 2).tolist()
    for image, y, x in zip(images.numpy(), top, left, strict=True):
        image[:, max(y, 0) : max(y + side, 0), max(x, 0) : max(x + side, 0)] = 0


def _is_image(images: Tensor) -> bool:
    return images.dtype == torch.uint8 or images.is_floating_point()


def _uniform(rows: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Numbers in [0, 1), float64 [count, R], by the mixing function SplitMix64 of seed, epoch and row."""
    key = _mixed(_mixed(np.array([seed], np.uint64)) + np.uint64(epoch))
    mixed = _mixed(_mixed(key + rows) + np.arange(count, dtype=np.uint64)[:, None])
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    """Arrays of uint64 wrap around, as they should."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
