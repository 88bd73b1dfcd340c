"""Readouts that are trained on resized copies."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.cli import main
from scale_disco.models.packaged import cards
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.runs.evaluate import evaluate, trained
from scale_disco.tasks.runs.loop import train
from scale_disco.tasks.scene.copies import Copies
from scale_disco.tasks.scene.losses import ReadoutModule
from scale_disco.tasks.scene.networks import CHANNELS, SCALES
from scale_disco.tasks.scene.options import SceneTrainOptions
from scale_disco.tasks.scene.readout import READOUTS
from scale_disco.tasks.scene.training import ProfilePairDataset, make_data, make_model, scene_estimator


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four small images."""
    folder = tmp_path_factory.mktemp("images")
    for number, photo in enumerate(photos()[:4, 0, :64, :64].mul(255).byte().numpy()):
        Image.fromarray(np.stack([photo] * 3, 2)).save(folder / f"{number}.png")
    return folder


SMALL = {"copies": 3, "windows": 2, "pairs": 16, "batch": 8, "epochs": 2, "holdout": 0.25}


@pytest.mark.parametrize("model", ["scene/argmax", "scene/equivariant", "scene/matched"])
def test_readouts_are_trained_and_loaded(model, data, tmp_path):
    settings = SceneTrainOptions(model=model, **SMALL)
    record = train(settings, data=data, out=tmp_path / "run", cache=data.parent / "profiles", bar=False, say=str)
    assert record["status"] == "finished"
    assert record["facts"]["pictures"] == 4
    estimator = scene_estimator(tmp_path / "run")
    assert not estimator.training
    assert estimator(255 * torch.rand(2, 3, 64, 64)).isfinite().all()


def test_profiles_are_cached_next_to_the_run(data, tmp_path, capsys):
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    assert main(["train", "scene", "--data", str(data), "--out", str(tmp_path / "run"), *options]) == 0
    files = sorted((tmp_path / "profiles").iterdir())
    assert len(files) == 4
    times = [file.stat().st_mtime_ns for file in files]
    words = [
        "train",
        "scene",
        "--data",
        str(data),
        "--out",
        str(tmp_path / "other"),
        "--model",
        "scene/argmax",
        *options,
    ]
    assert main(words) == 0
    assert [file.stat().st_mtime_ns for file in sorted((tmp_path / "profiles").iterdir())] == times
    assert "next: disco test scene" in capsys.readouterr().err


def test_a_resumed_run_ends_with_the_same_weights(data, tmp_path):
    settings, cache = SceneTrainOptions(model="scene/equivariant", **SMALL), data.parent / "profiles"
    common = {"data": data, "cache": cache, "bar": False}
    train(settings, out=tmp_path / "whole", say=str, **common)

    class StoppedError(Exception):
        pass

    def stop(line):
        raise StoppedError

    with pytest.raises(StoppedError):
        train(settings, out=tmp_path / "parts", say=stop, **common)
    train(settings, out=tmp_path / "parts", say=str, resume=True, **common)
    states = [trained(tmp_path / name).state_dict() for name in ("whole", "parts")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_estimator_needs_the_weights_that_it_was_trained_with(data, tmp_path):
    cache = data.parent / "profiles"
    for name, pretrained in (("run", None), ("random", "random")):
        settings = SceneTrainOptions(pretrained=pretrained, **SMALL)
        train(settings, data=data, out=tmp_path / name, cache=cache, bar=False, say=str)
        sha256 = scene_estimator(tmp_path / name).backbone.sha256
        assert sha256 == (None if pretrained else cards()["scene/shift"].sha256)
    assert scene_estimator(tmp_path / "random", "random").backbone.sha256 is None
    with pytest.raises(ValueError, match="the backbone had random weights in training, got --pretrained x"):
        scene_estimator(tmp_path / "random", "x")
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    record["facts"]["weights"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(FileNotFoundError, match="pass that as --pretrained"):
        scene_estimator(tmp_path / "run")


def test_weights_of_another_network_are_refused(data, tmp_path):
    """Also where someone put the file of weights of another run."""
    cache = data.parent / "profiles"
    for kind in ("shift", "as-is"):
        train(
            SceneTrainOptions(backbone=kind, **SMALL), data=data, out=tmp_path / kind, cache=cache, bar=False, say=str
        )
    (tmp_path / "as-is" / "best.safetensors").replace(tmp_path / "shift" / "best.safetensors")
    with pytest.raises(ValueError, match="the readout was trained for a different backbone, other scales or other"):
        scene_estimator(tmp_path / "shift")


def profiles(octaves):
    """Bumps of every channel, moved along the axis."""
    centres = torch.linspace(0, 2, CHANNELS)[:, None]
    distance = SCALES_OCTAVES - centres - torch.as_tensor(octaves)[..., None, None]
    return (-(distance**2)).exp() + 0.1


SCALES_OCTAVES = torch.tensor([scale for scale in SCALES]).log2()


def made(count=8):
    generator = torch.Generator().manual_seed(0)
    octaves = torch.rand(count, 4, generator=generator) - 0.5
    return [Copies(profiles(row)[:, None].half(), row) for row in octaves]


def test_pairs_are_of_one_epoch_and_have_the_right_answers():
    shown = ProfilePairDataset(made(), 32, 0, "made")
    images, answers = shown.read(range(32), 0), shown.targets(range(32), 0)
    assert images.shape == (32, 2, CHANNELS, 9)
    shift = READOUTS["shift"](CHANNELS, SCALES)
    assert (shift.compare(*images.unbind(1)) - answers).abs().max() < 0.05
    assert not torch.equal(answers, shown.targets(range(32), 1))
    assert torch.equal(answers, ProfilePairDataset(made(), 32, 0, "made").targets(range(32), 0))


@pytest.mark.parametrize("model", ["scene/equivariant", "scene/profile", "scene/first-scale"])
@pytest.mark.parametrize("loss", ["log", "ratio"])
def test_the_loss_falls(model, loss):
    settings, shown = SceneTrainOptions(model=model, loss=loss, **SMALL), ProfilePairDataset(made(), 64, 0, "made")
    torch.manual_seed(0)
    learner = ReadoutModule(make_model(settings, {}), settings, steps=1)
    learner.prepare(shown)
    optimizer = torch.optim.Adam(learner.parameters(), 1e-3)
    losses = []
    for epoch in range(25):
        rows = list(range(64))
        batch = type("Batch", (), {"images": shown.read(rows, epoch), "labels": shown.targets(rows, epoch)})
        value = learner.compute_loss(batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "scene/shift"}, "--model must be one of scene/argmax"),
        ({"backbone": "odd"}, "--backbone must be one of shift, as-is, hermite, got 'odd'"),
        ({"loss": "odd"}, "--loss must be one of ratio, log, got 'odd'"),
        ({"span": 3.0}, "span must be above 0 octaves and at most 2, got 3.0"),
        ({"copies": 1}, "copies must be at least 2"),
        ({"pairs": 1}, "--pairs must be at least 2, got 1"),
        ({"holdout": 1.0}, "--holdout must be from 0 to below 1"),
        ({"learning_rate": -1.0}, "--learning-rate must be finite and at least 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SceneTrainOptions(**options)


def test_wrong_folders_are_refused(tmp_path, data):
    with pytest.raises(FileNotFoundError, match="no images in"):
        make_data(SceneTrainOptions(), tmp_path)
    with pytest.raises(ValueError, match=r"--holdout 0\.1 of 4 images leaves 0"):
        make_data(SceneTrainOptions(), data)


def test_it_is_tested_by_its_own_command(data, tmp_path):
    train(
        SceneTrainOptions(**SMALL), data=data, out=tmp_path / "run", cache=data.parent / "profiles", bar=False, say=str
    )
    with pytest.raises(ValueError, match="with disco test scene RUN"):
        evaluate(tmp_path / "run")
