"""`disco table`: tested runs next to the paper's results."""

import argparse
import json
from pathlib import Path
from typing import Any

from ..files import write
from ..tasks.io.figures import check_figure, save_figure
from ..tasks.io.terminal import add_command, add_out, add_plot, check_outputs, say, show, write_plot
from ..tasks.runs.experiments import EXPERIMENTS, TABLES
from ..tasks.runs.plots import plot_equivariance_and_error, plot_error_over_scale

_EXAMPLES = """\
  disco table mnist-scale runs
  disco table mnist-scale runs --out table.md --plot table.png
  disco table stl10 runs --plot bases.png --scales scales.png
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    table = add_command(commands, "table", run, "compare evaluated runs with the paper's table", _EXAMPLES)
    table.add_argument("experiment", choices=[*TABLES], help="mnist-scale (Table 1) or stl10 (Tables 2 and 3)")
    table.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folders, or parent folders of runs; runs of other experiments are skipped",
    )
    add_out(table, "the table: Markdown, or JSON if the name ends in .json")
    add_plot(table, "error vs. equivariance error")
    table.add_argument("--scales", type=Path, metavar="FILE", help="also plot error vs. scale of images")


def run(options: argparse.Namespace) -> None:
    """Collect, print, write and plot."""
    from ..tasks.runs.tables import outcomes

    check_outputs(options)
    if options.scales:
        check_figure(options.scales)
    tables, experiment = TABLES[options.experiment], EXPERIMENTS[options.experiment]
    sections = tables.sort(outcomes(options.runs, options.experiment))
    text = "\n\n".join("\n\n".join((f"## {group.title}", *group.parts())) for group in sections)
    document = [
        {
            "title": group.title,
            "runs": [
                {
                    "run": str(outcome.run),
                    "settings": outcome.options.as_dict(),
                    "epochs": len(outcome.record["epochs"]),
                    "tested": outcome.tested,
                    "error": None if outcome.tested is None else outcome.error / 100,
                    "deviation": None if outcome.tested is None else outcome.std / 100,
                    "paper": tables.paper[outcome.options.model]._asdict(),
                }
                for outcome in group.outcomes
            ],
        }
        for group in sections
    ]
    show(options, document, text)
    if options.out:
        content = json.dumps(document, indent=1) if options.out.suffix == ".json" else text
        write(options.out, f"{content}\n".encode())
        say(f"wrote {options.out}")
    ours = [point for group in sections for point in group.points()]
    other = ", ".join(dict.fromkeys(name for group in sections if (name := group.other_data())))
    data = (other, tables.data_of_paper) if other else None
    write_plot(options, lambda: plot_equivariance_and_error(ours, tables.points_of_paper(), data))
    if options.scales:
        curves = {
            f"{name} ({group.title})" if len(sections) > 1 else name: curve
            for group in sections
            for name, curve in group.curves().items()
        }
        bars = "; ".join(dict.fromkeys(group.bars() for group in sections))
        save_figure(plot_error_over_scale(curves, experiment.training_scales, experiment.subject, bars), options.scales)
        say(f"wrote {options.scales}")
