"""Labelled images in memory, whatever they were read from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_CHUNK = 256  # images counted at a time
_STEPS = 255  # from black to white


class ImageSet(NamedTuple):
    """Images uint8 [N, 3, H, W], and labels [N] that count the classes from 0.

    Name is what the set may be called in a table; mean and deviation are those by which images in [0, 1] are
    normalised, for training and test alike.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def take(self, rows: np.ndarray | slice) -> ImageSet:
        """Some of the images, with all that is known of the set.

        Example:
            >>> images = np.zeros((3, 3, 8, 8), np.uint8)
            >>> some = ImageSet(images, np.arange(3, dtype=np.uint8), ("a", "b", "c"), "mine", (0.0,) * 3, (1.0,) * 3)
            >>> some.take(slice(2)).labels.tolist()
            [0, 1]
        """
        return self._replace(images=self.images[rows], labels=self.labels[rows])


def statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation over the pixels of every channel, of images uint8 [N, C, H, W] taken as [0, 1].

    Example:
        >>> statistics(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    if not images.size:
        raise ValueError(f"statistics: expected images [N, C, H, W], got shape {images.shape}")
    counts = np.zeros((images.shape[1], _STEPS + 1), np.int64)
    for start in range(0, len(images), _CHUNK):
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + _CHUNK, channel].ravel(), minlength=_STEPS + 1)
    values = np.arange(_STEPS + 1) / _STEPS
    shares = counts / counts.sum(1, keepdims=True)
    means = shares @ values
    deviations = np.sqrt((shares * (values - means[:, None]) ** 2).sum(1))
    return tuple(means.tolist()), tuple(deviations.tolist())
