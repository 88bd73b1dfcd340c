"""`disco test`: test error of a trained network, also at scales outside the training range."""

import argparse
from pathlib import Path
from typing import Any

from ..tasks.io import terminal
from ..tasks.io.report import binomial_std, table
from ..tasks.runs.plots import Range, plot_error_over_scale
from ..tasks.scene.commands import test as scene_test

_EXAMPLES = """\
  disco test runs/mnist-disco-0-fast-0
  disco test runs/mnist-disco-0-fast-0 --plot scales.png --out scales.md
  disco test runs/stl10-disco-16-8-paper-0 --device cuda
  disco test scene --planes 40 --pretrained resnet50.safetensors
  disco test scene runs/scene-* --data images --planes 40 --depth depth --cache cache --out scene.md

`disco test scene` evaluates scale estimators and prints one table: those of runs of `disco train scene`, and others
that need no training. Each network sees every image once. Its features are stored in
--cache, so that the same call resumes after Ctrl-C.
"""

_OUTSIDE = 2000


def add(commands: Any) -> None:
    """Add the command to the parser."""
    test = terminal.add_command(commands, "test", run, "evaluate a trained network, also over scales", _EXAMPLES)
    runs = test.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run of `disco train`; or scene, then any number of such folders",
    )
    terminal.suggest(runs, ["scene"], folders=True)
    test.add_argument(
        "--data",
        "--root",
        type=Path,
        metavar="DIR",
        help="data folder (default: the training data; scene: none)",
    )
    checkpoint = test.add_argument("--checkpoint", help="best on validation, or last (default: the recipe's)")
    terminal.suggest(checkpoint, ["best", "last"])
    test.add_argument("--limit", type=int, metavar="N", help="maximum number of images of --data (default: all)")
    test.add_argument(
        "--outside",
        type=int,
        metavar="N",
        help=f"maximum number of images per test set outside the training scales (default {_OUTSIDE})",
    )
    scene_test.add(test)
    terminal.add_device(test)
    terminal.add_report(test)
    terminal.add_plot(test, "error vs. scale")


def run(options: argparse.Namespace) -> None:
    """Test, print and plot."""
    terminal.check_outputs(options)
    terminal.chosen_device(options)
    for name, least in (("limit", 1), ("outside", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    scene = options.runs[0] == "scene"
    for name in ("checkpoint", "outside") if scene else scene_test.OPTIONS:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is {'not ' if scene else ''}an option of disco test scene")
    if scene:
        scene_test.run(options)
    else:
        _classify(options)


def _classify(options: argparse.Namespace) -> None:
    """Test a classifier."""
    from ..tasks.runs.evaluate import bins_of, evaluate
    from ..tasks.runs.experiments import EXPERIMENTS, range_label

    if len(options.runs) > 1:
        raise ValueError(f"expected one RUN, got {len(options.runs)}; disco test scene takes several")
    with terminal.Progress("testing") as progress:
        result = evaluate(
            Path(options.runs[0]),
            data=options.data,
            checkpoint=options.checkpoint,
            limit=options.limit,
            outside=_OUTSIDE if options.outside is None else options.outside,
            device=terminal.chosen_device(options),
            progress=progress,
        )
    if result["not recorded"]:
        terminal.say(f"not recorded in the run: {result['not recorded']}")
    experiment = EXPERIMENTS[result["experiment"]]
    bins = bins_of(result)
    rows = [
        [range_label(each.low, each.high), each.kind, str(each.images), f"{each.error:.2%}", f"± {each.std:.2%}"]
        for each in bins
    ]
    header = [f"scale of {experiment.subject}", "set", "images", "error", ""]
    errors, images = result["errors"], result["images"]
    about = (
        f"{result['settings']['model']}, {result['checkpoint']} weights: {errors} errors on {images} test images, "
        f"{errors / images:.2%} ± {binomial_std(errors, images):.2%}"
    )
    terminal.show(options, result, f"{table(header, rows)}\n{about}")
    if options.out:
        text = f"{about}.\n\n{table(header, rows, markdown=True)}"
        title = f"Error vs. scale of {experiment.subject}"
        terminal.write_report(options.out, title, text, result, command=options.call)
    ranges = [Range(each.kind, each.low, each.high, each.error, each.std) for each in bins]
    curves = {result["settings"]["model"]: ranges}
    terminal.write_plot(options, lambda: plot_error_over_scale(curves, experiment.training_scales, experiment.subject))
