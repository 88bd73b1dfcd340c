"""`disco test`: the error of a trained network, over the scale of images and outside the training range."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..files import check_writable
from ..plots import Range, check_picture, plot_error_over_scale, save_figure
from ..report import deviation, table
from .terminal import (
    Progress,
    add_command,
    add_device,
    add_plot,
    add_report,
    chosen_device,
    say,
    show,
    suggest,
    write_report,
)

_EXAMPLES = """\
  disco test runs/mnist-disco-0-fast-0
  disco test runs/mnist-disco-0-fast-0 --plot scales.png --out scales.md
  disco test runs/stl10-disco-16-8-paper-0 --device cuda
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    test = add_command(commands, "test", run, "error of a trained network, also over the scale of images", _EXAMPLES)
    test.add_argument("run_folder", type=Path, metavar="RUN", help="folder of a run of `disco train`")
    test.add_argument(
        "--data", "--root", type=Path, metavar="DIR", help="folder of the data (default: where the run had them)"
    )
    checkpoint = test.add_argument(
        "--checkpoint", help="weights: best on validation or last (default: those that the recipe names)"
    )
    suggest(checkpoint, ["best", "last"])
    test.add_argument("--limit", type=int, metavar="N", help="test images at most (default: all)")
    test.add_argument(
        "--outside",
        type=int,
        default=2000,
        metavar="N",
        help="images at most in each set of other scales than those in training (default 2000)",
    )
    add_device(test)
    add_report(test)
    add_plot(test, "the error over the scale")


def run(options: argparse.Namespace) -> None:
    """Measure, print and draw."""
    from ..training import EXPERIMENTS
    from ..training.evaluate import bins_of, evaluate
    from ..training.settings import span

    if options.plot:
        check_picture(options.plot)
    if options.out:
        check_writable(options.out)
    device = chosen_device(options)
    for name, least in (("limit", 1), ("outside", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    with Progress("testing") as progress:
        result = evaluate(
            options.run_folder,
            data=options.data,
            checkpoint=options.checkpoint,
            limit=options.limit,
            outside=options.outside,
            device=device,
            progress=progress,
        )
    if result["not recorded"]:
        say(f"not recorded in the folder of the run: {result['not recorded']}")
    experiment = EXPERIMENTS[result["experiment"]]
    bins = bins_of(result)
    rows = [
        [span(one.low, one.high), one.kind, str(one.images), f"{one.error:.2%}", f"± {one.deviation:.2%}"]
        for one in bins
    ]
    header = [f"scale of {experiment.subject}", "set", "images", "error", ""]
    errors, images = result["errors"], result["images"]
    about = (
        f"{result['settings']['model']}, {result['checkpoint']} weights: {errors} errors on {images} test images, "
        f"{errors / images:.2%} ± {deviation(errors, images):.2%}"
    )
    show(options, result, f"{table(header, rows)}\n{about}")
    if options.out:
        text = f"{about}.\n\n{table(header, rows, markdown=True)}"
        write_report(options.out, f"Error over the scale of {experiment.subject}", text, result, command=options.call)
    if options.plot:
        ranges = [Range(one.kind, one.low, one.high, one.error, one.deviation) for one in bins]
        curves = {result["settings"]["model"]: ranges}
        save_figure(plot_error_over_scale(curves, experiment.seen, experiment.subject), options.plot)
        say(f"drawn {options.plot}")
