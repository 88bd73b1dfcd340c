"""Training for a few steps, through the command."""

from __future__ import annotations

from scale_disco.cli import main

TRIAL = ["--split", "mini", "--limit", "96", "--threads", "1"]


def train(data, out, *arguments):
    return main(["train", "mnist-scale", "--data", str(data), "--out", str(out), *TRIAL, *map(str, arguments)])


def assert_one_line(capsys, command, message):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"disco {command}")
    assert err.count("\n") == 1, err
    assert message in err
