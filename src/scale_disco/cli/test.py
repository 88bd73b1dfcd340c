"""`disco test`: the error of a trained network, over the scale of digits and outside the training range."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from ..data.mnist_scale import FACTORS
from ..plots import Range, check_picture, plot_error_over_scale, save_figure
from ..report import deviation, table
from .terminal import Progress, add_command, say

_EXAMPLES = """\
  disco test runs/mnist-disco-0-fast-0
  disco test runs/mnist-disco-0-fast-0 --plot scales.png
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    test = add_command(commands, "test", run, "error of a trained network, also over the scale of digits", _EXAMPLES)
    test.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a run of `disco train`")
    test.add_argument("--data", type=Path, help="folder of the realisations (default: where the run had them)")
    test.add_argument(
        "--checkpoint", help="weights: best on validation (default for recipe paper) or last (default for fast)"
    )
    test.add_argument("--limit", type=int, metavar="N", help="test images at most (default: all)")
    test.add_argument(
        "--outside", type=int, default=2000, metavar="N", help="digits on either side of the training range"
    )
    test.add_argument("--threads", type=int, help="CPU threads")
    test.add_argument("--plot", type=Path, metavar="FILE", help="draw the error over the scale (.png, .svg or .pdf)")
    test.add_argument("--json", action="store_true", help="print figures as JSON")


def run(options: argparse.Namespace) -> None:
    """Measure, print and draw."""
    from ..training.evaluate import bins_of, evaluate

    if options.plot:
        check_picture(options.plot)
    for name, least in (("limit", 1), ("outside", 0), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    if options.threads:
        torch.set_num_threads(options.threads)
    with Progress("testing") as progress:
        result = evaluate(
            options.run_folder,
            data=options.data,
            checkpoint=options.checkpoint,
            limit=options.limit,
            outside=options.outside,
            progress=progress,
        )
    bins = bins_of(result)
    if options.json:
        print(json.dumps(result))
    else:
        rows = [
            [f"{one.low:g} to {one.high:g}", one.kind, str(one.images), f"{one.error:.2%}", f"± {one.deviation:.2%}"]
            for one in sorted(bins, key=lambda one: one.low)
        ]
        print(table(["scale of digits", "set", "images", "error", ""], rows))
        errors, images = result["errors"], result["images"]
        print(
            f"{result['settings']['model']}, {result['checkpoint']} weights: {errors} errors on {images} test images, "
            f"{errors / images:.2%} ± {deviation(errors, images):.2%}"
        )
    if options.plot:
        ranges = [Range(one.kind, one.low, one.high, one.error, one.deviation) for one in bins]
        save_figure(plot_error_over_scale({result["settings"]["model"]: ranges}, FACTORS), options.plot)
        say(f"drawn {options.plot}")
