"""Readers of images: folders, frames of sequences, photos, depth maps."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import save as save_tensors

from scale_disco.tasks.io import samples, textures
from scale_disco.tasks.io.images import is_image, load_frame, read_image, size_of
from scale_disco.tasks.scene import evaluation as depth
from scale_disco.tasks.stl10.folder import read_folder
from tests.reliability.malformed import MEMORY, Files, Reader, files_of, write_files
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import (
    DEPTH,
    GENERATOR,
    HUGE,
    as_file,
    header_seed,
    malformed_tensors,
    only_file,
)

CACHE = "cache.safetensors"


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    packed = io.BytesIO()
    image.save(packed, form, **options)
    return packed.getvalue()


@cache
def image_files() -> dict[str, bytes]:
    """Return images of all kinds, by suffixes that readers know."""
    image = Image.fromarray(GENERATOR.integers(0, 256, (40, 40, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngInfo()
    text.add_text("a", "b" * 100, zip=True)
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "bmp": (image, {}),
        "palette.bmp": (image.convert("P"), {}),
        "jpg": (image, {"exif": exif}),
        "cmyk.jpg": (image.convert("CMYK"), {}),
        "progressive.jpg": (image, {"progressive": True}),
        "png": (image, {"exif": exif}),
        "palette.png": (image.convert("P"), {"transparency": 3}),
        "bits.png": (image.convert("1"), {}),
        "alpha.png": (image.convert("RGBA"), {"pnginfo": text}),
        "ppm": (image, {}),
        "pgm": (image.convert("L"), {}),
        "tiff": (image, {"compression": "tiff_lzw"}),
        "deflate.tif": (image, {"compression": "tiff_adobe_deflate"}),
        "tif": (image.convert("L"), {}),
        "cmyk.tif": (image.convert("CMYK"), {"compression": "jpeg"}),
        "webp": (image, {"exif": exif}),
        "lossless.webp": (image.convert("RGBA"), {"lossless": True}),
    }
    forms = {"jpg": "JPEG", "tif": "TIFF", "pgm": "PPM"}
    files = {}
    for kind, (converted, options) in kinds.items():
        suffix = kind.rpartition(".")[2]
        files[kind] = encoded(converted, forms.get(suffix, suffix.upper()), **options)
    return files | {"long.png": png_of_false_length()}


@cache
def high_depth_files() -> dict[str, bytes]:
    """Return images of more than 8 bits per channel."""
    values = GENERATOR.integers(0, 65536, (40, 40), np.uint16)
    return {
        "png": encoded(Image.fromarray(values), "PNG"),
        "tif": encoded(Image.fromarray(values), "TIFF"),
        "integer.tif": encoded(Image.fromarray(values.astype(np.int32)), "TIFF"),
        "float.tif": encoded(Image.fromarray(values.astype(np.float32)), "TIFF"),
    }


def solid_png(value: int = 0, side: int = 40) -> bytes:
    return encoded(Image.fromarray(np.full((side, side, 3), value, np.uint8)), "PNG")


def with_checksums(content: bytes) -> bytes:
    """Correct the checksums of a PNG's chunks."""
    out, at = bytearray(content[:8]), 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        body = content[at + 4 : at + 8 + length]
        out += content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out + content[at:])


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, color: int = 2) -> bytes:
    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


@cache
def blank_png(side: int) -> bytes:
    """Return a large image of one color in a few kilobytes."""
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + packer.flush()
    return png(side, side, chunk(b"IDAT", rows), depth=1, color=0)


def png_of_false_size(side: int) -> bytes:
    return png(side, side, chunk(b"IDAT", zlib.compress(bytes(100))), depth=1, color=0)


def png_of_false_length() -> bytes:
    """Return an image that has all its pixels, and a chunk length beyond the end of the file."""
    whole = png(40, 40, chunk(b"IDAT", zlib.compress(bytes(40 * 121))))
    at = whole.index(b"IDAT")
    return whole[: at - 4] + struct.pack(">I", HUGE) + whole[at:]


def jpeg_of_false_size(side: int) -> bytes:
    content = image_files()["jpg"]
    at = content.index(b"\xff\xc0")
    return content[: at + 5] + struct.pack(">2H", side, side) + content[at + 9 :]


def tiff(*entries: tuple[int, int, int, int], after: bytes = b"") -> bytes:
    """Return a TIFF with any entries: tag, kind, count, value."""
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<2H2I", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + body + bytes(4) + after


def bmp(width: int, height: int, bits: int, compression: int, colors: int, pixels: bytes = b"") -> bytes:
    start = 54 + 4 * colors
    header = struct.pack("<3I2H6I", 40, width, height, 1, bits, compression, 0, 0, 0, colors, 0)
    return b"BM" + struct.pack("<3I", start, 0, start) + header + pixels


def malformed_images() -> dict[str, tuple[str, bytes | int | None]]:
    """Return suffix and content by case."""
    gray = [(258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    large, huge = ([(256, 4, 1, side), (257, 4, 1, side), *gray] for side in (9_000, 60_000))
    tiles = [(322, 4, 1, 1), (323, 4, 1, 1), (324, 4, 10**6, 8), (325, 4, 10**6, 8)]
    bomb = b"a\0\0" + zlib.compress(bytes(1 << 25))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n(ran) (w) file closefile\n"
    return {
        "a bomb of 60000 x 60000": ("png", png_of_false_size(60_000)),
        "a bomb of 2^31 x 2^31": ("png", png_of_false_size(2**31 - 1)),
        "a bomb just above the limit": ("png", blank_png(9_500)),
        "a text that unpacks to 32 megabytes": ("png", png(8, 8, chunk(b"zTXt", bomb))),
        "a color profile that unpacks to 32 megabytes": ("png", png(8, 8, chunk(b"iCCP", bomb))),
        "PPM of 60000 x 60000": ("ppm", b"P6 60000 60000 255\n"),
        "PPM of 9000 x 9000 without pixels": ("ppm", b"P6 9000 9000 255\n"),
        "PPM with an endless comment": ("ppm", b"P6 #" + b"x" * 1_000_000),
        "PPM in digits": ("ppm", b"P3 9000 9000 255\n" + b"1 " * 1000),
        "BMP of 60000 x 60000": ("bmp", bmp(60_000, 60_000, 24, 0, 0)),
        "BMP of runs": ("bmp", bmp(9_000, 9_000, 8, 1, 256, bytes(2048))),
        "TIFF of 60000 x 60000": ("tif", tiff(*huge, (273, 4, 1, 8), (278, 4, 1, 60_000), (279, 4, 1, 100))),
        "TIFF of a billion strips": ("tif", tiff(*huge, (273, 4, 10**9, 8), (279, 4, 10**9, 8))),
        "TIFF of tiles of 1 x 1": ("tif", tiff(*large, *tiles)),
        "TIFF with a cycle of pages": ("tif", b"II*\0" + struct.pack("<IHI", 8, 0, 8)),
        "JPEG of 65500 x 65500": ("jpg", jpeg_of_false_size(65_500)),
        "EPS with an image suffix": ("png", postscript),
        "PDF with an image suffix": ("jpg", b"%PDF-1.4\n"),
        "WMF with an image suffix": ("bmp", b"\xd7\xcd\xc6\x9a" + bytes(200)),
        "empty": ("png", b""),
        "text": ("png", b"not an image"),
        "larger than memory": ("png", HUGE),
        "larger than memory, PPM": ("ppm", HUGE),
        "a folder": ("png", None),
    }


def file_name(kind: str) -> str:
    return f"0001.{kind.rpartition('.')[2]}"


def image_seeds(
    kinds: dict[str, bytes] | None = None, place: str = "", others: dict[str, bytes] | None = None
) -> list[Seed]:
    seeds = []
    for kind, content in (image_files() if kinds is None else kinds).items():
        name = f"{place}{file_name(kind)}"
        files = {**(others or {}), name: content}
        seeds.append(Seed(files, name, content))
        if kind.endswith("png"):
            seeds.append(Seed(files, name, content, with_checksums))
    return seeds


def seeds_of_any_depth() -> list[Seed]:
    return [*image_seeds(), *image_seeds(high_depth_files())]


def image_cases(place: str = "", others: Files = {}, without: tuple[str, ...] = ()) -> dict[str, Files]:  # noqa: B006
    return {
        case: {**others, f"{place}{file_name(kind)}": content}
        for case, (kind, content) in malformed_images().items()
        if case not in without
    }


def class_files() -> dict[str, bytes]:
    return {f"{part}/{name}/0.png": solid_png() for part in ("train", "test") for name in "ab"}


def cache_seeds() -> list[Seed]:
    def write(folder: Path) -> None:
        write_files(folder, class_files())
        read_folder(folder, 8, cache=folder / CACHE)

    files = files_of(write)
    return [*seeds_of(files, CACHE), header_seed(files, CACHE)]


def cache_cases() -> dict[str, Files]:
    note = {"format": "scale-disco pictures 1", "key": "x"}
    foreign = {
        "no note": save_tensors({"a": np.zeros(2)}),
        "a deep note": save_tensors({"a": np.zeros(2)}, {"note": "[" * DEPTH}),
        "a note of another type": save_tensors({"a": np.zeros(2)}, {"note": json.dumps([note])}),
    }
    return as_file(CACHE, malformed_tensors() | foreign | {"a folder": None}, class_files())


def read_photo(folder: Path) -> None:
    path = only_file(folder)
    if not is_image(path):
        raise ValueError(f"{path} is a video")
    read_image(path, 100)
    assert min(size_of(path)) > 0
    without_suffix = path.with_suffix("")
    path.rename(without_suffix)
    try:
        is_image(without_suffix)
    finally:
        without_suffix.rename(path)


def without_warnings(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Wrap a reader that may warn of what it leaves out."""

    def quiet(folder: Path) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return read(folder)

    return quiet


LARGE = {"other.png": solid_png(side=70)}
READERS = {
    "class folders": Reader(
        lambda folder: read_folder(folder, 8),
        lambda: image_seeds(place="train/a/", others=class_files()),
        lambda: image_cases("train/a/", class_files(), ("a folder",)),
    ),
    "class folders, cached": Reader(
        lambda folder: read_folder(folder, 8, cache=folder / CACHE), cache_seeds, cache_cases
    ),
    "image folder": Reader(lambda folder: samples.image_folder(folder, 2), seeds_of_any_depth, image_cases),
    "frames": Reader(lambda folder: load_frame(only_file(folder)), image_seeds, image_cases),
    # As many pixels as are allowed, of 32 bits: as they are in the file, as an array and in RGB.
    "photos": Reader(read_photo, seeds_of_any_depth, image_cases, memory=2 * MEMORY),
    "images to zoom": Reader(
        without_warnings(textures.source_images),
        lambda: image_seeds(others=LARGE),
        lambda: image_cases(others=LARGE, without=("a folder",)),
    ),
    "depth": Reader(
        lambda folder: depth.read_depth(only_file(folder)),
        lambda: [seed for seed in image_seeds(high_depth_files()) if seed.name.endswith("png")],
        lambda: {case: files for case, files in image_cases().items() if "0001.png" in files},
    ),
}
