"""`disco quickstart`: a tour of the library in minutes, with an HTML report."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from ..io.terminal import Progress, chosen_device, say, show
from .options import QuickstartOptions
from .tour import REPORT, QuickstartPlan, quickstart

_MAX_PROCESSES = 4  # by default: each needs half a gigabyte


def run(options: QuickstartOptions) -> None:
    """Measure and write the report; after Ctrl-C, the same command continues."""
    device = chosen_device(options.device)
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
