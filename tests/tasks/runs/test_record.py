from __future__ import annotations

import json

import pytest

from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.runs.record import has_type, options_of, read_record
from tests.tasks.runs.folders import write_run


@pytest.mark.parametrize(
    ("value", "expected", "matches"),
    [
        (3, int, True),
        (3, float, True),
        (True, int, False),
        (True, bool, True),
        (2.5, int | None, False),
        (None, float | None, True),
        (None, str, False),
        (["a"], list[str], True),
        (["a", 1], list[str], False),
        ([], list[str], False),
        ([], list, True),
    ],
)
def test_types_are_those_of_json(value, expected, matches):
    assert has_type(value, expected) is matches


def test_options_of_a_record(tmp_path):
    options = MnistScaleOptions(model="mnist/cnn", epochs=2, augment=True)
    runs = write_run(tmp_path, "run", options)
    assert options_of(read_record(runs / "run")) == options
    with pytest.raises(ValueError, match="is a run of mnist-scale, got stl10"):
        read_record(runs / "run", "stl10")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "imagenet"}, "experiment must be one of mnist-scale"),
        ({"settings": {"epochs": "2"}}, "epochs has the wrong type or is empty"),
        ({"settings": {"model": "mnist/none"}}, "--model must be one of"),
        ({"settings": {"speed": 2}}, "speed"),
        ({"epochs": [{"epoch": 1}]}, "training loss is missing"),
        ({"epochs": []}, "it is finished without an epoch"),
    ],
)
def test_damaged_records_are_refused(change, message, tmp_path):
    run = write_run(tmp_path, "run", MnistScaleOptions()) / "run"
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | change))
    with pytest.raises(ValueError, match=f"damaged, or not a run record .*{message}"):
        read_record(run)
