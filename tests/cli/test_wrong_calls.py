"""Wrong calls of every command: each is answered by one line that says what to do."""

from __future__ import annotations

import shlex

import pytest

from scale_disco.cli import main
from tests.cli.commands import BY_NAME

# Call, exit code (2: usage, 1: a value or file), and what the line says.
CALLS = [
    ("bassis", 2, 'disco: unknown command "bassis", did you mean "basis"?; see disco --help'),
    ("xyzzy --quiet", 2, 'disco: unknown command "xyzzy"; see disco --help'),
    ("--quiet", 2, "disco: unknown"),
    ("basis --kernelsize 3", 2, "unknown option: --kernelsize, did you mean --kernel-size?; see disco basis --help"),
    ("basis 3", 2, "disco basis: unexpected argument '3'; see disco basis --help"),
    ("basis --kernel-size three", 2, 'invalid value for --kernel-size: unable to convert "three" into int; see'),
    ("basis --plot", 2, "disco basis: --plot requires a value; see disco basis --help"),
    ("basis --kernel-size 2.5", 2, 'invalid value for --kernel-size: unable to convert "2.5" into int; see'),
    ("basis --scales --dims 1", 2, "disco basis: --scales requires a value; see disco basis --help"),
    ("basis --support 3 2.5", 2, 'invalid value for --support: unable to convert "2.5" into int; see'),
    ("basis --mode sinc", 2, 'invalid value "sinc" for --mode, choose from: "nearest", "nearest-exact", "linear"'),
    ("basis --scales 1 2^^2", 2, "--scales: expected a number such as 1.5, 3/2, 2^0.5 or 2^(1/3), got '2^^2'; see"),
    ("basis --step 1/0 --count 2", 2, "--step: expected a finite number, got '1/0'"),
    ("basis --kernel-size 0", 1, "kernel_size must be an integer >= 1, got 0"),
    ("basis --scales 2 1", 1, "ascending order, got 1 after 2"),
    ("basis --scales 1 1000.5", 1, "at most 8000 taps"),
    ("basis --step 2", 1, "--step and --count must be used together"),
    ("basis --step 2 --count 3 --scales 1", 1, "not both"),
    ("basis --prior nowhere", 1, "nowhere"),
    ("basis --load nowhere.safetensors", 1, "--load: no file nowhere.safetensors"),
    ("basis --load {file} --kernel-size 3", 1, "--kernel-size cannot be combined with --load"),
    ("basis --out nowhere/basis.safetensors", 1, "nowhere does not exist"),
    ("basis --out .", 1, "it is a folder"),
    ("basis --plot figure", 1, "the name must end in .png, .svg, .pdf, got ''"),
    ("basis --plot figure.png --dims 3", 1, "--plot draws bases of 1 or 2 spatial dimensions, got --dims 3"),
    ("basis --seed -1", 1, "--seed must be from 0 to 2^32 - 1, got -1"),
    ("equivariance --setting imagenet", 2, 'invalid value "imagenet" for --setting, choose from: "mnist"'),
    ("equivariance --border wide", 2, "--border: expected pixels such as 3 or a fraction of the side such as 0.25"),
    ("equivariance --channels 0", 1, "--channels must be at least 1, got 0"),
    ("equivariance --limit 0", 1, "--limit must be at least 1, got 0"),
    ("equivariance --plot figure.txt", 1, "got '.txt'"),
    ("equivariance --images nowhere", 1, "nowhere"),
    ("equivariance --also nowhere.npz", 1, "--also: no file nowhere.npz"),
    ("bench --channels 3", 2, "--channels requires 2 values"),
    ("bench --channels 3.2 4", 2, 'invalid value for --channels: unable to convert "3.2" into int; see'),
    ("bench --only layer", 2, 'invalid value "layer" for --only, choose from: "layers", "scales", "network"'),
    ("bench --repeats 0", 1, "--repeats must be at least 1, got 0"),
    ("bench --threads 0", 1, "--threads must be at least 1, got 0"),
    ("bench --model disco", 1, "create_model: expected one of mnist/cnn"),
    ("bench --model mnist/disco --side 9", 1, "--model times a whole network: leave out --side"),
    ("bench --batch 0", 1, "--batch must be at least 1, got 0"),
    ("bench --channels 3 0", 1, "--channels must be at least 1, got (3, 0)"),
    ("bench --batch 2 --only layers", 1, "leave it out with a custom layer"),
    ("bench --only layers --plot figure.png", 1, "--plot draws the cost over the number of scales"),
    ("bench --csv nowhere/costs.csv", 1, "nowhere does not exist"),
    ("bench --extent 4", 1, "scale extent must be an integer from 1 to 3"),
    ("quickstart --seeds 0", 1, "--seeds must be at least 1, got 0"),
    ("quickstart --processes many", 2, 'invalid value for --processes: unable to convert "many" into int'),
    ("data stl", 2, 'disco data: unknown command "stl", did you mean "stl10"?; see disco data --help'),
    ("data mnist-scale --split 6", 2, 'invalid value "6" for --split, choose from: "0", "1"'),
    ("data mnist-scale --split", 2, "disco data mnist-scale: --split requires a value; see disco data mnist-scale"),
    ("data mnist-scale --mnist . --download", 1, "--download and --mnist cannot be combined"),
    ("data mnist-scale", 1, "MNIST is required: pass --mnist DIR with its four files, or --download, or --split mini"),
    ("data mnist-scale --mnist .", 1, "no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in ."),
    ("data mnist-scale --mnist nowhere", 1, "--mnist: no folder nowhere"),
    ("data mnist-scale --check", 2, "disco data mnist-scale: unknown option: --check"),
    ("data stl10 --split 0", 2, "disco data stl10: unknown option: --split"),
    ("data stl10 --data . --download", 1, "--download and --data cannot be combined"),
    ("data generalization --name stir", 2, 'invalid value "stir" for --name, choose from: "stir-mnist"'),
    ("data generalization", 1, "MNIST is required: pass --mnist DIR with its four files"),
    ("data generalization --mnist nowhere", 1, "--mnist: no folder nowhere"),
    ("data generalization --limit 5", 1, "--limit must be at least 10, got 5"),
    ("data zoom --size 320", 2, "--size: expected width x height such as 320x240, got '320'"),
    ("data zoom --download", 2, "disco data zoom: unknown option: --download"),
    ("train", 0, ""),
    ("train mnist", 2, 'disco train: unknown command "mnist", did you mean "mnist-scale"?; see disco train --help'),
    (
        "train mnist-scale --epoch=3",
        2,
        "unknown option: --epoch, did you mean --epochs?; see disco train",
    ),
    ("train mnist-scale --epochs 0 --data .", 1, "--epochs must be at least 1, got 0"),
    ("train mnist-scale --seed 1.5 --data .", 2, 'invalid value for --seed: unable to convert "1.5" into int; see'),
    ("train mnist-scale --depth 10", 2, "disco train mnist-scale: unknown option: --depth"),
    ("train mnist-scale --cache x", 2, "disco train mnist-scale: unknown option: --cache"),
    ("train mnist-scale --model stl10/disco", 2, 'invalid value "stl10/disco" for --model, choose from: "mnist/cnn"'),
    ("train mnist-scale --data nowhere", 1, "--data: no folder nowhere; create it with disco data mnist-scale"),
    ("train mnist-scale --resume", 1, "--resume requires --out, the run folder"),
    ("train mnist-scale --resume --out nowhere", 1, "nowhere: not a training run (run.json is missing)"),
    ("train mnist-scale --config nowhere.yaml --data .", 1, "nowhere.yaml: No such file or directory"),
    ("train stl10 --split 0", 2, "disco train stl10: unknown option: --split"),
    ("train stl10 --holdout 1 --data .", 1, "--holdout must be from 0 to below 1, got 1.0"),
    ("train tracker --pretrained nowhere.pth --data .", 1, "--pretrained: no file of weights nowhere.pth; torchvision"),
    ("train scene --pretrained nowhere.pth --data .", 1, "--pretrained: no file of weights nowhere.pth; torchvision"),
    ("train stl10 --devices 0 --data .", 1, "--devices must be at least 1, got 0"),
    ("train generalization --data nowhere", 1, "no folder nowhere; create it with disco data generalization"),
    ("train generalization --holdout 0.1", 2, "disco train generalization: unknown option: --holdout"),
    ("train generalization --scenario 5", 2, 'invalid value "5" for --scenario, choose from: "1", "2", "3", "4"'),
    (
        "train generalization --data . --data-set mnist-large-scale --scenario 3",
        1,
        "--scenario must be the training scale 1, 2 or 4 of mnist-large-scale, got 3",
    ),
    ("train tracker --backbone shift", 2, "disco train tracker: unknown option: --backbone"),
    ("train tracker --zoom 3 --data .", 1, "--zoom must be from 0 to 2, got 3.0"),
    ("train scene --span 3 --data .", 1, "--span must be above 0 octaves and at most 2, got 3.0"),
    ("test", 2, "disco test: RUN requires a value; see disco test --help"),
    ("test nowhere", 1, "disco test: RUN: no folder nowhere"),
    ("test . .", 2, "disco test: unexpected argument '.'; see disco test --help"),
    ("test . --limit 0", 1, "--limit must be at least 1, got 0"),
    ("test . --planes 3", 2, "disco test: unknown option: --planes"),
    ("test scene", 1, "nothing to test on: pass --data DIR, --planes N or --depth DIR, or several"),
    ("test scene --planes 0", 1, "--planes must be at least 1, got 0"),
    ("test scene --span 1 --planes 1", 1, "--span goes with --data"),
    ("test . --enlarge 2", 1, "disco test: --enlarge requires --test-scales"),
    ("test scene --outside 3", 2, "disco test scene: unknown option: --outside"),
    ("test kth-tips", 2, "disco test kth-tips: FOLDER requires a value"),
    ("test kth-tips nowhere --pretrained {file}", 1, "FOLDER: no folder nowhere"),
    ("test kth-tips .", 1, "--pretrained is required: a file of weights of a ResNet-50"),
    ("test kth-tips . --pretrained nowhere.pth", 1, "--pretrained: no file of weights nowhere.pth; torchvision"),
    ("test kth-tips . --pretrained {file} --side 32", 1, "--side must be at least 64, got 32"),
    ("table", 0, ""),
    ("table mnist-scale", 2, "disco table mnist-scale: RUNS requires a value"),
    ("table mnist-scale .", 1, "no training run in it"),
    ("table stl10 nowhere", 1, "RUNS: no folder nowhere"),
    ("table generalization", 2, "disco table generalization: RUNS requires a value"),
    ("table generalization .", 1, "no training run in it"),
    ("track", 2, "disco track: SOURCE requires a value; see disco track --help"),
    ("--quiet track nowhere.mp4", 1, "disco track: no file and no folder nowhere.mp4"),
    ("--quiet", 2, "disco: "),
    ("track nowhere.mp4", 1, "no file and no folder nowhere.mp4"),
    ("track {file} --box 1,2,3", 2, "--box: expected four numbers X Y W H, got '1,2,3'; see disco track --help"),
    ("track {file} --box 1,2,0,3", 2, "--box: width and height must be positive, got '1,2,0,3'"),
    ("track {file} --box 1 2 3", 2, "--box: expected four numbers X Y W H, got '1,2,3'"),
    ("track {file} --box 1 2 3 a", 2, "--box: expected four numbers X Y W H, got '1,2,3,a'"),
    ("track {file} --box 0.1 0.2 nan 0.4", 2, "--box: expected finite numbers X Y W H, got '0.1,0.2,nan,0.4'"),
    ("track {file} --fps 0", 2, "--fps: expected frames per second from 0.001 to 1000, got '0'"),
    ("track {file} --frames 0", 1, "--frames must be at least 1, got 0"),
    ("track {file} --mode best", 2, 'invalid value "best" for --mode, choose from: "pyramid", "axis", "fixed"'),
    ("otb nowhere", 1, "disco otb: ROOT: no folder nowhere"),
    ("otb . --list OTB7", 2, 'invalid value "OTB7" for --list, choose from:'),
    ("otb . --list OTB2013 --sequences Car4", 1, "--list and --sequences cannot be combined"),
    ("otb . --allow-missing", 1, "--allow-missing needs --list"),
    (
        "otb . --tracker track/disco --pretrained nowhere.pth",
        1,
        "--pretrained: no file of weights nowhere.pth; torchvision",
    ),
    ("scene nowhere.jpg", 1, "disco scene: SOURCE: no file or folder nowhere.jpg"),
    ("scene {file} --window 3", 1, "--window must be at least 16, got 3"),
    ("scene {file} --run nowhere", 1, "--run: no folder nowhere"),
    ("scene {file} --dark", 2, "disco scene: unknown option: --dark"),
    ("compare", 2, "disco compare: IMAGES requires a value; see disco compare --help"),
    ("compare {file}", 1, "disco compare: IMAGES must be two or more, got 1"),
    ("compare {file} nowhere.jpg", 1, "IMAGES: no file nowhere.jpg"),
    ("compare {file} {file}", 1, "the file is empty"),
    ("models mnist/disko", 1, "disco models: no model or family mnist/disko, did you mean mnist/disco?"),
    ("completion tcsh", 2, 'invalid value "tcsh" for SHELL, choose from: "bash", "fish", "zsh"; see disco completion'),
]


@pytest.mark.parametrize(("call", "code", "message"), CALLS, ids=[row[0] or "disco" for row in CALLS])
def test_wrong_calls_are_answered_by_one_line(call, code, message, capsys, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    file = tmp_path / "file.bin"
    file.write_bytes(b"")
    monkeypatch.chdir(tmp_path / "empty")
    assert main(shlex.split(call.format(file=file))) == code
    out, err = capsys.readouterr()
    assert message in err
    if code:
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("disco")
        assert "Traceback" not in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_every_command_has_wrong_calls():
    called = {name for name in BY_NAME for call, code, _ in CALLS if code and f"{call} ".startswith(f"{name} ")}
    assert called == set(BY_NAME)
    assert sum(code > 0 for _, code, _ in CALLS) >= 40
