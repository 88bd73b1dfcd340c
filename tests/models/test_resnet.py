from __future__ import annotations

import hashlib
import inspect
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from scale_disco.convert import DecimatedNetwork, to_scale_equivariant
from scale_disco.models import create_model, list_models, resnet

NAMES = ["resnet18", "resnet34", "resnet50"]
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
PARAMETERS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032}
ENTRIES = {"resnet18": 122, "resnet34": 218, "resnet50": 320}

# The README of the weights: the five likeliest classes of photos and their probabilities.
SANITY = {
    "dav2_demo06_bridge": {821: 0.9494, 718: 0.0100, 421: 0.0075, 877: 0.0069, 791: 0.0060},
    "dav2_demo15_stairs": {698: 0.8083, 497: 0.0667, 668: 0.0546, 663: 0.0253, 884: 0.0126},
    "metric3d_wild_library": {624: 0.7573, 453: 0.1430, 454: 0.0583, 548: 0.0092, 729: 0.0044},
    "sklearn_china": {698: 0.7124, 442: 0.1233, 663: 0.0926, 483: 0.0296, 449: 0.0155},
}


def layout(name):
    """Names and shapes in torchvision's state dict, written down from its documentation and not from our classes."""
    wide = 4 if name == "resnet50" else 1

    def norm(prefix, channels):
        shapes = {f"{prefix}.{key}": (channels,) for key in ("weight", "bias", "running_mean", "running_var")}
        return {**shapes, f"{prefix}.num_batches_tracked": ()}

    shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for stage, (depth, channels) in enumerate(zip(DEPTHS[name], (64, 128, 256, 512), strict=True), 1):
        for index in range(depth):
            block, out = f"layer{stage}.{index}", channels * wide
            sides = (1, 3, 1) if wide == 4 else (3, 3)
            widths = [before, *[channels] * (len(sides) - 1), out]
            for position, side in enumerate(sides):
                shape = (widths[position + 1], widths[position], side, side)
                shapes[f"{block}.conv{position + 1}.weight"] = shape
                shapes |= norm(f"{block}.bn{position + 1}", shape[0])
            if before != out or (index == 0 and stage > 1):
                shapes[f"{block}.downsample.0.weight"] = (out, before, 1, 1)
                shapes |= norm(f"{block}.downsample.1", out)
            before = out
    return {**shapes, "fc.weight": (1000, before), "fc.bias": (1000,)}


def literal(state, x, name, stride_first):
    """The network as one function of its state dict and images."""

    def norm(x, prefix):
        return F.batch_norm(
            x, *(state[f"{prefix}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")), eps=1e-5
        )

    def conv(x, prefix, stride):
        weight = state[f"{prefix}.weight"]
        return F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)

    x = F.max_pool2d(F.relu(norm(conv(x, "conv1", 2), "bn1")), 3, 2, 1)
    for stage, depth in enumerate(DEPTHS[name], 1):
        for index in range(depth):
            block = f"layer{stage}.{index}"
            halves = 2 if stage > 1 and index == 0 else 1
            count = 3 if name == "resnet50" else 2
            strided = 2 if name == "resnet50" and not stride_first else 1
            y = x
            for position in range(1, count + 1):
                y = norm(
                    conv(y, f"{block}.conv{position}", halves if position == strided else 1), f"{block}.bn{position}"
                )
                y = F.relu(y) if position < count else y
            if f"{block}.downsample.0.weight" in state:
                x = norm(conv(x, f"{block}.downsample.0", halves), f"{block}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("name", NAMES)
def test_layout_is_torchvisions(name):
    net = create_model(f"{name}/cnn")
    assert {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()} == layout(name)
    assert sum(parameter.numel() for parameter in net.parameters()) == PARAMETERS[name]
    assert len(net.state_dict()) == ENTRIES[name]


@pytest.mark.parametrize(
    ("name", "stride_first"), [("resnet18", False), ("resnet34", True), ("resnet50", False), ("resnet50", True)]
)
def test_computes_what_it_should(name, stride_first):
    net = create_model(f"{name}/cnn", classes=7, stride_first=stride_first).eval()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):  # so that no norm can be left out, or taken for another
            for tensor in (part.weight.data, part.running_var):
                tensor.uniform_(0.5, 1)
            for tensor in (part.bias.data, part.running_mean):
                tensor.normal_(0, 0.1)
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(net(x), literal(net.state_dict(), x, name, stride_first), rtol=1e-4, atol=1e-4)


def test_weights_start_as_torchvisions():
    net = create_model("resnet18/cnn")
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            outputs = part.weight[:, 0].numel()
            assert float(part.weight.detach().std()) == pytest.approx(math.sqrt(2 / outputs), rel=0.05)


@pytest.fixture(scope="module")
def file18(tmp_path_factory):
    """A file of weights of ResNet-18, in float16."""
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(resnet.resnet18().half().state_dict(), path)
    return path


def assert_loaded(net, path, but=()):
    given = load_file(path)
    for key, tensor in net.state_dict().items():
        if key not in but:
            assert tensor.dtype == (torch.int64 if key.endswith("tracked") else torch.float32)
            assert torch.equal(tensor, given[key].to(tensor.dtype)), key


def test_a_file_is_loaded_whole(file18):
    net = create_model("resnet18/cnn", pretrained=file18, sha256=hashlib.sha256(file18.read_bytes()).hexdigest())
    assert_loaded(net, file18)
    assert net.training
    with pytest.raises(ValueError, match=r"expected sha256 0{64}"):
        create_model("resnet18/cnn", pretrained=str(file18), sha256="0" * 64)
    with pytest.raises(
        ValueError, match=r"resnet34: .*resnet18.safetensors does not fit: it lacks layer1.2.conv1.weight"
    ):
        create_model("resnet34/cnn", pretrained=file18)


def test_another_number_of_classes_keeps_all_but_the_last_layer(file18):
    net = create_model("resnet18/cnn", pretrained=file18, classes=10)
    assert_loaded(net, file18, but=("fc.weight", "fc.bias"))
    assert net.fc.weight.shape == (10, 512)
    assert 0 < float(net.fc.weight.detach().abs().max()) <= 512**-0.5  # as nn.Linear starts


def test_classes_are_those_of_the_file(file18, tmp_path):
    path = tmp_path / "flowers.pth"
    state = load_file(file18)
    state["fc.weight"], state["fc.bias"] = state["fc.weight"][:5], state["fc.bias"][:5]
    torch.save({"state_dict": state}, path)
    net = create_model("resnet18/cnn", pretrained=path)
    assert net.fc.weight.shape == (5, 512)
    assert torch.equal(net.fc.weight, state["fc.weight"].float())
    state["fc.weight"] = state["fc.weight"][0, 0]
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"fc.weight is float16 \[\], expected float32 \[1000, 512\]"):
        create_model("resnet18/cnn", pretrained=path)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_weights_that_a_package_knows(file18, tmp_path, monkeypatch, package):
    state = {key: tensor for key, tensor in load_file(file18).items() if not key.endswith("tracked")}  # as its files
    torch.save(state, tmp_path / "file")
    start = hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()[:8]
    url = (tmp_path / "file").rename(tmp_path / f"resnet18-{start}.pth").as_uri()
    module = ModuleType(package)
    module.models = SimpleNamespace(
        get_model_weights=lambda name: {"resnet18": SimpleNamespace(DEFAULT=SimpleNamespace(url=url))}[name]
    )
    module.get_pretrained_cfg = lambda name: {"resnet18": SimpleNamespace(url=url)}[name]
    monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    net = create_model("resnet18/cnn", pretrained=package)
    assert_loaded(net, file18)
    with pytest.raises(ValueError, match=rf"resnet50: {package}'s weights have the stride in the 3x3 convolution"):
        create_model("resnet50/cnn", pretrained=package, stride_first=True)


@pytest.mark.parametrize("needed", [True, False])
def test_known_files_are_refused_in_the_other_network(tmp_path, monkeypatch, needed):
    path = tmp_path / "known.safetensors"
    save_file({"fc.weight": torch.ones(2, 2)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(resnet, "_STRIDE_FIRST", {"0" * 8: not needed, digest[:8]: needed})
    message = rf"resnet50: .*known.safetensors weights have .*: give stride_first={needed}, got {not needed}$"
    for kind in ("cnn", "disco"):
        with pytest.raises(ValueError, match=message):
            create_model(f"resnet50/{kind}", pretrained=path, stride_first=not needed)
    for name, stride_first in (("resnet50", needed), ("resnet18", not needed)):  # only bottlenecks have a choice
        with pytest.raises(ValueError, match=f"{name}: .* does not fit"):
            create_model(f"{name}/cnn", pretrained=path, stride_first=stride_first)


@pytest.fixture
def caffe(shared):
    path = shared / "data" / "resnet50" / "resnet50_caffe_fp16.safetensors"
    if not path.is_file():
        pytest.skip("no ../shared/data/resnet50 with the ImageNet weights")
    return path


def photos(shared, side=224):
    """The photos of the table as Caffe's weights want them, [4, 3, side, side]."""
    image = pytest.importorskip("PIL.Image", reason="reading photos needs pillow")
    pixels = []
    for name in SANITY:
        path = shared / "data" / "photos" / f"{name}.jpg"
        if not path.is_file():
            pytest.skip("no ../shared/data/photos")
        photo = image.open(path)
        ratio = 256 / 224 * side / min(photo.size)
        photo = photo.resize([round(length * ratio) for length in photo.size], image.Resampling.BILINEAR)
        left, top = ((length - side) // 2 for length in photo.size)
        pixels.append(np.asarray(photo.crop((left, top, left + side, top + side)).convert("RGB"), np.float32))
    bgr = torch.from_numpy(np.stack(pixels)).movedim(3, 1).flip(1)
    return bgr - torch.tensor([103.939, 116.779, 123.68])[:, None, None]


def test_real_weights_see_what_they_should(caffe, shared):
    net = create_model(
        "resnet50/cnn",
        pretrained=caffe,
        stride_first=True,
        sha256="defd770bd9f35073cfb2dbf8101b9fad51fdbc0d981bb59b4d2d9b74b1e14bec",
    ).eval()
    with torch.inference_mode():
        likely, classes = net(photos(shared)).softmax(1).topk(5)
    for row, expected in enumerate(SANITY.values()):
        assert classes[row].tolist() == list(expected)
        assert likely[row].tolist() == pytest.approx(list(expected.values()), abs=1e-3)


def test_real_weights_are_refused_with_the_stride_elsewhere(caffe):
    with pytest.raises(ValueError, match="have the stride in the first 1x1 convolution: give stride_first=True"):
        create_model("resnet50/cnn", pretrained=caffe)


def test_the_first_scale_is_the_network_itself(caffe, shared):
    images = photos(shared, 64)
    plain = create_model("resnet50/cnn", pretrained=caffe, stride_first=True).eval()
    net = create_model("resnet50/disco", pretrained=caffe, stride_first=True, project=None).eval()
    with torch.inference_mode():
        expected, scores = plain(images), net(images)
    assert scores.shape == (4, 1000, 3)
    largest = float(expected.abs().max())
    assert float((scores[:, :, 0] - expected).abs().max()) < 1e-4 * largest
    for k in (1, 2):
        assert float((scores[:, :, k] - expected).abs().max()) > 1e-2 * largest


def test_options_reach_the_conversion(monkeypatch):
    calls = []
    monkeypatch.setattr(resnet, "to_scale_equivariant", lambda *given, **options: calls.append((given, options)))
    options = {
        "grid": "full",
        "project": "layer4",
        "reduce": "max",
        "scale_extent": 2,
        "pooling": "average",
        "downsampling": "centered",
        "antialias": True,
    }
    create_model("resnet18/disco", classes=3, scales=(1, 3), **options)
    ((net, scales), given) = calls.pop()
    assert given.pop("example").shape == (1, 3, 64, 64)
    assert (net.fc.out_features, scales, given) == (3, (1, 3), options)


def test_defaults_are_those_of_the_conversion():
    theirs = inspect.signature(to_scale_equivariant).parameters
    ours = inspect.signature(resnet.disco).parameters
    shared = set(theirs) & set(ours)
    assert shared == set(theirs) - {"model", "example", "strict"}
    expected = {name: theirs[name].default for name in shared}
    assert {name: ours[name].default for name in shared} == expected
    plain = inspect.signature(resnet.cnn).parameters
    assert {name: ours[name].default for name in plain} == {name: plain[name].default for name in plain}


@pytest.mark.parametrize("name", NAMES)
def test_converted_networks_run_and_learn(name):
    net = create_model(f"{name}/disco", classes=5, scales=(1, 2))
    assert (net.unconverted, str(net.place)) == ((), "before avgpool")
    net(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert sum(parameter.numel() for parameter in net.parameters()) == sum(
        parameter.numel() for parameter in create_model(f"{name}/cnn", classes=5).parameters()
    )


def test_decimated_grid():
    net = create_model("resnet18/disco", classes=5, scales=(1, 2), grid="decimated").eval()
    assert isinstance(net, DecimatedNetwork)
    assert not any("Folded" in type(part).__name__ for part in net.modules())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert net(images).shape == (2, 5)
    with pytest.raises(ValueError, match="pooling: only for grid='full'"):
        create_model("resnet18/disco", grid="decimated", pooling="average")


def test_names():
    assert list_models("resnet18") == ["resnet18/cnn", "resnet18/disco"]
    assert {name for name in list_models() if name.startswith("resnet")} == {
        f"{name}/{kind}" for name in NAMES for kind in ("cnn", "disco")
    }
    assert not any(name.startswith("resnet") for name in list_models("mnist"))


CNN_OPTIONS = "pretrained, sha256, classes, stride_first"


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("resnet18/cnn", {"pretraned": "a.pth"}, TypeError, f"resnet18/cnn among {CNN_OPTIONS}, got 'pretraned'"),
        ("resnet18/cnn", {"scales": (1, 2)}, TypeError, f"resnet18/cnn among {CNN_OPTIONS}, got 'scales'"),
        (
            "resnet50/disco",
            {"augmented": True},
            TypeError,
            f"{CNN_OPTIONS}, scales, grid, project, .*, got 'augmented'",
        ),
        (
            "mnist/cnn",
            {"classes": 3},
            TypeError,
            "options of mnist/cnn among augmented, pretrained, sha256, got 'classes'",
        ),
        ("mnist/sesn-hermite", {"preset": 3}, TypeError, "mnist/sesn-hermite among augmented, got 'preset'"),
        ("resnet18", {}, ValueError, "expected one of mnist/cnn, .*resnet50/disco, .*got 'resnet18'"),
        ("resnet18/cnn", {"classes": 0}, ValueError, "ResNet: classes must be an integer >= 1, got 0"),
        (
            "resnet18/cnn",
            {"sha256": "0" * 64},
            ValueError,
            "resnet18: sha256 requires pretrained",
        ),
        ("resnet18/cnn", {"pretrained": True}, ValueError, "resnet18/cnn: no weights come with the package, only"),
        ("resnet18/cnn", {"pretrained": "torchvison"}, FileNotFoundError, "or timm; no such file: torchvison"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(name, options, kind, message):
    with pytest.raises(kind, match=message) as caught:
        create_model(name, **options)
    assert "\n" not in str(caught.value)
