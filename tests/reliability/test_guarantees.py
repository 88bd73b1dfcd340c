"""docs/reliability.md: every promise has a test, and the tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| held by |" not in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_promise_is_held_by_tests_that_are_there(row):
    _, _, held, _ = row.split("|")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held)
    assert named
    assert len(named) == held.count("`") // 2, "something else than a test"
    for file, name in named:
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{file} has no {name}"


def test_there_are_promises():
    assert len(ROWS) > 20
