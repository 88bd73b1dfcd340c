"""Arrays from untrusted .npy and .npz files: sizes are checked before anything is allocated, and no code is run."""

from __future__ import annotations

import io
import math
import zipfile

import numpy as np

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
