"""Every reader of files, with small valid files and hostile ones made by hand."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save as save_tensors

from scale_disco import DiscreteBasis
from scale_disco.basis import Basis
from scale_disco.cli import main
from scale_disco.files import MOST
from scale_disco.hub import ScaleModel
from scale_disco.models import create_model
from scale_disco.models.checkpoints import read_weights
from scale_disco.tasks.io import mnist
from scale_disco.tasks.io import samples as pictures
from scale_disco.tasks.io import textures as zoom_masters
from scale_disco.tasks.io.images import is_image, load_frame, read_image, size_of
from scale_disco.tasks.io.video import open_video
from scale_disco.tasks.mnist_scale import data as mnist_scale
from scale_disco.tasks.mnist_scale.training import MnistScaleOptions
from scale_disco.tasks.runs.evaluate import _PredictionCache, trained
from scale_disco.tasks.runs.record import read_checkpoint, read_record, read_tested
from scale_disco.tasks.scene import copies as contrast
from scale_disco.tasks.scene import depth
from scale_disco.tasks.scene import evaluation as evaluate
from scale_disco.tasks.scene.commands.outputs import Job
from scale_disco.tasks.scene.field import Field
from scale_disco.tasks.stl10 import data as stl10
from scale_disco.tasks.stl10.folder import read_folder
from scale_disco.tasks.stl10.training import Stl10Options
from scale_disco.tasks.tracking import StaticBoxTracker
from scale_disco.tasks.tracking.data import sequences as otb
from scale_disco.tasks.tracking.data import synthetic as zoom
from scale_disco.tasks.tracking.evaluation import run as track
from scale_disco.tasks.tracking.results import Result, read_result, read_results, write_result
from tests.reliability.malformed import ROOM, Files, Reader, Seed, made, seeds_of
from tests.tasks.runs.folders import write_run
from tests.tasks.tracking.video_files import write_video

HUGE = ROOM + (1 << 28)  # bytes of a file that is never to be read whole
FULL = MOST // 8 * 8  # bytes of text as long as is read
DEEP = 100_000
GENERATOR = np.random.default_rng(0)


def gz(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


@cache
def gz_bomb() -> bytes:
    """Four gigabytes of zeros in members of a few kilobytes."""
    return gzip.compress(bytes(1 << 26), 9, mtime=0) * 64


def zipped(**arrays: bytes) -> bytes:
    """A zip file of members."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)
    return packed.getvalue()


def npy(array: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, array)
    return packed.getvalue()


def npy_header(shape: str, kind: str = "|u1") -> bytes:
    """A header without its numbers."""
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zip_bomb(name: str, said: int = 3 << 30, others: dict[str, bytes] | None = None) -> bytes:
    """A zip file with a member of three gigabytes of zeros, after the header of an array, whatever it says of them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for other, content in (others or {}).items():
            archive.writestr(other, content)
        archive.writestr(name, _deflated_zeros())
    whole = bytearray(packed.getvalue())
    start = archive.getinfo(name).header_offset
    for place, method, size in ((start, 8, 22), (whole.rindex(b"PK\1\2"), 10, 24)):  # before it, and in the list
        whole[place + method : place + method + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        whole[place + size : place + size + 4] = struct.pack("<I", said)
    return bytes(whole)


@cache
def _deflated_zeros() -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    start = packer.compress(npy_header(f"({3 << 30},)")) + packer.flush(zlib.Z_FULL_FLUSH)
    some = packer.compress(bytes(1 << 26)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + some * 48 + packer.flush()


class Payload:
    """Runs when it is read as a pickle."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def tensor_file(header: bytes, numbers: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    return struct.pack("<Q", len(header)) + header + numbers


def header_of(content: bytes) -> tuple[bytes, bytes]:
    """The header of a safetensors file, and its numbers."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def with_header(files: dict[str, bytes], name: str) -> Seed:
    """Changes the header of a safetensors file, whose length stays true."""
    header, numbers = header_of(files[name])
    return Seed(files, name, header, partial(_headed, numbers=numbers))


def _headed(header: bytes, numbers: bytes) -> bytes:
    return tensor_file(header, numbers)


def absurd_tensors() -> dict[str, bytes]:
    entry = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    return {
        "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "a header of a gigabyte": struct.pack("<Q", 10**9) + b"{}",
        "no header": b"",
        "an absurd shape": tensor_file(json.dumps({"weight": entry}).encode()),
        "deep nesting": tensor_file(b"[" * DEEP),
        "a pickle": pickle.dumps(Payload()),
        "a zip of torch": _saved({"weight": torch.ones(2)}),
        "an empty file of more than the room": struct.pack("<Q", HUGE),
    }


def absurd_json() -> dict[str, bytes | int | None]:
    return {
        "nothing": b"",
        "deep lists": b"[" * DEEP,
        "deep dictionaries": b'{"a":' * DEEP,
        "a number of a million digits": b"9" * 1_000_000,
        "another encoding": '{"a": 1}'.encode("utf-16"),
        "no text": bytes(range(256)),
        "zeros": bytes(1000),
        "lone surrogates": b'{"settings": {"model": "\\ud800"}, "\\udfff": 1}',
        "many small lists": b"[" + b"[]," * (FULL // 3 - 1) + b"[]]",
        "more than any of ours": HUGE,
    }


def as_file(name: str, contents: dict[str, Any], others: Files = {}) -> dict[str, Files]:  # noqa: B006
    """Cases of one file among others."""
    return {case: {**others, name: content} for case, content in contents.items()}


# IDX -----------------------------------------------------------------------------------------------------------------


def idx(*lengths: int, magic: int = 2051, content: bytes | None = None) -> bytes:
    pixels = GENERATOR.integers(0, 256, int(np.prod(lengths)), np.uint8).tobytes() if content is None else content
    return struct.pack(f">{1 + len(lengths)}i", magic, *lengths) + pixels


def idx_seeds() -> list[Seed]:
    plain = idx(2, 4, 3)
    return [
        Seed({"images": plain}, "images", plain),
        Seed({"images.gz": gz(plain)}, "images.gz", gz(plain)),
        Seed({"images.gz": gz(plain)}, "images.gz", plain, gz),
    ]


def idx_cases() -> dict[str, Files]:
    absurd = {
        "lengths whose product overflows": idx(65536, 65536, 65536, content=b""),
        "lengths whose product is zero modulo 2^32": idx(2**30, 4, 1, content=b""),
        "no images": idx(0, 28, 28, content=b""),
        "images without pixels": idx(3, 0, 28, content=b""),
        "a billion images without pixels": idx(2**30, 0, 0, content=b""),
        "negative lengths": idx(-2, -4, 3, content=bytes(24)),
        "labels": struct.pack(">2i", 2049, 4) + bytes(4),
    }
    return {
        **{case: {"images": content} for case, content in absurd.items()},
        **{f"{case}, packed": {"images.gz": gz(content)} for case, content in absurd.items()},
        "a bomb": {"images.gz": gz_bomb()},
        "more than the room": {"images": HUGE},
        "more than the room, packed": {"images.gz": HUGE},
        "a folder": {"images": None},
        "nothing": {"images": b""},
    }


def read_idx(folder: Path) -> None:
    (path,) = folder.iterdir()
    images = pictures.read_idx_images(path)
    assert images.size
    assert images.dtype == np.uint8


def mnist_seeds() -> list[Seed]:
    files = {
        f"{part}-{kind}-ubyte.gz": gz(idx(2, 28, 28) if "images" in kind else struct.pack(">2i", 2049, 2) + b"\1\2")
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    }
    plain = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    return [
        *seeds_of(files),
        *(Seed(files, name, gzip.decompress(files[name]), gz) for name in files),
        *seeds_of(plain),
    ]


def mnist_cases() -> dict[str, Files]:
    files = mnist_seeds()[0].files
    first = next(iter(files))
    plain = {**files, first.removesuffix(".gz"): HUGE}
    del plain[first]
    return {
        "a bomb": {**files, first: gz_bomb()},
        "more than the room, packed": {**files, first: HUGE},
        "more than the room": plain,
        "folders": dict.fromkeys(files),
    }


@cache
def mini_parts() -> dict[str, bytes]:
    sizes = mnist_scale._SIZES["mini"]
    parts = {
        part: mnist.Digits(np.zeros((n, 28, 28), np.uint8), np.zeros(n, np.uint8), np.ones(n))
        for part, n in sizes.items()
    }
    with tempfile_folder() as folder:
        path = mnist_scale.save(folder, "mini", parts, source="nobody")
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): archive.read(info) for info in archive.infolist()}
        return {"file": path.read_bytes(), **members}


@contextlib.contextmanager
def tempfile_folder():
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _with_member(content: bytes, member: str) -> bytes:
    return zipped(**{name: array for name, array in mini_parts().items() if name != "file"} | {member: content})


def mnist_scale_seeds() -> list[Seed]:
    name, parts = "mnist-scale-mini.npz", mini_parts()
    files = {name: parts["file"]}
    note = parts["note"]
    start = note.index(b"{", 10 + struct.unpack("<H", note[8:10])[0])

    def noted(content: bytes) -> bytes:
        return _with_member(npy(np.frombuffer(content, np.uint8)), "note")

    return [
        *seeds_of(files),
        Seed(files, name, note[start:], noted),
        *(Seed(files, name, parts[member], partial(_with_member, member=member)) for member in ("val_labels", "note")),
    ]


def mnist_scale_cases() -> dict[str, Files]:
    name = "mnist-scale-mini.npz"
    return as_file(
        name,
        {
            "a bomb": zip_bomb("note.npy"),
            "a bomb that lies": zip_bomb("note.npy", 1000),
            "objects": _with_member(npy_header("(1,)", "|O") + pickle.dumps(Payload()), "train_labels"),
            "an absurd shape": _with_member(npy_header("(1099511627776,)"), "train_labels"),
            "a shape that overflows": _with_member(
                npy_header("(9223372036854775807, 9223372036854775807)"), "val_labels"
            ),
            "a deep note": _with_member(npy(np.frombuffer(b"[" * DEEP, np.uint8)), "note"),
            "a header of nested brackets": _with_member(npy_header("(" * 50_000), "note"),
            "more than the room": HUGE,
            "nothing": b"",
            "a pickle": pickle.dumps(Payload()),
            "a folder": None,
        },
    )


# STL-10 --------------------------------------------------------------------------------------------------------------


@cache
def stl10_files() -> dict[str, bytes]:
    from tests.tasks.stl10.binary import files

    return {f"stl10_binary/{name}": content for name, content in files(2, 1).items()}


def stl10_seeds() -> list[Seed]:
    note = {"train_X.bin": [138_240_000, 1_000_000_000, "918c2871b30a85fa023e0c44e0bee87f"]}
    files = {**stl10_files(), "stl10_binary/checked.json": json.dumps(note).encode()}
    return seeds_of(files)


def read_stl10(folder: Path) -> None:
    for part in stl10.PARTS:
        stl10.read_stl10(folder, part).images.sum()
    stl10.read_stl10(folder, fold=0)
    stl10._read_checked(folder / "stl10_binary")


def stl10_cases() -> dict[str, Files]:
    files = stl10_seeds()[0].files
    folder = "stl10_binary"
    return {
        "classes of more than the room": {**files, f"{folder}/class_names.txt": HUGE},
        "folds of more than the room": {**files, f"{folder}/fold_indices.txt": HUGE},
        "labels of more than the room": {**files, f"{folder}/train_y.bin": HUGE},
        "STL-10's size and another content": {
            **files,
            f"{folder}/train_X.bin": 138_240_000,
            f"{folder}/train_y.bin": b"\1" * 5000,
        },
        "images of more than the room": {**files, f"{folder}/train_X.bin": HUGE // 27_648 * 27_648},
        "rows beyond the images": {**files, f"{folder}/fold_indices.txt": b"999999999\n"},
        "folders": dict.fromkeys(files),
    }


def tar_seeds() -> list[Seed]:
    members = list(stl10_files().items())
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in sorted(members, key=lambda pair: len(pair[1])):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    content = plain.getvalue()
    return [
        Seed({"a.tar.gz": gz(content)}, "a.tar.gz", gz(content)),
        Seed({"a.tar.gz": gz(content)}, "a.tar.gz", content, gz),
    ]


def unpack_stl10(folder: Path) -> None:
    """What is unpacked, and that nothing else is written."""
    from tests.tasks.stl10.binary import md5

    out = folder / "out"
    out.mkdir(exist_ok=True)
    wanted = [*stl10._NEEDED, stl10._FOLDS]
    files = {name.removeprefix("stl10_binary/"): content for name, content in stl10_files().items()}
    known = {name: (len(files[name]), md5(files[name])) for name in stl10._FILES}
    try:
        with mock.patch.object(stl10, "_FILES", known):
            stl10._unpack(folder / "a.tar.gz", out, wanted, None)
    finally:
        assert {path.name for path in out.iterdir()} <= set(wanted)
        assert {path.name for path in folder.iterdir()} == {"a.tar.gz", "out"}
        for path in out.iterdir():
            assert path.is_file()
            assert not path.is_symlink()
            path.unlink()


def tar_cases() -> dict[str, Files]:
    from tests.tasks.stl10.binary import member, packed

    def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
        return member(name, type=kind, linkname=target)

    folder = "stl10_binary"
    long = tarfile.TarInfo(f"{folder}/class_names.txt")
    long.size = 2**40
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as file:
        other = tarfile.TarInfo("other")
        other.size = 1 << 33
        file.write(other.tobuf())
        file.write(bytes(1 << 26))  # cut short: the rest would take its time
    inside = f"{folder}/class_names.txt"
    names = ["../outside", "../../outside", "/outside", "outside\0", f"{folder}/../../outside", f"/{inside}",
             f"{folder}/../class_names.txt", "./class_names.txt", f"{folder}/sub/class_names.txt"]  # fmt: skip
    cases = {
        **{f"a file {name!r}": packed([member(name, b"x")]) for name in names},
        **{
            f"{what} to {target}": packed([link(f"{folder}/class_names.txt", target, kind)])
            for what, kind in (("a link", tarfile.SYMTYPE), ("a hard link", tarfile.LNKTYPE))
            for target in ("/etc/passwd", "../../outside", f"{folder}/class_names.txt")
        },
        "a folder of links": packed(
            [link(folder, "..", tarfile.SYMTYPE), member(f"{folder}/class_names.txt", b"a\nb\n")]
        ),
        "a device": packed([member(f"{folder}/class_names.txt", type=tarfile.CHRTYPE, devmajor=1, devminor=5)]),
        "a pipe": packed([member(f"{folder}/class_names.txt", type=tarfile.FIFOTYPE)]),
        "a folder": packed([member(f"{folder}/class_names.txt", type=tarfile.DIRTYPE)]),
        "a terabyte": gz(long.tobuf() + b"x" * 512),
        "a bomb": bomb.getvalue(),
        "zeros": gz(bytes(1 << 26)),
        "a negative size": gz(_tar_header(f"{folder}/class_names.txt", b"\xff" * 12)),
        "nothing": b"",
        "long names": gz(_tar_header("././@LongLink", b"77777777777\0", b"L") + bytes(1 << 20)),
        "headers without end": gz(_tar_header("x", b"77777777777\0", b"x") + b"30 a=b\n" * 100_000),
    }
    return as_file("a.tar.gz", cases)


def _tar_header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(tarfile.TarInfo(name).tobuf())
    header[124:136], header[156:157] = size, kind
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


# Pictures ------------------------------------------------------------------------------------------------------------


@cache
def picture_files() -> dict[str, bytes]:
    """Pictures of all kinds, by suffixes that readers know."""
    side = 40
    colours = Image.fromarray(GENERATOR.integers(0, 256, (side, side, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "bmp": (colours, {}),
        "palette.bmp": (colours.convert("P"), {}),
        "jpg": (colours, {"exif": exif}),
        "cmyk.jpg": (colours.convert("CMYK"), {}),
        "progressive.jpg": (colours, {"progressive": True}),
        "png": (colours, {"exif": exif}),
        "palette.png": (colours.convert("P"), {"transparency": 3}),
        "bits.png": (colours.convert("1"), {}),
        "alpha.png": (colours.convert("RGBA"), {"pnginfo": _text_chunk()}),
        "ppm": (colours, {}),
        "pgm": (colours.convert("L"), {}),
        "tiff": (colours, {"compression": "tiff_lzw"}),
        "deflate.tif": (colours, {"compression": "tiff_adobe_deflate"}),
        "tif": (colours.convert("L"), {}),
        "cmyk.tif": (colours.convert("CMYK"), {"compression": "jpeg"}),
        "webp": (colours, {"exif": exif}),
        "lossless.webp": (colours.convert("RGBA"), {"lossless": True}),
    }
    files = {}
    for kind, (picture, options) in kinds.items():
        packed = io.BytesIO()
        form = {"jpg": "JPEG", "tif": "TIFF", "pgm": "PPM"}.get(
            kind.rpartition(".")[2], kind.rpartition(".")[2].upper()
        )
        picture.save(packed, form, **options)
        files[kind] = packed.getvalue()
    return files | {"long.png": long_pixels()}


def _text_chunk() -> Any:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("a", "b" * 100, zip=True)
    return info


@cache
def wide_files() -> dict[str, bytes]:
    """Pictures of more than 8 bits a pixel."""
    values = GENERATOR.integers(0, 65536, (40, 40), np.uint16)
    files = {}
    for kind, array in (
        ("png", values),
        ("tif", values),
        ("integer.tif", values.astype(np.int32)),
        ("float.tif", values.astype(np.float32)),
    ):
        packed = io.BytesIO()
        Image.fromarray(array).save(packed, "PNG" if kind == "png" else "TIFF")
        files[kind] = packed.getvalue()
    return files


def summed(content: bytes) -> bytes:
    """A PNG whose chunks have the right checksums."""
    out, at = bytearray(content[:8]), 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        body = content[at + 4 : at + 8 + length]
        out += content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out + content[at:])


def unsummed(content: bytes) -> bytes:
    return content


def named(kind: str) -> str:
    return f"0001.{kind.rpartition('.')[2]}"


def picture_seeds(
    kinds: dict[str, bytes] | None = None, place: str = "", others: dict[str, bytes] | None = None
) -> list[Seed]:
    seeds = []
    for kind, content in (picture_files() if kinds is None else kinds).items():
        files = {**(others or {}), f"{place}{named(kind)}": content}
        seeds.append(Seed(files, f"{place}{named(kind)}", content))
        if kind.endswith("png"):
            seeds.append(Seed(files, f"{place}{named(kind)}", content, summed))
    return seeds


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


@cache
def blank(side: int) -> bytes:
    """A picture of one colour with so many pixels a side, in a few kilobytes."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + packer.flush()
    return png(side, side, chunk(b"IDAT", rows), depth=1, colour=0)


def tiff(*entries: tuple[int, int, int, int], after: bytes = b"") -> bytes:
    """A TIFF with any entries: tag, kind, count, value."""
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<2H2I", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + body + bytes(4) + after


def bmp(width: int, height: int, bits: int, packing: int, colours: int, pixels: bytes = b"") -> bytes:
    start = 54 + 4 * colours
    header = struct.pack("<3I2H6I", 40, width, height, 1, bits, packing, 0, 0, 0, colours, 0)
    return b"BM" + struct.pack("<3I", start, 0, start) + header + pixels


def absurd_pictures() -> dict[str, tuple[str, bytes | int | None]]:
    one = [(258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    large, huge = ([(256, 4, 1, side), (257, 4, 1, side), *one] for side in (9_000, 60_000))
    tiles = [(322, 4, 1, 1), (323, 4, 1, 1), (324, 4, 10**6, 8), (325, 4, 10**6, 8)]
    bomb = b"a\0\0" + zlib.compress(bytes(1 << 25))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n(ran) (w) file closefile\n"
    return {
        "a bomb of 60000 x 60000": ("png", blank_header(60_000, 60_000)),
        "a bomb of 2^31 x 2^31": ("png", blank_header(2**31 - 1, 2**31 - 1)),
        "a bomb just above the limit": ("png", blank(9_500)),
        "a text that unpacks to 32 megabytes": ("png", png(8, 8, chunk(b"zTXt", bomb))),
        "a profile that unpacks to 32 megabytes": ("png", png(8, 8, chunk(b"iCCP", bomb))),
        "PPM of 60000 x 60000": ("ppm", b"P6 60000 60000 255\n"),
        "PPM of 9000 x 9000 without pixels": ("ppm", b"P6 9000 9000 255\n"),
        "PPM with a comment without end": ("ppm", b"P6 #" + b"x" * 1_000_000),
        "PPM in digits": ("ppm", b"P3 9000 9000 255\n" + b"1 " * 1000),
        "BMP of 60000 x 60000": ("bmp", bmp(60_000, 60_000, 24, 0, 0)),
        "BMP of runs": ("bmp", bmp(9_000, 9_000, 8, 1, 256, bytes(2048))),
        "TIFF of 60000 x 60000": ("tif", tiff(*huge, (273, 4, 1, 8), (278, 4, 1, 60_000), (279, 4, 1, 100))),
        "TIFF of a billion strips": ("tif", tiff(*huge, (273, 4, 10**9, 8), (279, 4, 10**9, 8))),
        "TIFF of tiles of 1 x 1": ("tif", tiff(*large, *tiles)),
        "TIFF whose pages go round": ("tif", b"II*\0" + struct.pack("<IHI", 8, 0, 8)),
        "JPEG of 65500 x 65500": ("jpg", resized_jpeg(65_500)),
        "EPS by the name of a picture": ("png", postscript),
        "PDF by the name of a picture": ("jpg", b"%PDF-1.4\n"),
        "WMF by the name of a picture": ("bmp", b"\xd7\xcd\xc6\x9a" + bytes(200)),
        "nothing": ("png", b""),
        "no picture": ("png", b"no picture at all"),
        "more than the room": ("png", HUGE),
        "more than the room of PPM": ("ppm", HUGE),
        "a folder": ("png", None),
    }


def long_pixels() -> bytes:
    """A picture that has all its pixels, and says that more follow."""
    whole = png(40, 40, chunk(b"IDAT", zlib.compress(bytes(40 * 121))))
    at = whole.index(b"IDAT")
    return whole[: at - 4] + struct.pack(">I", HUGE) + whole[at:]


def blank_header(width: int, height: int) -> bytes:
    return png(width, height, chunk(b"IDAT", zlib.compress(bytes(100))), depth=1, colour=0)


def resized_jpeg(side: int) -> bytes:
    content = picture_files()["jpg"]
    at = content.index(b"\xff\xc0")
    return content[: at + 5] + struct.pack(">2H", side, side) + content[at + 9 :]


def picture_cases(place: str = "", others: Files = {}, without: tuple[str, ...] = ()) -> dict[str, Files]:  # noqa: B006
    return {
        case: {**others, f"{place}{named(kind)}": content}
        for case, (kind, content) in absurd_pictures().items()
        if case not in without
    }


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def plain_png(value: int = 0) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(np.full((40, 40, 3), value, np.uint8)).save(packed, "PNG")
    return packed.getvalue()


def class_files() -> dict[str, bytes]:
    return {f"{part}/{name}/{n}.png": plain_png(n) for part in ("train", "test") for name in "ab" for n in range(1)}


def read_scene_picture(folder: Path) -> None:
    path = only(folder)
    if not is_image(path):
        raise ValueError(f"{path} is a video")
    read_image(path, 100)
    assert min(size_of(path)) > 0
    unknown = path.with_suffix("")
    path.rename(unknown)
    try:
        is_image(unknown)
    finally:
        unknown.rename(path)


def cache_seeds() -> list[Seed]:
    def build(folder: Path) -> None:
        from tests.reliability.malformed import put

        put(folder, class_files())
        read_folder(folder, 8, cache=folder / "cache.safetensors")

    files = made(build)
    return [*seeds_of(files, "cache.safetensors"), with_header(files, "cache.safetensors")]


def cache_cases() -> dict[str, Files]:
    files = class_files()
    note = {"format": "scale-disco pictures 1", "key": "x"}
    foreign = {
        "no note": save_tensors({"a": np.zeros(2)}),
        "a deep note": save_tensors({"a": np.zeros(2)}, {"note": "[" * DEEP}),
        "a note of other kinds": save_tensors({"a": np.zeros(2)}, {"note": json.dumps([note])}),
    }
    return as_file("cache.safetensors", absurd_tensors() | foreign | {"a folder": None}, files)


def depth_seeds() -> list[Seed]:
    return [one for one in picture_seeds(wide_files()) if one.name.endswith("png")]


# Tracking ------------------------------------------------------------------------------------------------------------


def sequence_files() -> dict[str, bytes]:
    boxes = b"1,2,3,4\n2\t2\t3\t4\n3 2 3 4\n"
    frames = {f"Car/img/000{n}.png": b"" for n in (1, 2, 3)}
    return {**frames, "Car/groundtruth_rect.txt": boxes, "Car/absence.label": b"0\n1\n0\n"}


def otb_seeds() -> list[Seed]:
    single = sequence_files()
    several = {**{name: b"" for name in single if "img" in name}, "Car/groundtruth_rect.1.txt": b"1,2,3,4\n" * 3,
               "Car/groundtruth_rect.2.txt": b"1;2;3;4\n" * 3}  # fmt: skip
    return [
        *seeds_of(single, "Car/groundtruth_rect.txt", "Car/absence.label"),
        *seeds_of(several, "Car/groundtruth_rect.1.txt"),
    ]


def absurd_lines() -> dict[str, bytes | int | None]:
    return {
        "nothing": b"",
        "empty lines": b"\n" * FULL,
        "as many boxes as fit": b"1 1 1 1\n" * (FULL // 8),
        "one line": b"1 " * (FULL // 2),
        "a number of a million digits": b"1,2,3," + b"9" * 1_000_000,
        "spaces without end": b"1" + b" " * 500_000 + b"x",
        "separators without end": b"1" + b" ," * 500_000 + b"x",
        "infinite": b"1,2,inf,4\n" * 3,
        "too large for a float": b"1,2,1e999,4\n" * 3,
        "letters": b"a,b,c,d\n" * 3,
        "NUL": b"1,2,3,4\0\n" * 3,
        "an escape": b"\x1b[2J\x1b]0;x\x07\n" * 3,
        "another encoding": "1,2,3,4\n".encode("utf-16") * 3,
        "more than any of ours": HUGE,
    }


def otb_cases() -> dict[str, Files]:
    files = sequence_files()
    numbered = {name: content for name, content in files.items() if "truth" not in name}
    return {
        **as_file("Car/groundtruth_rect.txt", absurd_lines() | {"a folder": None}, files),
        **{f"{case}, absence": one for case, one in as_file("Car/absence.label", {
            "nothing": b"", "letters": b"abc", "more than the room": HUGE, "no text": bytes(range(256)),
        }, files).items()},
        "more than the room, numbered": {**numbered, "Car/groundtruth_rect.1.txt": HUGE},
        "no frames": {"Car/groundtruth_rect.txt": b"1,2,3,4\n"},
    }  # fmt: skip


def frames_of(count: int, name: str = "Car") -> otb.Sequence:
    boxes = torch.tensor([[0.0, 1, 3, 4]]).double().repeat(count, 1)
    return otb.Sequence(name, tuple(Path(f"{n}.png") for n in range(count)), boxes)


def result_files() -> dict[str, bytes]:
    result = Result(frames_of(3).boxes, torch.ones(3, dtype=torch.float64))
    return made(lambda folder: write_result(folder, "Car", result))


def result_seeds() -> list[Seed]:
    files = result_files()
    rows = {"res": [[1, 2, 3, 4], [1, 2, 3, 4.5], [1, 2, 3, 4]], "type": "rect", "len": 3}
    others = [
        {"Car.json": json.dumps([rows]).encode()},
        {"car.json": json.dumps(rows).encode()},
        {"Car.txt": b"1\t2\t3\t4\n" * 3},
        {"CAR.txt": b"1;2;3;4\r\n" * 3},
    ]
    return [*seeds_of(files), *(one for some in others for one in seeds_of(some))]


def read_others(folder: Path) -> None:
    (result,) = read_results(folder, [frames_of(3)]).values()
    assert result.boxes.shape == (3, 4)
    if "Car.txt" in os.listdir(folder) and (folder / "times").is_dir():
        read_result(folder, frames_of(3))


def result_cases() -> dict[str, Files]:
    files = result_files()
    return {
        **as_file("Car.txt", absurd_lines(), files),
        **{f"{case}, times": one for case, one in as_file("times/Car_time.txt", absurd_lines(), files).items()},
        **{f"{case}, json": one for case, one in as_file("Car.json", absurd_json()).items()},
        "boxes of other kinds": {"Car.json": b'{"res": [[{}, [], null, "x"], 5]}'},
        "numbers of 500 digits": {"Car.json": b'{"res": [[1, 2, 3, ' + b"9" * 500 + b"]]}"},
        "a line for the terminal": {"Car.json": b'{"res": [["\\u001b[2J", "\\n", "\\ud800", 1]]}'},
        "another type for the terminal": {"Car.json": b'{"res": [], "type": "\\u001b[2J\\n"}'},
    }  # fmt: skip


def tracker_seeds() -> list[Seed]:
    files = {**result_files(), "tracker.json": json.dumps({"fingerprint": "x"}).encode()}
    return seeds_of(files, "tracker.json")


def read_tracker(folder: Path) -> None:
    track(StaticBoxTracker(), [frames_of(3)], folder, fingerprint="x")


def zoom_note() -> dict[str, Any]:
    settings = {"part": "train", "count": 2, "size": [320, 240]}
    return {"format": "scale-disco zoom 1", "settings": settings, "masters": {}, "sequences": {}}


def footage(folder: Path) -> None:
    film = open_video(str(only(folder)))
    for frame in islice(film.frames(), 40):
        assert frame.image is None or frame.image.ndim == 3
    film.remarks()


@cache
def film_files() -> dict[str, bytes]:
    kinds = {"mp4": "libx264", "avi": "mpeg4", "mkv": "libx264", "mov": "mjpeg", "webm": "libvpx", "ts": "mpeg2video",
             "mpg": "mpeg1video", "gif": "gif"}  # fmt: skip

    def build(folder: Path) -> None:
        for kind, codec in kinds.items():
            if kind == "gif":
                frames = [Image.fromarray(np.full((16, 16, 3), 50 * n, np.uint8)) for n in range(4)]
                frames[0].save(folder / "film.gif", save_all=True, append_images=frames[1:])
            elif kind == "mov":
                _write_mjpeg(folder / "film.mov")
            else:
                write_video(folder / f"film.{kind}", 6, size=(64, 48), codec=codec)

    return made(build)


def _write_mjpeg(path: Path) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode())


def film_seeds() -> list[Seed]:
    return [Seed({name: content}, name, content) for name, content in film_files().items()]


def film_cases() -> dict[str, Files]:
    list_of = "ffconcat version 1.0\nfile film.mp4\nfile film.mp4\n"
    play = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
    huge = b"YUV4MPEG2 W60000 H60000 F25:1 Ip A1:1 C420\nFRAME\n"
    return {
        "nothing": {"film.mp4": b""},
        "noise": {"film.mp4": GENERATOR.bytes(2000)},
        "text": {"film.mp4": b"no video at all\n" * 100},
        "more than the room of zeros": {"film.mp4": HUGE},
        "a playlist of files": {"film.m3u8": play.format("/etc/passwd").encode()},
        "a playlist from elsewhere": {"film.m3u8": play.format("http://127.0.0.1:9/a.ts").encode()},
        "a list of files": {"film.ffconcat": list_of.encode()},
        "frames of 60000 x 60000": {"film.y4m": huge},
        "frames of 30000 x 30000": {"film.y4m": huge.replace(b"60000", b"30000") + bytes(100)},
    }


# Weights, bases, networks --------------------------------------------------------------------------------------------


def _saved(value: object, **options: Any) -> bytes:
    packed = io.BytesIO()
    torch.save(value, packed, **options)
    return packed.getvalue()


def weight_seeds() -> list[Seed]:
    tensors = {"conv.weight": torch.arange(6.0).reshape(2, 3), "norm.bias": torch.zeros(2, dtype=torch.int64)}
    files = {
        "a.safetensors": save_tensors({name: tensor.numpy() for name, tensor in tensors.items()}),
        "a.pth": _saved({"state_dict": tensors, "epoch": 3}),
        "a.pt": _saved(tensors, _use_new_zipfile_serialization=False),
    }
    seeds = [Seed({name: content}, name, content) for name, content in files.items()]
    return [
        *seeds,
        with_header({"a.safetensors": files["a.safetensors"]}, "a.safetensors"),
        *_inner_pickle(files["a.pth"]),
    ]


def _inner_pickle(content: bytes, name: str = "a.pth", others: dict[str, bytes] | None = None) -> list[Seed]:
    """Changes the pickle inside a file of torch."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (inner,) = [member for member in members if member.endswith("data.pkl")]
    return [
        Seed({**(others or {}), name: content}, name, members[inner], partial(_stored, members=members, inner=inner))
    ]


def _stored(content: bytes, members: dict[str, bytes], inner: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), content if name == inner else member)
    return packed.getvalue()


def torch_cases() -> dict[str, bytes | int | None]:
    with zipfile.ZipFile(io.BytesIO(_saved({"a": torch.ones(2)}))) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (inner,) = [name for name in members if name.endswith("data.pkl")]
    (numbers,) = [name for name in members if name.endswith("data/0")]
    others = {name: content for name, content in members.items() if name != numbers}
    return {
        "a payload": _saved({"weight": Payload()}),
        "a payload, in the old way": _saved({"weight": Payload()}, _use_new_zipfile_serialization=False),
        "a bare pickle": pickle.dumps(Payload()),
        "a storage of three gigabytes": zip_bomb(numbers, others=others),
        "cut": _saved({"a": torch.ones(2)})[:-50],
        "nothing": b"",
        "zeros": bytes(1000),
        "more than the room": HUGE,
        "a list": _saved([1, 2]),
        "deep": _stored(b"\x80\x02" + b"]" * DEEP + b"a" * (DEEP - 1) + b".", members, inner),
    }


def weight_cases() -> dict[str, Files]:
    return {
        **{f"{case}, safetensors": {"a.safetensors": content} for case, content in absurd_tensors().items()},
        **{f"{case}, torch": {"a.pth": content} for case, content in torch_cases().items()},
        "a folder": {"a.pth": None},
        "a folder, safetensors": {"a.safetensors": None},
    }


@cache
def basis_content() -> bytes:
    return made(lambda folder: DiscreteBasis(3, [1, 2**0.5, 2]).save(folder / "a.safetensors"))["a.safetensors"]


def _respecified(content: bytes) -> bytes:
    header, numbers = header_of(basis_content())
    document = json.loads(header)
    document["__metadata__"]["spec"] = content.decode("utf-8", "replace")
    return tensor_file(json.dumps(document).encode(), numbers)


def basis_seeds() -> list[Seed]:
    files = {"a.safetensors": basis_content()}
    spec = json.loads(header_of(basis_content())[0])["__metadata__"]["spec"].encode()
    return [*seeds_of(files), with_header(files, "a.safetensors"), Seed(files, "a.safetensors", spec, _respecified)]


def basis_cases() -> dict[str, Files]:
    spec = json.loads(json.loads(header_of(basis_content())[0])["__metadata__"]["spec"])
    changed = {
        "a kernel of 10^9": {"kernel_size": 10**9},
        "a dilation of 10^12": {"dilation": [1, 1, 10**12]},
        "a million scales": {"scales": list(range(1, 10**5)), "dilation": [1] * (10**5 - 1)},
        "scales that are none": {"scales": [1, float("nan"), 2]},
        "infinite scales": {"scales": [1, 2, float("inf")]},
        "a prior of nothing": {"prior": [[]]},
    }
    return as_file(
        "a.safetensors",
        {
            **absurd_tensors(),
            **{case: _respecified(json.dumps({**spec, **change}).encode()) for case, change in changed.items()},
            "a deep spec": _respecified(b"[" * DEEP),
            "a spec with a number of 10^6 digits": _respecified(b'{"scales": ' + b"9" * 10**6 + b"}"),
            "a folder": None,
        },
    )


@cache
def hub_files() -> dict[str, bytes]:
    def build(folder: Path) -> None:
        ScaleModel("mnist/cnn").save_pretrained(folder)

    return {name: content for name, content in made(build).items() if name != "README.md"}


def read_hub(folder: Path) -> None:
    ScaleModel.from_pretrained(folder)


def hub_seeds() -> list[Seed]:
    other = {
        name: content
        for name, content in made(
            lambda folder: ScaleModel("stl10/disco", depth=10, width=1).save_pretrained(folder)
        ).items()
        if name != "README.md"
    }
    files = hub_files()
    return [
        *seeds_of(files, "config.json", "model.safetensors"),
        *seeds_of(files, "config.json"),
        with_header(files, "model.safetensors"),
        *seeds_of(other, "config.json"),
    ]


def hub_cases() -> dict[str, Files]:
    files = hub_files()
    tagged = {
        "a digest that leads elsewhere": {"scale_disco": "Basis", "digest": "../../../x", "spec": {}},
        "scales without end": {"scale_disco": "Scales", "factors": [1, float("inf")]},
        "a scale of 1000.5": {"scale_disco": "Scales", "factors": [1, 1000.5]},
        "a scale of 100,000.5": {"scale_disco": "Scales", "factors": [1, 100_000.5]},
        "absurd scales": {"scale_disco": "Scales", "factors": [1, 1e9]},
        "many scales": {"scale_disco": "Scales", "factors": list(range(1, 5000))},
    }
    width = {"name": "stl10/wrn", "depth": 10, "width": 10**9}
    return {
        **as_file("config.json", absurd_json(), files),
        **{f"{case}, weights": one for case, one in as_file("model.safetensors", absurd_tensors(), files).items()},
        **as_file(
            "config.json",
            {case: json.dumps({"name": "resnet18/disco", "scales": one}).encode() for case, one in tagged.items()},
            files,
        ),
        "weights from elsewhere": {**files, "config.json": b'{"name": "resnet18/cnn", "pretrained": "/etc/passwd"}'},
        "a width of 10^9": {**files, "config.json": json.dumps(width).encode()},
        "a width of 1000": {**files, "config.json": json.dumps(width | {"width": 1000}).encode()},
        "a depth of 6 * 10^9 + 4": {**files, "config.json": json.dumps(width | {"depth": 6 * 10**9 + 4}).encode()},
        "10^12 classes": {**files, "config.json": json.dumps(width | {"width": 1, "classes": 10**12}).encode()},
    }  # fmt: skip


# Runs ----------------------------------------------------------------------------------------------------------------


@cache
def run_files(experiment: str = "mnist-scale") -> dict[str, bytes]:
    """The folder of a run that nobody trained."""

    def build(folder: Path) -> None:
        if experiment == "mnist-scale":
            write_run(folder, "run", MnistScaleOptions("mnist/cnn", recipe="paper", epochs=1), 50)
            network = create_model("mnist/cnn")
        else:
            settings = Stl10Options("stl10/wrn", depth=10, width=1, epochs=1)
            facts = {
                "name": "x",
                "classes": ["a", "b"],
                "mean": [0.5] * 3,
                "deviation": [0.5] * 3,
                "train": "",
                "test": "",
            }
            write_run(folder, "run", settings, 50, facts=facts)
            network = settings.network(facts)
        state = network.state_dict()
        (folder / "run/best.safetensors").write_bytes(save_tensors({name: one.numpy() for name, one in state.items()}))
        whole = {
            "epoch": 1,
            "state_dict": {f"network.{name}": tensor for name, tensor in state.items()},
            "optimizer_states": [],
            "lr_schedulers": [],
            "loops": {},
            "callbacks": {},
            "pytorch-lightning_version": "2.6",
        }
        (folder / "run/last.ckpt").write_bytes(_saved(whole))

    return {name.removeprefix("run/"): content for name, content in made(build).items()}


def read_run(folder: Path) -> None:
    read_record(folder)
    read_tested(folder)


def read_network(folder: Path) -> None:
    for checkpoint in ("best", "last"):
        trained(folder, checkpoint)
    read_checkpoint(folder / "last.ckpt")


def record_seeds() -> list[Seed]:
    return [*seeds_of(run_files(), "run.json", "test.json"), *seeds_of(run_files("stl10"), "run.json", "test.json")]


def record_cases() -> dict[str, Files]:
    files, other = run_files(), run_files("stl10")
    settings = json.loads(other["run.json"])

    def changed(**values: Any) -> Files:
        return {**other, "run.json": json.dumps(settings | {"settings": settings["settings"] | values}).encode()}

    return {
        **as_file("run.json", absurd_json() | {"a folder": None}, files),
        **{f"{case}, tested": one for case, one in as_file("test.json", absurd_json(), files).items()},
        "a depth of 6 * 10^9 + 4": changed(depth=6 * 10**9 + 4),
        "a depth of 10^400": changed(depth=10**400),
        "a width of 10^18": changed(width=10**18),
        "a width of 10^400": changed(width=10**400),
        "10^400 epochs": changed(epochs=10**400),
        "a seed of 10^400": changed(seed=10**400),
        "a model for the terminal": changed(model="\x1b[2J\n"),
        "a setting for the terminal": changed(**{"\x1b[2J\n": 1}),
        "an experiment for the terminal": {
            **other,
            "run.json": json.dumps(settings | {"experiment": ["\x1b[2J"]}).encode(),
        },
    }


def network_seeds() -> list[Seed]:
    files, other = run_files(), run_files("stl10")
    return [
        *seeds_of(files, "best.safetensors", "last.ckpt"),
        with_header(files, "best.safetensors"),
        *_inner_pickle(files["last.ckpt"], "last.ckpt", files),
        *seeds_of(other, "run.json"),
    ]


def network_cases() -> dict[str, Files]:
    files, other = run_files(), run_files("stl10")
    record = json.loads(other["run.json"])

    def changed(facts: dict[str, Any] | None = None, **values: Any) -> Files:
        settings = record["settings"] | values
        said = record | {"settings": settings, "facts": record["facts"] | (facts or {})}
        return {**other, "run.json": json.dumps(said).encode()}

    return {
        **as_file("best.safetensors", absurd_tensors() | {"a folder": None}, files),
        **{f"{case}, last": one for case, one in as_file("last.ckpt", torch_cases(), files).items()},
        "a width of 10^6": changed(width=10**6),
        "a width of 1000": changed(width=1000),
        "a depth of 100,000": changed(depth=100_006),
        "a million classes": changed({"classes": ["a"] * 10**6}),
        "no classes": changed({"classes": []}),
    }


def answer_seeds() -> list[Seed]:
    memory = _PredictionCache(Path("x"), "key", 10)
    arrays = {"weights": np.frombuffer(memory.key, np.uint8), "test": np.arange(10, dtype=np.uint8)}
    members = {name: npy(array) for name, array in arrays.items()}
    files = {"answers.npz": zipped(**members)}

    def with_member(content: bytes, name: str) -> bytes:
        return zipped(**{**members, name: content})

    return [
        *seeds_of(files),
        *(Seed(files, "answers.npz", members[name], partial(with_member, name=name)) for name in members),
    ]


def read_answers(folder: Path) -> None:
    found = _PredictionCache(folder / "answers.npz", "key", 10).read()
    assert all(answers.ndim == 1 for answers in found.values())


def answer_cases() -> dict[str, Files]:
    key = npy(np.frombuffer(b"key", np.uint8))
    return as_file(
        "answers.npz",
        {
            "a bomb": zip_bomb("weights.npy"),
            "a bomb that lies": zip_bomb("weights.npy", 1000),
            "a bomb of answers": zip_bomb("test.npy", others={"weights.npy": key}),
            "objects": zipped(weights=npy_header("(1,)", "|O") + pickle.dumps(Payload())),
            "objects as answers": zipped(weights=key, test=npy_header("(1,)", "|O") + pickle.dumps(Payload())),
            "an absurd shape": zipped(weights=key, test=npy_header("(1099511627776,)")),
            "a shape that overflows": zipped(
                weights=key, test=npy_header("(9223372036854775807, 9223372036854775807)")
            ),
            "a pickle": pickle.dumps(Payload()),
            "an array": npy(np.zeros(3)),
            "nothing": b"",
            "more than the room": HUGE,
            "a folder": None,
        },
    )


def dense_seeds() -> list[Seed]:
    dense = npy(DiscreteBasis(3, [1, 2]).dense().numpy())
    files = {"a.npz": zipped(basis=dense)}
    return [*seeds_of(files), Seed(files, "a.npz", dense, lambda content: zipped(basis=content))]


def read_dense(folder: Path) -> None:
    from scale_disco.scales import Scales
    from scale_disco.tasks.equivariance.command import _dense_file

    _dense_file(folder / "a.npz", Scales([1, 2]))


def dense_cases() -> dict[str, Files]:
    return as_file(
        "a.npz",
        {
            "a bomb": zip_bomb("basis.npy"),
            "a bomb that lies": zip_bomb("basis.npy", 1000),
            "objects": zipped(basis=npy_header("(1,)", "|O") + pickle.dumps(Payload())),
            "an absurd shape": zipped(basis=npy_header("(1099511627776,)")),
            "no numbers": zipped(basis=npy(np.array([["a"]]))),
            "a number": zipped(basis=npy(np.array(1.0))),
            "a pickle": pickle.dumps(Payload()),
            "nothing": b"",
            "more than the room": HUGE,
            "a folder": None,
        },
    )


class RefusedError(ValueError):
    """The words of a command that ended with an error of the user's."""


def called(*words: str) -> None:
    """A command; its error, if it is one that a user can mend."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said = err.getvalue().removesuffix("\n")
    if code not in (0, 1, 2) or "out of memory" in said:
        raise AssertionError(f"exit code {code}: {said:.1000}")
    if code:
        raise RefusedError(said)


def yaml_seeds() -> list[Seed]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(["train", "mnist-scale", "--print-config"])
    return [
        Seed({"a.yaml": text}, "a.yaml", text)
        for text in (out.getvalue().encode(), b"epochs: 2\nseed: 1\n", b'{"epochs": 3}')
    ]


def read_yaml(folder: Path) -> None:
    called("train", "mnist-scale", "--config", str(folder / "a.yaml"), "--print-config")


def yaml_cases() -> dict[str, Files]:
    laughs = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
    )
    merges = "a: &a {x: 1}\n" + "".join(
        f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
    )
    return as_file(
        "a.yaml",
        {
            "nothing": b"",
            "a billion laughs": laughs.encode(),
            "laughs as a list": b"["
            + b", ".join(line.split(b": ", 1)[1] for line in laughs.encode().splitlines())
            + b"]",
            "a billion merges": merges.encode(),
            "itself": b"epochs: &a [*a]\n",
            "all itself": b"&a [*a]\n",
            "deep": b"[" * 50_000,
            "deep values": b"epochs: " + b"[" * 5_000 + b"]" * 5_000,
            "deep blocks": b"- " * 50_000,
            "a payload": b"epochs: !!python/object/apply:os.mkdir [ran]\n",
            "a payload, by its whole name": b"!<tag:yaml.org,2002:python/object/new:os.mkdir> [ran]\n",
            "a number of 5000 digits": b"epochs: " + b"9" * 5000,
            "a number of a million digits": b"epochs: " + b"9" * 10**6,
            "no number": b"epochs: !!int ''\n",
            "no boolean": b"augment: !!bool x\n",
            "no date": b"epochs: 2001-99-99\n",
            "sexagesimals": b"epochs: " + b"1:" * 3000 + b"1",
            "a key that is no word": b"? [a, b]\n: 1\n",
            "a key for the terminal": b'"\\e[2J": 1\n',
            "a value for the terminal": b'model: "\\e[2J"\n',
            "another experiment": b'experiment: "\\e[2J"\n',
            "no text": bytes(range(256)),
            "another encoding": "epochs: 0\n".encode("utf-16"),
            "more than any of ours": HUGE,
            "a folder": None,
        },
    )


# Scenes --------------------------------------------------------------------------------------------------------------


def field_seeds() -> list[Seed]:
    def build(folder: Path) -> None:
        numbers = [Field(torch.zeros(3, 4), torch.ones(3, 4)) for _ in range(2)]
        Job(Path("a.mp4"), folder, "a", True).keep(numbers, {"every": 1})

    return seeds_of(made(build))


def read_fields(folder: Path) -> None:
    job = Job(Path("a.mp4"), folder, "a", True)
    job.note()
    for field in job.kept():
        assert field.octaves.ndim == 2
        assert field.octaves.dtype == field.confidence.dtype == torch.float32


def field_cases() -> dict[str, Files]:
    files = field_seeds()[0].files
    absurd = {
        "an absurd shape": npy_header("(1099511627776,)", "<f4"),
        "objects": npy_header("(1,)", "|O") + pickle.dumps(Payload()),
        "a pickle": pickle.dumps(Payload()),
        "nothing": b"",
        "no array": b"x" * 100,
        "other numbers": npy(np.zeros((2, 3, 4), np.int64)),
        "words": npy(np.array(["a"])),
        "other axes": npy(np.zeros(3, np.float32)),
        "a number": npy(np.array(1.0)),
        "other frames": npy(np.zeros((2, 5, 5), np.float32)),
    }
    return as_file("a.npy", absurd, files)


class Seen:
    """A network that sees nothing."""

    mark = "x"

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(images), 2, 3, 4, 4)


def seen_copies(folder: Path) -> None:
    grey = torch.zeros(3, 40, 40, dtype=torch.uint8)
    picture = contrast.Picture(0, "a", "mark", lambda: grey)
    (copies,) = contrast.read_copies(Seen(), [picture], contrast.Sizes(copies=2, windows=3), cache=folder)
    assert copies.profiles.shape == (2, 3, 2, 3)
    assert copies.octaves.shape == (2,)


def seen_windows(folder: Path) -> None:
    estimator: Any = SimpleNamespace(backbone=Seen(), cell=8, window=64)
    assert evaluate.window_profiles(estimator, torch.zeros(3, 64, 64, dtype=torch.uint8), folder).ndim == 3


def copies_seeds() -> list[Seed]:
    files = made(seen_copies)
    (name,) = files
    return [*seeds_of(files), with_header(files, name)]


def windows_seeds() -> list[Seed]:
    evaluate_seen = evaluate._seen
    evaluate._seen = lambda estimator, image: torch.zeros(1, 2, 3).half()
    try:
        files = made(seen_windows)
    finally:
        evaluate._seen = evaluate_seen
    (name,) = files
    return [*seeds_of(files), with_header(files, name)]


def kept_cases(seeds: Callable[[], list[Seed]]) -> dict[str, Files]:
    (name,) = seeds()[0].files
    foreign = {
        "other tensors": save_tensors({"a": np.zeros(2)}),
        "other shapes": save_tensors({"profiles": np.zeros(2), "octaves": np.zeros(3)}),
    }
    return as_file(name, absurd_tensors() | foreign)


def quiet(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Without warnings, which a reader may give of what it leaves out."""

    def reading(folder: Path) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return read(folder)

    return reading


def wide_and_other() -> list[Seed]:
    return [*picture_seeds(), *picture_seeds(wide_files())]


READERS: dict[str, Reader] = {
    "IDX": Reader(read_idx, idx_seeds, idx_cases),
    "MNIST": Reader(mnist.read_mnist, mnist_seeds, mnist_cases, strict=True),
    "MNIST-scale": Reader(lambda folder: mnist_scale.load(folder, "mini"), mnist_scale_seeds, mnist_scale_cases),
    "STL-10": Reader(read_stl10, stl10_seeds, stl10_cases),
    "STL-10 archive": Reader(unpack_stl10, tar_seeds, tar_cases),
    "class folders": Reader(
        lambda folder: read_folder(folder, 8),
        lambda: picture_seeds(place="train/a/", others=class_files()),
        lambda: picture_cases("train/a/", class_files(), ("a folder",)),
    ),
    "class folders, cached": Reader(
        lambda folder: read_folder(folder, 8, cache=folder / "cache.safetensors"), cache_seeds, cache_cases
    ),
    "picture folder": Reader(lambda folder: pictures.image_folder(folder, 2), wide_and_other, picture_cases),
    "frames": Reader(lambda folder: load_frame(only(folder)), picture_seeds, picture_cases),
    # As many pixels as are allowed, of 32 bits, as they are in the file, as an array and in RGB.
    "photographs": Reader(read_scene_picture, wide_and_other, picture_cases, room=2 * ROOM),
    "pictures to zoom": Reader(
        quiet(zoom_masters.photographs),
        lambda: picture_seeds(others={"other.png": large_png()}),
        lambda: picture_cases(others={"other.png": large_png()}, without=("a folder",)),
    ),
    "depth": Reader(
        lambda folder: depth.read_depth(only(folder)),
        depth_seeds,
        lambda: {case: files for case, files in picture_cases().items() if "0001.png" in files},
    ),
    "OTB sequences": Reader(quiet(otb.read_sequences), otb_seeds, otb_cases),
    "results of trackers": Reader(read_others, result_seeds, result_cases),
    "tracker.json": Reader(
        read_tracker, tracker_seeds, lambda: as_file("tracker.json", absurd_json(), result_files()), writes=True
    ),
    "zoom.json": Reader(
        lambda folder: zoom._check_note(folder, zoom_note()),
        lambda: seeds_of({"zoom.json": json.dumps(zoom_note()).encode()}),
        lambda: as_file("zoom.json", absurd_json() | {"a folder": None}),
    ),
    "videos": Reader(footage, film_seeds, film_cases),
    "weights": Reader(lambda folder: read_weights(only(folder)), weight_seeds, weight_cases),
    "basis": Reader(lambda folder: Basis.load(folder / "a.safetensors"), basis_seeds, basis_cases),
    "dense basis": Reader(read_dense, dense_seeds, dense_cases),
    "hub folder": Reader(read_hub, hub_seeds, hub_cases),
    "run.json, test.json": Reader(read_run, record_seeds, record_cases),
    "networks of runs": Reader(read_network, network_seeds, network_cases),
    "answers.npz": Reader(read_answers, answer_seeds, answer_cases),
    "YAML settings": Reader(read_yaml, yaml_seeds, yaml_cases, named=False),
    "kept fields": Reader(read_fields, field_seeds, field_cases),
    "kept copies": Reader(seen_copies, copies_seeds, lambda: kept_cases(copies_seeds)),
    "kept windows": Reader(seen_windows, windows_seeds, lambda: kept_cases(windows_seeds)),
}


def large_png() -> bytes:
    packed = io.BytesIO()
    Image.fromarray(np.zeros((70, 70, 3), np.uint8)).save(packed, "PNG")
    return packed.getvalue()
