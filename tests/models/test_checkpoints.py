from __future__ import annotations

import hashlib
import http.server
import os
import sys
import tarfile
import threading
import warnings
from collections import OrderedDict
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from scale_disco.models.checkpoints import Checkpoint, download_weights, load_weights, read_checkpoint, read_weights

TENSORS = {"conv.weight": torch.arange(6.0).reshape(2, 3), "norm.num_batches_tracked": torch.tensor(7)}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


FORMS = {
    "safetensors": ("a.safetensors", lambda path: save_file(TENSORS, path)),
    "torch": ("a.pth", lambda path: torch.save(TENSORS, path)),
    "torch, any name": ("a", lambda path: torch.save(TENSORS, path)),
    "old torch": ("a.pt", lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False)),
    "ordered": ("a.pth", lambda path: torch.save(OrderedDict(TENSORS), path)),
    "state_dict": ("a.ckpt", lambda path: torch.save({"epoch": 3, "state_dict": TENSORS}, path)),
    "model": ("a.pth", lambda path: torch.save({"model": TENSORS, "optimizer": {"lr": 0.1}}, path)),
    "parameters": ("a.pth", lambda path: torch.save({k: nn.Parameter(v, False) for k, v in TENSORS.items()}, path)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_checkpoints(tmp_path, form):
    name, save = FORMS[form]
    save(tmp_path / name)
    for path in (tmp_path / name, str(tmp_path / name)):
        tensors = read_weights(path)
        assert type(tensors) is dict
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[key], TENSORS[key]) for key in TENSORS)


def test_a_layer_called_model_is_no_nesting(tmp_path):
    torch.save({"model": torch.ones(2), "state_dict": torch.ones(3)}, tmp_path / "a.pth")
    assert set(read_weights(tmp_path / "a.pth")) == {"model", "state_dict"}


def test_the_checksum_is_checked(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(TENSORS, path)
    right, wrong = sha256(path.read_bytes()), sha256(b"other")
    assert read_weights(path, right).keys() == read_weights(path, right.upper()).keys() == TENSORS.keys()
    assert read_checkpoint(path).sha256 == right
    with pytest.raises(ValueError, match=f"expected sha256 {wrong}, .*a.safetensors has {right}: get it again"):
        read_weights(path, wrong)
    for value in (right[:8], f"{right}0", "g" * 64, 5):
        with pytest.raises(ValueError, match="sha256 must have 64 hexadecimal digits, got"):
            read_weights(path, value)


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_that_would_run_code_are_refused(tmp_path, zipped):
    path = tmp_path / "a.pth"
    torch.save({"weight": RunsCode(tmp_path / "ran")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"refused .*a.pth: it would call \w+.mkdir: save its state_dict") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)  # torch advises to switch it off
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()  # else this proves nothing


def test_old_tar_files_are_refused(tmp_path, monkeypatch):
    """Torch refuses them too, but not the versions before 2.6."""
    torch.save(TENSORS, tmp_path / "a.pth")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a.pth", "a.pth")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"refused .*a.tar: tar files of old versions of torch could run code"):
        read_weights(tmp_path / "a.tar")


def damaged(path, content):
    path.write_bytes(content)
    return path


def cut(path, save):
    save(path)
    return damaged(path, path.read_bytes()[:-40])


def saved(path, value):
    torch.save(value, path)
    return path


def scripted(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        torch.jit.script(nn.ReLU()).save(path)
    return path


BROKEN = {
    "empty": lambda folder: damaged(folder / "a.pth", b""),
    "a web page": lambda folder: damaged(folder / "a.pth", b"<html>404 Not Found</html>"),
    "cut": lambda folder: cut(folder / "a.pth", FORMS["torch"][1]),
    "cut, old": lambda folder: cut(folder / "a.pth", FORMS["old torch"][1]),
    "cut, safe": lambda folder: cut(folder / "a.safetensors", FORMS["safetensors"][1]),
    "empty, safe": lambda folder: damaged(folder / "a.safetensors", b""),
    "torch's under a safe name": lambda folder: saved(folder / "a.safetensors", TENSORS),
    "safe under torch's name": lambda folder: damaged(
        folder / "a.pth", (8).to_bytes(8, "little") + b'{"a":{}}' + bytes(40)
    ),
    "script": lambda folder: scripted(folder / "a.pth"),
}
FOREIGN = {
    "module": (lambda folder: saved(folder / "a.pth", nn.Linear(2, 2)), r"it would call \S*Linear"),
    "list": (lambda folder: saved(folder / "a.pth", [torch.ones(2)]), "expected tensors by name in .*, found a list"),
    "tensor": (lambda folder: saved(folder / "a.pth", torch.ones(2)), "expected tensors by name in .*, found a Tensor"),
    "nothing": (lambda folder: saved(folder / "a.pth", {}), "expected tensors by name in .*, found nothing"),
    "numbers": (lambda folder: saved(folder / "a.pth", {"lr": 0.1}), "found 'lr' with a float"),
    "no names": (lambda folder: saved(folder / "a.pth", {0: torch.ones(2)}), "found 0 with a Tensor"),
    "deeper": (lambda folder: saved(folder / "a.pth", {"model": {"model": TENSORS}}), "found 'model' with a dict"),
}


@pytest.mark.filterwarnings("ignore:'torch.load' received a zip file that looks like a TorchScript archive:UserWarning")
@pytest.mark.parametrize("which", BROKEN)
def test_damaged_files_get_one_line(tmp_path, which):
    path = BROKEN[which](tmp_path)
    with pytest.raises(
        ValueError, match=r"read_weights: .*a\.\w+ is damaged, or not a (checkpoint|safetensors)"
    ) as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("which", FOREIGN)
def test_foreign_files_get_one_line(tmp_path, which):
    make, message = FOREIGN[which]
    with pytest.raises(ValueError, match=message) as caught:
        read_weights(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^read_weights: no such file: .*nowhere.pth$"):
        read_weights(tmp_path / "nowhere.pth")
    with pytest.raises(OSError, match=r"read_weights: cannot read .*: (Is a directory|Permission denied)"):
        read_weights(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["safetensors", "torch", "old torch"]), st.floats(0, 1), st.integers(0, 255), st.booleans())
def test_whatever_a_file_holds_the_error_is_one_line(tmp_path, form, where, byte, ends):
    name, save = FORMS[form]
    path = tmp_path / name
    save(path)
    content = bytearray(path.read_bytes())
    place = int(where * (len(content) - 1))
    content[place] = byte
    path.write_bytes(content[:place] if ends else content)
    problem = ""
    try:
        assert all(isinstance(tensor, torch.Tensor) for tensor in read_weights(path).values())
    except ValueError as error:
        problem = str(error)
    assert "\n" not in problem
    assert not problem or str(path) in problem


CONTENT = b"weights"
DIGEST = sha256(CONTENT)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of downloads, empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub" / "checkpoints"


def offer(monkeypatch, package, url):
    """A package that knows where the weights of resnet18 are."""
    module = ModuleType(package)
    weights = {"resnet18": SimpleNamespace(DEFAULT=SimpleNamespace(url=url))}
    module.models = SimpleNamespace(get_model_weights=weights.__getitem__)
    module.get_pretrained_cfg = {"resnet18": SimpleNamespace(url=url)}.__getitem__
    if package == "torchvision":
        del module.get_pretrained_cfg
    else:
        del module.models
    monkeypatch.setitem(sys.modules, package, module)


def put(folder, name, content=CONTENT):
    """The address of a file."""
    (folder / name).write_bytes(content)
    return (folder / name).as_uri()


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_downloads_are_kept(tmp_path, cache, monkeypatch, package):
    name = f"resnet18_a1-{DIGEST[:8]}.pth"
    offer(monkeypatch, package, put(tmp_path, name))
    assert download_weights("resnet18", package) == cache / name
    (tmp_path / name).unlink()
    assert download_weights("resnet18", package, DIGEST.upper()) == cache / name  # not downloaded again
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {name: CONTENT}


def test_a_download_that_is_not_what_its_name_says_is_refused(tmp_path, cache, monkeypatch):
    offer(monkeypatch, "timm", put(tmp_path, f"resnet18-{DIGEST[:8]}.pth", b"other"))
    with pytest.raises(OSError, match=f'cannot download .*expected "{DIGEST[:8]}", got "{sha256(b"other")}"'):
        download_weights("resnet18", "timm")
    assert list(cache.iterdir()) == []


def test_a_kept_file_that_was_damaged_is_refused(tmp_path, cache, monkeypatch):
    name = f"resnet18-{DIGEST[:8]}.pth"
    offer(monkeypatch, "timm", put(tmp_path, name))
    cache.mkdir(parents=True)
    (cache / name).write_bytes(b"half")
    with pytest.raises(
        ValueError, match=rf"expected sha256 {DIGEST[:8]}\.\.\. of .*, found .*: delete it and try again"
    ):
        download_weights("resnet18", "timm")


def test_a_checksum_that_the_name_denies_is_refused_before_the_download(tmp_path, cache, monkeypatch):
    offer(monkeypatch, "timm", put(tmp_path, f"resnet18-{DIGEST[:8]}.pth"))
    with pytest.raises(ValueError, match=f"expected sha256 0{{64}}, but that of .* begins with {DIGEST[:8]}"):
        download_weights("resnet18", "timm", "0" * 64)
    longer = DIGEST[:8] + "0" * 56
    with pytest.raises(OSError, match=f'invalid hash value .expected "{longer}"'):
        download_weights("resnet18", "timm", longer)
    assert list(cache.iterdir()) == []


def test_a_name_without_checksum_needs_one(tmp_path, cache, monkeypatch):
    offer(monkeypatch, "timm", put(tmp_path, "resnet18.pth"))
    with pytest.raises(ValueError, match=r"resnet18: .*/resnet18\.pth has no checksum in its name; pass its sha256"):
        download_weights("resnet18", "timm")
    assert not cache.exists()
    assert download_weights("resnet18", "timm", DIGEST).read_bytes() == CONTENT


@pytest.mark.parametrize("cut", [0, 3])
def test_downloads_over_http_are_whole_or_not_there(cache, monkeypatch, cut):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[: len(CONTENT) - cut])

        def log_message(self, *_):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        name = f"resnet18-{DIGEST[:8]}.pth"
        offer(monkeypatch, "torchvision", f"http://127.0.0.1:{server.server_port}/{name}?download=1")
        try:
            if cut:
                with pytest.raises(OSError, match=r"resnet18: cannot download http.*; pass a weights file"):
                    download_weights("resnet18", "torchvision")
            else:
                assert download_weights("resnet18", "torchvision").read_bytes() == CONTENT
        finally:
            server.shutdown()
    assert [path.name for path in cache.iterdir()] == ([] if cut else [name])


def test_an_address_without_a_file_is_named(tmp_path, cache, monkeypatch):
    offer(monkeypatch, "timm", (tmp_path / f"resnet18-{DIGEST[:8]}.pth").as_uri())
    with pytest.raises(OSError, match=r"resnet18: cannot download file:.*No such file") as caught:
        download_weights("resnet18", "timm")
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_missing_package_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"resnet18: pretrained='{package}' needs {package}: pip install {package}"):
        download_weights("resnet18", package)


@pytest.mark.parametrize("line", ["raise RuntimeError('no operator nms\\nmore')", "import package_that_is_not_there"])
def test_a_package_that_fails_to_import_says_why(tmp_path, monkeypatch, line):
    (tmp_path / "timm.py").write_text(line)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match=r"timm cannot be imported \((no operator nms|No module named .*)\)"
    ) as caught:
        download_weights("resnet18", "timm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_without_address_is_named(monkeypatch, package):
    for url in ("", None, ("a", "b")):
        offer(monkeypatch, package, url)
        with pytest.raises(ValueError, match=rf"resnet18: {package} does not say where its weights are \(url is"):
            download_weights("resnet18", package)
    monkeypatch.setitem(sys.modules, package, ModuleType(package))  # an old version
    with pytest.raises(ValueError, match=rf"{package} does not say where its weights are \(module .* has no attribute"):
        download_weights("resnet18", package)


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))


def checkpoint(tensors):
    return Checkpoint(tensors, "a.pth", "")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_are_cast(dtype):
    net, given = network(), network().to(dtype).state_dict()
    load_weights(net, checkpoint(given), "net")
    state = net.state_dict()
    assert state.keys() == given.keys()
    for name, tensor in state.items():
        assert tensor.dtype == (torch.int64 if name.endswith("tracked") else torch.float32)
        assert torch.equal(tensor, given[name].to(tensor.dtype))


def test_counters_may_be_missing_and_some_layers_left():
    net, given = network(), network().state_dict()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    given = {name: tensor for name, tensor in given.items() if name not in ("1.num_batches_tracked", "2.bias")}
    given["2.weight"] = torch.ones(7, 4)
    load_weights(net, checkpoint(given), "net", but=("2.weight", "2.bias"))
    state = net.state_dict()
    assert torch.equal(state["0.weight"], given["0.weight"])
    assert torch.equal(state["2.weight"], before["2.weight"])
    assert torch.equal(state["2.bias"], before["2.bias"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("0.weight"), "net: a.pth does not fit: it lacks 0.weight$"),
        (lambda t: t.pop("1.running_var"), "it lacks 1.running_var$"),
        (lambda t: t.update({f"x{i}": t["0.bias"] for i in range(5)}), "it has x0, x1, x2 and 2 more, which the net"),
        (lambda t: t.update({"0.bias": torch.ones(5)}), r"0.bias is float32 \[5\], expected float32 \[4\]$"),
        (lambda t: t.update({"0.bias": torch.ones(4, dtype=torch.int8)}), r"0.bias is int8 \[4\], expected float32 \["),
        (
            lambda t: [t.update({f"module.{name}": t.pop(name)}) for name in list(t)],
            "it lacks 0.weight, 0.bias, 1.weight and 5 more; it has module.0.weight, .* and 6 more, which",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(change, message):
    net, given = network(), network().state_dict()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    change(given)
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(net, checkpoint(given), "net")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
