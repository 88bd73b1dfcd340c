"""Resources of a process: resident memory, file handles, threads, children; and how memory grows with the steps."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.kills import ROOT, offline_environment

_BLOCKS = 20  # of steps, whose medians are compared
# A command in a process of its own, which measures its memory whenever a method is called.
_PROGRAM = """
import importlib, sys
from tests.reliability import memory
target, method, leak, out, *arguments = sys.argv[1:]
module, _, name = target.rpartition(".")
if __name__ == "__main__":
    memory.measure(getattr(importlib.import_module(module), name), method, int(leak), out, arguments)
"""


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_resources() -> dict[str, int]:
    """Count open file handles, threads and child processes of this process."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "file handles": len(os.listdir("/proc/self/fd")) - 1,  # listing them opens one
        "threads": threading.active_count(),
        "children": len(children),
    }


def bytes_per_step(memory: Sequence[int]) -> float:
    """Return the bytes that each step of the second half adds: the median over pairs of blocks (Theil-Sen).

    Example:
        >>> bytes_per_step([1000] * 100 + list(range(1000, 1300, 3)))
        3.0
    """
    half = np.asarray(memory[len(memory) // 2 :], float)
    blocks = np.array_split(half, min(_BLOCKS, len(half)))
    medians = [float(np.median(block)) for block in blocks]
    ends = np.cumsum([len(block) for block in blocks])
    centers = [end - (len(block) - 1) / 2 for end, block in zip(ends, blocks, strict=True)]
    pairs = [(k, l) for k in range(len(blocks)) for l in range(k)]
    return float(np.median([(medians[k] - medians[l]) / (centers[k] - centers[l]) for k, l in pairs]))


def measure_command(
    out: Path, target: str, method: str, arguments: Sequence[object], *, leak: int = 0
) -> dict[str, Any]:
    """Run `disco`; return its memory at every call of a method, and its open resources before and after.

    Args:
        out: File for the measurements.
        target: Class, with its module.
        method: Name of the method.
        arguments: Of the command.
        leak: Bytes to leak at every call, on purpose.
    """
    call = [sys.executable, "-c", _PROGRAM, target, method, str(leak), str(out), *map(str, arguments)]
    process = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=offline_environment())
    assert process.returncode == 0, process.stderr
    measured: dict[str, Any] = json.loads(out.read_text())
    return measured


def measure(kind: type, method: str, leak: int, out: str, arguments: list[str]) -> None:
    """Run the command in the process of `measure_command`."""
    from scale_disco.cli import main

    memory, leaked, original = [], [], getattr(kind, method)

    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        memory.append(resident_bytes())
        if leak:
            leaked.append(np.ones(leak, np.uint8))
        return original(self, *args, **kwargs)

    setattr(kind, method, measured)
    before = open_resources()
    code = main(arguments)
    after = open_resources()
    Path(out).write_text(json.dumps({"memory": memory, "before": before, "after": after}))
    raise SystemExit(code)
