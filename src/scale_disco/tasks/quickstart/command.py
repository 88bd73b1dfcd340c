"""`disco quickstart`: everything once, in minutes, and a report for the browser."""

from __future__ import annotations

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

_MOST_PROCESSES = 4  # unless asked for more: each holds half a gigabyte


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "quickstart", run, "measure everything once in minutes, and write a report", _EXAMPLES
    )
    add_out(
        parser, "the report and all runs into this folder (default quickstart)", folder=True, default=Path("quickstart")
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="networks of each kind to train (default 3)")
    add_seed(parser, "the first of them")
    parser.add_argument("--epochs", type=int, metavar="N", help="another number of epochs (default 4)")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="training images at most, for trials (default all 2,500)"
    )
    processes = "networks trained at a time, on a thread each (default: a core for each, at most 4; 1 on a GPU)"
    parser.add_argument("--processes", type=int, metavar="N", help=processes)
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Measure and write; Ctrl-C leaves a report of what is done, and the same command goes on."""
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    if options.processes is not None and options.processes < 1:
        raise ValueError(f"--processes must be at least 1, got {options.processes}")
    device = chosen_device(options)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    plan = QuickstartPlan(
        options.out,
        seeds=tuple(range(options.seed, options.seed + options.seeds)),
        epochs=options.epochs,
        limit=options.limit,
        processes=options.processes or (min(cores, _MOST_PROCESSES) if device.type == "cpu" else 1),
        threads=options.threads or 1,
        device=str(device),
        call=options.call,
        first=None if shutil.which("disco") else f"source {shlex.quote(str(_activate()))}",
    )
    path = options.out / REPORT
    try:
        found = quickstart(plan, watch=Progress, say=say)
    except KeyboardInterrupt:
        if path.is_file():
            say(f"\nthe report so far is {path}; the same command goes on")
        raise
    hint = f" Before its commands: {plan.first}" if plan.first else ""
    show(options, found, f"The report is {path}: open it in a browser.{hint}")


def _activate() -> Path:
    """The file that puts this environment's commands on the path."""
    file = Path(sys.prefix) / "bin" / "activate"
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
