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
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.cli import main
from scale_disco.models import list_models
from scale_disco.tasks.runs.batches import training_batches
from scale_disco.tasks.runs.evaluate import _chunks, bins_of, evaluate, trained
from scale_disco.tasks.runs.experiments import TrainingData
from scale_disco.tasks.runs.loop import _Batches, train
from scale_disco.tasks.runs.modules import ClassifierModule
from scale_disco.tasks.runs.record import read_record
from scale_disco.tasks.stl10.augment import Augmentation
from scale_disco.tasks.stl10.load import load_images
from scale_disco.tasks.stl10.options import RECIPES, Stl10Options
from scale_disco.tasks.stl10.training import ImageDataset, ImageFileDataset, make_data, make_evaluation
from tests.conftest import PATIENCE, tiered
from tests.tasks.runs.trial import assert_one_line
from tests.tasks.stl10 import binary

SMALL = ["--depth", "10", "--width", "1", "--threads", "1"]


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """A data set of random pixels in STL-10's binary format."""
    return binary.write(tmp_path_factory.mktemp("stl10") / "stl10_binary", binary.files(train=13, test=7))


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    """Images in class folders, 20 pixels a side: horizontal and vertical stripes."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 5)):
        for place, name in enumerate(("lying", "standing")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                wave = np.sin(np.arange(20) * generator.uniform(1, 2))[:, None] * np.ones((20, 20))
                gray = np.uint8(127 + 80 * (wave.T if place else wave))
                Image.fromarray(np.stack([gray] * 3, -1)).save(folder / f"{index}.png")
    return root


def words(data, out, *arguments):
    return ["train", "stl10", "--data", str(data), "--out", str(out), *SMALL, *map(str, arguments)]


def folder_words(data, out, *arguments):
    return words(data, out, "--format", "folder", "--side", 16, *arguments)


def state_of(run):
    return torch.load(run / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(run, other):
    mine, theirs = state_of(run), state_of(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("model", tiered(list_models("stl10"), lambda model: model == "stl10/disco"))
def test_every_model_trains_and_is_tested(generated, tmp_path, model, capsys):
    run = tmp_path / "run"
    assert main(words(generated, run, "--model", model, "--epochs", 1, "--limit", 4)) == 0
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["experiment"]) == ("finished", "stl10")
    assert record["facts"]["classes"] == binary.NAMES
    assert record["facts"]["name"] != "stl10"  # whatever its format
    (epoch,) = record["epochs"]
    assert 0 < epoch["training loss"] < 10
    assert epoch["validation error"] is None
    assert not (run / "best.safetensors").exists()
    capsys.readouterr()
    assert main(["test", str(run), "--outside", "2", "--threads", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"]
    assert result == json.loads((run / "test.json").read_text())
    assert result["images"] == 7
    assert [(row["kind"], round(row["low"], 2), row["images"]) for row in result["by scale"]] == [
        ("test", 1.0, 7),
        ("smaller", 0.5, 2),
        ("smaller", 0.71, 2),
        ("larger", 1.41, 2),
        ("larger", 2.0, 2),
    ]
    known = {"stl10/dss": 1e-9, "stl10/disco": 1.0, "stl10/sesn-hermite": 1.0}
    if model in known:
        assert result["equivariance error"] < known[model]
    else:
        assert result["equivariance error"] is None


@pytest.mark.thorough
def test_killed_and_resumed_is_the_same_run(generated, tmp_path):
    """With everything that has a state: momentum, a moving average, accumulation, held-out images."""
    arguments = ["--model", "stl10/disco", "--epochs", 3, "--batch", 4, "--limit", 8]
    arguments += ["--ema", 0.9, "--accumulate", 2, "--holdout", 0.2]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(words(generated, whole, *arguments)) == 0
    seconds = sum(row["seconds"] for row in read_record(whole)["epochs"])
    process = subprocess.Popen([sys.executable, "-m", "scale_disco", *words(generated, run, *arguments)])
    while process.poll() is None and not (run / "run.json").is_file():
        time.sleep(0.05)
    moment = random.random()
    print("killed after this fraction of the epochs:", moment, "")
    time.sleep(moment * seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(words(generated, run, *arguments, "--resume")) == 0
    assert_same_weights(whole, run)
    mine, theirs = (load_file(folder / "best.safetensors") for folder in (whole, run))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert main(["train", "stl10", "--resume", "--out", str(run)]) == 0  # options and data as they were


def alone():
    """An environment that says nothing of other processes, on plain instructions: those for bfloat16 fail on some."""
    ours = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return ours | {"ONEDNN_MAX_CPU_ISA": "AVX2"}


@pytest.mark.thorough
def test_two_processes_learn_what_one_does(image_folder, tmp_path):
    for devices in (1, 2):
        out = tmp_path / str(devices)
        call = folder_words(image_folder, out, "--model", "stl10/wrn", "--epochs", 2, "--batch", 6, "--dropout", 0)
        call += ["--devices", str(devices), "--ema", "0.8", "--accumulate", "2", "--holdout", "0.25"]
        subprocess.run([sys.executable, "-m", "scale_disco", *call], check=True, env=alone())
    single, double = (state_of(tmp_path / name) for name in ("1", "2"))
    for name, tensor in single.items():
        if tensor.is_floating_point() and not name.startswith("error"):  # each process has its own images there
            torch.testing.assert_close(tensor, double[name], rtol=1e-3, atol=1e-4)
    errors = [read_record(tmp_path / name)["epochs"][-1]["validation error"] for name in ("1", "2")]
    assert errors[0] == errors[1]


@pytest.mark.thorough
def test_two_processes_in_half_precision(image_folder, tmp_path):
    losses = []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        call = folder_words(image_folder, out, "--model", "stl10/wrn", "--epochs", 1, "--batch", 16, "--dropout", 0)
        call += ["--devices", str(devices), "--precision", "bf16"]
        subprocess.run([sys.executable, "-m", "scale_disco", *call], check=True, env=alone(), timeout=PATIENCE)
        losses.append(read_record(out)["epochs"][0]["training loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_batch_in_parts_is_one_step(image_folder, tmp_path):
    out = tmp_path / "run"
    assert (
        main(folder_words(image_folder, out, "--model", "stl10/wrn", "--epochs", 2, "--batch", 8, "--accumulate", 3))
        == 0
    )
    checkpoint = torch.load(out / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2 * 2
    assert checkpoint["lr_schedulers"][0]["last_epoch"] == 2 * 2
    assert read_record(out)["epochs"][-1]["learning rate"] == pytest.approx(0, abs=1e-9)  # the cosine has ended


def test_gradients_of_parts_add_up_to_that_of_the_batch(image_folder, tmp_path, monkeypatch):
    """In a network without batch norms, whose statistics are those of a part."""
    monkeypatch.setattr(
        "scale_disco.tasks.stl10.networks.WideResNetLayers.norm", lambda self, channels: torch.nn.Identity()
    )
    for parts in (1, 3):
        out = tmp_path / str(parts)
        call = folder_words(image_folder, out, "--model", "stl10/wrn", "--epochs", 1, "--batch", 8, "--dropout", 0)
        assert main([*call, "--accumulate", str(parts), "--learning-rate", "0.001"]) == 0
    whole, three = (state_of(tmp_path / name) for name in ("1", "3"))
    for name, tensor in whole.items():
        if tensor.is_floating_point() and not name.startswith(("loss", "error")):
            torch.testing.assert_close(tensor, three[name], rtol=1e-4, atol=1e-6)


def test_moving_average_follows_its_recursion_and_is_tested(image_folder, tmp_path, monkeypatch):
    seen = []
    step = ClassifierModule.optimizer_step

    def watched(self, *args, **kwargs):
        step(self, *args, **kwargs)
        seen.append(self.network.classifier.weight.detach().clone())

    monkeypatch.setattr(ClassifierModule, "optimizer_step", watched)
    out = tmp_path / "run"
    assert main(folder_words(image_folder, out, "--model", "stl10/wrn", "--epochs", 2, "--batch", 4, "--ema", 0.8)) == 0
    assert len(seen) == 8
    expected = seen[0]
    for weight in seen[1:]:
        expected = 0.8 * expected + 0.2 * weight
    network = trained(out)
    torch.testing.assert_close(network.classifier.weight, expected)
    assert not torch.allclose(expected, seen[-1])


def test_recipe_of_the_paper():
    paper = Stl10Options(model="stl10/wrn", recipe="paper").full_recipe
    assert (paper.epochs, paper.batch, paper.learning_rate, paper.weight_decay) == (1000, 128, 0.1, 5e-4)
    factors = [paper.lr_multiplier(epoch / 1000) for epoch in range(1000)]
    expected = [1] * 300 + [0.2] * 100 + [0.04] * 200 + [0.008] * 200 + [0.0016] * 200
    assert factors == pytest.approx(expected)
    (group,) = paper.make_optimizer([torch.zeros(1, requires_grad=True)]).param_groups
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 5e-4)
    assert paper.weights == "last"
    disco = Stl10Options(model="stl10/disco", recipe="paper").full_recipe  # the authors' script
    assert (disco.epochs, disco.batch, disco.learning_rate, disco.weight_decay) == (1000, 64, 0.05, 1e-3)
    assert Stl10Options(model="stl10/disco", recipe="paper", batch=128).full_recipe.batch == 128
    assert (paper.label_smoothing, paper.average, paper.accumulate) == (0, 0, 1)


def test_fast_recipe_is_a_cosine():
    fast = RECIPES["fast"]
    factors = [fast.lr_multiplier(step / 200) for step in range(201)]
    assert factors[0] == 0
    assert factors[10] == max(factors) == 1
    assert factors[105] == pytest.approx(0.5)
    assert factors[200] == pytest.approx(0)


@pytest.mark.thorough
def test_half_precision_on_every_device(image_folder, tmp_path):
    out = tmp_path / "run"
    call = folder_words(image_folder, out, "--model", "stl10/disco", "--epochs", 2, "--precision", "bf16")
    subprocess.run([sys.executable, "-m", "scale_disco", *call], check=True, env=alone())
    record = read_record(out)
    assert 0 < record["epochs"][-1]["training loss"] < 3
    state = state_of(out)
    assert {state[name].dtype for name in state if name.endswith("weight")} == {torch.float32}


@pytest.mark.parametrize("model", ["stl10/wrn", "stl10/disco"])
def test_channels_last_changes_rounding_only(image_folder, tmp_path, model, monkeypatch):
    options = Stl10Options(model=model, depth=10, width=1, dropout=0.0, format="folder", side=16, epochs=1)
    layouts = []
    step = ClassifierModule.training_step

    def watched(self, batch, index):
        layouts.append(batch.images.is_contiguous(memory_format=torch.channels_last))
        return step(self, batch, index)

    monkeypatch.setattr(ClassifierModule, "training_step", watched)
    losses = []
    for last in (False, True):
        where = {"data": image_folder, "out": tmp_path / str(last), "device": "cpu"}
        record = train(options, **where, channels_last=last, say=str, bar=False)
        losses.append(record["epochs"][0]["training loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert layouts[0] is False
    assert layouts[-1] is True


def test_batches_for_a_gpu_are_pinned(image_folder):
    options = Stl10Options(format="folder", side=16)
    training_data = make_data(options, image_folder)
    assert not training_batches(training_data.train, 4, seed=0).pin_memory
    batches = _Batches(training_data, options, torch.contiguous_format)
    for kind in ("cpu", "cuda"):
        strategy = SimpleNamespace(root_device=torch.device(kind))
        batches.trainer = SimpleNamespace(global_rank=0, world_size=1, strategy=strategy)
        assert batches.train_dataloader().pin_memory == (kind == "cuda")


def test_training_images_are_augmented_and_others_are_not(image_folder):
    training_data = make_data(Stl10Options(format="folder", side=16, holdout=0.25, seed=3), image_folder)
    assert isinstance(training_data, TrainingData)
    images = load_images(image_folder, "folder", side=16)["train"]
    assert len(training_data.train.labels) == 12
    assert len(training_data.validation.labels) == 4
    plain = Augmentation(images.mean, images.std).normalize(torch.from_numpy(images.images))
    rows = list(range(4))
    shown = training_data.validation.transform(training_data.validation.read(rows, 0), rows, 0)
    assert all(any(torch.equal(image, other) for other in plain) for image in shown)
    drawn = [training_data.train.transform(training_data.train.read(rows, epoch), rows, epoch) for epoch in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not any(torch.equal(image, other) for image, other in itertools.product(drawn[0], plain))


def test_limited_images_are_of_every_class(image_folder):
    training_data = make_data(Stl10Options(format="folder", side=16, limit=6), image_folder)
    assert set(training_data.train.labels.tolist()) == {0, 1}
    fewer = make_data(Stl10Options(format="folder", side=16, limit=3), image_folder)
    assert np.array_equal(fewer.train.images, training_data.train.images[:3])


@pytest.fixture(scope="session")
def trained_run(image_folder, tmp_path_factory):
    """A finished run on images in folders; read-only."""
    run = tmp_path_factory.mktemp("runs") / "run"
    assert (
        main(folder_words(image_folder, run, "--model", "stl10/wrn", "--epochs", 12, "--batch", 4, "--dropout", 0)) == 0
    )
    return run


def test_own_images_are_learned(trained_run, image_folder, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run")
    result = evaluate(run)
    bins = bins_of(result)
    assert [scale_bin.images for scale_bin in bins] == [10] * 5
    assert result["errors"] <= 2  # of 10; by chance 5
    network, metadata = trained(run), read_record(run)["facts"]
    for scale_bin in bins:  # images are read from their files at each size
        images = load_images(image_folder, "folder", side=round(16 * scale_bin.low))["test"]
        shown = Augmentation(tuple(metadata["mean"]), tuple(metadata["deviation"])).normalize(
            torch.from_numpy(images.images)
        )
        assert scale_bin.errors == int((network(shown).argmax(1).numpy() != images.labels).sum())


def test_images_without_a_color_channel_are_trained_on(image_folder, tmp_path):
    root = shutil.copytree(image_folder, tmp_path / "red")
    for path in root.rglob("*.png"):
        red = np.asarray(Image.open(path)) * np.uint8([1, 0, 0])
        Image.fromarray(red).save(path)
    run = tmp_path / "run"
    assert main(folder_words(root, run, "--model", "stl10/wrn", "--epochs", 1)) == 0
    assert evaluate(run)["complete"]


def test_images_of_stl10_are_resampled(generated):
    images = load_images(generated)["test"]
    augment = Augmentation(images.mean, images.std)
    rows = [0, 1]
    for side in (48, 136):
        shown = ImageDataset(images, augment, side=side)
        assert shown.pixels == side**2
        assert shown.transform(shown.read(rows, 0), rows, 0).shape == (2, 3, side, side)
    constant = images._replace(images=np.full_like(images.images, 100))
    shown = ImageDataset(constant, augment, side=48)
    small = shown.transform(shown.read(rows, 0), rows, 0)
    torch.testing.assert_close(small, augment.normalize(torch.from_numpy(constant.images[:2]))[..., :48, :48])


def test_cached_predictions_on_other_images_are_ignored(trained_run, image_folder, tmp_path, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    mine = evaluate(run, outside=0)
    other = shutil.copytree(image_folder, tmp_path / "elsewhere" / image_folder.name)  # the name alone says nothing
    (other / "test" / "lying").rename(other / "test" / "x")
    (other / "test" / "standing").rename(other / "test" / "lying")
    (other / "test" / "x").rename(other / "test" / "standing")
    theirs = evaluate(run, data=other, outside=0)
    assert theirs["errors"] == 10 - mine["errors"]
    assert theirs["not recorded"].startswith("these are not the test images")
    assert json.loads((run / "test.json").read_text()) == mine
    copy = shutil.copytree(image_folder, tmp_path / "copy")
    assert evaluate(run, data=copy)["not recorded"] is None
    recorded = json.loads((run / "test.json").read_text())
    assert evaluate(run, outside=2)["not recorded"] == "an earlier test had more images"
    assert evaluate(run, limit=2)["not recorded"] == "the test set has 10 images"
    assert json.loads((run / "test.json").read_text()) == recorded
    (run / "test.json").write_text("{")
    assert evaluate(run, outside=2)["not recorded"] is None
    shutil.move(other / "test" / "lying", other / "test" / "curved")
    shutil.move(other / "train" / "lying", other / "train" / "curved")
    assert main(["test", str(run), "--data", str(other)]) == 1
    assert_one_line(capsys, "test", "the network was trained on 2 classes (lying...), these images have 2 (curved...)")


def test_a_damaged_image_is_one_line(trained_run, image_folder, tmp_path, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    other = shutil.copytree(image_folder, tmp_path / "other")
    (other / "test" / "lying" / "0.png").write_bytes(b"no image")
    assert main(["test", str(run), "--data", str(other)]) == 1
    assert_one_line(capsys, "test", "0.png: not an image in a supported format")


def test_resume_refuses_other_images(trained_run, image_folder, tmp_path, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"status": "running"}))
    other = shutil.copytree(image_folder, tmp_path / "images")
    Image.new("RGB", (20, 20)).save(other / "train" / "lying" / "0.png")
    assert main(["train", "stl10", "--resume", "--out", str(run), "--data", str(other)]) == 1
    assert_one_line(capsys, "train", "was started with other images than those in")
    assert main(["train", "mnist-scale", "--resume", "--out", str(run)]) == 1
    assert_one_line(capsys, "train", "is a run of stl10, got mnist-scale")


@pytest.mark.parametrize("left", ["name", "classes", "mean", "deviation", "train", "test"])
def test_a_record_without_metadata_is_one_line(trained_run, tmp_path, left, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    del record["facts"][left]
    (run / "run.json").write_text(json.dumps(record))
    assert main(["test", str(run)]) == 1
    assert_one_line(capsys, "test", f"damaged, or not a run record ({left} is missing")


DAMAGED = {
    "no model": ("settings", "model", None, "model has the wrong type or is empty"),
    "half an image": ("settings", "limit", 2.5, "limit has the wrong type or is empty"),
    "a switch for a number": ("settings", "depth", True, "depth has the wrong type or is empty"),
    "no precision": ("settings", "precision", None, "precision has the wrong type or is empty"),
    "means that are words": ("facts", "mean", ["a", "b", "c"], "mean has the wrong type or is empty"),
    "null for std": ("facts", "deviation", [None] * 3, "deviation has the wrong type or is empty"),
    "no classes": ("facts", "classes", [], "classes has the wrong type or is empty"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record_is_one_line(trained_run, tmp_path, case, capsys):
    part, name, value, message = DAMAGED[case]
    run = shutil.copytree(trained_run, tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    record[part][name] = value
    (run / "run.json").write_text(json.dumps(record))
    for words_ in (["test", str(run)], ["train", "stl10", "--resume", "--out", str(run)]):
        assert main(words_) == 1
        assert_one_line(capsys, words_[0], f"damaged, or not a run record ({message}")


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_cut_checkpoint_is_one_line(trained_run, tmp_path, size, capsys):
    run = shutil.copytree(trained_run, tmp_path / "run")
    (run / "last.ckpt").write_bytes((run / "last.ckpt").read_bytes()[:size])
    assert main(["test", str(run)]) == 1
    assert_one_line(capsys, "test", "last.ckpt: damaged")


@pytest.mark.parametrize("share", [0.99, 0.01])
def test_held_out_images_leave_some(image_folder, tmp_path, share, capsys):
    assert main(folder_words(image_folder, tmp_path / "run", "--holdout", share)) == 1
    assert_one_line(capsys, "train", f"--holdout {share} of 16 images leaves")
    assert not (tmp_path / "run").exists()


def test_options_of_another_experiment_are_refused(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("experiment: mnist-scale\nseed: 3\n")
    assert main(["train", "stl10", "--config", str(file)]) == 1
    assert_one_line(capsys, "train", "this config is for mnist-scale, not stl10")


def test_large_images_have_small_batches(generated):
    options = Stl10Options()
    evaluation = make_evaluation(options, generated, make_data(options, generated).metadata, limit=None, outside=7)
    assert max(map(len, _chunks(evaluation.sets["2.00"]))) * 192**2 <= 400_000


def test_best_weights_need_held_out_images(trained_run, capsys):
    assert main(["test", str(trained_run), "--checkpoint", "best"]) == 1
    assert_one_line(capsys, "test", "without a validation set (--holdout 0) use --checkpoint last")


def test_decoded_images_are_cached(image_folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache.safetensors"
    options = Stl10Options(format="folder", side=16)
    first = make_data(options, image_folder, cache=cache)
    assert cache.is_file()
    monkeypatch.setattr("scale_disco.tasks.stl10.folder.decode", None)
    assert np.array_equal(make_data(options, image_folder, cache=cache).train.images, first.train.images)


def test_files_are_read_at_the_side_asked_for(image_folder):
    from scale_disco.tasks.stl10.folder import list_images

    chosen = list_images(image_folder).files[:3]
    shown = ImageFileDataset(chosen, Augmentation((0.5,) * 3, (0.25,) * 3), 33)
    assert shown.read(range(2), 0).shape == (2, 3, 33, 33)


ERRORS = {
    "unknown model": (
        ["--model", "mnist/disco"],
        2,
        'invalid value "mnist/disco" for --model, choose from: "stl10/wrn"',
    ),
    "depth": (["--depth", "12"], 1, "depth must be 6n + 4"),
    "width": (["--width", "0"], 1, "width must be"),
    "dropout": (["--dropout", "1"], 1, "dropout must be from 0 to below 1"),
    "option of another network": (
        ["--model", "stl10/wrn", "--pools", "mean"],
        1,
        "--pools is not an option of stl10/wrn",
    ),
    "steps of another network": (["--model", "stl10/sesn-hermite", "--basis-steps", "3"], 1, "--basis-steps is not an"),
    "pools": (["--pools", "median"], 2, 'invalid value "median" for --pools, choose from: "max", "mean"'),
    "accumulate": (["--accumulate", "0"], 1, "--accumulate must be at least 1, got 0"),
    "too many parts": (["--accumulate", "9"], 1, "the last batch has 13, for 1 process in 9 micro-batches"),
    "average": (["--ema", "1"], 1, "--ema must be from 0 to below 1, got 1.0"),
    "learning rate": (["--learning-rate", "-1"], 1, "--learning-rate must be finite and at least 0, got -1.0"),
    "NaN": (["--learning-rate", "nan"], 1, "--learning-rate must be finite and at least 0, got nan"),
    "precision": (["--precision", "8"], 2, 'invalid value "8" for --precision, choose from: "32", "16", "bf16"'),
    "no GPU": (["--precision", "16", "--device", "cpu"], 1, "--precision 16 needs a GPU"),
    "format": (["--format", "zip"], 2, 'invalid value "zip" for --format, choose from: "stl10", "folder"'),
    "side": (["--side", "48"], 1, "for others use --format folder"),
    "another experiment": (["--split", "0"], 2, "unknown option: --split"),
    "fold": (["--fold", "10"], 1, "fold"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_options_are_one_line(generated, tmp_path, case, capsys):
    arguments, code, message = ERRORS[case]
    assert main(words(generated, tmp_path / "run", *arguments)) == code
    assert_one_line(capsys, "train", message)
    assert not (tmp_path / "run").exists()


def test_missing_data_is_one_line(tmp_path, capsys):
    assert main(words(tmp_path / "nowhere", tmp_path / "run")) == 1
    assert_one_line(capsys, "train", "nowhere")
    assert not (tmp_path / "run").exists()


def test_command_starts_the_same_run():
    options = Stl10Options(model="stl10/disco", basis_steps=54, format="folder", epochs=2)
    assert options.command == (
        "disco train stl10 --model stl10/disco --depth 16 --width 8 --basis-steps 54 --format folder "
        "--recipe fast --epochs 2 --seed 0"
    )
    narrow = Stl10Options(model="stl10/wrn", dropout=0.0, learning_rate=1e-3).command
    assert narrow.endswith("--width 8 --dropout 0.0 --recipe fast --learning-rate 0.001 --seed 0")
    assert options.run_name == "stl10-disco-54-16-8-fast-0"


def test_data_may_be_in_the_folder_or_in_its_parent(tmp_path):
    values = {"format": "stl10"}
    assert Stl10Options.data_file(tmp_path, values)[0] == tmp_path / "train_X.bin"
    (tmp_path / "stl10_binary").mkdir()
    assert Stl10Options.data_file(tmp_path, values)[0] == tmp_path / "stl10_binary" / "train_X.bin"
    assert Stl10Options.data_file(tmp_path, {"format": "folder"}) is None
