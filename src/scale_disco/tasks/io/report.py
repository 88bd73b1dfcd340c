"""Text of reports: tables, mean and standard deviation, provenance."""

import csv
import datetime
import math
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...files import written_atomically


def provenance(command: str) -> str:
    """Return Markdown lines with the command, versions, hardware and date of a result."""
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"- Command: `{command}`\n- Versions: {packages}\n- Hardware: {machine()}\n- Date: {today()}"


def environment() -> dict[str, Any]:
    """Return versions, machine and date, as documents and records hold them."""
    return {"versions": versions(), "machine": machine(), "date": today()}


def today() -> str:
    """Return the date in ISO 8601."""
    return datetime.date.today().isoformat()


def versions() -> dict[str, str]:
    """Return the versions of this package, torch, numpy and Python."""
    return {
        "scale-disco": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
    }


def machine() -> str:
    """Describe the processor, the number of torch threads and the GPU, if any."""
    name, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.is_file():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU used"
    return f"{name} ({os.cpu_count()} cores), {torch.get_num_threads()} threads, {gpu}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Align rows under a header: the first column left, the others right.

    Example:
        >>> print(table(["basis", "error"], [["discrete", "0.01"]]))
        basis     error
        discrete   0.01
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
    if markdown:
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the same keys as CSV, atomically."""
    with written_atomically(path) as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def mean_and_std(values: Sequence[float], *, least: float = 0.0) -> str:
    """Format mean and standard deviation with three significant digits of the mean; "0" if the mean is at most `least`.

    Example:
        >>> mean_and_std([0.0123, 0.0127])
        '0.0125 ± 0.0003'
    """
    mean = statistics.mean(values)
    if mean <= least:
        return "0"
    places = max(2 - math.floor(math.log10(mean)), 0)
    return f"{mean:.{places}f} ± {statistics.stdev(values):.{places}f}"


def binomial_std(errors: int, images: int) -> float:
    """Return the binomial standard deviation of an error rate.

    Example:
        >>> round(binomial_std(500, 50_000), 6)
        0.000445
    """
    rate = errors / images
    return math.sqrt(rate * (1 - rate) / images)
