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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["basis", "--kernel-size", "0"], "kernel_size must be an integer >= 1, got 0"),
        (["basis", "--scales", "2", "1"], "ascending order, got 1 after 2"),
        (["basis", "--step", "2"], "--step and --count must be used together"),
        (["basis", "--step", "2", "--count", "3", "--scales", "1"], "not both"),
        (["basis", "--mode", "sinc"], "mode: expected one of"),
        (["basis", "--prior", "nowhere"], "nowhere"),
        (["basis", "--load", "nowhere.safetensors"], "no such file"),
        (["basis", "--load", "any.safetensors", "--kernel-size", "3"], "--kernel-size cannot be combined with --load"),
        (["basis", "--save", "nowhere/basis.safetensors"], "nowhere does not exist"),
        (["basis", "--save", "."], "it is a folder"),
        (["basis", "--plot", "figure"], "the name must end in .png, .svg, .pdf, got ''"),
        (
            ["basis", "--plot", "figure.png", "--dims", "3"],
            "--plot draws bases of 1 or 2 spatial dimensions, got --dims 3",
        ),
        (["basis", "--scales", "1", "1000.5"], "at most 8000 taps"),
        (["bench", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["bench", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["bench", "--model", "disco"], "create_model: expected one of mnist/cnn"),
        (["bench", "--model", "mnist/disco", "--side", "9"], "--model times a whole network: leave out --side"),
        (["bench", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["bench", "--channels", "3", "0"], "--channels must be at least 1, got [3, 0]"),
        (["bench", "--batch", "2", "--only", "layers"], "leave it out with a custom layer"),
        (["bench", "--only", "layers", "--plot", "figure.png"], "--plot draws the cost over the number of scales"),
        (["bench", "--csv", "nowhere/costs.csv"], "nowhere does not exist"),
        (["bench", "--extent", "4"], "scale extent must be an integer from 1 to 3"),
        (["equivariance", "--channels", "0"], "--channels must be at least 1, got 0"),
        (["equivariance", "--plot", "figure.txt"], "got '.txt'"),
        (["equivariance", "--images", "nowhere"], "nowhere"),
        (["equivariance", "--limit", "0"], "count must be at least 1"),
        (["equivariance", "--also", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith(f"disco {arguments[0]}: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


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
