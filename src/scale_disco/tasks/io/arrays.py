"""Arrays in files: untrusted .npy and .npz files, and caches of tensors that took long to compute.

Sizes are checked before anything is allocated, and no code is run.
"""

import hashlib
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save
from torch import Tensor

from ...files import make_folder, plain, reason, write

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


def cached_tensors(
    folder: Path | None,
    kind: str,
    key: object,
    shapes: dict[str, tuple[int | None, ...]],
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
