"""The examples run, and print and write what their docstrings say."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scale_disco.models import create_model
from tests.conftest import PATIENCE

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).resolve().parents[1] / "examples"
COMMANDS = {  # those of examples/README.md; each is run below
    "classify.py": "python examples/classify.py",
    "segment.py": "python examples/segment.py --plot zeros.png",
    "convert.py": "python examples/convert.py",
    "own_pictures.py": "python examples/own_pictures.py",
    "track.py": "python examples/track.py",
    "scene.py": "python examples/scene.py --plot plane.png",
    "check_equivariance.py": "python examples/check_equivariance.py",
    "export_onnx.py": "python examples/export_onnx.py",
}


def need(extra, *modules):
    for module in modules:
        pytest.importorskip(module, reason=f"needs scale-disco[{extra}]")


def run(folder, command):
    """Return the output of a command, run in a folder on one core."""
    _, script, *options = shlex.split(command)
    words = [sys.executable, FOLDER.parent / script, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no notices of other packages
    return done.stdout


def figures(printed):
    """Rows of a printed table by name; cells are separated by two spaces."""
    cells = [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if "  " in line.strip()]
    return {name: [float(cell) for cell in row] for name, *row in cells[1:]}


def test_commands_match_the_readme():
    assert re.findall(r"^\| \[(.+?)\].*\| `(.+?)` \|$", (FOLDER / "README.md").read_text(), flags=re.MULTILINE) == list(
        COMMANDS.items()
    )
    assert {path.name for path in FOLDER.glob("*.py")} == set(COMMANDS)


def test_classify(tmp_path):
    need("demo", "mlxtend")
    rows = figures(run(tmp_path, COMMANDS["classify.py"]))
    ordinary, equivariant = rows["ordinary"], rows["equivariant"]
    assert ordinary[0] == equivariant[0]  # weights
    assert min(ordinary[1], equivariant[1]) > 75  # both work at the trained heights
    assert all(mine > other + 5 for mine, other in zip(equivariant[-3:], ordinary[-3:], strict=True))
    assert all(0 <= accuracy <= 100 for accuracy in ordinary[1:] + equivariant[1:])


def test_segment(tmp_path):
    need("demo", "mlxtend")
    need("plot", "matplotlib", "PIL")
    rows = figures(run(tmp_path, COMMANDS["segment.py"]))
    ordinary, equivariant = rows["ordinary"], rows["equivariant"]
    assert ordinary[0] == equivariant[0]
    assert min(ordinary[2], equivariant[2]) > 60  # at a trained height
    assert all(mine > other + 5 for mine, other in zip(equivariant[-2:], ordinary[-2:], strict=True))
    from PIL import Image

    with Image.open(tmp_path / "zeros.png") as image:
        assert len(image.convert("L").getcolors()) > 50  # something is drawn


@pytest.mark.parametrize(
    ("script", "module", "extra"),
    [
        ("segment.py", "matplotlib", "plot"),
        ("export_onnx.py", "onnxruntime", "onnx"),
        ("own_pictures.py", "lightning", "train,plot"),
        ("track.py", "PIL", "plot"),
    ],
)
def test_missing_extras_are_named_in_one_line(script, module, extra, tmp_path):
    (tmp_path / f"{module}.py").write_text(f"raise ImportError('no {module}', name='{module}')")
    _, path, *options = shlex.split(COMMANDS[script])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, FOLDER.parent / path, *options]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(rf'.* needs {module}: pip install "scale-disco\[{extra}\]" \(no {module}\)\n', done.stderr)


def test_own_pictures_on_generated_images(tmp_path):
    need("train", "lightning")
    need("plot", "PIL")
    printed = run(tmp_path, COMMANDS["own_pictures.py"])
    assert len(re.findall("^(?:ordinary|DISCO), epoch . of 8: loss", printed, re.MULTILINE)) == 16
    rows = figures(printed[printed.index("network ") :])
    ordinary, equivariant = rows["ordinary"], rows["DISCO"]
    assert ordinary[0] == equivariant[0]
    assert min(ordinary[3], equivariant[3]) > 85  # at the trained size
    assert equivariant[-1] > ordinary[-1] + 5  # at twice that
    assert sum(equivariant[1:]) > sum(ordinary[1:]) + 10
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("classes", "accuracies"), [("", {0, 50, 100}), ("train/", {0, 25, 50, 75, 100})])
def test_own_pictures_on_a_folder(classes, accuracies, tmp_path):
    """Class folders, one test image of each, or train and test folders with two each."""
    need("train", "lightning")
    need("plot", "PIL")
    from PIL import Image

    root = tmp_path / "images"
    for name, contrast in (("rough", 64), ("smooth", 8)):
        (root / classes / name).mkdir(parents=True)
        for index in range(2):
            Image.effect_noise((48 + index, 40), contrast).save(root / classes / name / f"{index}.png")
    if classes:
        shutil.copytree(root / "train", root / "test")
    printed = run(tmp_path, f"{COMMANDS['own_pictures.py']} images --side 16 --epochs 1")
    rows = figures(printed[printed.index("network ") :])
    assert all(len(row) == 5 and set(row) <= accuracies for _, *row in rows.values())


def test_own_pictures_on_a_missing_folder(tmp_path):
    need("train", "lightning")
    words = [sys.executable, FOLDER / "own_pictures.py", "nowhere"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "folder: no folder nowhere\n")


def ends(printed):
    """Size errors in octaves and mean overlaps, by tracker."""
    lines = re.findall(r"^(\S+): size error (\S+) octaves, overlap (\S+), \S+ s per frame$", printed, re.MULTILINE)
    return {name: (float(octaves), float(overlap)) for name, octaves, overlap in lines}


def test_track(tmp_path):
    need("plot", "PIL")
    printed = run(tmp_path, COMMANDS["track.py"])
    rows = figures(printed)
    assert list(rows) == [str(frame) for frame in range(1, 16)]
    assert rows["15"][0] > 1.5  # true size
    assert rows["15"][1] > 1.4  # DISCO's
    means = ends(printed)
    assert means["DISCO"][0] < 0.75 * means["SiamFC+"][0]
    assert means["DISCO"][1] > means["SiamFC+"][1] + 0.1
    assert not any(tmp_path.iterdir())


def test_track_with_weights(tmp_path):
    """Those of a file; the default are those that come with the package."""
    need("plot", "PIL")
    torch.manual_seed(0)
    for name, pretrained in (("packaged", True), ("random", None)):
        torch.save(create_model("track/siamfc+", pretrained=pretrained).state_dict(), tmp_path / f"{name}.pt")
    default, packaged, random = (
        figures(run(tmp_path, f"{COMMANDS['track.py']} --frames 2 --seed 0 {options}"))
        for options in ("", "--pretrained packaged.pt", "--pretrained random.pt")
    )
    assert default == packaged
    assert default != random
    assert len(default) == 1
    words = [sys.executable, FOLDER / "track.py", "--pretrained", "nowhere"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "nowhere" in done.stderr


def ranks(printed):
    """The rank correlation of estimated and true sizes."""
    return float(re.findall(r"^rank correlation (\S+) over the whole image", printed, re.MULTILINE)[0])


def test_scene(tmp_path):
    need("plot", "matplotlib", "PIL")
    printed = run(tmp_path, COMMANDS["scene.py"])
    rows = list(figures(printed).values())
    true, estimated = zip(*rows, strict=True)
    assert len(rows) == 8
    assert true[-1] > 4 * true[0]
    assert estimated[-1] > 2 * estimated[0]
    assert ranks(printed) > 0.9
    from PIL import Image

    with Image.open(tmp_path / "plane.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [("--pretrained nowhere", "nowhere"), ("--ratio 0.5", "ratio"), ("--plot plane.txt", "plane.txt")],
)
def test_scene_with_invalid_options(options, message, tmp_path):
    need("plot", "matplotlib", "PIL")
    words = [sys.executable, FOLDER / "scene.py", *options.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert message in done.stderr


def test_check_equivariance(tmp_path):
    printed = run(tmp_path, COMMANDS["check_equivariance.py"])
    rows = figures(printed)
    assert len(rows) == 7
    relative = {name: row.pop() for name, row in rows.items()}
    assert max(relative[name] for name in ("ScaleLift2d", "custom attention", "network with ScaleBlurPool2d")) < 0.2
    assert relative["nn.Conv2d at every scale"] == 1
    assert rows["ScaleLift2d"][1] < 1e-10
    assert rows["custom attention"][1] < 1e-9
    assert max(rows["network with ScaleBlurPool2d"]) < 0.02
    plain = rows["nn.Conv2d, the same kernels"]
    assert all(mine < other / 3 for mine, other in zip(rows["ScaleLift2d"], plain, strict=True))
    strides, blurred = rows["network with strides"], rows["network with ScaleBlurPool2d"]
    assert all(other > 10 * mine for mine, other in zip(blurred, strides, strict=True))
    assert "nn.Conv2d: relative equivariance error" in printed


def test_export_onnx(tmp_path):
    need("onnx", "onnx", "onnxscript", "onnxruntime")
    rows = figures(run(tmp_path, COMMANDS["export_onnx.py"]))
    assert list(rows) == ["1 x 3 x 64 x 64", "4 x 3 x 96 x 128"]
    for difference, *ratios in rows.values():
        assert difference < 1e-5
        assert len(ratios) == 2
        assert min(ratios) > 0
    assert (tmp_path / "network.onnx").stat().st_size > 100_000


def first_scale(printed):
    """The projection point of a converted network, and the difference of its first scale from the original."""
    place, difference = re.findall(r"^scales are reduced (.+); the first differs .* by (\S+)$", printed, re.MULTILINE)[
        0
    ]
    return place, float(difference)


def test_convert_digits(tmp_path):
    need("demo", "mlxtend")
    printed = run(tmp_path, COMMANDS["convert.py"])
    place, difference = first_scale(printed)
    assert place == "after fc"
    assert difference < 1e-5
    rows = figures(printed)
    assert min(row[0] for row in rows.values()) > 85
    assert rows["converted"][-1] > rows["original"][-1] + 20
    assert rows["converted, fine-tuned"][-1] > rows["original, fine-tuned"][-1] + 20


@pytest.fixture
def convert():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("convert", FOLDER / "convert.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def arguments(tmp_path):
    """Arguments for a ResNet-18 with random weights, and two images of each of two classes, blue and red."""
    need("plot", "PIL")
    from PIL import Image

    weights, folder = tmp_path / "weights.pt", tmp_path / "images"
    torch.save(create_model("resnet18/cnn").state_dict(), weights)
    for name, color in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (folder / name).mkdir(parents=True)
        for index in range(2):
            Image.new("RGB", (48 + index, 40), color).save(folder / name / f"{index}.png")
    named = {"--pretrained": weights, "--network": "resnet18", "--images": folder, "--side": 32, "--steps": 1}
    return [str(word) for option in named.items() for word in option]


def test_convert_on_a_folder(convert, arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convert", *arguments])
    convert.main()
    printed = capsys.readouterr().out
    place, difference = first_scale(printed)
    assert place == "after fc"
    assert difference < 1e-5
    rows = figures(printed)
    assert len(rows) == 4
    assert all(accuracy in (0, 50, 100) for row in rows.values() for accuracy in row)  # of two images


def test_images_are_preprocessed_for_the_weights(convert, arguments):
    weights = torch.load(arguments[1])
    red = {False: [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], True: [-103.939, -116.779, 255 - 123.68]}
    for caffe, pixel in red.items():
        options = convert.argparse.Namespace(pretrained=arguments[1], network="resnet18", caffe=caffe, side=32)
        options.images = Path(arguments[5])
        task = convert.image_classes(options)
        assert torch.equal(task.network.layer4[0].conv1.weight, weights["layer4.0.conv1.weight"])
        assert task.drawn(slice(task.tests)).shape == (2, 3, 32, 32)
        assert task.drawn(slice(task.tests, None), 2).shape == (2, 3, 64, 64)
        for image in task.drawn(slice(4))[task.labels == 1]:
            torch.testing.assert_close(image, torch.tensor(pixel)[:, None, None].expand_as(image))


@pytest.mark.parametrize("options", [["--pretrained", "timm"], ["--images", "."], ["--steps", "0"]], ids=str)
def test_incompatible_options_raise(convert, options, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convert", *options])
    with pytest.raises(SystemExit):
        convert.main()
    assert "--pretrained and --images must be given together, and --steps must be at least 1" in capsys.readouterr().err
