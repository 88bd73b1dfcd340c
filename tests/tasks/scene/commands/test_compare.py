"""`disco compare`: its outputs, and calls that are refused."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("PIL")

from PIL import Image

from scale_disco.cli import main
from scale_disco.tasks.io.images import size_of, to_image
from scale_disco.tasks.io.samples import photos


@pytest.fixture
def images(tmp_path):
    """A lawn, and the same lawn resized to half and to 3/4."""
    lawn = to_image((255 * photos()[5]).round().to(torch.uint8).expand(3, -1, -1))
    for name, side in (("lawn", 160), ("half", 80), ("three-quarters", 120)):
        lawn.resize((side, side), Image.Resampling.LANCZOS).save(tmp_path / f"{name}.png")
    return [tmp_path / f"{name}.png" for name in ("lawn", "half", "three-quarters")]


def call(capsys, *words, code=0):
    capsys.readouterr()
    assert main(["compare", *map(str, words)]) == code
    return capsys.readouterr()


def refused(capsys, *words, code=1):
    out, err = call(capsys, *words, code=code)
    assert out == ""
    assert err.startswith("disco compare: ")
    assert err.count("\n") == 1, err
    return err.removeprefix("disco compare: ").rstrip("\n")


def test_table_report_and_plot(images, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    report, plot = tmp_path / "report.md", tmp_path / "plot.png"
    out = call(capsys, *images, "--out", report, "--plot", plot).out
    header, first, half, *_ = out.splitlines()
    assert header.split() == ["image", "octaves", "uncertainty", "factor", "resize", "by"]
    assert first.split() == [str(images[0]), "+0.00", "0.00", "1", "1"]
    assert float(half.split()[1]) == pytest.approx(-1, abs=0.1)
    assert float(half.split()[4]) == pytest.approx(2, abs=0.15)
    assert f"| {images[1]}" in report.read_text()
    assert size_of(plot)[0] > 1000


def test_json(images, capsys):
    document = json.loads(call(capsys, *images, "--json").out)
    assert [row["image"] for row in document["images"]] == list(map(str, images))
    assert [row["octaves"] for row in document["images"]] == pytest.approx([0, -1, -0.415], abs=0.1)
    assert all(row["factor"] * row["resize"] == pytest.approx(1) for row in document["images"])
    assert all(0 < row["uncertainty"] < 0.5 for row in document["images"][1:])
    assert len(document["pairs"]) == 3


def test_refused(images, tmp_path, capsys):
    plain, small, damaged = (tmp_path / name for name in ("plain.png", "small.png", "damaged.png"))
    Image.new("RGB", (64, 64), "navy").save(plain)
    Image.open(images[0]).crop((0, 0, 40, 60)).save(small)
    damaged.write_bytes(b"no image")
    first = images[0]
    assert refused(capsys, first) == "IMAGES must be two or more, got 1"
    assert refused(capsys, first, tmp_path / "none.png") == f"IMAGES: no file {tmp_path / 'none.png'}"
    assert refused(capsys, first, plain).startswith(f"{plain} has no texture to compare")
    assert refused(capsys, first, small) == f"{small} is too small: 40 x 60 pixels, needs 48 each way"
    assert refused(capsys, first, damaged).startswith(f"cannot read {damaged}: not an image")
    assert "no file of weights" in refused(capsys, *images, "--pretrained", tmp_path / "none.pth")
    assert "is not available" in refused(capsys, *images, "--device", "cuda:7")
