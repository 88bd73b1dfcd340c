from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scale_disco import HermiteBasis, Scales
from scale_disco.cli import main
from scale_disco.equivariance import basis_error
from scale_disco.models import create_model
from scale_disco.tasks.io.samples import scaled_digits
from scale_disco.tasks.mnist_scale.data import load
from scale_disco.tasks.mnist_scale.options import MnistScaleOptions
from scale_disco.tasks.mnist_scale.training import make_evaluation, normalize
from scale_disco.tasks.runs.evaluate import bins_of, evaluate, trained
from tests.tasks.runs.trial import assert_one_line


@pytest.fixture
def run(whole, tmp_path):
    """A copy of a run, to be tested."""
    return shutil.copytree(whole, tmp_path / "run")


def test_counts_the_errors_on_the_test_digits(run, data):
    result = evaluate(run, limit=300, outside=40)
    network = trained(run)  # with the weights that the recipe names
    digits = load(data, "mini")["test"]
    predictions = network(normalize(digits.images[:300])).argmax(1).numpy()
    assert result["errors"] == int((predictions != digits.labels[:300]).sum()) > 0
    assert result["images"] == 300
    assert not result["complete"]
    assert not (run / "test.json").exists()  # written for all test images only
    assert result["parameters"] == 494_549
    assert result["equivariance error"] is None  # no scale convolutions in a CNN


def test_scales_are_binned(run, data):
    bins = bins_of(evaluate(run, limit=300, outside=40))
    inside = [scale_bin for scale_bin in bins if scale_bin.kind == "test"]
    assert sum(scale_bin.images for scale_bin in inside) == 300
    factors = load(data, "mini")["test"].factors[:300]
    assert inside[0].images == int((factors < 0.4).sum())
    for kind, low, high in (("smaller", 0.15, 0.3), ("larger", 1.0, 2.0)):
        outside = [scale_bin for scale_bin in bins if scale_bin.kind == kind]
        assert (outside[0].low, outside[-1].high) == (low, high)
        assert sum(scale_bin.images for scale_bin in outside) == 40
    assert all(0 <= scale_bin.errors <= scale_bin.images for scale_bin in bins)


def test_networks_with_more_scales_are_tested_apart(data):
    options = MnistScaleOptions(model="mnist/decimated-decide", split="mini")
    evaluation = make_evaluation(options, data, {}, limit=100, outside=16, test_scales=5, enlarge=1)
    kinds = [f"{kind}, 5 scales from 1" for kind in ("test", "larger", "largest")]
    kinds += [f"{kind}, 6 scales from 0.794" for kind in ("test", "smaller")]
    assert list(evaluation.sets) == ["test", "smaller", "larger", *kinds]
    shapes = [evaluation.sets[kind].images.shape for kind in kinds]
    assert shapes == [(16, 28, 28), (16, 56, 56), (4, 112, 112), (16, 28, 28), (16, 28, 28)]
    assert list(evaluation.variants) == kinds
    network = create_model("mnist/decimated-decide").eval()
    more = evaluation.variants[kinds[0]](network)
    images = normalize(evaluation.sets["test"].images[:2])
    assert not torch.allclose(more(images), network(images), atol=1e-6)
    bins = evaluation.bins(kinds[2], np.ones(4, bool))
    assert {each.kind for each in bins} == {kinds[2]}
    assert sum(each.errors for each in bins) == 4


def test_networks_without_a_set_of_scales_are_refused(run, capsys):
    assert main(["test", str(run), "--test-scales", "7"]) == 1
    assert_one_line(capsys, "test", "--test-scales: mnist/cnn has no set of scales that could be changed")


def test_resumes_where_it_was_stopped(run, monkeypatch):
    expected = evaluate(run, limit=300, outside=40)
    (run / "answers-last.npz").unlink()
    monkeypatch.setattr("scale_disco.tasks.runs.evaluate._SAVE_INTERVAL", 0)
    shown = []

    def stop(done, total):
        shown.append(done)
        if len(shown) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, limit=300, outside=40, progress=stop)
    assert int((np.load(run / "answers-last.npz")["test"] != 255).sum()) == 125

    seen = []
    network = trained(run)
    network.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    monkeypatch.setattr("scale_disco.tasks.runs.evaluate.trained", lambda *_: network)
    result = evaluate(run, limit=300, outside=40)
    assert sum(seen) == 300 - 125 + 2 * 40
    assert result | {"seconds": 0} == expected | {"seconds": 0}


def test_a_smaller_test_keeps_cached_predictions(run):
    whole = evaluate(run, outside=40)
    assert whole["complete"]
    assert whole == json.loads((run / "test.json").read_text())
    before = dict(np.load(run / "answers-last.npz"))
    part = evaluate(run, limit=50, outside=0)
    assert part["images"] == 50
    best = evaluate(run, limit=50, outside=0, checkpoint="best")
    assert best["checkpoint"] == "best"
    after = dict(np.load(run / "answers-last.npz"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert json.loads((run / "test.json").read_text()) == whole


def test_cached_predictions_of_other_weights_are_ignored(run):
    evaluate(run, limit=125, outside=0, checkpoint="best")
    state = load_file(run / "best.safetensors")
    (bias,) = [name for name, tensor in state.items() if tensor.shape == (10,)]
    save_file(state | {bias: 1e6 * torch.eye(10)[9]}, run / "best.safetensors")  # it sees nines everywhere
    result = evaluate(run, limit=125, outside=0, checkpoint="best")
    assert result["errors"] > 100


def _digest(run):
    return hashlib.sha256((run / "best.safetensors").read_bytes()).hexdigest().encode()


def test_equivariance_of_the_basis_is_measured(data):
    digits = load(data, "mini")["rest"]
    measure = make_evaluation(MnistScaleOptions(split="mini"), data, {}, limit=8, outside=0).equivariance_error
    errors = {name: measure(create_model(f"mnist/{name}")) for name in ("disco", "sesn-hermite", "dss")}
    assert errors["dss"] < 1e-9 < errors["disco"] < 0.05 < errors["sesn-hermite"]
    exact = Scales.geometric(2 ** (1 / 3), 4)  # for which the authors' rounded scales stand
    images = scaled_digits(digits.images, 64, 0)
    expected = basis_error(HermiteBasis.preset("mnist"), images, scales=exact, border=0)
    assert errors["sesn-hermite"] == pytest.approx(expected)
    for name in ("cnn", "sicnn", "ss-cnn"):
        assert measure(create_model(f"mnist/{name}")) is None


def test_command_prints_and_plots(run, capsys, tmp_path):
    figure = tmp_path / "scales.png"
    assert main(["test", str(run), "--limit", "125", "--outside", "20", "--plot", str(figure)]) == 0
    out, err = capsys.readouterr()
    assert "mnist/cnn, last weights:" in out
    assert "errors on 125 test images" in out
    assert f"wrote {figure}" in err
    assert figure.stat().st_size > 10_000
    assert main(["test", str(run), "--limit", "125", "--outside", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 125


def test_errors_are_one_line(run, tmp_path, capsys):
    def refused(message, *arguments):
        assert main(["test", *map(str, arguments)]) == 1
        assert_one_line(capsys, "test", message)

    refused("not a training run (run.json is missing)", tmp_path)
    refused("--limit must be at least 1, got 0", run, "--limit", 0)
    refused("--outside must be at least 0, got -1", run, "--outside", -1)
    refused("disco data mnist-scale", run, "--data", tmp_path)
    np.savez(run / "answers.npz", weights=np.frombuffer(_digest(run), np.uint8), test=np.full(9, 77, np.uint8))
    refused("has invalid class indices", run, "--checkpoint", "best", "--outside", 0)
    (run / "answers.npz").write_bytes(b"PK")
    refused("answers.npz: damaged; delete it to test again", run, "--checkpoint", "best", "--outside", 0)
    (run / "best.safetensors").write_bytes(b"x" * 100)
    refused("best.safetensors: damaged, or not of mnist/cnn", run, "--checkpoint", "best")
    (run / "best.safetensors").unlink()
    refused("no best.safetensors yet", run, "--checkpoint", "best")


def test_non_finite_logits_are_refused(run, capsys):
    state = load_file(run / "best.safetensors")
    next(tensor for tensor in state.values() if tensor.is_floating_point()).fill_(torch.nan)
    save_file(state, run / "best.safetensors")
    assert main(["test", str(run), "--checkpoint", "best", "--limit", "8"]) == 1
    assert_one_line(capsys, "test", "the network returns NaN or infinity")
    assert not (run / "answers.npz").exists()


def test_weights_of_another_network_are_refused(run, capsys):
    save_file(create_model("mnist/disco").state_dict(), run / "best.safetensors")
    assert main(["test", str(run), "--checkpoint", "best"]) == 1
    assert_one_line(capsys, "test", "not of mnist/cnn")
    torch.save({"state_dict": {}}, run / "last.ckpt")
    assert main(["test", str(run), "--checkpoint", "last"]) == 1
    assert_one_line(capsys, "test", "last.ckpt: damaged, or not a checkpoint")
