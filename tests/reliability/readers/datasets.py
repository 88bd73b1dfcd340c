"""Readers of data sets: IDX files, MNIST, MNIST-scale, STL-10."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np

from scale_disco.tasks.io import mnist, samples
from scale_disco.tasks.mnist_scale import data as mnist_scale
from scale_disco.tasks.stl10 import data as stl10
from tests.reliability.malformed import Files, Reader, files_of
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import (
    DEPTH,
    GENERATOR,
    HUGE,
    Payload,
    as_file,
    gz,
    gz_bomb,
    npy,
    npy_header,
    npz,
    npz_cases,
    only_file,
    relabeled,
)
from tests.tasks.stl10 import binary

MINI = "mnist-scale-mini.npz"


def idx(*lengths: int, magic: int = 2051, content: bytes | None = None) -> bytes:
    pixels = GENERATOR.integers(0, 256, int(np.prod(lengths)), np.uint8).tobytes() if content is None else content
    return struct.pack(f">{1 + len(lengths)}i", magic, *lengths) + pixels


def idx_seeds() -> list[Seed]:
    content = idx(2, 4, 3)
    return [
        Seed({"images": content}, "images", content),
        Seed({"images.gz": gz(content)}, "images.gz", gz(content)),
        Seed({"images.gz": gz(content)}, "images.gz", content, gz),
    ]


def idx_cases() -> dict[str, Files]:
    contents = {
        "lengths whose product overflows": idx(65536, 65536, 65536, content=b""),
        "lengths whose product is zero modulo 2^32": idx(2**30, 4, 1, content=b""),
        "no images": idx(0, 28, 28, content=b""),
        "images without pixels": idx(3, 0, 28, content=b""),
        "a billion images without pixels": idx(2**30, 0, 0, content=b""),
        "negative lengths": idx(-2, -4, 3, content=bytes(24)),
        "labels": struct.pack(">2i", 2049, 4) + bytes(4),
    }
    return {
        **as_file("images", contents),
        **relabeled("packed", as_file("images.gz", {case: gz(content) for case, content in contents.items()})),
        "a bomb": {"images.gz": gz_bomb()},
        "larger than memory": {"images": HUGE},
        "larger than memory, packed": {"images.gz": HUGE},
        "a folder": {"images": None},
        "empty": {"images": b""},
    }


def read_idx(folder: Path) -> None:
    images = samples.read_idx_images(only_file(folder))
    assert images.size
    assert images.dtype == np.uint8


def mnist_seeds() -> list[Seed]:
    files = {
        f"{part}-{kind}-ubyte.gz": gz(idx(2, 28, 28) if "images" in kind else struct.pack(">2i", 2049, 2) + b"\1\2")
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    }
    unpacked = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    return [
        *seeds_of(files),
        *(Seed(files, name, gzip.decompress(files[name]), gz) for name in files),
        *seeds_of(unpacked),
    ]


def mnist_cases() -> dict[str, Files]:
    files = mnist_seeds()[0].files
    first = next(iter(files))
    unpacked = {**files, first.removesuffix(".gz"): HUGE}
    del unpacked[first]
    return {
        "a bomb": {**files, first: gz_bomb()},
        "larger than memory, packed": {**files, first: HUGE},
        "larger than memory": unpacked,
        "folders": dict.fromkeys(files),
    }


@cache
def mini_file() -> bytes:
    """Return the split "mini" of MNIST-scale with blank digits."""
    digits = {
        part: mnist.Digits(np.zeros((n, 28, 28), np.uint8), np.zeros(n, np.uint8), np.ones(n))
        for part, n in mnist_scale._SIZES["mini"].items()
    }
    return files_of(lambda folder: mnist_scale.save(folder, "mini", digits, source="nobody"))[MINI]


@cache
def mini_members() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(mini_file())) as archive:
        return {info.filename.removesuffix(".npy"): archive.read(info) for info in archive.infolist()}


def with_member(content: bytes, member: str) -> bytes:
    return npz(**mini_members() | {member: content})


def with_note(content: bytes) -> bytes:
    return with_member(npy(np.frombuffer(content, np.uint8)), "note")


def mnist_scale_seeds() -> list[Seed]:
    files, members = {MINI: mini_file()}, mini_members()
    note = members["note"]
    start = note.index(b"{", 10 + struct.unpack("<H", note[8:10])[0])
    return [
        *seeds_of(files),
        Seed(files, MINI, note[start:], with_note),
        *(Seed(files, MINI, members[member], partial(with_member, member=member)) for member in ("val_labels", "note")),
    ]


def mnist_scale_cases() -> dict[str, Files]:
    return as_file(
        MINI,
        {
            **npz_cases("note"),
            "objects": with_member(npy_header("(1,)", "|O") + pickle.dumps(Payload()), "train_labels"),
            "an absurd shape": with_member(npy_header("(1099511627776,)"), "train_labels"),
            "a shape that overflows": with_member(
                npy_header("(9223372036854775807, 9223372036854775807)"), "val_labels"
            ),
            "a deep note": with_note(b"[" * DEPTH),
            "a header of nested parentheses": with_member(npy_header("(" * 50_000), "note"),
        },
    )


@cache
def stl10_files() -> dict[str, bytes]:
    return {f"stl10_binary/{name}": content for name, content in binary.files(2, 1).items()}


def stl10_seeds() -> list[Seed]:
    note = {"train_X.bin": [138_240_000, 1_000_000_000, "918c2871b30a85fa023e0c44e0bee87f"]}
    return seeds_of({**stl10_files(), "stl10_binary/checked.json": json.dumps(note).encode()})


def read_stl10(folder: Path) -> None:
    for part in stl10.PARTS:
        stl10.read_stl10(folder, part).images.sum()
    stl10.read_stl10(folder, fold=0)
    stl10._read_checked(folder / "stl10_binary")


def stl10_cases() -> dict[str, Files]:
    files = stl10_seeds()[0].files
    folder = "stl10_binary"
    return {
        "classes larger than memory": {**files, f"{folder}/class_names.txt": HUGE},
        "folds larger than memory": {**files, f"{folder}/fold_indices.txt": HUGE},
        "labels larger than memory": {**files, f"{folder}/train_y.bin": HUGE},
        "the size of STL-10 with other content": {
            **files,
            f"{folder}/train_X.bin": 138_240_000,
            f"{folder}/train_y.bin": b"\1" * 5000,
        },
        "images larger than memory": {**files, f"{folder}/train_X.bin": HUGE // 27_648 * 27_648},
        "rows beyond the images": {**files, f"{folder}/fold_indices.txt": b"999999999\n"},
        "folders": dict.fromkeys(files),
    }


def tar_seeds() -> list[Seed]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(stl10_files().items(), key=lambda item: len(item[1])):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    content = packed.getvalue()
    return [
        Seed({"a.tar.gz": gz(content)}, "a.tar.gz", gz(content)),
        Seed({"a.tar.gz": gz(content)}, "a.tar.gz", content, gz),
    ]


def unpack_stl10(folder: Path) -> None:
    """Unpack an archive, and check that it writes nothing but STL-10's files."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    needed = [*stl10._NEEDED, stl10._FOLDS]
    files = {name.removeprefix("stl10_binary/"): content for name, content in stl10_files().items()}
    known = {name: (len(files[name]), binary.md5(files[name])) for name in stl10._FILES}
    try:
        with mock.patch.object(stl10, "_FILES", known):
            stl10._unpack(folder / "a.tar.gz", out, needed, None)
    finally:
        assert {path.name for path in out.iterdir()} <= set(needed)
        assert {path.name for path in folder.iterdir()} == {"a.tar.gz", "out"}
        for path in out.iterdir():
            assert path.is_file()
            assert not path.is_symlink()
            path.unlink()


def tar_cases() -> dict[str, Files]:
    member, packed = binary.member, binary.packed
    folder = "stl10_binary"
    classes = f"{folder}/class_names.txt"
    long = tarfile.TarInfo(classes)
    long.size = 2**40
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as file:
        other = tarfile.TarInfo("other")
        other.size = 1 << 33
        file.write(other.tobuf())
        file.write(bytes(1 << 26))  # truncated: the rest would take its time
    names = ["../outside", "../../outside", "/outside", "outside\0", f"{folder}/../../outside", f"/{classes}",
             f"{folder}/../class_names.txt", "./class_names.txt", f"{folder}/sub/class_names.txt"]  # fmt: skip
    contents = {
        **{f"a file {name!r}": packed([member(name, b"x")]) for name in names},
        **{
            f"{kind} to {target}": packed([member(classes, type=code, linkname=target)])
            for kind, code in (("a symbolic link", tarfile.SYMTYPE), ("a hard link", tarfile.LNKTYPE))
            for target in ("/etc/passwd", "../../outside", classes)
        },
        "a linked folder": packed([member(folder, type=tarfile.SYMTYPE, linkname=".."), member(classes, b"a\nb\n")]),
        "a device": packed([member(classes, type=tarfile.CHRTYPE, devmajor=1, devminor=5)]),
        "a pipe": packed([member(classes, type=tarfile.FIFOTYPE)]),
        "a folder": packed([member(classes, type=tarfile.DIRTYPE)]),
        "a terabyte": gz(long.tobuf() + b"x" * 512),
        "a bomb": bomb.getvalue(),
        "zeros": gz(bytes(1 << 26)),
        "a negative size": gz(_tar_header(classes, b"\xff" * 12)),
        "empty": b"",
        "long names": gz(_tar_header("././@LongLink", b"77777777777\0", b"L") + bytes(1 << 20)),
        "endless headers": gz(_tar_header("x", b"77777777777\0", b"x") + b"30 a=b\n" * 100_000),
    }
    return as_file("a.tar.gz", contents)


def _tar_header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(tarfile.TarInfo(name).tobuf())
    header[124:136], header[156:157] = size, kind
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


READERS = {
    "IDX": Reader(read_idx, idx_seeds, idx_cases),
    "MNIST": Reader(mnist.read_mnist, mnist_seeds, mnist_cases, strict=True),
    "MNIST-scale": Reader(lambda folder: mnist_scale.load(folder, "mini"), mnist_scale_seeds, mnist_scale_cases),
    "STL-10": Reader(read_stl10, stl10_seeds, stl10_cases),
    "STL-10 archive": Reader(unpack_stl10, tar_seeds, tar_cases),
}
