"""NaN and infinity stop training with the step in the message; the last finite epoch is kept."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

L = pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.models import create_model  # noqa: E402
from scale_disco.tasks.mnist_scale import training as mnist_scale  # noqa: E402
from scale_disco.tasks.mnist_scale.data import Digits  # noqa: E402
from scale_disco.tasks.mnist_scale.options import MnistScaleOptions  # noqa: E402
from scale_disco.tasks.mnist_scale.training import DigitDataset  # noqa: E402
from scale_disco.tasks.runs.batches import Batch  # noqa: E402
from scale_disco.tasks.runs.experiments import TrainingData  # noqa: E402
from scale_disco.tasks.runs.loop import train  # noqa: E402
from scale_disco.tasks.runs.modules import ClassifierModule, NonFiniteError  # noqa: E402
from scale_disco.tasks.runs.recipe import Recipe  # noqa: E402
from scale_disco.tasks.scene.losses import ReadoutModule  # noqa: E402
from scale_disco.tasks.scene.options import SceneTrainOptions  # noqa: E402
from scale_disco.tasks.scene.training import make_model  # noqa: E402
from scale_disco.tasks.tracking.losses import TrackerModule  # noqa: E402
from scale_disco.tasks.tracking.options import TrackerOptions  # noqa: E402

RECIPE = Recipe(epochs=3, batch=4, learning_rate=0.001, schedule="one-cycle")
OPTIONS = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "accumulated": {"accumulate": 2},
    "moving average": {"average": 0.9},
    "clipped": {"clip": 1.0},
    "SGD": {"optimizer": "sgd"},
}
STEPS, BAD_EPOCH = 3, 2  # per epoch; the first one with non-finite values, counted from 1


@dataclass(frozen=True)
class Small(MnistScaleOptions):
    """Twelve images of noise: three steps per epoch."""

    recipes = {"fast": RECIPE}  # noqa: RUF012


def make_noise(options, folder):
    generator = np.random.default_rng(0)
    digits = Digits(generator.integers(0, 256, (12, 28, 28), dtype=np.uint8), np.arange(12) % 10, np.ones(12))
    return TrainingData(DigitDataset(digits), DigitDataset(digits), {})


def bad_loss(module, loss):
    return loss * torch.nan if module.global_step == STEPS + 1 else loss


def bad_gradient(module, loss):
    if module.global_step == 2 * STEPS - 1:
        loss.register_hook(lambda gradient: gradient * torch.inf)
    return loss


# Where non-finite values come from, and the message.
SOURCES = {
    "loss": (bad_loss, r"non-finite loss \(nan\) at step 5, in epoch 2 of 3; epoch 1 is saved.*"),
    "gradient": (bad_gradient, r"non-finite \S+ after step 6, in epoch 2 of 3; epoch 1 is saved.*"),
}


def check_stop(monkeypatch, folder, options, message):
    """Train until it stops with this message, and check that checkpoints hold the first epoch."""
    monkeypatch.setitem(Small.recipes, "fast", dataclasses.replace(RECIPE, **options))
    experiment = dataclasses.replace(mnist_scale.EXPERIMENT, make_data=make_noise)
    monkeypatch.setattr(mnist_scale, "EXPERIMENT", experiment)
    run = folder / "run"
    with pytest.raises(NonFiniteError, match=rf"^{message}$"):
        train(Small(model="digits/cnn"), data=folder, out=run, bar=False, say=str)
    last = torch.load(run / "last.ckpt", weights_only=True)
    assert last["global_step"] == STEPS
    assert all(tensor.isfinite().all() for tensor in last["state_dict"].values())
    with safe_open(run / "best.safetensors", "pt") as best:
        assert best.metadata() == {"epoch": "1"}
        assert all(best.get_tensor(name).isfinite().all() for name in best.keys())  # noqa: SIM118 - not a dict


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", OPTIONS)
def test_training_stops_and_keeps_the_last_finite_epoch(source, options, tmp_path, monkeypatch):
    spoil, message = SOURCES[source]
    compute_loss = ClassifierModule.compute_loss
    monkeypatch.setattr(ClassifierModule, "compute_loss", lambda self, batch: spoil(self, compute_loss(self, batch)))
    check_stop(monkeypatch, tmp_path, OPTIONS[options], message)


@pytest.mark.parametrize("options", ["float32", "moving average"])
def test_nan_logits_do_not_count_as_correct(options, tmp_path, monkeypatch):
    predict = ClassifierModule.predict

    def nan_at_the_label(self, batch):  # argmax returns the index of the first NaN
        logits = predict(self, batch)
        if self.current_epoch + 1 == BAD_EPOCH:
            logits[torch.arange(len(logits)), batch.labels] = torch.nan
        return logits

    monkeypatch.setattr(ClassifierModule, "predict", nan_at_the_label)
    check_stop(monkeypatch, tmp_path, OPTIONS[options], "non-finite predictions after step 6, in epoch 2 of 3; .*")


def test_non_finite_moving_average_is_not_saved(tmp_path, monkeypatch):
    def poisoned(self):
        if self.current_epoch + 1 == BAD_EPOCH:
            next(self.average.module.parameters()).data.fill_(torch.inf)

    monkeypatch.setattr(ClassifierModule, "on_train_epoch_end", poisoned)
    check_stop(monkeypatch, tmp_path, OPTIONS["moving average"], r"non-finite \S+ after step 6, in epoch 2 of 3; .*")


def training_modules():
    """Yield every kind of training module, with the shapes of its images and labels."""
    torch.manual_seed(0)
    yield ClassifierModule(create_model("digits/cnn"), Small(model="digits/cnn"), steps=1), (2, 1, 28, 28), (2,)
    yield (
        TrackerModule(create_model("track/siamfc+"), TrackerOptions(model="track/siamfc+"), steps=1),
        (1, 6, 255, 255),
        (1, 3),
    )
    scene = SceneTrainOptions(model="scene/equivariant")
    yield ReadoutModule(make_model(scene, {}), scene, steps=1), (2, 2, 512, 9), (2,)


@pytest.mark.parametrize("number", range(3), ids=["classifier", "matcher", "contrast"])
def test_every_training_module_refuses_nan(number):
    module, shape, labels = list(training_modules())[number]
    module.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    batch = Batch(torch.full(shape, torch.nan), torch.zeros(labels, dtype=torch.int64), [0], 1.0)
    with pytest.raises(NonFiniteError, match=r"^non-finite loss \(nan\) at step 1, in epoch 1 of"):
        module.training_step(batch, 0)
    for norm in (norm for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)):
        norm.reset_running_stats()
    with pytest.raises(NonFiniteError, match=r"^non-finite predictions after step 0, in epoch 1 of"):
        module.eval().validation_step(batch, 0)
