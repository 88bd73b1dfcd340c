"""`disco table`: runs beside the paper's table."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from ..data.mnist_scale import FACTORS
from ..files import check_writable, write
from ..plots import Point, Range, check_picture, plot_equivariance_and_error, plot_error_over_scale, save_figure
from .terminal import add_command, add_out, add_plot, say, show

_EXAMPLES = """\
  disco table mnist-scale runs
  disco table mnist-scale runs --out table.md --plot table.png
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    table = add_command(commands, "table", run, "tested runs beside the paper's table", _EXAMPLES)
    table.add_argument("experiment", choices=["mnist-scale"], help="mnist-scale: Table 1")
    table.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, or folders that hold them")
    add_out(table, "the table: Markdown, or JSON if the name ends in .json")
    add_plot(table, "error over equivariance error")
    table.add_argument("--scales", type=Path, metavar="FILE", help="draw error over the scale of digits likewise")


def run(options: argparse.Namespace) -> None:
    """Collect, print, write and draw."""
    from ..training import table

    for picture in (options.plot, options.scales):
        if picture:
            check_picture(picture)
    if options.out:
        check_writable(options.out)
    sections = table.groups(table.outcomes(options.runs))
    parts = (table.table_of, table.gaps_of, table.scale_table_of, table.runs_of)
    text = "\n\n".join(
        "\n\n".join(part for part in (f"## {group.title}", *(make(group) for make in parts)) if part)
        for group in sections
    )
    document = [
        {
            "title": group.title,
            "runs": [
                {
                    "run": str(one.run),
                    "settings": dataclasses.asdict(one.settings),
                    "epochs": len(one.record["epochs"]),
                    "tested": one.tested,
                    "error": None if one.tested is None else one.error / 100,
                    "deviation": None if one.tested is None else one.deviation / 100,
                    "paper": table.PAPER[one.settings.model]._asdict(),
                }
                for one in group.outcomes
            ],
        }
        for group in sections
    ]
    show(options, document, text)
    if options.out:
        content = json.dumps(document, indent=1) if options.out.suffix == ".json" else text
        write(options.out, f"{content}\n".encode())
        say(f"written {options.out}")
    if options.plot:
        paper = [
            Point(row.name, row.equivariance, *row.plain)
            for row in table.PAPER.values()
            if row.plain is not None and row.equivariance is not None
        ]
        ours = [Point(*point) for group in sections for point in table.points_of(group)]
        save_figure(plot_equivariance_and_error(ours, paper), options.plot)
        say(f"drawn {options.plot}")
    if options.scales:
        several = len(sections) > 1
        curves = {
            f"{name} ({group.title})" if several else name: [
                Range(one.kind, one.low, one.high, one.error, one.deviation) for one in bins
            ]
            for group in sections
            for name, bins in table.scales_of(group).items()
        }
        save_figure(plot_error_over_scale(curves, FACTORS), options.scales)
        say(f"drawn {options.scales}")
