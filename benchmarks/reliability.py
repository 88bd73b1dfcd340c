"""Run the long suites of tests/reliability, and print their figures as the tables of results/reliability.md.

Stops at a suite that fails. Figures are saved, so that suites can be run one by one:

    python benchmarks/reliability.py
    python benchmarks/reliability.py tests/reliability/test_kills.py
    python benchmarks/reliability.py --tables
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scale_disco.files import make_folder
from scale_disco.tasks.io.report import provenance, table

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "build" / "reliability.json"


def tables(suites: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a Markdown table per suite."""
    texts = []
    for suite, rows in suites.items():
        columns = list(dict.fromkeys(name for figures in rows.values() for name in figures))
        lines = [[row, *(_cell(figures.get(name)) for name in columns)] for row, figures in rows.items()]
        texts.append(f"## {suite.capitalize()}\n\n{table([suite, *columns], lines, markdown=True)}")
    return "\n\n".join(texts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help="test files (default: all of tests/reliability)")
    parser.add_argument("--tables", action="store_true", help="only print the tables of saved figures")
    options = parser.parse_args()
    if not options.tables:
        make_folder(FIGURES.parent)
        call = [sys.executable, "-m", "pytest", "-m", "slow", *(options.suites or ["tests/reliability"])]
        code = subprocess.run(call, cwd=ROOT, env={**os.environ, "FIGURES": str(FIGURES)}).returncode
        if code:
            return code
    print(f"{provenance('python benchmarks/reliability.py')}\n\n{tables(json.loads(FIGURES.read_text()))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
