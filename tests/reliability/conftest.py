"""Figures of the long suites: what was tried, and what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["watched"]  # to import it is to be watched
Note = Callable[..., None]


@pytest.fixture(scope="session")
def note() -> Iterator[Note]:
    """Call it as `note("kills", "training", killed=12, resumed=12)`: figures of a row in a part.

    They are added to the JSON file that the variable FIGURES names; without it they are not kept.
    """
    found: dict[str, dict[str, Any]] = {}

    def add(part: str, row: str, **figures: Any) -> None:
        found.setdefault(part, {})[row] = figures

    yield add
    if name := os.environ.get("FIGURES"):
        path = Path(name)
        before = json.loads(path.read_text()) if path.is_file() else {}
        both = before | {part: before.get(part, {}) | rows for part, rows in found.items()}
        path.write_text(json.dumps(both, indent=1))
