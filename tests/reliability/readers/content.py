"""Contents of files that readers of several kinds meet: archives, arrays, tensors, JSON, text."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scale_disco.files import MOST
from tests.reliability.malformed import MEMORY, Files
from tests.reliability.mutations import Seed

HUGE = MEMORY + (1 << 28)  # bytes of a file that must never be read whole
LONGEST = MOST // 8 * 8  # bytes of the longest text that is read
DEPTH = 100_000  # of nesting
GENERATOR = np.random.default_rng(0)


class Payload:
    """Makes the folder "ran" when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def as_file(name: str, contents: dict[str, Any], others: Files = {}) -> dict[str, Files]:  # noqa: B006
    """Return cases of one file next to others."""
    return {case: {**others, name: content} for case, content in contents.items()}


def relabeled(label: str, cases: dict[str, Files]) -> dict[str, Files]:
    """Return cases whose names end in a label."""
    return {f"{case}, {label}": files for case, files in cases.items()}


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def gz(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


@cache
def gz_bomb() -> bytes:
    """Return four gigabytes of zeros in gzip members of a few kilobytes."""
    return gzip.compress(bytes(1 << 26), 9, mtime=0) * 64


def npy(array: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, array)
    return packed.getvalue()


def npy_header(shape: str, dtype: str = "|u1") -> bytes:
    """Return the header of an array without its values."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(**members: bytes) -> bytes:
    """Return a zip file of members `NAME.npy`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)
    return packed.getvalue()


def npz_cases(name: str) -> dict[str, Any]:
    """Return malformed and malicious npz files whose member `name` is read first."""
    return {
        "a bomb": zip_bomb(f"{name}.npy"),
        "a bomb of a false size": zip_bomb(f"{name}.npy", 1000),
        "a pickle": pickle.dumps(Payload()),
        "empty": b"",
        "larger than memory": HUGE,
        "a folder": None,
    }


def zip_bomb(name: str, size: int = 3 << 30, others: dict[str, bytes] | None = None) -> bytes:
    """Return a zip file with a member of three gigabytes, an array of zeros, whose size in the headers is `size`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for other, content in (others or {}).items():
            archive.writestr(other, content)
        archive.writestr(name, _deflated_zeros())
    content = bytearray(packed.getvalue())
    start = archive.getinfo(name).header_offset
    for place, method, length in ((start, 8, 22), (content.rindex(b"PK\1\2"), 10, 24)):  # local and central header
        content[place + method : place + method + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        content[place + length : place + length + 4] = struct.pack("<I", size)
    return bytes(content)


@cache
def _deflated_zeros() -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    start = packer.compress(npy_header(f"({3 << 30},)")) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(1 << 26)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + zeros * 48 + packer.flush()


def tensor_file(header: bytes, values: bytes = b"") -> bytes:
    """Return a safetensors file with any header."""
    return struct.pack("<Q", len(header)) + header + values


def split_tensor_file(content: bytes) -> tuple[bytes, bytes]:
    """Return the header of a safetensors file, and its values."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def header_seed(files: dict[str, bytes], name: str) -> Seed:
    """Return a seed that mutates the header of a safetensors file and keeps its length right."""
    header, values = split_tensor_file(files[name])
    return Seed(files, name, header, partial(tensor_file, values=values))


def torch_file(value: object, **options: Any) -> bytes:
    packed = io.BytesIO()
    torch.save(value, packed, **options)
    return packed.getvalue()


def malformed_tensors() -> dict[str, bytes]:
    entry = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    return {
        "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "a header of a gigabyte": struct.pack("<Q", 10**9) + b"{}",
        "no header": b"",
        "an absurd shape": tensor_file(json.dumps({"weight": entry}).encode()),
        "deep nesting": tensor_file(b"[" * DEPTH),
        "a pickle": pickle.dumps(Payload()),
        "a zip file of torch": torch_file({"weight": torch.ones(2)}),
        "a header larger than memory": struct.pack("<Q", HUGE),
    }


def malformed_json() -> dict[str, bytes | int | None]:
    return {
        "empty": b"",
        "deep lists": b"[" * DEPTH,
        "deep dictionaries": b'{"a":' * DEPTH,
        "a number of a million digits": b"9" * 1_000_000,
        "another encoding": '{"a": 1}'.encode("utf-16"),
        "binary": bytes(range(256)),
        "zeros": bytes(1000),
        "lone surrogates": b'{"settings": {"model": "\\ud800"}, "\\udfff": 1}',
        "many small lists": b"[" + b"[]," * (LONGEST // 3 - 1) + b"[]]",
        "longer than any valid file": HUGE,
    }


def malformed_boxes() -> dict[str, bytes | int | None]:
    return {
        "empty": b"",
        "empty lines": b"\n" * LONGEST,
        "as many boxes as fit": b"1 1 1 1\n" * (LONGEST // 8),
        "one line": b"1 " * (LONGEST // 2),
        "a number of a million digits": b"1,2,3," + b"9" * 1_000_000,
        "endless spaces": b"1" + b" " * 500_000 + b"x",
        "endless separators": b"1" + b" ," * 500_000 + b"x",
        "infinite": b"1,2,inf,4\n" * 3,
        "too large for a float": b"1,2,1e999,4\n" * 3,
        "letters": b"a,b,c,d\n" * 3,
        "NUL": b"1,2,3,4\0\n" * 3,
        "an escape sequence": b"\x1b[2J\x1b]0;x\x07\n" * 3,
        "another encoding": "1,2,3,4\n".encode("utf-16") * 3,
        "longer than any valid file": HUGE,
    }
