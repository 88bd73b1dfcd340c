"""Files in STL-10's binary format, written byte by byte from its description, without the reader's arithmetic."""

from __future__ import annotations

import hashlib
import io
import tarfile

import numpy as np

NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


def pixels(count, seed=0):
    """Images uint8 [N, 96, 96, 3]: row, column, color."""
    return np.random.default_rng(seed).integers(0, 256, (count, 96, 96, 3), np.uint8)


def image_bytes(image):
    """Red, then green, then blue; of each, all rows of column 0, then of column 1..."""
    out = bytearray()
    for color in range(3):
        for column in range(96):
            out += bytes(image[row, column, color] for row in range(96))
    return bytes(out)


def files(train=4, test=3, seed=0):
    """The files by name; the label of image k is k modulo 10."""
    made = {"class_names.txt": "".join(f"{name}\n" for name in NAMES).encode()}
    for part, count in (("train", train), ("test", test)):
        made[f"{part}_X.bin"] = b"".join(image_bytes(image) for image in pixels(count, seed + (part == "test")))
        made[f"{part}_y.bin"] = bytes(k % 10 + 1 for k in range(count))
    made["fold_indices.txt"] = "".join(f"{k % train} {(k + 1) % train} \n" for k in range(10)).encode()
    return made


def write(folder, made):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder


def md5(content):
    return hashlib.md5(content).hexdigest()


def member(name, content=b"", **fields):
    """A member of an archive, of any kind."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def packed(members):
    """An archive of members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
