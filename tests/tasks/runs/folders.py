"""Folders of runs with made-up results."""

from __future__ import annotations

import json

SCALES = [
    {"kind": "test", "low": 0.3, "high": 0.4, "images": 1000, "errors": 50},
    {"kind": "larger", "low": 1.0, "high": 1.2, "images": 100, "errors": 20},
]


def write_run(
    runs,
    name,
    settings,
    errors=None,
    *,
    done=None,
    complete=True,
    images=50_000,
    scales=SCALES,
    equivariance=0.02,
    seconds=90.0,
    metadata=None,
    **changed,
):
    """Write the folder of a run into `runs`, with a test if there are errors; `changed` overrides its record."""
    row = {"epoch": 1, "validation error": 0.02, "training loss": 0.1, "seconds": seconds}
    common = {"experiment": settings.experiment, "settings": settings.as_dict()}
    record = {
        "status": "running" if done else "finished",
        **common,
        "epochs": [row] * (settings.full_recipe.epochs if done is None else done),
        "results": {},
        "data": "data",
        "versions": {"torch": "2.4"},
        "machine": "abacus",
    } | ({} if metadata is None else {"facts": metadata})
    run = runs / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(record | changed))
    if errors is not None:
        tested = {
            **common,
            "checkpoint": "last",
            "images": images,
            "errors": errors,
            "complete": complete,
            "equivariance error": equivariance if "disco" in settings.model else None,
            "by scale": scales,
            "parameters": 494_549,
            "date": "2026-01-01",
        }
        (run / "test.json").write_text(json.dumps(tested))
    return runs


def cells(text, name):
    """Return the cells of a row of a Markdown table, by its first cell."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} ")]
    return [cell.strip() for cell in line.split("|")[1:-1]]
