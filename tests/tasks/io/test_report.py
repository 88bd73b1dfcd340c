from __future__ import annotations

import datetime

import torch

from scale_disco.tasks.io.report import provenance, table


def test_markdown_tables_are_aligned():
    assert table(["a", "b"], [["x", "10"]], markdown=True).splitlines() == ["| a |  b |", "| - | -: |", "| x | 10 |"]


def test_provenance_names_command_versions_and_day():
    text = provenance("disco equivariance")
    for part in ("`disco equivariance`", torch.__version__, str(datetime.date.today()), "threads"):
        assert part in text
