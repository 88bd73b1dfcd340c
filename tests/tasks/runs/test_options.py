from __future__ import annotations

import dataclasses

import pytest

from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.runs.experiments import EXPERIMENTS
from scale_disco.tasks.stl10.options import Stl10Options


def test_other_lengths_stretch_the_schedule():
    recipe = MnistScaleOptions(recipe="paper", epochs=3).full_recipe
    assert recipe.epochs == 3
    assert recipe.lr_multiplier(0.5) == pytest.approx(0.1)


def test_command_starts_the_same_run():
    settings = MnistScaleOptions(model="mnist/cnn", augment=True, limit=10)
    assert (
        settings.command
        == "disco train mnist-scale --model mnist/cnn --split 0 --augment --recipe fast --limit 10 --seed 0"
    )


def test_options_override_the_recipe():
    recipe = Stl10Options(batch=7, learning_rate=0.5, smoothing=0.1, ema=0.9, precision="bf16").full_recipe
    assert (recipe.batch, recipe.learning_rate, recipe.label_smoothing) == (7, 0.5, 0.1)
    assert (recipe.average, recipe.precision, recipe.epochs) == (0.9, "bf16", 30)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_option_has_help_and_a_default_that_it_accepts(name):
    options = EXPERIMENTS[name].options
    assert options.experiment == name
    assert options().as_dict() == {key: field.default for key, field in options.fields().items()}
    assert all(field.metadata["help"] for field in dataclasses.fields(options))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_options_are_rebuilt_from_their_dictionary(name):
    options = EXPERIMENTS[name].options(epochs=3, seed=5)
    assert type(options)(**options.as_dict()) == options
