"""`disco data | train | test | table generalization` and `disco test kth-tips` on tiny data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scale_disco.cli import main
from scale_disco.tasks.generalization import command, distances
from scale_disco.tasks.generalization.digits import load
from scale_disco.tasks.generalization.heads import heads
from scale_disco.tasks.generalization.options import GeneralizationOptions
from scale_disco.tasks.generalization.plots import plot_distances
from scale_disco.tasks.generalization.training import make_evaluation
from scale_disco.tasks.io.mnist import Digits
from scale_disco.tasks.runs.plots import Range, plot_error_over_scale
from scale_disco.tasks.scene import networks

for package in ("skimage", "lightning", "matplotlib"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """STIR-MNIST of one digit per class, made by the command from random blobs."""
    random = np.random.default_rng(0)
    images = np.zeros((70_000, 28, 28), np.uint8)
    images[:, 6:22, 8:20] = random.integers(0, 256, (70_000, 16, 12), dtype=np.uint8)
    mnist = Digits(images, np.tile(np.arange(10, dtype=np.uint8), 7000), np.ones(70_000))
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "read_mnist", lambda path: mnist)
        assert main(["data", "generalization", "--mnist", str(folder), "--limit", "10", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Two runs, trained and tested by the commands."""
    folder = tmp_path_factory.mktemp("runs")
    for model in ("cnn", "decimated"):
        run = str(folder / model)
        call = ["train", "generalization", "--model", f"generalization/{model}", "--recipe", "quick", "--epochs", "1"]
        assert main([*call, "--test-scales", "4", "--data", str(data), "--out", run]) == 0
        assert main(["test", run, "--plot", f"{run}.png", "--out", f"{run}.md"]) == 0
    return folder


def test_existing_data_are_verified(data, capsys):
    assert main(["data", "generalization", "--out", str(data), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["made"], row["complete"], row["file"]) == (False, False, str(data / "stir-mnist.npz"))
    assert load(data, "stir-mnist")["test"].images.shape == (48, 10, 64, 64)


def test_data_are_made_from_mnist(tmp_path, capsys):
    assert main(["data", "generalization", "--out", str(tmp_path)]) == 1
    assert "MNIST is required: pass --mnist DIR with its four files" in capsys.readouterr().err


def test_a_run_is_tested_with_its_scales_and_with_more(runs):
    for model, variants in (("cnn", []), ("decimated", ["4 scales from 1"])):
        tested = json.loads((runs / model / "test.json").read_text())
        assert tested["complete"]
        assert [row["kind"] for row in tested["by scale"]] == ["test"] * 48 + 48 * variants
        assert (runs / f"{model}.png").stat().st_size > 10_000
    assert "4 scales from 1" in (runs / "decimated.md").read_text()


def test_predictions_of_fewer_images_are_not_taken_for_those_of_all(data):
    """A limit takes some digits of every size, which are not the first rows of all: they have a cache of their own."""
    options = GeneralizationOptions(model="generalization/cnn")
    whole, fewer = (make_evaluation(options, data, {}, limit=limit, outside=0) for limit in (None, 96))
    images, others = (evaluation.sets["test"].images for evaluation in (whole, fewer))
    assert len(others) == 96
    assert not np.array_equal(images[:96], others)
    assert whole.cache_key != fewer.cache_key


def test_table_has_every_network_and_set_of_scales(runs, tmp_path, capsys):
    out, plot, errors = tmp_path / "table.md", tmp_path / "sizes.png", tmp_path / "errors.png"
    figures = ["--plot", str(plot), "--scales", str(errors)]
    assert main(["table", "generalization", str(runs), "--out", str(out), *figures]) == 0
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    assert "stir-mnist, trained on 17 to 32 pixels, recipe quick, 1 epochs" in printed
    rows = [line for line in printed.splitlines() if line.startswith(("| CNN", "| decimated"))]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    name = "decimated, 3 scales, decisions at every scale"
    expected = [["CNN", "as in training"], [name, "as in training"], [name, "4 scales from 1"]]
    assert [row[:2] for row in cells] == expected
    assert cells[0][-1] == "1.00"  # its time over its own
    assert all(float(row[-1]) > 0 for row in cells)
    assert plot.stat().st_size > 20_000
    assert errors.stat().st_size > 20_000


def test_table_plot_has_a_curve_of_every_network(runs):
    from scale_disco.tasks.generalization.table import SizeTable
    from scale_disco.tasks.runs.tables import outcomes

    groups = SizeTable.sort(outcomes([runs], "generalization"))
    sizes, cost = SizeTable.figure(groups).axes
    labels = [line.get_label() for line in sizes.get_lines()]
    assert labels == list(groups[0].curves())
    assert all(list(line.get_xdata()) == list(range(17, 65)) for line in sizes.get_lines())
    assert len(cost.get_lines()) == 3
    assert all(line.get_xdata()[0] > 0 for line in cost.get_lines())


def test_kth_tips(materials, resnet_weights, tmp_path, monkeypatch, capsys):
    chosen = {name: heads(4, 4)[name] for name in ("plain", "1-nearest neighbor over shifts")}
    monkeypatch.setattr(distances, "heads", lambda reference, octave: chosen)
    call = ["test", "kth-tips", str(materials), "--pretrained", str(resnet_weights), "--cache", str(tmp_path / "cache")]
    out, plot = tmp_path / "kth.md", tmp_path / "kth.png"
    assert main([*call, "--out", str(out), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "1-nearest neighbor over shifts" in printed
    assert "trained at 9" in out.read_text()
    assert plot.stat().st_size > 10_000
    offered = {("torchvision", "resnet50"): resnet_weights}
    monkeypatch.setattr(networks, "weight_file", lambda pretrained, name, sha256: offered[pretrained, name])
    call[4] = "torchvision"  # the same weights, which are in the cache
    assert main([*call, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert set(rows) == set(chosen)
    assert np.mean(rows["plain"]["accuracy"]) == pytest.approx(rows["plain"]["mean"])
    assert f"{100 * rows['plain']['mean']:.1f}" in printed


def test_plot_over_the_change_of_distance():
    """A classifier that is right only at the distance in training."""
    left, right = plot_distances({"plain": np.eye(9)}).axes
    (line,) = right.get_lines()
    assert np.allclose(line.get_xdata()[[0, 8, 16]], [-2, 0, 2])
    assert list(line.get_ydata()[[0, 7, 8, 9]]) == [0, 0, 100, 0]
    assert np.allclose(left.get_lines()[0].get_ydata(), 100 / 9)


@pytest.mark.parametrize(("trained", "shaded"), [((17, 32), 1), (None, 0)])
def test_only_sizes_that_all_networks_have_in_training_are_shaded(trained, shaded):
    curve = [Range("test", size, size, 0.1, 0.01) for size in (17, 64)]
    (axis,) = plot_error_over_scale({"CNN": curve}, trained, "digits, in pixels").axes
    assert len(axis.patches) == shaded
