"""`disco table`: runs beside the paper's table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..files import check_writable, written_atomically
from ..plots import Point, check_picture, plot_equivariance_and_error, save_figure
from .terminal import add_command, say

_EXAMPLES = """\
  disco table mnist-scale runs
  disco table mnist-scale runs --out table.md --plot table.png
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    table = add_command(commands, "table", run, "tested runs beside the paper's table", _EXAMPLES)
    table.add_argument("experiment", choices=["mnist-scale"], help="mnist-scale: Table 1")
    table.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, or folders that hold them")
    table.add_argument("--out", type=Path, metavar="FILE", help="write the table as Markdown")
    table.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw error over equivariance error (.png, .svg or .pdf)"
    )


def run(options: argparse.Namespace) -> None:
    """Collect, print, write and draw."""
    from ..training.table import PAPER, gaps_of, groups, outcomes, points_of, runs_of, table_of

    if options.plot:
        check_picture(options.plot)
    if options.out:
        check_writable(options.out)
    sections = groups(outcomes(options.runs))
    text = "\n\n".join(
        "\n\n".join(part for part in (f"## {group.title}", table_of(group), gaps_of(group), runs_of(group)) if part)
        for group in sections
    )
    print(text)
    if options.out:
        with written_atomically(options.out) as draft:
            draft.write_text(f"{text}\n")
        say(f"written {options.out}")
    if options.plot:
        paper = [
            Point(row.name, row.equivariance, *row.plain) for row in PAPER.values() if row.equivariance is not None
        ]
        ours = [Point(*point) for group in sections for point in points_of(group)]
        save_figure(plot_equivariance_and_error(ours, paper), options.plot)
        say(f"drawn {options.plot}")
