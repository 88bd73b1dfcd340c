"""How long bases take to solve, support search included, and how much memory: writes results/solve.md.

Each setting runs in a process of its own. "First call" is the first basis of that process (libraries still
warming up), "again" the median of further solutions with the cache emptied.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scale_disco import DiscreteBasis, Scales
from scale_disco.basis import discrete
from scale_disco.files import written_atomically
from scale_disco.tasks.io.report import provenance, table

SETTINGS = {
    "3x3, {1, sqrt 2, 2}": (3, 2**0.5, 3, 2, "50 ms"),
    "7x7, {1, 2^(1/3), 2^(2/3), 2}": (7, 2 ** (1 / 3), 4, 2, "0.5 s"),
    "3x3, nine scales 2^(i/4)": (3, 2**0.25, 9, 2, "2 s"),
    "3x3x3, {1, sqrt 2, 2}": (3, 2**0.5, 3, 3, "5 s"),
}


def measure(name: str) -> dict[str, object]:
    kernel_size, step, count, dims, _ = SETTINGS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(12):
        discrete._SOLVED.clear()
        start = time.perf_counter()
        basis = DiscreteBasis(kernel_size, Scales.geometric(step, count), spatial_dims=dims)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "first": seconds[0],
        "again": statistics.median(seconds[1:]),
        "spread": [min(seconds[1:]), max(seconds[1:])],
        "before": before / 1024,
        "peak": peak / 1024,
        "support": basis.support,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/solve.md"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rows = []
    for name, (*_, target) in SETTINGS.items():
        done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        rows.append(
            [
                name,
                f"{1e3 * result['first']:.0f} ms",
                f"{1e3 * result['again']:.0f} ms ({1e3 * result['spread'][0]:.0f} to {1e3 * result['spread'][1]:.0f})",
                target,
                f"{result['peak']:.0f} MB",
                f"{result['before']:.0f} MB",
                ", ".join(map(str, result["support"])),
            ]
        )
    header = ["basis", "first call", "again", "target", "peak memory", "of it before solving", "sides"]
    text = (
        "# Time to solve a basis\n\n"
        "`DiscreteBasis(...)` with its defaults, the search for the support included. Every row is a process of its\n"
        "own: *first call* includes what the libraries do once, *again* is the median (smallest to largest) of eleven\n"
        "more with the cache emptied. Memory is the process's peak resident size; most of it is torch itself.\n\n"
        f"{provenance('python benchmarks/solve.py')}\n\n{table(header, rows, markdown=True)}\n"
    )
    with written_atomically(options.out) as draft:
        draft.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
