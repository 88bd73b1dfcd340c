from __future__ import annotations

import functools
import json

import pytest

from scale_disco import Scales
from scale_disco.cli import main
from scale_disco.tasks.bench import command, timing
from scale_disco.tasks.bench.timing import LayerSetting


def test_a_custom_layer_is_timed(tmp_path, capfd):
    call = ["bench", "--batch", "1", "--channels", "2", "3", "--side", "12", "--scales", "1", "2", "--repeats", "2"]
    table, report = tmp_path / "costs.csv", tmp_path / "speed.md"
    assert main([*call, "--threads", "1", "--csv", str(table), "--out", str(report)]) == 0
    err = capfd.readouterr()
    assert "B1 2->3, 12x12, 3x3, {1, 2}" in err.out
    assert "|" not in err.out  # aligned columns, and what they mean
    assert "The lower bound is the plain F.conv2d calls" in err.out
    assert "\n| " in report.read_text()
    assert "profiler" not in err.err
    assert f"- Command: `disco {' '.join(call)} --threads 1 " in report.read_text()
    lines = table.read_text().splitlines()
    assert lines[0].startswith("part,case,pass,contender,median seconds")
    assert len(lines) == 1 + 4 + 5  # the header, forward and backward, forward with the baked layer


def test_both_grids_are_timed_side_by_side(capsys, monkeypatch):
    small = functools.partial(timing.grid_steps, batch=1, side=32)
    monkeypatch.setattr(timing, "grid_steps", lambda count, backward: small(count, backward=backward))
    monkeypatch.setattr(command, "_GRID_COUNTS", (2, 3))
    assert main(["bench", "--only", "grids", "--repeats", "2"]) == 0
    out = capsys.readouterr().out
    assert "Both grids, forward and backward" in out
    header, two, three = out.split("Both grids, forward\n\n")[1].split("\n\n")[1].splitlines()
    assert header.split("  ")[0] == "scales"
    assert "decimated grid" in header
    assert "full grid" in header
    assert (two.split()[0], three.split()[0]) == ("2", "3")
    flops = [float(line.split(")")[1].split()[0]) for line in (two, three)]
    assert 1.4 < flops[0] < flops[1] < 2  # 1 + 1/2, and 1/4 more


def test_cost_over_the_number_of_scales_is_plotted(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    small = {n: LayerSetting(1, 2, 2, 8, 3, Scales.geometric(2**0.5, n)) for n in range(1, 9)}
    monkeypatch.setattr(timing, "growth_setting", small.__getitem__)
    figure = tmp_path / "growth.png"
    assert main(["bench", "--only", "scales", "--repeats", "2", "--json", "--plot", str(figure)]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert {row["case"] for row in costs} == set("12345678")
    assert figure.read_bytes().startswith(b"\x89PNG")
