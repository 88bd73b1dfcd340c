"""`disco quickstart`: a tour of the library in minutes, with an HTML report."""

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from ..io.terminal import Progress, add_command, add_device, add_out, add_seed, chosen_device, say, show
from . import REPORT, QuickstartPlan, quickstart

_EXAMPLES = """\
  disco quickstart
  disco quickstart --out first-look --seeds 1
  disco quickstart --seeds 5 --processes 8
"""

_MAX_PROCESSES = 4  # by default: each needs half a gigabyte


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "quickstart", run, "measure and train in minutes, and write a report", _EXAMPLES)
    about = "the report and all runs to this folder (default quickstart)"
    add_out(parser, about, folder=True, default=Path("quickstart"))
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of seeds per network (default 3)")
    add_seed(parser, "the first network of each kind")
    parser.add_argument("--epochs", type=int, metavar="N", help="number of epochs (default 4)")
    parser.add_argument("--limit", type=int, metavar="N", help="maximum number of training images (default 2,500)")
    about = "networks trained concurrently, one thread each (default: the number of cores, at most 4; 1 on a GPU)"
    parser.add_argument("--processes", type=int, metavar="N", help=about)
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Measure and write the report; after Ctrl-C, the same command continues."""
    for name in ("seeds", "processes"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    device = chosen_device(options)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    activate = Path(sys.prefix) / "bin" / "activate"
    activate = activate.relative_to(Path.cwd()) if activate.is_relative_to(Path.cwd()) else activate
    plan = QuickstartPlan(
        options.out,
        seeds=tuple(range(options.seed, options.seed + options.seeds)),
        epochs=options.epochs,
        limit=options.limit,
        processes=options.processes or (min(cores, _MAX_PROCESSES) if device.type == "cpu" else 1),
        threads=options.threads or 1,
        device=str(device),
        call=options.call,
        activate=None if shutil.which("disco") else f"source {shlex.quote(str(activate))}",
    )
    path = options.out / REPORT
    try:
        document = quickstart(plan, watch=Progress, say=say)
    except KeyboardInterrupt:
        if path.is_file():
            say(f"\nthe report so far is {path}; the same command continues")
        raise
    hint = f" Before its commands, run: {plan.activate}" if plan.activate else ""
    show(options, document, f"The report is {path}: open it in a browser.{hint}")
