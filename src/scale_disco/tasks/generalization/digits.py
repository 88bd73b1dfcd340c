"""Digits of exact sizes: STIR-MNIST and MNIST Large Scale, rebuilt from MNIST, and their files.

STIR-MNIST (Altstidl et al. 2022) has digits of 17 to 64 pixels at random places of a canvas of 64. MNIST Large Scale
(Jansson and Lindeberg 2020) has them at the center of a canvas of 112, at 17 scales from 1/2 to 8 of their 28 pixels,
cropped where they are larger. A digit is resized bicubically, padded, blurred in proportion to its size, thresholded
softly and stretched to 0 to 255. STIR-MNIST follows the authors' recipe draw by draw. MNIST Large Scale is a rebuild by
its published protocol, with fewer digits; it is not the authors' file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...checks import check_choice
from ..io.arrays import DataFile, checksum
from ..io.mnist import SIDE, Digits
from ..io.progress import Progress, counter
from .options import DATA_SETS, data_command

PARTS = ("train", "val", "test")
STIR_CANVAS, STIR_SIZES, STIR_COUNT = 64, tuple(range(17, 65)), 50  # digits of each class in each part
LARGE_CANVAS = 112
LARGE_SCALES = tuple(2 ** (k / 4) for k in range(-4, 13))
LARGE_TRAINING_SCALES = (1, 2, 4)
LARGE_COUNTS = {"train": 5_000, "val": 1_000, "test": 1_000}

# sha256 of the pixels of all parts, as built from MNIST's own files with the default counts.
PIXELS = {
    "stir-mnist": "515d0a0c95183c0939faba9d597aee8596657453aec21cb8192a8dab7189466e",
    "mnist-large-scale": "d334aa1dfab7b86a6af447b90b4808593e52a0b2b8b877bec1bf414281bb4e81",
}
_SEED = 42  # the authors'
_TRAIN, _TEST = 60_000, 10_000  # digits of MNIST's training files, which come first, and of its test files


class SizedDigits(NamedTuple):
    """The same digits at several sizes: images uint8 [K, N, H, W], labels uint8 [N], sizes in pixels int64 [K]."""

    images: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray


def large_scale_size(scale: float) -> int:
    """Return the size of a digit of MNIST Large Scale, in pixels.

    Example:
        >>> [large_scale_size(scale) for scale in (1 / 2, 2 ** 0.5, 8)]
        [14, 40, 224]
    """
    return round(SIDE * scale)


# Sizes of the digits of each part of MNIST Large Scale, in pixels.
_LARGE_SIZES = {part: [large_scale_size(scale) for scale in LARGE_TRAINING_SCALES] for part in PARTS}
_LARGE_SIZES["test"] = [large_scale_size(scale) for scale in LARGE_SCALES]


def build_stir(mnist: Digits, count: int = STIR_COUNT, progress: Progress | None = None) -> dict[str, SizedDigits]:
    """Build STIR-MNIST from all 70,000 digits of MNIST, with `count` digits of each class in each part.

    The default count gives the authors' data; their recipe draws the digits of each class and all places from numpy's
    generators with the seed 42.
    """
    rows = _stir_rows(mnist.labels, count)
    shape = (len(STIR_SIZES), 10 * count, STIR_CANVAS, STIR_CANVAS)
    images = {part: np.empty(shape, np.uint8) for part in PARTS}
    places, advance = np.random.RandomState(_SEED), counter(progress, 10 * count)
    for index in range(10 * count):  # by class, then by digit
        for k in reversed(range(len(STIR_SIZES))):
            size = STIR_SIZES[k]
            for part in PARTS:
                left, top = places.randint(0, STIR_CANVAS - size + 1, 2)
                digit = mnist.images[rows[part][index]]
                images[part][k, index] = placed(digit, size, STIR_CANVAS, (int(top), int(left)))
        advance(1)
    return {part: SizedDigits(images[part], mnist.labels[rows[part]], np.array(STIR_SIZES)) for part in PARTS}


def build_large_scale(
    mnist: Digits, counts: Mapping[str, int] = LARGE_COUNTS, progress: Progress | None = None
) -> dict[str, SizedDigits]:
    """Build MNIST Large Scale: the training and validation digits at scales 1, 2 and 4, the test digits at 17 scales.

    Args:
        mnist: All 70,000 digits.
        counts: Digits of each part. Training digits are the first of MNIST's training files, validation digits the last
            of them, and test digits the first of the test files.
        progress: Called with the number of images done and in total.
    """
    if min(counts.values()) < 1 or counts["train"] + counts["val"] > _TRAIN or counts["test"] > _TEST:
        rule = f"1 to {_TEST:,} test digits, and at most {_TRAIN:,} for training and validation"
        raise ValueError(f"mnist-large-scale: expected {rule}, got {dict(counts)}")
    rows = {
        "train": range(counts["train"]),
        "val": range(_TRAIN - counts["val"], _TRAIN),
        "test": range(_TRAIN, _TRAIN + counts["test"]),
    }
    count, parts = counter(progress, sum(len(rows[part]) * len(_LARGE_SIZES[part]) for part in PARTS)), {}
    for part, sizes in _LARGE_SIZES.items():
        images = np.empty((len(sizes), len(rows[part]), LARGE_CANVAS, LARGE_CANVAS), np.uint8)
        for k, size in enumerate(sizes):
            for index, row in enumerate(rows[part]):
                images[k, index] = placed(mnist.images[row], size, LARGE_CANVAS)
                count(1)
        parts[part] = SizedDigits(images, mnist.labels[list(rows[part])], np.array(sizes))
    return parts


def placed(digit: np.ndarray, size: int, canvas: int, place: tuple[int, int] | None = None) -> np.ndarray:
    """Return a digit of `size` pixels on a canvas of zeros: uint8 [28, 28] -> [canvas, canvas].

    `place` is the row and column of its first pixel (default: centered, and cropped if it is larger than the canvas).
    The blur has a std of 7/8 pixels of the original digit, the soft threshold is 2/pi arctan((x - 128) / 50).
    """
    try:
        from skimage.filters import gaussian
        from skimage.transform import resize
    except ImportError as error:
        raise ImportError('these data need scikit-image: pip install "scale-disco[generalization]"') from error
    if digit.shape != (SIDE, SIDE) or digit.dtype != np.uint8:
        raise ValueError(f"placed: expected a digit uint8 [{SIDE}, {SIDE}], got {digit.dtype} {digit.shape}")
    if size < 1 or canvas < 1:
        raise ValueError(f"placed: size and canvas must be positive, got {size} and {canvas}")
    side = max(size, canvas)
    top, left = place or ((side - size) // 2,) * 2
    if min(top, left) < 0 or max(top, left) + size > side:
        raise ValueError(f"placed: {size} pixels at {(top, left)} do not fit on a canvas of {canvas}")
    image = np.zeros((side, side))
    resized = resize(digit, (size, size), order=3, preserve_range=True)  # type: ignore[no-untyped-call]
    image[top : top + size, left : left + size] = resized
    image = np.asarray(gaussian(image, sigma=7.0 / 8.0 * size / 28.0))  # type: ignore[no-untyped-call]
    image = 2 / np.pi * np.arctan(0.02 * (image - 128))
    start = (side - canvas) // 2
    image = image[start : start + canvas, start : start + canvas]
    stretched: np.ndarray = (255.0 * (image - image.min()) / (image.max() - image.min())).astype(np.uint8)
    return stretched


def pixel_hash(parts: Mapping[str, SizedDigits]) -> str:
    """Return the sha256 of the pixels of all parts, sizes ascending."""
    return checksum(parts[part].images for part in PARTS)


def path_of(folder: Path, name: str) -> Path:
    """Return the path of a data set in a folder."""
    return _file(folder, name).path


def save(folder: Path, name: str, parts: Mapping[str, SizedDigits], *, source: str) -> Path:
    """Write a data set and its provenance atomically to one compressed file; return its path.

    `source` describes where the digits come from.
    """
    return _file(folder, name).save(parts, ("scikit-image",), name=name, pixels=pixel_hash(parts), source=source)


def load(folder: Path, name: str) -> dict[str, SizedDigits]:
    """Read a data set; raise an error if the file is damaged or was not written by `save`."""
    return _file(folder, name).load()


def _file(folder: Path, name: str) -> DataFile[SizedDigits]:
    check_choice("generalization", "data set", name, DATA_SETS)
    return DataFile(
        Path(folder) / f"{name}.npz",
        format="scale-disco digits 1",
        name=name,
        parts=PARTS,
        kind=SizedDigits,
        check=lambda parts: _check(name, parts),
        most=1 << 30,
        command=data_command(folder, name),
    )


def _check(name: str, parts: Mapping[str, SizedDigits]) -> None:
    """Raise an error if the parts are not a valid data set."""
    canvas = STIR_CANVAS if name == "stir-mnist" else LARGE_CANVAS
    for part in PARTS:
        who = f"{name}, {part}"
        images, labels, sizes = parts[part]
        for field, array, shape, dtype in (
            ("sizes", sizes, tuple(STIR_SIZES if name == "stir-mnist" else _LARGE_SIZES[part]), np.int64),
            ("labels", labels, labels.shape[:1], np.uint8),
            ("images", images, (len(sizes), len(labels), canvas, canvas), np.uint8),
        ):
            valid = tuple(array) == shape if field == "sizes" else array.shape == shape
            if array.dtype != dtype or not valid:
                raise ValueError(f"{who}: {field} must be {np.dtype(dtype)} {shape}, got {array.dtype} {array.shape}")
        if not len(labels) or labels.max() > 9:
            raise ValueError(f"{who}: labels must be 0 to 9, of at least one digit")


def _stir_rows(labels: np.ndarray, count: int) -> dict[str, list[int]]:
    """Return the rows of the digits of each part, by class."""
    rows: dict[str, list[int]] = {part: [] for part in PARTS}
    for label in range(10):
        files = np.flatnonzero(labels[:_TRAIN] == label), _TRAIN + np.flatnonzero(labels[_TRAIN:] == label)
        for of_class in files:
            np.random.RandomState(_SEED).shuffle(of_class)
        if count < 1 or 2 * count > len(files[0]) or count > len(files[1]):
            rule = f"at least 1 and within the digits of class {label}"
            raise ValueError(f"stir-mnist: count must be {rule}, got {count}")
        rows["train"] += files[0][:count].tolist()
        rows["val"] += files[0][count : 2 * count].tolist()
        rows["test"] += files[1][:count].tolist()
    return rows
