from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.cli import main
from scale_disco.files import locked
from scale_disco.models import list_models
from scale_disco.tasks.runs.modules import ClassifierModule
from tests.conftest import PATIENCE, tiered
from tests.tasks.runs.trial import TRIAL, assert_one_line, train


def command(data, out, *arguments):
    """Return the same command for a process of its own."""
    words = ["train", "mnist-scale", "--data", str(data), "--out", str(out), *TRIAL, *map(str, arguments)]
    return [sys.executable, "-m", "scale_disco", *words]


def weights(run):
    state = torch.load(run / "last.ckpt", weights_only=True)["state_dict"]
    return {"last": state, "best": load_file(run / "best.safetensors")}


def assert_same_weights(run, other):
    for kind, state in weights(run).items():
        theirs = weights(other)[kind]
        assert state.keys() == theirs.keys()
        assert all(torch.equal(state[name], theirs[name]) for name in state), kind


@pytest.mark.parametrize("model", tiered(list_models("mnist"), lambda model: model == "mnist/disco"))
def test_every_model_trains_and_is_tested(data, tmp_path, model, capsys):
    run = tmp_path / "run"
    assert train(data, run, "--model", model, "--epochs", 1) == 0
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["settings"]["model"] == model
    assert {"torch", "lightning", "scale-disco"} <= record["versions"].keys()
    (epoch,) = record["epochs"]
    assert 0 < epoch["training loss"] < 5
    assert record["results"]["validation error"] == epoch["validation error"] <= 1
    assert (run / "epochs.csv").read_text().startswith("epoch,training loss,validation error")
    assert list((run / "tensorboard").glob("events*"))
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert main(["test", str(run), "--limit", "16", "--outside", "4", "--threads", "1"]) == 0
    assert "on 16 test images" in capsys.readouterr().out


def test_progress_within_an_epoch_is_a_line_without_a_terminal(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scale_disco.tasks.runs.loop.LINE_SECONDS", 0.0)
    assert train(data, tmp_path / "run", "--epochs", 2) == 0
    lines = capsys.readouterr().err.splitlines()
    steps = [
        line
        for line in lines
        if re.fullmatch(r"epoch [12] of 2: step \d+ of \d+, \d+ (s|min) left in this epoch", line)
    ]
    assert len({line.partition(",")[0] for line in steps}) == len(steps) >= 2
    assert sum(line.startswith("epoch ") and "loss" in line for line in lines) == 2
    assert train(data, tmp_path / "quiet", "--epochs", 1, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_options_fix_the_weights(data, tmp_path):
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        assert train(data, tmp_path / name, "--model", "mnist/cnn", "--epochs", 1, "--augment", "--seed", seed) == 0
    assert_same_weights(tmp_path / "one", tmp_path / "again")
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "one", tmp_path / "other")


@pytest.mark.thorough
def test_killed_and_resumed_is_the_same_run(data, tmp_path, whole):
    run = tmp_path / "run"
    call = command(data, run, "--model", "mnist/cnn", "--epochs", 4)
    moment = random.random()
    print("killed after this fraction of the epochs:", moment, "")
    process = subprocess.Popen(call)
    while process.poll() is None and not (run / "run.json").is_file():
        time.sleep(0.05)
    seconds = sum(row["seconds"] for row in json.loads((whole / "run.json").read_text())["epochs"])
    time.sleep(moment * seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert train(data, run, "--model", "mnist/cnn", "--epochs", 4, "--resume") == 0
    assert_same_weights(run, whole)
    epochs, expected = (json.loads((folder / "run.json").read_text())["epochs"] for folder in (run, whole))
    assert [row | {"seconds": 0} for row in epochs] == [row | {"seconds": 0} for row in expected]


# A training that waits in its second epoch, so that Ctrl-C never comes after the last.
WAITING = f"""
import sys, time
from scale_disco.cli import main
from scale_disco.tasks.runs.modules import ClassifierModule
compute_loss = ClassifierModule.compute_loss
def wait(self, batch):
    if self.current_epoch == 1:
        time.sleep({2 * PATIENCE})
    return compute_loss(self, batch)
ClassifierModule.compute_loss = wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.thorough
def test_ctrl_c_keeps_finished_epochs(data, tmp_path, whole):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, *command(data, run, "--model", "mnist/cnn", "--epochs", 4)[3:]],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )
    while process.poll() is None and not (run / "last.ckpt").is_file():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert err.rstrip().endswith("disco train mnist-scale: stopped")
    assert "Traceback" not in err
    assert train(data, run, "--resume") == 0  # with the same options
    assert_same_weights(run, whole)


@pytest.mark.parametrize("where", ["loss", "weights"])
def test_non_finite_values_stop_training_and_keep_the_last_epoch(where, data, tmp_path, whole, capsys, monkeypatch):
    run, loss_of, trouble = tmp_path / "run", ClassifierModule.compute_loss, [True]

    def broken(self, batch):
        return loss_of(self, batch) * (torch.nan if trouble and where == "loss" and self.current_epoch == 1 else 1)

    def poisoned(self):
        if trouble and where == "weights" and self.current_epoch == 1:
            next(self.network.parameters()).data.fill_(torch.inf)

    monkeypatch.setattr(ClassifierModule, "compute_loss", broken)
    monkeypatch.setattr(ClassifierModule, "on_train_epoch_end", poisoned)
    assert train(data, run, "--model", "mnist/cnn", "--epochs", 4) == 1
    err = capsys.readouterr().err
    line = err.splitlines()[-1]
    assert line.startswith(
        "disco train mnist-scale: non-finite loss (nan) at step" if where == "loss" else "disco train mnist-scale: "
    )
    assert "in epoch 2 of 4; epoch 1 is saved, and --resume continues after it" in line
    assert "Traceback" not in err
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], len(record["epochs"])) == ("running", 1)
    assert all(tensor.isfinite().all() for tensor in weights(run)["best"].values())
    trouble.clear()
    assert train(data, run, "--resume") == 0
    assert_same_weights(run, whole)


def test_resuming_a_finished_run_leaves_it(data, tmp_path, whole, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert train(data, run, "--resume") == 0
    assert "already finished after 4 epochs" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.thorough
def test_two_processes_learn_what_one_does(data, tmp_path):
    """Without dropout, whose masks differ, weights are those of one process up to rounding."""
    script = tmp_path / "undropped.py"
    script.write_text(
        "import sys\n"
        "from torch import nn\n"
        "import scale_disco.tasks.mnist_scale.networks as mnist\n"
        "mnist.nn.Dropout = lambda p: nn.Identity()\n"
        "from scale_disco.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    for devices in (1, 2):
        words = command(data, tmp_path / str(devices), "--model", "mnist/disco", "--epochs", 1, "--devices", devices)
        subprocess.run([sys.executable, str(script), *words[3:]], check=True, env=environment)
    single, double = (json.loads((tmp_path / name / "run.json").read_text())["epochs"][0] for name in ("1", "2"))
    assert double["training loss"] == pytest.approx(single["training loss"], rel=1e-4)
    assert double["validation error"] == pytest.approx(single["validation error"], abs=0.05)
    mine, theirs = (load_file(tmp_path / name / "best.safetensors") for name in ("1", "2"))
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-3)


ERRORS = {
    "zero epochs": (["--epochs", "0"], "--epochs must be at least 1, got 0"),
    "no devices": (["--devices", "0"], "--devices must be at least 1, got 0"),
    "no threads": (["--threads", "0"], "--threads must be at least 1, got 0"),
    "negative seed": (["--seed", "-1"], "--seed must be from 0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_options_are_one_line(data, tmp_path, case, capsys):
    arguments, message = ERRORS[case]
    assert train(data, tmp_path / "run", *arguments) == 1
    assert_one_line(capsys, "train", message)
    assert not (tmp_path / "run").exists()


def test_unreadable_arguments_are_one_line(data, tmp_path, capsys):
    assert train(data, tmp_path / "run", "--epochs", "many") == 2
    assert_one_line(capsys, "train", "epochs")
    assert train(data, tmp_path / "run", "--modle", "mnist/cnn") == 2
    assert_one_line(capsys, "train", "modle")
    assert main(["train", "imagenet"]) == 2
    assert_one_line(capsys, "train", 'unknown command "imagenet"')


def test_missing_data_is_one_line(tmp_path, capsys):
    assert train(tmp_path / "nowhere", tmp_path / "run") == 1
    assert_one_line(capsys, "train", "create it with disco data mnist-scale")
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(data, tmp_path, whole, capsys):
    assert train(data, whole, "--model", "mnist/cnn") == 1
    assert_one_line(capsys, "train", "already holds a run: add --resume")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to_mother.txt").write_text("Dear")
    assert train(data, tmp_path / "letters") == 1
    assert_one_line(capsys, "train", "is not empty")
    (tmp_path / "file").write_text("")
    assert train(data, tmp_path / "file") == 1
    assert_one_line(capsys, "train", "--out must be a folder")


def test_resume_refuses_other_options(data, whole, capsys):
    before = (whole / "run.json").read_bytes()
    assert train(data, whole, "--resume", "--seed", "5", "--model", "mnist/disco") == 1
    assert_one_line(capsys, "train", "was started with --model mnist/cnn, got mnist/disco; --seed 0, got 5")
    assert (whole / "run.json").read_bytes() == before


def test_one_process_at_a_time(data, tmp_path, whole, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    with locked(run):
        assert train(data, run, "--resume") == 1
    assert_one_line(capsys, "train", "another process is at work in it")


def test_resume_needs_a_run(data, tmp_path, capsys):
    assert train(data, tmp_path / "none", "--resume") == 1
    assert_one_line(capsys, "train", "not a training run (run.json is missing)")
    (tmp_path / "run.json").write_text("{")
    assert train(data, tmp_path, "--resume") == 1
    assert_one_line(capsys, "train", "damaged, or not a run record")
    assert main(["train", "mnist-scale", "--resume"]) == 1
    assert_one_line(capsys, "train", "--resume requires --out")


@pytest.fixture
def unfinished(whole, tmp_path):
    """A run as a kill leaves it between the last checkpoint and the record of the last epoch."""
    run = shutil.copytree(whole, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    del record["finished"]
    (run / "run.json").write_text(json.dumps(record | {"status": "running", "epochs": record["epochs"][:-1]}))
    return run


def test_run_killed_before_its_record_is_finished_by_resume(data, unfinished, whole):
    assert train(data, unfinished, "--resume") == 0
    record, expected = (json.loads((run / "run.json").read_text()) for run in (unfinished, whole))
    assert record["status"] == "finished"
    assert record["epochs"] == expected["epochs"]


def test_resume_knows_where_the_data_are(data, unfinished):
    assert main(["train", "mnist-scale", "--resume", "--out", str(unfinished)]) == 0


class Trap:
    def __reduce__(self):
        return print, ("executed",)


def test_damaged_checkpoints_are_one_line(data, unfinished, capsys):
    path = unfinished / "last.ckpt"
    good = torch.load(path, weights_only=True)

    def refused(message):
        assert train(data, unfinished, "--resume") == 1
        assert_one_line(capsys, "train", message)

    path.write_bytes(path.read_bytes()[:1000])
    refused("last.ckpt: damaged")
    path.write_bytes(b"")
    refused("last.ckpt: damaged")
    torch.save({"state_dict": {}}, path)
    refused("last.ckpt: damaged, or not a checkpoint of a run (epoch is missing")
    torch.save(good | {"state_dict": {}}, path)
    refused("last.ckpt: damaged, or of another network")
    torch.save(good | {"state_dict": Trap()}, path)
    refused("last.ckpt: not a checkpoint of a run: it holds more than weights and numbers")


@pytest.mark.thorough
@pytest.mark.parametrize("kilobytes", [1000, 4000])  # too small for the best weights, and for the checkpoint
def test_a_full_disk_keeps_the_last_epoch(data, tmp_path, whole, kilobytes):
    run = tmp_path / "run"
    call = command(data, run, "--model", "mnist/cnn", "--epochs", 4)
    limited = (
        "import resource, runpy, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes * 1000},) * 2)\n"
        f"sys.argv = {['disco', *call[3:]]!r}\n"
        "runpy.run_module('scale_disco', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith(f"disco train mnist-scale: cannot write {run}/")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert not (run / "last.ckpt").exists()
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert train(data, run, "--resume") == 0
    assert_same_weights(run, whole)


def test_batches_too_small_to_share_are_refused(data, tmp_path, capsys):
    assert train(data, tmp_path / "run", "--limit", 65) == 1
    assert_one_line(capsys, "train", "the last batch has 1, for 1 process")
