"""All these tests are in the second tier; figures of the long suites: numbers of kills, inputs and bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["offline"]  # importing it cuts off the network
RecordFigures = Callable[..., None]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def record_figures() -> Iterator[RecordFigures]:
    """Call it as `record_figures("kills", "training", killed=12, resumed=12)`: figures of a row of a table.

    They are added to the JSON file named by the environment variable FIGURES, and dropped without it.
    """
    tables: dict[str, dict[str, Any]] = {}

    def add(table: str, row: str, **figures: Any) -> None:
        tables.setdefault(table, {})[row] = figures

    yield add
    if name := os.environ.get("FIGURES"):
        path = Path(name)
        before = json.loads(path.read_text()) if path.is_file() else {}
        merged = before | {table: before.get(table, {}) | rows for table, rows in tables.items()}
        path.write_text(json.dumps(merged, indent=1))
