"""`disco data`: create, download and verify data sets. Each data set has its part in the folder of its task."""

import argparse
from pathlib import Path
from typing import Any

from ..tasks.io.terminal import UsageError, add_command, add_out
from ..tasks.mnist_scale import command as mnist_scale
from ..tasks.stl10 import command as stl10
from ..tasks.tracking.commands import zoom

# A new data set joins by its module here: `OPTIONS` (which it takes), `add` (its own ones) and `run`.
_DATASETS = {"mnist-scale": mnist_scale, "stl10": stl10, "zoom": zoom}

_EXAMPLES = """\
  disco data mnist-scale --split mini
  disco data mnist-scale --split all --mnist my/mnist
  disco data mnist-scale --split 0 1 --download --out data
  disco data stl10 --root my/stl10_binary --check
  disco data stl10 --download --out data
  disco data zoom --images my/photos --out data/zoom
  disco data zoom --count 40 --test-count 8 --out data/zoom

STL-10 is an archive of 2.6 GB, of which 360 MB are extracted. An interrupted download is resumed. Nothing is downloaded
without --download.

zoom renders videos of objects that move and change in size, with exact boxes, in the layout of OTB: OUT/train and
OUT/test, which are cut from different images. Images directly in DIR are split between the two individually; those in a
subfolder of DIR may show the same object and stay together. After Ctrl-C, the same command continues where it stopped.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    data = add_command(commands, "data", run, "create, download or verify data sets", _EXAMPLES)
    data.add_argument("dataset", choices=[*_DATASETS], help="name of the data set")
    add_out(data, "the data to this folder (default data)", folder=True, default=Path("data"))
    source = data.add_mutually_exclusive_group()
    source.add_argument(
        "--download", action="store_true", help="download MNIST to OUT/mnist, or STL-10 to OUT/stl10_binary, first"
    )
    for name, module in _DATASETS.items():
        module.add(data.add_argument_group(f"options of {name}"), source)


def run(options: argparse.Namespace) -> None:
    """Create what is missing, verify what exists, and print both."""
    module = _DATASETS[options.dataset]
    for option in dict.fromkeys(option for each in _DATASETS.values() for option in each.OPTIONS):
        value = getattr(options, option[2:].replace("-", "_"), None)
        if value is not None and value is not False and option not in module.OPTIONS:
            raise UsageError(f"disco data: {option} is not an option of {options.dataset}; see disco data --help")
    module.run(options)
