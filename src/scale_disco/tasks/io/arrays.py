"""Arrays in files: untrusted .npy and .npz files, data sets in parts, and caches of tensors that took long to compute.

Sizes are checked before anything is allocated, and no code is run.
"""

import hashlib
import importlib.metadata
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from safetensors.torch import load_file, save
from torch import Tensor

from ...files import make_folder, parse_json, plain, read_bytes, reason, write
from .report import today

Part = TypeVar("Part", bound=tuple[np.ndarray, ...])  # a named tuple of arrays

_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def parse_npy(content: bytes) -> np.ndarray:
    """Return the array of an .npy file, whose size must match its header.

    Example:
        >>> packed = io.BytesIO()
        >>> np.save(packed, np.arange(3))
        >>> parse_npy(packed.getvalue())
        array([0, 1, 2])
    """
    file = io.BytesIO(content)
    try:
        shape, by_column, dtype = _NPY_HEADERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # numpy parses the header as Python, which may fail in a dozen ways
        raise ValueError("it does not begin with the header of a numpy array") from error
    if dtype.hasobject:
        raise ValueError("it contains Python objects, which could run code")
    count, left = math.prod(shape), len(content) - file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(f"{left:,} bytes are no array of {dtype} {shape}")
    array = np.frombuffer(content, dtype, count, file.tell())
    return array.reshape(shape, order="F" if by_column else "C").copy()  # writable


def parse_npz(content: bytes, most: int) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name, if they unpack to at most `most` bytes."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > most:
            raise ValueError(f"it unpacks to more than {most:,} bytes")
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{member.filename!r} has a compression that numpy does not use")
            with archive.open(member) as file:  # read no more than the declared size, which may be false
                arrays[member.filename.removesuffix(".npy")] = parse_npy(file.read(member.file_size))
    return arrays


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a compressed file, atomically."""
    content = io.BytesIO()  # zipfile cannot close a file on a full disk
    np.savez_compressed(content, **arrays)
    write(path, content.getvalue())


def checksum(arrays: Iterable[np.ndarray], start: str = "") -> str:
    """Return the sha256 of a text and of the values of arrays, whose shapes must be known otherwise."""
    state = hashlib.sha256(start.encode())
    for array in arrays:
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


@dataclass(frozen=True)
class DataFile(Generic[Part]):
    """A compressed file with the parts of a data set, each a named tuple of arrays, and a note about their origin."""

    path: Path
    format: str  # and its version, which the note must have
    name: str  # of the data set
    parts: tuple[str, ...]
    kind: Callable[..., Part]  # the named tuple
    check: Callable[[Mapping[str, Part]], None]  # raises ValueError unless the parts are a valid data set
    most: int  # bytes, compressed or not
    command: str  # that creates the file, for error messages

    def save(self, parts: Mapping[str, Part], packages: Iterable[str], **note: Any) -> Path:
        """Write valid parts atomically, with the versions of packages and a note about them; return the path."""
        self.check(parts)
        versions = {name: _version(name) for name in ("scale-disco", "numpy", *packages)}
        note |= {"format": self.format, "checksum": self._checksum(parts), "versions": versions, "date": today()}
        arrays: dict[str, Any] = {"note": np.frombuffer(json.dumps(note).encode(), np.uint8)}
        for part in self.parts:
            arrays |= {f"{part}_{field}": array for field, array in parts[part]._asdict().items()}  # type: ignore[attr-defined]
        write_npz(self.path, arrays)
        return self.path

    def load(self) -> dict[str, Part]:
        """Read the parts; raise an error if the file is damaged or was not written by `save`."""
        try:
            return self._unpacked(parse_npz(read_bytes(self.path, self.most), self.most))
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path}: no such file; create it: {self.command}") from None
        except OSError as error:
            raise type(error)(f"cannot read {self.path}: {error.strerror}") from error
        except Exception as error:  # zipfile and zlib raise a dozen types for a damaged file
            what = f"damaged or foreign: {plain(reason(error))}"
            raise ValueError(f"{self.path}: {what}; delete it and create it again: {self.command}") from error

    def _unpacked(self, arrays: dict[str, np.ndarray]) -> dict[str, Part]:
        def array(name: str) -> np.ndarray:
            if name not in arrays:
                raise ValueError(f"it has no array {name}")
            return arrays[name]

        note = parse_json(array("note").tobytes())
        if not isinstance(note, dict) or note.get("format") != self.format:
            raise ValueError(f"its note does not have the format {self.format!r}")
        fields = self.kind._fields  # type: ignore[attr-defined]
        parts = {part: self.kind(*(array(f"{part}_{field}") for field in fields)) for part in self.parts}
        self.check(parts)
        if note.get("checksum") != self._checksum(parts):
            raise ValueError("checksum mismatch")
        return parts

    def _checksum(self, parts: Mapping[str, Part]) -> str:
        return checksum((array for part in self.parts for array in parts[part]), f"{self.format} {self.name}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cached_tensors(
    folder: Path | None,
    kind: str,
    key: object,
    shapes: Mapping[str, tuple[int | None, ...]],
    compute: Callable[[], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Return tensors by name from the cache, or compute and store them.

    Args:
        folder: Folder of the cache; None computes without storing.
        kind: First part of the file name.
        key: Everything that the tensors depend on; its `repr` selects the file.
        shapes: Expected shape of every tensor, with None for any size. Another one is an error.
        compute: Called if there is no file.
    """
    if folder is None:
        return compute()
    make_folder(folder)
    path = folder / f"{kind}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.safetensors"
    if not path.is_file():
        tensors = compute()
        write(path, save(tensors))
        return tensors
    try:
        tensors = load_file(path)
        for name, shape in shapes.items():
            actual = tuple(tensors[name].shape)
            if len(actual) != len(shape) or any(
                size not in (None, got) for size, got in zip(shape, actual, strict=True)
            ):
                raise ValueError(f"{name} has shape {actual}")
    except Exception as error:  # whatever a damaged file makes safetensors raise
        raise ValueError(f"{path}: damaged; delete it to compute it again ({plain(reason(error))})") from error
    return tensors
