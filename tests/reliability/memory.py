"""What a process holds: bytes, file handles, threads, children; and how its bytes grow over the steps of its work."""

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

from tests.reliability.kills import ROOT, watched

_BLOCKS = 20  # of steps, of which the medians are taken
# A command in a process of its own, which notes its bytes whenever a method is called.
_PROGRAM = """
import importlib, json, sys
from tests.reliability import memory
target, method, leak, out, *words = sys.argv[1:]
module, _, name = target.rpartition(".")
if __name__ == "__main__":
    memory.run(getattr(importlib.import_module(module), name), method, int(leak), out, words)
"""


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held() -> dict[str, int]:
    """Open file handles, threads and child processes of this process."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "file handles": len(os.listdir("/proc/self/fd")) - 1,  # one to count them
        "threads": threading.active_count(),
        "children": len(children),
    }


def slope(seen: Sequence[int]) -> float:
    """Bytes by which each step of the second half adds to what is held: the median over pairs of blocks.

    Example:
        >>> slope([1000] * 100 + list(range(1000, 1300, 3)))
        3.0
    """
    half = np.asarray(seen[len(seen) // 2 :], float)
    blocks = np.array_split(half, min(_BLOCKS, len(half)))
    heights = [float(np.median(block)) for block in blocks]
    ends = np.cumsum([len(block) for block in blocks])
    places = [end - (len(block) - 1) / 2 for end, block in zip(ends, blocks, strict=True)]
    pairs = [(k, l) for k in range(len(blocks)) for l in range(k)]
    return float(np.median([(heights[k] - heights[l]) / (places[k] - places[l]) for k, l in pairs]))


def watched_run(out: Path, target: str, method: str, words: Sequence[object], *, leak: int = 0) -> dict[str, Any]:
    """Bytes at every call of a method while a command of `disco` runs, and what is held before and after it.

    Args:
        out: File for what was seen.
        target: The class, with its module.
        method: Its method.
        words: Of the command.
        leak: Bytes to be lost at every call, on purpose.
    """
    call = [sys.executable, "-c", _PROGRAM, target, method, str(leak), str(out), *map(str, words)]
    ended = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=watched())
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def run(kind: type, method: str, leak: int, out: str, words: list[str]) -> None:
    """What the other process does."""
    from scale_disco.cli import main

    seen, lost, called = [], [], getattr(kind, method)

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(resident())
        if leak:
            lost.append(np.ones(leak, np.uint8))
        return called(self, *arguments, **options)

    setattr(kind, method, counted)
    before = held()
    code = main(words)
    after = held()
    Path(out).write_text(json.dumps({"seen": seen, "before": before, "after": after}))
    raise SystemExit(code)
