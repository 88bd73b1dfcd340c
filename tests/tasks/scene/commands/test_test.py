"""`disco test scene`: all estimators in one table, on copies, planes and depth, and invalid calls."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from PIL import Image

from scale_disco.cli import main
from scale_disco.tasks.io import terminal
from scale_disco.tasks.scene import planes as scene_planes
from scale_disco.tasks.scene.commands import test as scene_test
from scale_disco.tasks.scene.networks import CHANNELS, SCALES, Backbone, ScaleEstimator
from scale_disco.tasks.scene.planes import planes
from scale_disco.tasks.scene.readout import READOUTS

BASELINES = ["no training, shift network", "Laplacian, largest", "Laplacian, mean"]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Planes of a few pixels."""
    monkeypatch.setattr(scene_test, "planes", lambda folder, count: planes(folder, count, width=96, height=64))
    monkeypatch.setattr(scene_test, "_WIDTH", 96)
    monkeypatch.setattr(scene_test, "_HEIGHT", 64)


@pytest.fixture
def processed(monkeypatch):
    """Shapes of the images that networks process."""
    shapes = []
    forward = Backbone.forward

    def counted(self, images):
        shapes.append(tuple(images.shape))
        return forward(self, images)

    monkeypatch.setattr(Backbone, "forward", counted)
    return shapes


@pytest.fixture
def images(tmp_path):
    """Images of noise, and one with depth."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    depth = np.linspace(1000, 4000, 64).astype(np.uint16)
    (tmp_path / "depth").mkdir()
    Image.fromarray(noise).save(tmp_path / "depth" / "room.jpg")
    Image.fromarray(np.tile(depth, (48, 1))).save(tmp_path / "depth" / "room_depth_mm.png")
    return folder


def call(capsys, *words, code=0):
    capsys.readouterr()
    assert main(["test", *map(str, words)]) == code
    return capsys.readouterr()


def refused(capsys, *words):
    out, err = call(capsys, *words, code=1)
    assert out == ""
    assert err.count("\n") == 1, err
    name = "disco test scene: " if words[0] == "scene" else "disco test: "
    assert err.startswith(name)
    return err.removeprefix(name).rstrip("\n")


def test_baselines_on_everything(images, tmp_path, capsys, processed):
    words = ["scene", "--data", images, "--limit", 2, "--planes", 2, "--depth", tmp_path / "depth", "--span", 0.5]
    words += ["--cache", tmp_path / "cache"]
    out, err = call(capsys, *words, "--json", "--out", tmp_path / "report.md", "--plot", tmp_path / "figure.png")
    document = json.loads(out)
    assert list(document["rows"]) == [*BASELINES, "constant"]
    assert (document["pictures"], document["planes"], document["depth"]) == (2, 2, 1)
    assert document["sizes"]["span"] == 0.5
    for name in BASELINES:
        row = document["rows"][name]
        assert row["ratio"]["pairs"] == 2 * 15 * 24
        assert len(row["planes"]["each"]) == 2
        assert -1 <= row["depth"]["median"] <= 1
    constant = document["rows"]["constant"]
    assert constant["ratio"]["error"] == constant["ratio"]["constant"] == row["ratio"]["constant"]
    assert constant["planes"] is None
    assert err.count("\n") == 2  # the files that it wrote
    report = (tmp_path / "report.md").read_text()
    assert re.search(r"^\| constant .* 1\.000 .*- \|$", report, flags=re.MULTILINE)
    assert "| photo with depth |" in report
    assert "| room " in report
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert len(processed) == 2 * 6 + 2 + 1

    processed.clear()
    again, _ = call(capsys, *words, "--json")
    assert json.loads(again) == document
    assert processed == []


def test_the_table_has_the_evaluated_columns(images, capsys):
    out, _ = call(capsys, "scene", "--planes", 1)
    header, *rows = out.splitlines()
    assert re.split(r"  +", header) == ["readout", "planes", "photograph", "slope on planes"]
    assert [row.split("  ")[0] for row in rows[:3]] == BASELINES
    assert rows[3].startswith("planes: median rank correlation")
    out, _ = call(capsys, "scene", "--data", images, "--limit", 1)
    header, *rows = out.splitlines()
    assert re.split(r"  +", header) == ["readout", "ratio error", "over constant", "correlation", "slope"]
    assert rows[3].split() == ["constant", rows[3].split()[1], "1.000", "0.000", "0.000"]


def test_runs_of_one_network_share_its_profiles(tmp_path, capsys, monkeypatch, processed):
    opened = []

    def scene_estimator(run, pretrained):
        opened.append((run.name, pretrained))
        torch.manual_seed(len(opened))
        return ScaleEstimator(Backbone(), READOUTS[run.name](CHANNELS, SCALES)).eval()

    monkeypatch.setattr("scale_disco.tasks.scene.training.scene_estimator", scene_estimator)
    runs = [tmp_path / "argmax", tmp_path / "equivariant", tmp_path / "other" / "argmax"]
    for run in runs:
        run.mkdir(parents=True)
    weights = tmp_path / "some.safetensors"
    weights.write_bytes(b"")
    out, err = call(capsys, "scene", *runs, "--planes", 2, "--pretrained", weights, "--json")
    assert opened == [(run.name, str(weights)) for run in runs]
    assert list(json.loads(out)["rows"]) == ["argmax", "equivariant", str(runs[2]), *BASELINES]
    assert len(processed) == 2
    assert "random" not in err


def test_progress_ends_at_one(images, tmp_path, capsys, monkeypatch):
    fractions = []
    monkeypatch.setattr(terminal.Progress, "__call__", lambda self, done, total: fractions.append(done / total))
    call(capsys, "scene", "--data", images, "--planes", 2, "--depth", tmp_path / "depth")
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert len(fractions) == 2 * 3 + 2 + 1
    assert math.isclose(fractions[2], fractions[5], rel_tol=0.01)  # the Laplacian takes almost no time


def test_planes_have_the_size_that_progress_assumes():
    assert (scene_planes.planes.__kwdefaults__["width"], scene_planes.planes.__kwdefaults__["height"]) == (640, 480)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("scene", "nothing to test on: pass --data DIR, --planes N or --depth DIR, or several"),
        ("scene --textures . --depth .", "--textures goes with --planes"),
        ("scene --planes 1 --span 1", "--span goes with --data"),
        ("scene --planes 1 --limit 1", "--limit goes with --data"),
        ("scene --planes 0", "--planes must be at least 1, got 0"),
        ("scene --data {tmp}/nowhere", "--data: no folder {tmp}/nowhere"),
        ("scene --depth {tmp}/images", "depth: no pairs of NAME.jpg and NAME_depth_mm.png in {tmp}/images"),
        ("scene --data {tmp}/images --span 7", "--span must be above 0 octaves and at most 2, got 7.0"),
        ("scene --planes 1 --textures {tmp}/nowhere", "--textures: no folder {tmp}/nowhere"),
        ("scene {tmp} --planes 1", "{tmp}: not a training run (run.json is missing)"),
        ("./scene", "RUN: no folder scene"),
    ],
)
@pytest.mark.usefixtures("images")
def test_invalid_calls_are_refused(words, line, tmp_path, capsys):
    error = refused(capsys, *words.replace("{tmp}", str(tmp_path)).split())
    assert error.startswith(line.replace("{tmp}", str(tmp_path)))
