"""docs/reliability.md: every guarantee names its tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| tests |" not in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_guarantee_names_existing_tests(row):
    _, _, tests, _ = row.split("|")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named
    assert len(named) == tests.count("`") // 2, "not a test"
    for file, name in named:
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{file} has no {name}"


def test_there_are_guarantees():
    assert len(ROWS) > 20
