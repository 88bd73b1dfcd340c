from __future__ import annotations

import json

import pytest

from scale_disco import Basis, DiscreteBasis, Scales
from scale_disco.cli import main
from scale_disco.equivariance import basis_error
from scale_disco.tasks.io.samples import photos
from tests.conftest import CUBE_ROOT_2, ROOT_2


def test_basis_prints_a_row_per_scale(capsys):
    assert main(["basis", "--scales", "1", "2^(1/2)", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["scale", "side", "dilation", "taps", "reach", "predicted", "error"]
    assert [line.split()[:5] for line in lines[1:4]] == [
        ["1", "3", "1", "9", "3"],
        ["1.414", "7", "1", "49", "7"],
        ["2", "3", "2", "9", "5"],
    ]
    assert (
        f"predicted equivariance error {DiscreteBasis(3, ROOT_2).error:.4g} (Eq. 14 for images of the prior)"
        in lines[4]
    )
    measured = basis_error(DiscreteBasis(3, ROOT_2), photos(), channels=8)
    assert lines[5] == f"measured equivariance error {measured:.4g} (Eq. 14 on the bundled photos)"


@pytest.mark.parametrize("call", ["--dims 1", "--dims 3 --kernel-size 2 --scales 1 2", "--scales 1 9", "--scales 1"])
def test_a_basis_that_photos_do_not_suit_is_not_measured(call, capsys):
    assert main(["basis", *call.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured error"] is None
    assert document["error"] >= 0


def test_basis_is_saved_loaded_and_plotted(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, figure = tmp_path / "basis.safetensors", tmp_path / "basis.png"
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
        str(figure),
    ]
    assert main([*call, "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert Basis.load(file).digest == DiscreteBasis(7, CUBE_ROOT_2).digest
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["basis", "--load", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == solved


def test_basis_by_gradient_descent(capsys):
    assert main(["basis", "--dims", "1", "--prior", "white", "--solver", "gradient", "--steps", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["steps"] == 3


def test_basis_is_solved_for_images(capsys):
    assert main(["basis", "--prior", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["prior"].startswith("images sha256:")
    assert main(["basis", "--prior", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["prior"] == 0.5


def test_loaded_basis_needs_the_images_of_its_prior(tmp_path, capsys):
    file = str(tmp_path / "basis.safetensors")
    assert main(["basis", "--prior", "photos", "--support", "5", "--save", file, "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert main(["basis", "--load", file]) == 0
    assert (
        "equivariance error not available: the file does not contain the images of its prior" in capsys.readouterr().out
    )
    assert main(["basis", "--load", file, "--prior", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] == pytest.approx(solved["error"])


@pytest.mark.parametrize("text", ["two", "1/0", "2^", "__import__('os')", "1e999999", "10^400"])
def test_invalid_scales_are_usage_errors(text, capsys):
    assert main(["basis", f"--scales={text}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("disco basis: --scales: expected a ")
    assert err.endswith(f", got {text!r}; see disco basis --help\n")
    assert err.count("\n") == 1


def test_scales_may_be_fractions_and_powers(capsys):
    assert main(["basis", "--scales", "1", "3/2", "2**0.75", "2^(5/4)", "--json"]) == 0
    scales = json.loads(capsys.readouterr().out)["spec"]["scales"]
    assert scales == list(Scales([1, 1.5, 2**0.75, 2**1.25]))
    assert main(["basis", "--scales", "1e1", "2e1"]) == 0
