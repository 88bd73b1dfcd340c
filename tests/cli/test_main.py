from __future__ import annotations

import subprocess
import sys

import pytest

from scale_disco.cli import main
from scale_disco.tasks.io import terminal

PROGRESS_DELAY = terminal.PROGRESS_DELAY  # before conftest.py changes it


def test_progress_is_shown_after_a_delay(capsys, monkeypatch):
    assert PROGRESS_DELAY <= 2
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.05)
    assert main(["basis", "--prior", "white", "--solver", "gradient", "--steps", "20"]) == 0
    assert "solving: " in capsys.readouterr().err


def test_interrupted_commands_exit_with_130(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scale_disco.tasks.equivariance.command.sample_images", interrupt)
    assert main(["equivariance"]) == 130
    assert capsys.readouterr().err.endswith("disco equivariance: stopped\n")


def test_disco_without_arguments_lists_commands(capsys):
    assert main([]) == 0
    err = capsys.readouterr().out
    assert "basis" in err
    assert "equivariance" in err


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="kernel_size"):
        main(["basis", "--kernel-size", "0", "--debug"])


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "scale_disco", "basis"], capture_output=True, text=True, check=True)
    assert "predicted equivariance error" in done.stdout
    assert done.stderr == ""
