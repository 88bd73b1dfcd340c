from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.cli import main
from scale_disco.models import create_model, list_models
from scale_disco.models.packaged import cards
from scale_disco.tasks.runs.evaluate import trained
from scale_disco.tasks.runs.record import read_record
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.networks import Siamese
from scale_disco.tasks.tracking.options import TrackerOptions
from scale_disco.tasks.tracking.training import CropPairDataset, make_data
from tests.conftest import tiered
from tests.tasks.runs.trial import assert_one_line
from tests.tasks.tracking.videos import write_videos

SMALL = ["--threads", "1", "--pairs", "4", "--batch", "2", "--epochs", "1"]


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
    """Ten small videos; read-only."""
    return write_videos(tmp_path_factory.mktemp("videos") / "drifting", 10)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A file of weights of SiamFC+."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "siamfc.safetensors"
    save_file(create_model("track/siamfc+").features.state_dict(), path)
    return path


def words(data, out, *arguments):
    return ["train", "tracker", "--data", str(data), "--out", str(out), *SMALL, *map(str, arguments)]


def state_of(run):
    return torch.load(run / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(run, other):
    mine, theirs = state_of(run), state_of(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("model", tiered(list_models("track"), lambda model: model == "track/siamfc"))
def test_every_model_trains(videos, tmp_path, model, capsys):
    run = tmp_path / "run"
    assert main(words(videos, run, "--model", model)) == 0
    assert f"next: disco otb ROOT --tracker {run}" in capsys.readouterr().err
    record = read_record(run)
    assert (record["status"], record["experiment"]) == ("finished", "tracker")
    assert record["facts"]["videos"] == 10
    assert record["facts"]["frames"] == 40
    assert record["facts"]["weights"] == (cards()[model].sha256 if model in cards() else "")
    (epoch,) = record["epochs"]
    assert 0 < epoch["training loss"] < 10
    assert 0 <= epoch["validation error"] <= 1
    network = trained(run)
    assert isinstance(network, Siamese)
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_pretrained_weights_are_needed_at_the_start_alone(videos, weights, tmp_path, capsys):
    file = shutil.copy(weights, tmp_path / "start.safetensors")
    run, call = tmp_path / "run", ["--model", "track/siamfc+", "--epochs", 2, "--pretrained", file]
    assert main(words(videos, run, *call)) == 0
    assert len(read_record(run)["facts"]["weights"]) == 64
    before, after = load_file(file), trained(run).features.state_dict()
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    learned = {name for name in before if name.startswith("layer2") and "running" not in name and "num_b" not in name}
    assert same == set(before) - learned  # of the first stage nothing changed, nor any statistics
    whole = shutil.copytree(run, tmp_path / "whole")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    os.remove(file)
    assert main(words(videos, run, *call, "--resume")) == 0
    assert_same_weights(whole, run)
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    (run / "last.ckpt").unlink()  # killed before the end of the first epoch
    capsys.readouterr()
    assert main(["train", "tracker", "--resume", "--out", str(run)]) == 1
    assert_one_line(capsys, "train", "start.safetensors")
    shutil.copy(weights, file)
    assert main(["train", "tracker", "--resume", "--threads", "1", "--out", str(run)]) == 0
    assert_same_weights(whole, run)
    save_file({name: tensor + 1 for name, tensor in before.items()}, file)
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    (run / "last.ckpt").unlink()
    capsys.readouterr()
    assert main(["train", "tracker", "--resume", "--out", str(run)]) == 1
    assert_one_line(capsys, "train", "expected sha256")


@pytest.mark.thorough
def test_killed_and_resumed_is_the_same_run(videos, tmp_path):
    """With stages unfrozen on the way, batch norms, a moving average, accumulation and held-out videos."""
    arguments = ["--model", "track/siamfc", "--recipe", "paper", "--epochs", 3, "--pairs", 8, "--batch", 4]
    arguments += ["--accumulate", 2, "--ema", 0.9, "--learning-rate", 1e-4]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(words(videos, whole, *arguments)) == 0
    seconds = sum(row["seconds"] for row in read_record(whole)["epochs"])
    process = subprocess.Popen([sys.executable, "-m", "scale_disco", *words(videos, run, *arguments)])
    while process.poll() is None and not (run / "run.json").is_file():
        time.sleep(0.05)
    moment = random.random()
    print("killed after this fraction of the epochs:", moment, "")
    time.sleep(moment * seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(words(videos, run, *arguments, "--resume")) == 0
    assert_same_weights(whole, run)
    mine, theirs = (load_file(folder / "best.safetensors") for folder in (whole, run))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert main(["train", "tracker", "--resume", "--out", str(run)]) == 0  # options and data as they were


def alone():
    """An environment that says nothing of other processes."""
    return {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}


@pytest.mark.thorough
def test_two_processes_learn_what_one_does(videos, tmp_path):
    """While stages are unfrozen one after the other."""
    for devices in (1, 2):
        call = words(videos, tmp_path / str(devices), "--model", "track/siamfc", "--recipe", "paper", "--epochs", 3)
        call += ["--batch", "4", "--learning-rate", "1e-4", "--devices", str(devices)]
        subprocess.run([sys.executable, "-m", "scale_disco", *call], check=True, env=alone())
    single, double = (state_of(tmp_path / name) for name in ("1", "2"))
    for name, tensor in single.items():
        if tensor.is_floating_point() and not name.startswith("error"):  # each process has its own pairs there
            torch.testing.assert_close(tensor, double[name], rtol=1e-3, atol=1e-4)
    errors = [read_record(tmp_path / name)["epochs"][-1]["validation error"] for name in ("1", "2")]
    assert errors[0] == errors[1]


@pytest.mark.thorough
def test_a_network_learns_to_find(videos, tmp_path):
    run = tmp_path / "run"
    call = ["--model", "track/siamfc", "--stages", 5, "--epochs", 5, "--pairs", 12, "--batch", 4, "--holdout", 0]
    assert main(words(videos, run, *call, "--zoom", 0.1, "--shift", 16)) == 0
    losses = [row["training loss"] for row in read_record(run)["epochs"]]
    assert losses[-1] < 0.7 * losses[0]
    assert not (run / "best.safetensors").exists()


@pytest.fixture(scope="module")
def pairs(videos):
    return CropPairDataset(read_sequences(videos)[:3], 11, TrackerOptions().unfreezing, seed=7)


def test_pairs_depend_on_seed_epoch_and_row_alone(pairs):
    together = pairs.read([0, 5, 9], 2)
    assert together.shape == (3, 6, 255, 255)
    assert torch.equal(pairs.read([9], 2)[0], together[2])
    torch.manual_seed(1)
    again = CropPairDataset(pairs.videos, 11, pairs.schedule, seed=7)
    assert torch.equal(again.read([5], 2)[0], together[1])
    assert torch.equal(again.targets([0, 5, 9], 2), pairs.targets([0, 5, 9], 2))
    drawn = [pairs.targets(range(11), 2), pairs.targets(range(11), 3)]
    drawn.append(CropPairDataset(pairs.videos, 11, pairs.schedule, seed=8).targets(range(11), 2))
    for first, second in itertools.combinations(torch.cat(drawn), 2):
        assert not torch.equal(first, second)


def test_videos_are_drawn_evenly(pairs):
    for epoch in range(3):
        counts = Counter(pairs._draw(row, epoch)[0].name for row in range(len(pairs)))
        assert sorted(counts.values()) == [3, 4, 4]
    firsts = {pairs._draw(0, epoch)[0].name for epoch in range(20)}
    assert len(firsts) == 3


def test_reading_leaves_threads_as_they_were(pairs):
    before = torch.get_num_threads()
    pairs.read([0], 0)
    assert torch.get_num_threads() == before


def test_held_out_videos_are_not_trained_on(videos):
    training_data = make_data(TrackerOptions(holdout=0.3), videos)
    validation, training = (
        {video.name for video in part.videos} for part in (training_data.validation, training_data.train)
    )
    assert (len(validation), len(training)) == (3, 7)
    assert not validation & training
    other = make_data(TrackerOptions(holdout=0.3, seed=3), videos)
    assert {video.name for video in other.validation.videos} == validation
    assert make_data(TrackerOptions(holdout=0.0), videos).validation is None
    assert make_data(TrackerOptions(limit=4, holdout=0.0), videos).metadata["videos"] == 4


@pytest.fixture(scope="session")
def tracker_run(videos, tmp_path_factory):
    """A finished run; read-only."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(words(videos, run, "--model", "track/siamfc")) == 0
    return run


def test_resume_refuses_other_videos(tracker_run, videos, tmp_path, capsys):
    run = shutil.copytree(tracker_run, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    other = shutil.copytree(videos, tmp_path / videos.name)
    (other / "video03" / "groundtruth_rect.txt").write_text("1,2,30,40\n" * 4)
    assert main(["train", "tracker", "--resume", "--out", str(run), "--data", str(other)]) == 1
    assert_one_line(capsys, "train", "was started with other images than those in")


def test_a_tracker_is_tested_elsewhere(tracker_run, capsys):
    assert main(["test", str(tracker_run)]) == 1
    assert_one_line(capsys, "test", "tracker runs are evaluated with disco otb ROOT --tracker RUN")


def test_tables_leave_trackers_out(tracker_run, capsys):
    assert main(["table", "stl10", str(tracker_run)]) == 1
    assert_one_line(capsys, "table", "stl10")
    assert main(["table", "tracker", str(tracker_run)]) == 2
    assert_one_line(capsys, "table", "tracker")


@pytest.mark.parametrize("left", ["name", "videos", "frames", "boxes", "weights"])
def test_a_record_without_metadata_is_one_line(tracker_run, tmp_path, left):
    run = shutil.copytree(tracker_run, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    del record["facts"][left]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"damaged, or not a run record .{left} is missing"):
        trained(run)


def test_a_damaged_frame_is_one_line(videos, tmp_path, capsys):
    other = shutil.copytree(videos, tmp_path / "other")
    for path in other.glob("*/img/0002.png"):
        path.write_bytes(b"no image")
    assert main(words(other, tmp_path / "run", "--pairs", 16)) == 1
    assert_one_line(capsys, "train", "0002.png")


ERRORS = {
    "unknown model": (["--model", "stl10/disco"], 2, 'invalid value "stl10/disco" for --model, choose from: "track'),
    "stages": (["--stages", "0"], 1, "--stages must be at least 1, got 0"),
    "pairs": (["--pairs", "1"], 1, "--pairs must be at least 2, got 1"),
    "a pair left over": (["--pairs", "5", "--batch", "2"], 1, "the last batch has 1"),
    "zoom": (["--zoom", "3"], 1, "--zoom must be from 0 to 2, got 3.0"),
    "shift": (["--shift", "nan"], 1, "--shift must be from 0 to 64, got nan"),
    "weight of scales": (["--scale-weight", "-1"], 1, "--scale-weight must be finite and at least 0, got -1.0"),
    "too much held out": (["--holdout", "0.96"], 1, "--holdout 0.96 of 10 videos leaves 10 for validation"),
    "too little held out": (["--holdout", "0.01"], 1, "--holdout 0.01 of 10 videos leaves 0 for validation"),
    "no weights": (["--pretrained", "nowhere.safetensors"], 1, "nowhere.safetensors"),
    "cache": (["--cache", "x"], 2, "unknown option: --cache"),
    "another experiment": (["--depth", "10"], 2, "unknown option: --depth"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_options_are_one_line(videos, tmp_path, case, capsys):
    arguments, code, message = ERRORS[case]
    assert main(words(videos, tmp_path / "run", *arguments)) == code
    assert_one_line(capsys, "train", message)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_network_are_one_line(videos, weights, tmp_path, capsys):
    call = words(videos, tmp_path / "run", "--model", "track/siamfc", "--pretrained", str(weights))
    assert main(call) == 1
    assert_one_line(capsys, "train", "siamfc.safetensors")


def test_missing_videos_are_one_line(tmp_path, capsys):
    assert main(words(tmp_path, tmp_path / "run")) == 1
    assert_one_line(capsys, "train", "no sequences in")


def test_recipe_of_the_paper():
    recipe = TrackerOptions(recipe="paper").full_recipe
    optimizer = recipe.make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert (optimizer.defaults["nesterov"], optimizer.defaults["momentum"]) == (False, 0.9)
    rates = [recipe.learning_rate * recipe.lr_multiplier((epoch + 0.5) / 50) for epoch in (0, 1, 49)]
    assert rates == pytest.approx([1e-2, 10 ** (-2 - 3 / 49), 1e-5])
    schedule = TrackerOptions(recipe="paper").unfreezing
    assert (schedule.pairs, schedule.shift, recipe.batch, recipe.clip) == (450_000, 4, 24, 10)


def test_command_starts_the_same_run():
    options = TrackerOptions(pretrained="resnet50.safetensors", stages=2, zoom=0.3)
    assert options.command == (
        "disco train tracker --model track/disco --pretrained resnet50.safetensors --stages 2 --zoom 0.3 "
        "--recipe small --seed 0"
    )
    assert options.run_name == "track-disco-small-0"
