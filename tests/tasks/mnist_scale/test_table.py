from __future__ import annotations

import json

import pytest

from scale_disco.cli import main
from scale_disco.models import list_models
from scale_disco.tasks.mnist_scale.options import RECIPES, MnistScaleOptions
from scale_disco.tasks.mnist_scale.table import PAPER, Table1
from scale_disco.tasks.runs.tables import outcomes
from tests.tasks.runs.folders import cells, write_run
from tests.tasks.runs.trial import assert_one_line


@pytest.fixture
def add_run(tmp_path):
    """Write the folder of a run on MNIST-scale, tested or not."""

    def write(name, errors=None, done=None, complete=True, **settings):
        return write_run(tmp_path / "runs", name, MnistScaleOptions(**settings), errors, done=done, complete=complete)

    return write


def tables_of(*folders):
    return Table1.sort(outcomes(folders, "mnist-scale"))


def test_every_model_has_its_row_of_the_paper():
    assert set(PAPER) == set(list_models("mnist")) | set(list_models("digits"))


def test_mean_and_std_over_splits(add_run):
    for split, errors in enumerate((700, 750, 800)):
        runs = add_run(f"disco{split}", errors, model="mnist/disco", split=str(split))
    (group,) = tables_of(runs)
    assert group.title == "MNIST-scale, recipe fast"
    row = cells(group.table(), "DISCO")
    assert row == [
        "DISCO", "1.50 ± 0.10 (3 runs)", "1.52 ± 0.06", "missing", "1.35 ± 0.05", "0.02", "0.004", "494,549", "90",
    ]  # fmt: skip


def test_other_sets_of_scales_have_their_own_column(add_run):
    runs = add_run("a", 700, model="mnist/decimated-decide")
    path = runs / "a" / "test.json"
    tested = json.loads(path.read_text())
    tested["by scale"].append({"kind": "larger, 7 scales from 1", "low": 1.0, "high": 1.2, "images": 200, "errors": 5})
    path.write_text(json.dumps(tested))
    (group,) = tables_of(runs)
    name = "decimated, decisions at every scale"
    assert list(group.curves()) == [name, f"{name}, 7 scales from 1"]
    assert cells(group.scale_table(), "1 to 1.2")[2] == "2.50 ± 1.10"


def test_one_run_has_a_binomial_std(add_run):
    runs = add_run("cnn", 1000, model="mnist/cnn", augment=True)
    (group,) = tables_of(runs)
    assert cells(group.table(), "CNN")[1:4] == ["missing", "2.02 ± 0.07", "2.00 ± 0.06 (1 run)"]


def test_what_is_missing_says_why(add_run):
    add_run("a", model="mnist/cnn")
    add_run("b", 500, model="mnist/disco", done=3, complete=False)
    runs = add_run("c", 500, model="mnist/dss", complete=False)
    (group,) = tables_of(runs)
    text = group.table()
    epochs = RECIPES["fast"].epochs
    assert cells(text, "CNN")[1] == "missing (not tested)"
    assert cells(text, "DISCO")[1] == f"missing (3 of {epochs} epochs)"
    assert cells(text, "DSS")[1] == "missing (not tested)"
    assert cells(text, "SEVF")[1] == "missing"
    assert group.gaps() == ""


def test_gaps_have_the_std_of_a_difference(add_run):
    add_run("a", 1000, model="mnist/cnn")
    runs = add_run("b", 750, model="mnist/disco")
    (group,) = tables_of(runs)
    std = (0.02 * 0.98 / 50_000 + 0.015 * 0.985 / 50_000) ** 0.5
    assert group.gaps() == f"- MNIST: best DISCO; CNN +0.50 ± {100 * std:.2f} points"


def test_runs_of_different_training_are_not_mixed(add_run):
    add_run("a", 700, model="mnist/disco")
    add_run("b", 710, model="mnist/disco", recipe="paper")
    add_run("c", 720, model="mnist/disco", epochs=2)
    add_run("d", 730, model="mnist/disco", limit=100)
    runs = add_run("e", 740, model="mnist/disco", split="mini")
    tables = tables_of(runs)
    assert len(tables) == 5
    assert all(len(group.outcomes) == 1 for group in tables)


def test_scales_of_several_runs_are_pooled(add_run):
    add_run("a", 700, model="mnist/disco")
    runs = add_run("b", 750, model="mnist/disco", split="1")
    (group,) = tables_of(runs)
    (line,) = group.curves().values()
    stds = [(0.05 * 0.95 / 2000) ** 0.5, (0.2 * 0.8 / 200) ** 0.5]
    assert [point.error for point in line] == [0.05, 0.2]
    assert [point.std for point in line] == pytest.approx(stds)
    assert cells(group.scale_table(), "1 to 1.2")[1] == "20.00 ± 2.83"


def test_command_writes_and_draws(add_run, tmp_path, capsys):
    add_run("a", 1000, model="mnist/cnn")
    runs = add_run("b", 750, model="mnist/disco")
    out, figure, scales = tmp_path / "table.md", tmp_path / "table.png", tmp_path / "scales.png"
    figures = ["--plot", str(figure), "--scales", str(scales)]
    assert main(["table", "mnist-scale", str(runs), "--out", str(out), *figures]) == 0
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    assert "1.50 ± 0.05 (1 run)" in printed
    command = "disco train mnist-scale --model mnist/disco --split 0 --recipe fast --seed 0"
    assert f"- `{command}`, then `disco test`: abacus; torch 2.4; 2026-01-01" in printed
    assert figure.stat().st_size > 10_000
    assert scales.stat().st_size > 10_000


def test_a_run_counts_once(add_run):
    add_run("a", 1000, model="mnist/cnn")
    runs = add_run("b", 750, model="mnist/disco")
    assert len(outcomes([runs, runs / "a", runs / "." / "b"], "mnist-scale")) == 2


def test_errors_are_one_line(add_run, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert main(["table", "mnist-scale", str(tmp_path / "none")]) == 1
    assert_one_line(capsys, "table", "no training run in it")
    runs = add_run("a", 1000, model="mnist/cnn")
    path = runs / "a" / "test.json"
    good = json.loads(path.read_text())
    needed = [key for key in good if key != "experiment"]  # which the oldest do not name
    damaged = ["{}", "[]", "{", *(json.dumps({key: good[key] for key in good if key != left}) for left in needed)]
    damaged += [
        json.dumps(good | changed) for changed in ({"images": 0, "errors": 0}, {"errors": -1}, {"settings": {}})
    ]
    damaged += [
        json.dumps(good | {"by scale": [part]})
        for part in ({}, 5, good["by scale"][0] | {"images": 0}, good["by scale"][0] | {"low": "a"})
    ]
    for text in damaged:
        path.write_text(text)
        assert main(["table", "mnist-scale", str(runs)]) == 1, text
        assert_one_line(capsys, "table", "test.json: damaged; write it again with: disco test")
    path = runs / "a" / "run.json"
    good = json.loads(path.read_text())
    for left in (key for key in good if key != "experiment"):
        path.write_text(json.dumps({key: good[key] for key in good if key != left}))
        assert main(["table", "mnist-scale", str(runs)]) == 1
        assert_one_line(capsys, "table", "run.json: damaged, or not a run record")
    for changed in ({"epochs": [{}]}, {"facts": []}):
        path.write_text(json.dumps(good | changed))
        assert main(["table", "mnist-scale", str(runs)]) == 1
        assert_one_line(capsys, "table", "run.json: damaged")


def test_the_oldest_runs_do_not_name_their_experiment(add_run):
    runs = add_run("a", 1000, model="mnist/cnn")
    for path in runs.glob("a/*.json"):
        document = json.loads(path.read_text())
        assert document.pop("experiment") == "mnist-scale"
        path.write_text(json.dumps(document))
    (group,) = tables_of(runs)
    assert cells(group.table(), "CNN")[1] == "2.00 ± 0.06 (1 run)"


def test_small_networks_stand_apart(add_run):
    add_run("large", errors=800, model="mnist/disco")
    runs = add_run("small", errors=900, model="digits/disco", recipe="quick")
    sections = tables_of(runs)
    titles = [group.title for group in sections]
    assert titles == ["MNIST-scale, recipe fast", "MNIST-scale, small networks, recipe quick"]
    row = cells(sections[1].table(), "DISCO")
    assert row[1] == "1.80 ± 0.06 (1 run)"
    assert row[2] == "-"  # the paper has none
    assert [cells(sections[1].table(), name)[1] for name in ("CNN", "SESN, Hermite")] == ["missing", "missing"]
