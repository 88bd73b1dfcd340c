"""MNIST-scale: the paper's six realisations, bit for bit.

Every realisation draws 10,000 training, 2,000 validation and 50,000 test digits from the 70,000 of MNIST and shrinks
each by a random factor in [0.3, 1]. The authors' splits come from scikit-learn and numpy's global generator, their
factors from Python's, their pixels from Pillow's bicubic transform about pixel 14; so do ours.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .pictures import read_idx_images

SIDE = 28
PARTS = {"train": 10_000, "test": 50_000, "val": 2_000}  # in the order in which the authors drew their factors
_FACTORS = (0.3, 1.0)

# sha256 over the pixels of a realisation, part after part.
PIXELS = (
    "df893e4e01fd613683c35699623efd5820628b74d1b477fe5b71a3e8cdb72f74",
    "dc6295d5ce4882f3dfa08943e47e8cd7957fc7cc14bdf889eef175c928693708",
    "7c3f5206982fe5e4ae814adddff34b30af238400ebfe14280b2dd282704ba79d",
    "a5d4cb6905175fc6e11007073abdd973657f3b4d8039644f3036f488d19271bd",
    "1dbb2d211d0ad04cddfb2e75c6d7d94d1af262c848db48d38e284123ebb1d8c6",
    "b2960be25c44ddf23b5393baabb257d0b89c76ed8be05d58ff9d12893d0b2733",
)

# md5 of MNIST's files, unpacked.
_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Digits(NamedTuple):
    """Images uint8 [N, 28, 28] and labels uint8 [N]."""

    images: np.ndarray
    labels: np.ndarray


def read_mnist(folder: Path) -> Digits:
    """All 70,000 digits, training before test, from MNIST's four files, gzipped or not; others are refused."""
    paths = {name: _find(folder, name) for name in _FILES}
    for name, path in paths.items():
        raw = _raw(path)
        if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _FILES[name]:
            raise ValueError(f"{path}: not MNIST's {name}: its checksum is another; get it anew")
    images = [read_idx_images(path) for name, path in paths.items() if "images" in name]
    labels = [np.frombuffer(_raw(path), np.uint8, offset=8) for name, path in paths.items() if "labels" in name]
    return Digits(np.concatenate(images), np.concatenate(labels))


def build(mnist: Digits, seed: int, progress: Callable[[int, int], None] | None = None) -> dict[str, Digits]:
    """One realisation: train, test and val, their pixels checked against the authors'."""
    if seed not in range(len(PIXELS)):
        raise ValueError(f"mnist-scale: the paper has realisations 0 to {len(PIXELS) - 1}, got {seed!r}")
    total = sum(PARTS.values())
    parts, done = {}, 0
    factors = random.Random(seed)
    for name, chosen in _split(mnist.labels, seed).items():
        images = np.empty((len(chosen), SIDE, SIDE), np.uint8)
        for row, index in enumerate(chosen):
            factors.uniform(0, 0)  # the authors' transform draws an angle first
            images[row] = shrunk(mnist.images[index], factors.uniform(*_FACTORS))
            done += 1
            if progress is not None and done % 500 == 0:
                progress(done, total)
        parts[name] = Digits(images, mnist.labels[chosen])
    found = pixel_hash(parts)
    if found != PIXELS[seed]:
        raise ValueError(f"mnist-scale: realisation {seed} has pixels {found}, the authors' have {PIXELS[seed]}")
    return parts


def pixel_hash(parts: dict[str, Digits]) -> str:
    """sha256 over the pixels of all parts, in the authors' order."""
    state = hashlib.sha256()
    for name in PARTS:
        state.update(parts[name].images.tobytes())
    return state.hexdigest()


def shrunk(image: np.ndarray, factor: float) -> np.ndarray:
    """A digit scaled about pixel 14 by Pillow's bicubic transform, empty outside: uint8 [28, 28] -> [28, 28]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('building data needs pillow: pip install "scale-disco[plot]"') from error
    inverse, centre = 1 / factor, SIDE / 2 + 0.5
    shift = inverse * -centre + 0.0 * -centre  # the authors' order of operations, for the same rounding
    shift += centre
    matrix = (inverse, 0.0, shift, 0.0, inverse, shift)
    scaled = Image.fromarray(image).transform(
        (SIDE, SIDE), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=0
    )
    return np.asarray(scaled)


def _split(labels: np.ndarray, seed: int) -> dict[str, list[int]]:
    try:
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError('building data needs scikit-learn: pip install "scale-disco[demo]"') from error
    with _numpy_seed(seed):
        kept, test = train_test_split(
            list(range(len(labels))), train_size=12_000, test_size=PARTS["test"], stratify=labels
        )
        train, val = train_test_split(
            kept, train_size=PARTS["train"], test_size=PARTS["val"], stratify=[labels[index] for index in kept]
        )
    return {"train": train, "test": test, "val": val}


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """numpy's global generator, which the authors' splits come from, left as it was."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"mnist-scale: no {name} or {name}.gz in {folder}")


def _raw(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error})") from error
