"""What is no number stops training with the step in the message, and what was good is kept."""

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
from scale_disco.tasks.mnist_scale.data import Digits  # noqa: E402
from scale_disco.tasks.mnist_scale.training import DigitDataset, MnistScaleOptions  # noqa: E402
from scale_disco.tasks.runs.batches import Batch  # noqa: E402
from scale_disco.tasks.runs.loop import train  # noqa: E402
from scale_disco.tasks.runs.modules import ClassifierModule, NonFiniteError  # noqa: E402
from scale_disco.tasks.runs.options import TrainingData  # noqa: E402
from scale_disco.tasks.runs.recipe import Recipe  # noqa: E402
from scale_disco.tasks.scene.losses import ReadoutModule  # noqa: E402
from scale_disco.tasks.scene.training import SceneOptions  # noqa: E402
from scale_disco.tasks.tracking.losses import TrackerModule  # noqa: E402
from scale_disco.tasks.tracking.training import TrackerOptions  # noqa: E402

RECIPE = Recipe(epochs=3, batch=4, learning_rate=0.001, schedule="one-cycle")
OPTIONS = {
    "single": {},
    "bf16": {"precision": "bf16"},
    "in parts": {"accumulate": 2},
    "average": {"average": 0.9},
    "clipped": {"clip": 1.0},
    "descent": {"optimiser": "sgd"},
}
STEPS, FROM = 3, 2  # of an epoch; the epoch, from one, in which there is trouble


@dataclass(frozen=True)
class Small(MnistScaleOptions):
    """Twelve images of noise, for three steps of an epoch."""

    recipes = {"fast": RECIPE}  # noqa: RUF012

    def lesson(self, data, **_):
        draw = np.random.default_rng(0)
        digits = Digits(draw.integers(0, 256, (12, 28, 28), dtype=np.uint8), np.arange(12) % 10, np.ones(12))
        return TrainingData(DigitDataset(digits), DigitDataset(digits), {})


def bad_loss(learner, loss):
    return loss * torch.nan if learner.global_step == STEPS + 1 else loss


def bad_gradient(learner, loss):
    if learner.global_step == 2 * STEPS - 1:
        loss.register_hook(lambda slope: slope * torch.inf)
    return loss


# Where trouble comes from; and in which words it ends.
LOSSES = {
    "loss": (bad_loss, r"the loss is nan in step 5, in epoch 2 of 3; epoch 1 is kept.*"),
    "gradient": (bad_gradient, r"\S+ is no number after step 6, in epoch 2 of 3; epoch 1 is kept.*"),
}


def stops(monkeypatch, folder, options, words):
    """Train until it stops with these words, and see that all of the first epoch is kept, and nothing of the second."""
    monkeypatch.setitem(Small.recipes, "fast", dataclasses.replace(RECIPE, **options))
    run = folder / "run"
    with pytest.raises(NonFiniteError, match=rf"^{words}$"):
        train(Small(model="digits/cnn"), data=folder, out=run, bar=False, say=str)
    last = torch.load(run / "last.ckpt", weights_only=True)
    assert last["global_step"] == STEPS
    assert all(tensor.isfinite().all() for tensor in last["state_dict"].values())
    with safe_open(run / "best.safetensors", "pt") as best:
        assert best.metadata() == {"epoch": "1"}
        assert all(best.get_tensor(name).isfinite().all() for name in best.keys())  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("trouble", LOSSES)
@pytest.mark.parametrize("options", OPTIONS)
def test_training_stops_and_keeps_the_epoch_before(trouble, options, tmp_path, monkeypatch):
    spoil, words = LOSSES[trouble]
    loss_of = ClassifierModule.loss_of
    monkeypatch.setattr(ClassifierModule, "loss_of", lambda self, batch: spoil(self, loss_of(self, batch)))
    stops(monkeypatch, tmp_path, OPTIONS[options], words)


@pytest.mark.parametrize("options", ["single", "average"])
def test_answers_that_are_no_numbers_do_not_count_as_right(options, tmp_path, monkeypatch):
    answers_to = ClassifierModule.answers_to

    def lucky(self, batch):  # the largest of numbers that are none is the first of them
        answers = answers_to(self, batch)
        if self.current_epoch + 1 == FROM:
            answers[torch.arange(len(answers)), batch.labels] = torch.nan
        return answers

    monkeypatch.setattr(ClassifierModule, "answers_to", lucky)
    stops(monkeypatch, tmp_path, OPTIONS[options], "an answer is no number after step 6, in epoch 2 of 3; .*")


def test_an_average_that_is_no_number_is_not_kept(tmp_path, monkeypatch):
    def poisoned(self):
        if self.current_epoch + 1 == FROM:
            next(self.average.module.parameters()).data.fill_(torch.inf)

    monkeypatch.setattr(ClassifierModule, "on_train_epoch_end", poisoned)
    stops(monkeypatch, tmp_path, OPTIONS["average"], r"\S+ is no number after step 6, in epoch 2 of 3; .*")


def learners():
    """Every kind of learner, with a batch of images that it takes."""
    torch.manual_seed(0)
    yield ClassifierModule(create_model("digits/cnn"), Small(model="digits/cnn"), steps=1), (2, 1, 28, 28), (2,)
    yield (
        TrackerModule(create_model("track/siamfc+"), TrackerOptions(model="track/siamfc+"), steps=1),
        (1, 6, 255, 255),
        (1, 3),
    )
    scene = SceneOptions(model="scene/equivariant")
    yield ReadoutModule(scene.network({}), scene, steps=1), (2, 2, 512, 9), (2,)


@pytest.mark.parametrize("number", range(3), ids=["classifier", "matcher", "contrast"])
def test_every_learner_knows_what_is_no_number(number):
    learner, shape, labels = list(learners())[number]
    learner.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    batch = Batch(torch.full(shape, torch.nan), torch.zeros(labels, dtype=torch.int64), [0], 1.0)
    with pytest.raises(NonFiniteError, match=r"^the loss is nan in step 1, in epoch 1 of"):
        learner.training_step(batch, 0)
    for norm in (part for part in learner.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)):
        norm.reset_running_stats()
    with pytest.raises(NonFiniteError, match=r"^an answer is no number after step 0, in epoch 1 of"):
        learner.eval().validation_step(batch, 0)
