from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from scale_disco.models import create_model, list_models
from scale_disco.tasks.generalization.digits import LARGE_CANVAS, LARGE_SCALES, STIR_SIZES, SizedDigits, save
from scale_disco.tasks.generalization.digits import large_scale_size as size_of
from scale_disco.tasks.generalization.options import GeneralizationOptions
from scale_disco.tasks.generalization.table import SizeTable
from scale_disco.tasks.generalization.training import (
    make_data,
    make_evaluation,
    make_model,
    rescaled,
)
from scale_disco.tasks.runs.evaluate import bins_of, evaluate
from scale_disco.tasks.runs.loop import train
from scale_disco.tasks.runs.tables import outcomes
from tests.conftest import tiered

MODELS = list_models("generalization")


def squares(sizes, canvas, count):
    """Squares of the sizes, with as many bright quarters as their label modulo 4."""
    images = np.zeros((len(sizes), count, canvas, canvas), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 4
    for k, size in enumerate(sizes):
        half, start = min(size, canvas) // 2, (canvas - min(size, canvas)) // 2
        for index, label in enumerate(labels):
            for quarter in range(label + 1):
                top, left = start + half * (quarter // 2), start + half * (quarter % 2)
                images[k, index, top + 1 : top + half - 1, left + 1 : left + half - 1] = 200
    return SizedDigits(images, labels, np.array(sizes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    parts = {part: squares(STIR_SIZES, 64, 8) for part in ("train", "val", "test")}
    save(folder, "stir-mnist", parts, source="squares")
    trained, tested = [28, 56, 112], [size_of(scale) for scale in LARGE_SCALES]
    parts = {part: squares(trained, LARGE_CANVAS, 4) for part in ("train", "val")}
    save(folder, "mnist-large-scale", parts | {"test": squares(tested, LARGE_CANVAS, 4)}, source="squares")
    return folder


@pytest.mark.parametrize("model", tiered(MODELS, lambda model: model != "generalization/sesn-hermite"))
def test_trains_and_tests(model, folder, tmp_path):
    options = GeneralizationOptions(model=model, recipe="quick", epochs=1, limit=32, test_scales=5)
    record = train(options, data=folder, out=tmp_path / "run", say=lambda line: None, bar=False)
    assert record["status"] == "finished"
    result = evaluate(tmp_path / "run", limit=48, outside=1)
    assert result["images"] == 48
    kinds = {each.kind for each in bins_of(result)}
    assert kinds == ({"test"} if model in MODELS[:2] else {"test", "5 scales from 1"})
    assert [each.low for each in bins_of(result) if each.kind == "test"] == list(STIR_SIZES)


def test_tests_with_scales_below_one(folder, tmp_path):
    options = GeneralizationOptions(scenario="3", recipe="quick", epochs=1, limit=32, test_scales=2, enlarge=1)
    network = make_model(options, {}).eval()
    evaluation = make_evaluation(options, folder, {}, limit=48, outside=1)
    (kind,) = evaluation.variants
    assert kind == "3 scales from 0.707"
    other = evaluation.variants[kind](network)
    expected = create_model("generalization/decimated", scales=[2**-0.5, 1, 2**0.5]).eval()
    expected.load_state_dict(network.state_dict())
    images = evaluation.sets[kind].read(range(3), 0)
    assert torch.equal(other(images), expected(images))
    assert not torch.allclose(other(images), network(images))


@pytest.mark.thorough
def test_learns_squares_of_all_sizes_from_small_ones(folder, tmp_path):
    """Squares of 17 to 32 pixels in training; larger ones with more scales than in training."""
    options = GeneralizationOptions(recipe="quick", epochs=6, learning_rate=0.02, scales=2, test_scales=5)
    run = tmp_path / "run"
    train(options, data=folder, out=run, say=lambda line: None, bar=False)
    result = evaluate(run, outside=1)
    assert result["complete"]

    def errors(kind, low, high):
        return sum(each.errors for each in bins_of(result) if each.kind == kind and low <= each.low <= high)

    assert errors("test", 17, 32) <= 8  # of 128
    assert errors("5 scales from 1", 33, 64) <= 32  # of 256; by chance 192
    (group,) = SizeTable.sort(outcomes([run], "generalization"))
    assert group.title == "stir-mnist, trained on 17 to 32 pixels, recipe quick, 6 epochs"
    lines = group.table().splitlines()
    assert "as in training" in lines[2]
    assert "5 scales from 1" in lines[3]
    assert len(group.curves()) == 2
    assert "disco train generalization --model generalization/decimated" in group.provenance()


@pytest.mark.parametrize(("scenario", "size"), [("1", 28), ("2", 56), ("4", 112)])
def test_large_scale_trains_at_one_scale(folder, scenario, size):
    options = GeneralizationOptions(data_set="mnist-large-scale", scenario=scenario)
    data = make_data(options, folder)
    assert set(data.train.sizes) == {size}
    assert data.train.read([0], 0).shape == (1, 1, 112, 112)
    evaluation = make_evaluation(options, folder, {}, limit=None, outside=0)
    assert evaluation.total == len(evaluation.sets["test"]) == 17 * 4


@pytest.mark.parametrize(("scenario", "sizes"), [("1", (17, 32)), ("2", (33, 48)), ("3", (49, 64)), ("4", (17, 64))])
def test_scenarios(folder, scenario, sizes):
    data = make_data(GeneralizationOptions(scenario=scenario), folder)
    assert (data.train.sizes.min(), data.train.sizes.max()) == sizes
    assert len(data.train) == len(data.validation) == 8 * (sizes[1] - sizes[0] + 1)


def test_a_limit_keeps_all_sizes(folder):
    data = make_data(GeneralizationOptions(limit=64), folder)
    assert len(data.train) == 64
    assert np.bincount(data.train.sizes)[17:].tolist() == [4] * 16


def test_augmentation_scales_within_the_canvas(folder):
    image = torch.zeros(1, 64, 64)
    image[:, 10:30, 5:25] = 1
    sides = []
    for seed in range(50):
        scaled = rescaled(image, random.Random(seed))
        rows = torch.nonzero((scaled[0] > 0.5).any(1)).flatten()
        columns = torch.nonzero((scaled[0] > 0.5).any(0)).flatten()
        sides.append(len(rows))
        assert len(rows) == len(columns) == int(rows[-1] - rows[0]) + 1
    assert 9 <= min(sides) < 14
    assert 30 < max(sides) <= 40
    full = torch.ones(1, 64, 64)
    assert all(rescaled(full, random.Random(seed)).shape == (1, 64, 64) for seed in range(5))
    assert torch.equal(rescaled(torch.zeros(1, 64, 64), random.Random(0)), torch.zeros(1, 64, 64))
    data = make_data(GeneralizationOptions(augment=True, limit=32), folder).train
    assert torch.equal(data.read([3, 5], 1), data.read([3, 5], 1))
    assert not torch.equal(data.read([3, 5], 1), data.read([3, 5], 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data_set": "mnist-large-scale", "scenario": "3"}, "--scenario must be the training scale 1, 2 or 4"),
        ({"scenario": "5"}, "--scenario must be one of 1, 2, 3, 4, got '5'"),
        ({"model": "generalization/cnn", "scales": 3}, "--scales: generalization/cnn has a fixed set of scales"),
        ({"model": "generalization/disco", "enlarge": 1}, "--enlarge is for generalization/decimated"),
        ({"head": "mean"}, "--head must be one of project, decide"),
    ],
)
def test_options_are_checked(values, message):
    with pytest.raises(ValueError, match=message):
        GeneralizationOptions(**values)
