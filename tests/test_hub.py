from __future__ import annotations  # annotations are strings here: nothing may depend on them

import copy
import json
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from scale_disco import (
    Basis,
    BSplineBasis,
    DiscreteBasis,
    FourierBesselBasis,
    HermiteBasis,
    LogRadialBasis,
    Scales,
    Stencil,
    hermite_mixing,
    hub,
    to_scale_equivariant,
)
from scale_disco.hub import ScaleHubMixin, ScaleModel
from scale_disco.models import create_model, default_options
from scale_disco.nn import ScaleConv2d, ScaleLift2d, ScaleProject
from tests.conftest import ROOT_2


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


class Net(nn.Module, ScaleHubMixin):
    def __init__(self, basis: Basis, width: int = 4):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(
            ScaleLift2d(3, width, basis), nn.Dropout(), ScaleConv2d(width, width, basis), ScaleProject("max")
        )

    def forward(self, x):
        return self.layers(x)


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def change(folder: Path, **changes) -> None:
    (folder / "config.json").write_text(json.dumps(config_of(folder) | changes))


def same(saved: nn.Module, loaded: nn.Module, side: int = 12) -> bool:
    x = torch.randn(2, 3, side, side, dtype=next(saved.parameters()).dtype)
    return torch.equal(saved.eval()(x), loaded(x))


@pytest.fixture
def saved(tmp_path):
    Net(DiscreteBasis(3, [1, 2])).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


BASES = {
    "discrete": DiscreteBasis(3, ROOT_2),
    "of images": DiscreteBasis(3, ROOT_2, prior=torch.rand(4, 40, 40, generator=torch.manual_seed(0))),
    "hermite": HermiteBasis(3, [1, 2], base_scale=0.9),
    "bspline": BSplineBasis(3, [1, 2]),
    "fourier-bessel": FourierBesselBasis(3, [1, 2]),
    "log-radial": LogRadialBasis(3, [1, 2]),
    "mixed": DiscreteBasis(3, ROOT_2).mix(hermite_mixing(3, 0.9)).normalized(),
    "dense": Basis.from_dense(torch.randn(5, 2, 5, 5, generator=torch.manual_seed(0)), [1, 1.3], kernel_size=3),
    "custom": Basis([1, 2], [Stencil(torch.ones(1, 3, 3), 1), Stencil(torch.ones(1, 3, 3), 2)], kernel_size=3),
}


@pytest.mark.parametrize("basis", BASES.values(), ids=BASES.keys())
def test_a_network_comes_back_with_its_basis(basis, tmp_path):
    net = Net(basis)
    assert net.save_pretrained(tmp_path) is None
    again = Net.from_pretrained(tmp_path)
    loaded = again.layers[0].basis
    assert type(loaded) is type(basis)
    assert loaded.digest == basis.digest
    assert not again.training
    assert same(net, again)
    config = config_of(tmp_path)
    assert config["width"] == 4
    assert config["basis"]["spec"]["kind"] == basis.spec["kind"]
    assert config["basis"]["spec"]["scales"] == list(basis.scales)


def test_a_folder_holds_json_and_tensors_only(saved):
    names = sorted(path.name for path in saved.iterdir())
    digest = DiscreteBasis(3, [1, 2]).digest
    assert names == ["README.md", f"basis-{digest}.safetensors", "config.json", "model.safetensors"]
    net = Net.from_pretrained(str(saved))
    assert load_file(saved / "model.safetensors").keys() == net.state_dict().keys()


class Many(ScaleHubMixin, nn.Module):
    """Arguments of every kind; keeps what it was given."""

    unsaved = ("start",)

    def __init__(self, bases, scales: Scales | None = None, sizes=(3, 5), *, act=nn.ReLU, start="", **others):
        super().__init__()
        self.given = {"bases": list(bases), "scales": scales, "sizes": list(sizes), "act": act, "start": start} | others
        self.linear = nn.Linear(2, 2)
        sizes and isinstance(sizes, list) and sizes.clear()


class Fewer(Many):
    def __init__(self, basis: DiscreteBasis):
        super().__init__([basis], deep={"a": [1, {"b": None}]})


def test_arguments_come_back_however_they_are_given(tmp_path):
    discrete, other = DiscreteBasis(3, [1, 2]), HermiteBasis(3, [1, 2])
    many = Many(
        [discrete, other, discrete], Scales([1, 1.5]), [7], start="a file", dilation=2, name="x", inner={"basis": other}
    )
    many.save_pretrained(tmp_path / "many")
    assert len(list((tmp_path / "many").glob("basis-*"))) == 2
    given = Many.from_pretrained(tmp_path / "many").given
    assert [basis.digest for basis in given["bases"]] == [discrete.digest, other.digest, discrete.digest]
    assert given["inner"]["basis"].digest == other.digest
    assert given["scales"] == Scales([1, 1.5])
    assert given["sizes"] == [7]  # as it was before __init__ emptied it
    assert (given["dilation"], given["name"], given["start"], given["act"]) == (2, "x", "", nn.ReLU)

    Many(bases=(discrete,)).save_pretrained(tmp_path / "defaults")
    given = Many.from_pretrained(tmp_path / "defaults").given
    assert (given["scales"], given["sizes"]) == (None, [3, 5])
    assert config_of(tmp_path / "defaults")["sizes"] == [3, 5]  # a default is saved where it can be

    Fewer(discrete).save_pretrained(tmp_path / "fewer")
    fewer = Fewer.from_pretrained(tmp_path / "fewer")
    assert fewer.given["bases"][0].digest == discrete.digest
    assert config_of(tmp_path / "fewer").keys() == {"basis"}


def test_arguments_can_be_replaced(saved):
    other = DiscreteBasis(3, [1, 3])
    with pytest.raises(ValueError, match="ScaleLift2d: the checkpoint was made with another basis") as caught:
        Net.from_pretrained(saved, basis=other)
    assert "\n" not in str(caught.value)
    assert Net.from_pretrained(saved, basis=DiscreteBasis(3, [1, 2])).width == 4


class Positional(nn.Module, ScaleHubMixin):
    def __init__(self, first, /, *rest, **options):
        super().__init__()


class Noted(nn.Linear, ScaleHubMixin):
    def __init__(self, width):
        super().__init__(width, width)

    def get_extra_state(self):
        return {"a": 1}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: Many([], act=len), "cannot save the argument act: expected a Basis, Scales or what JSON"),
        (lambda: Many([], rate=float("nan")), "cannot save the argument rate: Out of range float"),
        (lambda: Many([], table=torch.ones(2)), "cannot save the argument table: expected a Basis"),
        (lambda: Positional(1), "cannot save the argument first: it has no keyword"),
        (lambda: Noted(2), "_extra_state"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_old_kept(net, message, saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises((TypeError, ValueError), match=message):
        net().save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_config_cannot_be_given(tmp_path):
    with pytest.raises(ValueError, match="the config has the arguments of the network"):
        Net(DiscreteBasis(3, [1, 2])).save_pretrained(tmp_path, config={"width": 3})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deep", "pickle"])
def test_copies_can_be_saved(copied, tmp_path):
    net = Net(DiscreteBasis(3, [1, 2]), width=2)
    copied(net).save_pretrained(tmp_path)
    assert same(net, Net.from_pretrained(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_precision_comes_back(dtype, tmp_path):
    net = Net(DiscreteBasis(3, ROOT_2)).to(dtype)
    net.save_pretrained(tmp_path)
    again = Net.from_pretrained(tmp_path)
    assert again.layers[0].weight.dtype == dtype
    assert same(net, again)


class Tied(nn.Module, ScaleHubMixin):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


def test_tied_weights_stay_tied(tmp_path):
    tied = Tied().double()
    tied.save_pretrained(tmp_path)
    again = Tied.from_pretrained(tmp_path)
    assert again.first.weight is again.second.weight
    assert torch.equal(again.first.weight, tied.first.weight)


class Converted(nn.Module, ScaleHubMixin):
    """An ordinary network of one's own, converted where it is made."""

    def __init__(self, classes: int, scales=(1, 2)):
        super().__init__()
        features = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        cnn = nn.Sequential(*features, nn.Linear(4, classes))
        self.network = to_scale_equivariant(cnn, scales, example=torch.randn(1, 3, 16, 16))

    def forward(self, x):
        return self.network(x)


def test_a_converted_network_comes_back(tmp_path):
    net = Converted(5, scales=(1, 1.5))
    net(torch.randn(4, 3, 16, 16))  # moves the statistics of the norm
    net.save_pretrained(tmp_path)
    assert config_of(tmp_path) == {"classes": 5, "scales": [1, 1.5]}
    assert same(net, Converted.from_pretrained(tmp_path), side=16)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("mnist/disco", {"augmented": True}, (1, 28, 28)),
        ("resnet18/disco", {"classes": 10, "scales": (1, 2), "pooling": "average"}, (3, 32, 32)),
    ],
)
def test_a_network_by_name_comes_back(name, options, shape, tmp_path):
    model, x = ScaleModel(name, **options).eval(), torch.randn(2, *shape)
    model.save_pretrained(tmp_path)
    every = {"name": name, **default_options(name), **options}  # another default later changes nothing
    saved = {option: value for option, value in every.items() if option not in ("pretrained", "sha256")}
    assert config_of(tmp_path) == json.loads(json.dumps(saved))
    torch.manual_seed(1)
    assert torch.equal(ScaleModel.from_pretrained(tmp_path)(x), model(x))
    plain = create_model(name, **options).eval()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(plain(x), model(x))


def test_the_file_of_pretrained_weights_is_not_needed_again(tmp_path):
    file = tmp_path / "weights.safetensors"
    save_file(create_model("resnet18/cnn", classes=7).state_dict(), file)
    model = ScaleModel("resnet18/disco", pretrained=str(file), scales=[1, 2])
    file.unlink()
    model.save_pretrained(tmp_path / "model")
    config = config_of(tmp_path / "model")
    assert {option: config[option] for option in ("scales", "classes")} == {"scales": [1, 2], "classes": 7}
    assert not {"pretrained", "sha256"} & set(config)
    assert same(model, ScaleModel.from_pretrained(tmp_path / "model"), side=32)


def nested(depth: int) -> str:
    return '{"width": ' + "[" * depth + "]" * depth + "}"


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "No such file or directory: .*config.json"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "No such file or directory: .*model.safetensors",
    ),
    "no basis": (lambda folder: next(folder.glob("basis-*")).unlink(), "no such file: .*basis-"),
    "no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "cannot make it from config.json .*: JSONDecodeError",
    ),
    "no text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\xfd"), "cannot make it from .*utf-8"),
    "a list": (lambda folder: (folder / "config.json").write_text("[1]"), "'list' object is not a mapping"),
    "a number": (lambda folder: (folder / "config.json").write_text("3"), "cannot make it from .*TypeError"),
    "deep": (lambda folder: (folder / "config.json").write_text(nested(100_000)), "cannot make it .*RecursionError"),
    "other argument": (lambda folder: change(folder, depth=3), "unexpected keyword argument 'depth'"),
    "no argument": (lambda folder: (folder / "config.json").write_text("{}"), "missing 1 required .* 'basis'"),
    "huge": (lambda folder: change(folder, width=10**15), "cannot make it from .*RuntimeError"),
    "huger": (lambda folder: change(folder, width=10**30), "cannot make it from .*config.json"),
    "endless": (
        lambda folder: (folder / "config.json").write_text('{"width": 1' + "0" * 10_000 + "}"),
        "cannot make it from .*ValueError Exceeds",
    ),
    "other class": (lambda folder: change(folder, basis={"scale_disco": "os.system", "command": "true"}), "os.system"),
    "scales of text": (
        lambda folder: change(folder, basis={"scale_disco": "Scales", "factors": "12"}),
        "Scales: expected a sequence",
    ),
    "a bare tag": (lambda folder: change(folder, basis={"scale_disco": "Basis"}), "a Basis and its digest"),
    "a way out": (
        lambda folder: change(folder, basis=config_of(folder)["basis"] | {"digest": "../../" + 58 * "a"}),
        "a Basis and its digest",
    ),
    "other spec": (
        lambda folder: change(
            folder, basis=config_of(folder)["basis"] | {"spec": config_of(folder)["basis"]["spec"] | {"mode": "linear"}}
        ),
        "is of another basis",
    ),
    "other kind": (
        lambda folder: change(
            folder,
            basis=config_of(folder)["basis"] | {"spec": config_of(folder)["basis"]["spec"] | {"kind": "hermite"}},
        ),
        "HermiteBasis.load: refused",
    ),
    "damaged basis": (lambda folder: next(folder.glob("basis-*")).write_bytes(b"x" * 100), "DiscreteBasis.load: ref"),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        "cannot make it from .*model.safetensors .*: SafetensorError",
    ),
    "pickled weights": (
        lambda folder: torch.save({}, folder / "model.safetensors"),
        "cannot make it from .*model.safetensors .*: SafetensorError",
    ),
    "fewer weights": (
        lambda folder: save_file({"layers.0.bias": torch.zeros(4)}, folder / "model.safetensors"),
        "Missing key.*layers.0.weight",
    ),
    "more weights": (
        lambda folder: save_file(
            load_file(folder / "model.safetensors") | {"head": torch.zeros(1)}, folder / "model.safetensors"
        ),
        'Unexpected key.*"head"',
    ),
    "other width": (lambda folder: change(folder, width=5), "size mismatch for layers.0.weight"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_refused_in_one_line(damage, message, saved):
    Net.from_pretrained(saved)
    damage(saved)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        Net.from_pretrained(saved)
    assert str(caught.value).startswith("Net.from_pretrained: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_config_cannot_name_a_file_to_read(tmp_path):
    ScaleModel("mnist/cnn").save_pretrained(tmp_path)
    change(tmp_path, name="resnet18/cnn", pretrained="elsewhere.pth")
    with pytest.raises(ValueError, match="pretrained, sha256 cannot be among"):
        ScaleModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"name": "os.system"}')
    with pytest.raises(ValueError, match=r"cannot make it from .* create_model: expected one of"):
        ScaleModel.from_pretrained(tmp_path)


def test_a_save_that_fails_leaves_the_old_network(saved, monkeypatch):
    def broken(path, content):
        path.write_text("half")
        raise OSError("disk full")

    old = Net.from_pretrained(saved)
    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="disk full"):
        Net(DiscreteBasis(3, [1, 2]), width=7).save_pretrained(saved)
    assert same(old, Net.from_pretrained(saved))
    assert not list(saved.glob(".*"))


@pytest.mark.thorough
@pytest.mark.parametrize("stopped", ["model.safetensors", "config.json"])
def test_a_save_that_is_stopped_leaves_no_mixture(stopped, saved):
    """Killed at the moment when a file would be put in place."""
    code = f"""
import os, pathlib, sys
from scale_disco import DiscreteBasis
from tests.test_hub import Net
replace = pathlib.Path.replace
def stop(draft, target):
    if target.name == {stopped!r}:
        os._exit(3)
    return replace(draft, target)
pathlib.Path.replace = stop
Net(DiscreteBasis(3, [1, 2])).save_pretrained(sys.argv[1])
"""
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code, str(saved)], cwd=root, check=False).returncode == 3
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*config\.json"):
        Net.from_pretrained(saved)
    net = Net(DiscreteBasis(3, [1, 2]))
    net.save_pretrained(saved)
    assert same(net, Net.from_pretrained(saved))


def test_the_card_says_what_it_is_and_is_not_overwritten(saved):
    card = (saved / "README.md").read_text()
    assert "library_name: scale-disco" in card
    assert "- scale-equivariance" in card
    assert "`Net.from_pretrained`" in card
    (saved / "README.md").write_text("mine")
    Net.from_pretrained(saved).save_pretrained(saved)
    assert (saved / "README.md").read_text() == "mine"


def test_the_card_takes_what_a_class_says(tmp_path):
    class Licensed(Net, license="mit", tags=["own"]):
        pass

    Licensed(DiscreteBasis(3, [1, 2])).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert all(line in card for line in ("license: mit", "- own", "- scale-equivariance", "`Licensed."))


@pytest.fixture
def remote(saved, monkeypatch):
    """A Hub with one repository, and what was asked of it."""
    asked = []

    def download(repo_id, **options):
        asked.append((repo_id, options))
        if repo_id != "someone/net":
            raise OSError("404 Client Error\nnot found")
        return str(saved)

    monkeypatch.setattr(hub, "snapshot_download", download)
    return asked


def test_a_name_that_is_no_folder_is_of_the_hub(remote, saved):
    net = Net.from_pretrained("someone/net", revision="v1", token=False, width=4)
    assert same(Net.from_pretrained(saved), net)
    patterns = ["config.json", "*.safetensors"]
    assert remote == [("someone/net", {"allow_patterns": patterns, "revision": "v1", "token": False})]
    assert {path for pattern in patterns for path in saved.glob(pattern)} == {*saved.iterdir()} - {saved / "README.md"}
    with pytest.raises(FileNotFoundError, match=r"no folder someone/other, nor on the Hub: 404 Client Error$"):
        Net.from_pretrained("someone/other")


def test_paths_and_folders_never_ask_the_hub(remote, saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    (saved / "model.safetensors").unlink()
    for source in (Path("someone/net"), Path("net"), "net", "./net"):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            Net.from_pretrained(source)
    assert not remote


def test_a_downloaded_network_is_loaded_without_the_hub(saved, tmp_path):
    repository = tmp_path / "cache" / "models--someone--net"
    shutil.copytree(saved, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    net = Net.from_pretrained("someone/net", local_files_only=True, cache_dir=tmp_path / "cache")
    assert same(Net.from_pretrained(saved), net)


@pytest.mark.parametrize("name", ["someone/net", "no/such/folder/at/all", "-net-"])
def test_a_name_that_the_hub_does_not_give_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=f"no folder {name}, nor on the Hub: .") as caught:
        Net.from_pretrained(name, local_files_only=True, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_push_to_hub_uploads_the_same_files(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    uploaded = {}

    def upload_folder(self, *, repo_id, folder_path, **_):
        uploaded[repo_id] = {path.name for path in Path(folder_path).iterdir()}
        return "address"

    created = type("Created", (), {"repo_id": "someone/net"})
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: created)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    net = Net(DiscreteBasis(3, [1, 2]))
    assert net.save_pretrained(tmp_path / "net", push_to_hub=True, private=True) == "address"
    assert uploaded == {"someone/net": {path.name for path in (tmp_path / "net").iterdir()}}


def test_without_the_package_only_this_module_is_missing():
    code = """
import sys
import scale_disco
assert "huggingface_hub" not in sys.modules
sys.modules["huggingface_hub"] = None
try:
    import scale_disco.hub
except ImportError as error:
    print(error)
"""
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message == 'the Hub needs huggingface_hub: pip install "scale-disco[hub]"\n'
