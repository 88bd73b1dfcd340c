"""Reading files that anyone may have made: no more of them than is said, nothing run, a ValueError if they are odd."""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import textwrap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

MOST = 1 << 23  # bytes of a text; ours have a hundredth of it
_LONGEST = 400  # characters that an error repeats


def read_bytes(path: str | os.PathLike[str], most: int = MOST) -> bytes:
    """What a file holds, unless that is more than some bytes."""
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


@contextmanager
def mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """A file to be read by a library that believes what lengths are in it: it gets no more than there is."""
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def read_json(path: str | os.PathLike[str]) -> Any:
    """The document in a file."""
    return parse_json(read_bytes(path))


def parse_json(content: str | bytes) -> Any:
    """A document, unless it is nested too deeply for Python.

    Example:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_npy(content: bytes) -> np.ndarray:
    """The array of an .npy file, which must have all its numbers and no more.

    Example:
        >>> packed = io.BytesIO()
        >>> np.save(packed, np.arange(3))
        >>> parse_npy(packed.getvalue())
        array([0, 1, 2])
    """
    file = io.BytesIO(content)
    try:
        shape, by_column, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # numpy reads it as Python, which may fail in a dozen ways
        raise ValueError("it does not begin as an array of numpy does") from error
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, which could run code")
    numbers, left = math.prod(shape), len(content) - file.tell()
    if min(shape, default=0) < 0 or numbers * dtype.itemsize != left:
        raise ValueError(f"{left:,} bytes are no array of {dtype} {shape}")
    found = np.frombuffer(content, dtype, numbers, file.tell())
    return found.reshape(shape, order="F" if by_column else "C").copy()  # one that can be written to


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def parse_npz(content: bytes, most: int) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, unless they unpack to more than some bytes."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > most:
            raise ValueError(f"it unpacks to more than {most:,} bytes")
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{member.filename!r} is packed in a way that numpy does not have")
            with archive.open(member) as file:  # told how much to read: what a member says of its size may be a lie
                arrays[member.filename.removesuffix(".npy")] = parse_npy(file.read(member.file_size))
    return arrays


def plain(words: object) -> str:
    r"""What a file or another library says as a part of one line, short and without what would steer a terminal.

    Example:
        >>> plain("two\nlines \x1b[2J")
        'two lines \\x1b[2J'
    """
    line = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in " ".join(str(words)[: 4 * _LONGEST].split())
    )
    return textwrap.shorten(line, _LONGEST, placeholder=" ...") if " " in line[:_LONGEST] else line[:_LONGEST]
