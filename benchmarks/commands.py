"""How long `disco` takes to answer: help, a wrong call and a missing file, over starting Python.

    python benchmarks/commands.py --repeats 15 --out results/commands.md

All calls run once per round, in turn; times are medians, and ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scale_disco.tasks.io.report import provenance, table

PYTHON = 'python -c "import argparse"'
CALLS = {
    PYTHON: [sys.executable, "-c", "import argparse"],
    **{
        f"disco {words}".rstrip(): [sys.executable, "-m", "scale_disco", *words.split()]
        for words in (
            "",
            "train mnist-scale --help",
            "train stl10 --help",
            "scene nowhere.jpg",
            "train mnist-scale --epoch 3",
        )
    },
}


def seconds(call: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(call, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds = [{name: seconds(call) for name, call in CALLS.items()} for _ in range(options.repeats + 1)][1:]
    rows = []
    for name in CALLS:
        ratio = statistics.median(each[name] / each[PYTHON] for each in rounds)
        median = statistics.median(each[name] for each in rounds)
        rows.append([f"`{name}`", f"{median:.2f}", f"{ratio:.1f}"])
    text = table(["call", "seconds", f"over `{PYTHON}`"], rows, markdown=True)
    print(text)
    if options.out:
        command = f"python benchmarks/commands.py --repeats {options.repeats}"
        options.out.write_text(f"# Time to answer\n\n{provenance(command)}\n\n{__doc__.splitlines()[-1]}\n\n{text}\n")


if __name__ == "__main__":
    main()
