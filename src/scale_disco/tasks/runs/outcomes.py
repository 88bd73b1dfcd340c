"""What came out of runs, from the files in their folders."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..io.report import binomial_std
from .record import RECORD, read_record, read_tested, settings_of

MISSING = "missing"


@dataclass(frozen=True)
class Outcome:
    """A run, with what was measured on it if it was tested in whole."""

    run: Path
    settings: Any
    record: dict[str, Any]
    tested: dict[str, Any] | None

    @property
    def error(self) -> float:
        """In per cent."""
        assert self.tested is not None
        return 100 * float(self.tested["errors"]) / float(self.tested["images"])

    @property
    def deviation(self) -> float:
        """Binomial, in per cent."""
        assert self.tested is not None
        return 100 * binomial_std(self.tested["errors"], self.tested["images"])

    @property
    def seconds(self) -> float:
        """Of a middling epoch, validation included."""
        return float(statistics.median(row["seconds"] for row in self.record["epochs"]))

    @property
    def state(self) -> str:
        """Why there is no figure."""
        done, epochs = len(self.record["epochs"]), self.settings.full_recipe.epochs
        return f"{MISSING} (not tested)" if done == epochs else f"{MISSING} ({done} of {epochs} epochs)"


def outcomes(folders: Sequence[Path], experiment: str) -> list[Outcome]:
    """All runs of an experiment in these folders: runs themselves, or folders of runs; each once."""
    found: dict[Path, Outcome] = {}
    for folder in folders:
        runs = sorted(path.parent for path in folder.rglob(RECORD)) if folder.is_dir() else []
        if not runs:
            raise FileNotFoundError(f"{folder}: no training run in it: no {RECORD}")
        for run in runs:
            found.setdefault(run.resolve(), _outcome(run))
    chosen = [one for one in found.values() if one.settings.experiment == experiment]
    if not chosen:
        others = ", ".join(sorted({one.settings.experiment for one in found.values()}))
        raise ValueError(f"no run of {experiment} in {', '.join(map(str, folders))}: those are of {others}")
    return chosen


def _outcome(run: Path) -> Outcome:
    record, tested = read_record(run), read_tested(run)
    settings = settings_of(record)
    counts = tested is not None and tested["complete"] and tested["checkpoint"] == settings.full_recipe.weights
    return Outcome(run, settings, record, tested if counts else None)
