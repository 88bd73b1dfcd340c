"""Files written by version 0.1.0, before the package was divided into a core and tasks, still open.

`tests/fixtures` holds them: a finished run of two epochs, a run that was stopped after the first of 30 epochs (both of
digits/disco on 96 images of the split "mini"), a basis file and a hub folder.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from scale_disco import Basis, DiscreteBasis
from scale_disco.cli import main
from scale_disco.tasks.runs.record import read_record, read_tested
from tests.conftest import ROOT_2

FIXTURES = Path(__file__).with_name("fixtures")


@pytest.fixture
def finished(tmp_path):
    return shutil.copytree(FIXTURES / "finished", tmp_path / "finished")


@pytest.fixture
def stopped(tmp_path):
    return shutil.copytree(FIXTURES / "stopped", tmp_path / "stopped")


def test_record_and_test_of_a_finished_run_are_read(finished):
    record, tested = read_record(finished), read_tested(finished)
    assert record == json.loads((finished / "run.json").read_text())
    assert [row["validation error"] for row in record["epochs"]] == [0.90625, 0.875]
    assert (tested["images"], tested["errors"], tested["checkpoint"]) == (1500, 1311, "last")


@pytest.mark.parametrize("cached", [True, False])
def test_finished_run_is_tested_again(finished, data, cached, capsys):
    before = read_tested(finished)
    if not cached:
        (finished / "answers-last.npz").unlink()
    call = ["test", str(finished), "--data", str(data), "--outside", "16", "--json"]
    assert main(call) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == before.keys()
    assert result["not recorded"] is None
    assert result["equivariance error"] == pytest.approx(before["equivariance error"], rel=1e-4)
    assert result["errors"] == pytest.approx(before["errors"], abs=0 if cached else 2)  # rounding on other machines
    assert [row["images"] for row in result["by scale"]] == [row["images"] for row in before["by scale"]]


def test_best_weights_are_tested(finished, data, capsys):
    assert main(["test", str(finished), "--data", str(data), "--checkpoint", "best", "--limit", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 50


def test_finished_run_stands_in_its_table(finished, capsys):
    assert main(["table", "mnist-scale", str(finished)]) == 0
    out = capsys.readouterr().out
    assert "87.40" in out
    assert (
        "disco train mnist-scale --model digits/disco --split mini --recipe fast --epochs 2 --limit 96 --seed 0" in out
    )


def test_stopped_run_goes_on_to_its_last_epoch(stopped, data, capsys):
    pytest.importorskip("lightning", reason="training needs the extra `train`")
    with (stopped / "epochs.csv").open() as file:
        [first] = csv.DictReader(file)
    assert main(["train", "mnist-scale", "--resume", "--out", str(stopped), "--data", str(data)]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in printed[:-1]] == [f"epoch {epoch} of 30" for epoch in range(2, 31)]
    with (stopped / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == first
    assert [int(row["epoch"]) for row in rows] == list(range(1, 31))
    record = read_record(stopped)
    assert record["status"] == "finished"
    assert record["epochs"][1]["training loss"] == pytest.approx(3.0076, rel=1e-3)  # as the old code went on
    assert record["results"]["training loss"] == pytest.approx(1.2178, rel=0.05)


def test_basis_file_holds_the_same_stencils():
    old, new = Basis.load(FIXTURES / "basis.safetensors"), DiscreteBasis(3, ROOT_2)
    assert old.scales == new.scales
    assert [stencil.dilation for stencil in old.stencils] == [stencil.dilation for stencil in new.stencils]
    torch.testing.assert_close(old.dense(), new.dense(), rtol=0, atol=1e-10)


def test_hub_folder_gives_the_same_network():
    pytest.importorskip("huggingface_hub", reason="hub folders need the extra `hub`")
    from scale_disco.hub import ScaleModel

    model = ScaleModel.from_pretrained(FIXTURES / "hub").eval()
    with torch.no_grad():
        logits = model(torch.linspace(-1, 1, 28 * 28).reshape(1, 1, 28, 28).sin())
    old = [0.12756, 0.27707, 0.03173, 0.47403, 0.00048, 0.20737, -0.08625, 0.20029, -0.06678, 0.10085]
    torch.testing.assert_close(logits, torch.tensor([old]), rtol=0, atol=2e-4)
