"""Labeled images in memory, from any source."""

from typing import NamedTuple

import numpy as np

_CHUNK = 256  # images counted at a time
_WHITE = 255


class ImageSet(NamedTuple):
    """Images uint8 [N, 3, H, W] with labels [N] and the names of classes.

    `name` is the name of the set in tables; `mean` and `std` normalize images in [0, 1], for training and test alike.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def take(self, rows: np.ndarray | slice) -> "ImageSet":
        """Return a subset of the images.

        Example:
            >>> images = np.zeros((3, 3, 8, 8), np.uint8)
            >>> data = ImageSet(images, np.arange(3, dtype=np.uint8), ("a", "b", "c"), "mine", (0.0,) * 3, (1.0,) * 3)
            >>> data.take(slice(2)).labels.tolist()
            [0, 1]
        """
        return self._replace(images=self.images[rows], labels=self.labels[rows])


def statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel of images uint8 [N, C, H, W], scaled to [0, 1].

    Example:
        >>> statistics(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    if not images.size:
        raise ValueError(f"statistics: expected images [N, C, H, W], got shape {images.shape}")
    counts = np.zeros((images.shape[1], _WHITE + 1), np.int64)
    for start in range(0, len(images), _CHUNK):
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + _CHUNK, channel].ravel(), minlength=_WHITE + 1)
    values = np.arange(_WHITE + 1) / _WHITE
    weights = counts / counts.sum(1, keepdims=True)
    means = weights @ values
    stds = np.sqrt((weights * (values - means[:, None]) ** 2).sum(1))
    return tuple(means.tolist()), tuple(stds.tolist())
