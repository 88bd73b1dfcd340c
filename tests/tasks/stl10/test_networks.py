from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scale_disco import bake
from scale_disco.functional import reference
from scale_disco.hub import ScaleModel
from scale_disco.models import create_model, list_models
from scale_disco.nn import ScaleAvgPool2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleMaxPool2d
from scale_disco.nn.conv import ScaleConvolution
from scale_disco.tasks.baselines.dss import DilatedScaleConv2d
from scale_disco.tasks.baselines.ss_cnn import SteerableConv2d, SteerableLift2d
from scale_disco.tasks.bench.timing import on_reference
from scale_disco.tasks.stl10.networks import (
    BlockPosition,
    FirstScales,
    GlobalMean,
    PreActBlock,
    ScaleMaps,
    WideResNetLayers,
    disco_basis,
)

# Parameters of the authors' networks of depth 16 and width 8.
PARAMETERS = {
    "stl10/wrn": 10_961_370,
    "stl10/sicnn": 10_975_770,
    "stl10/si-convnet": 10_961_370,
    "stl10/dss": 10_939_482,
    "stl10/ss-cnn": 10_846_835,
    "stl10/sesn-hermite": 10_961_370,
    "stl10/disco": 10_961_370,
}
SMALL = {"depth": 10, "width": 1}
OPTIONS = [
    *((name, {}) for name in PARAMETERS),
    ("stl10/sesn-hermite", {"layout": "plain"}),
    ("stl10/sesn-hermite", {"layout": "interscale"}),
    ("stl10/disco", {"layout": "interscale", "pools": "stride"}),
    ("stl10/disco", {"pools": "mean"}),
    ("stl10/disco", {"pools": "blur", "support": None, "prior": "white"}),
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in OPTIONS]


def on_meta(name: str, **options) -> nn.Module:
    """Build the network without allocating its weights."""
    with torch.device("meta"):
        return create_model(name, **options)


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def shapes(net: nn.Module, image: torch.Tensor) -> dict[str, tuple[int, ...]]:
    """Output shape of every module, without the batch."""
    recorded: dict[str, tuple[int, ...]] = {}
    for name, module in net.named_modules():
        module.register_forward_hook(lambda _, __, y, name=name: recorded.update({name: tuple(y.shape[1:])}))
    net(image)
    return recorded


def test_all_networks_of_table_2_are_listed():
    assert set(list_models("stl10")) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_paper(name):
    assert count(on_meta(name)) == PARAMETERS[name]


@pytest.mark.parametrize(("layout", "more"), [("plain", 0), ("projected", 0), ("interscale", 16 * 128 * 9)])
@pytest.mark.parametrize("kind", ["sesn-hermite", "disco"])
def test_layouts_differ_in_the_scale_extent_of_the_first_block(kind, layout, more):
    assert count(on_meta(f"stl10/{kind}", layout=layout)) == 10_961_370 + more


@pytest.mark.parametrize(("depth", "blocks"), [(10, 1), (16, 2), (28, 4)])
def test_depth_counts_convolutions(depth, blocks):
    net = on_meta("stl10/wrn", depth=depth, width=2)
    assert [len(group) for group in (net.group1, net.group2, net.group3)] == [blocks] * 3
    assert (
        sum(isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) for layer in net.modules()) == 6 * blocks + 1
    )


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=IDS)
def test_networks_train_on_images_of_any_size(name, options):
    net = create_model(name, classes=7, **SMALL, **options)
    before = {key: value.clone() for key, value in net.named_parameters()}
    labels = torch.tensor([3, 5])
    F.cross_entropy(net(torch.randn(2, 3, 96, 96)), labels).backward()
    for key, parameter in net.named_parameters():
        if "unused" in key:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True).step()
    assert all(value.isfinite().all() for value in net.state_dict().values())
    assert any(not torch.equal(before[key], value) for key, value in net.named_parameters())
    net.eval()
    with torch.inference_mode():
        for side in (64, 45):
            assert net(torch.randn(1, 3, side, side)).shape == (1, 7)


def test_small_networks_are_fast():
    start = time.process_time()
    with torch.inference_mode():
        for name in PARAMETERS:
            assert create_model(name, **SMALL)(torch.randn(1, 3, 96, 96)).shape == (1, 10)
    assert time.process_time() - start < 30


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=IDS)
def test_state_dict_round_trip(name, options):
    first, second = (create_model(name, **SMALL, **options) for _ in range(2))
    images = torch.randn(2, 3, 32, 32)
    first(images)  # updates the statistics of the norms
    first.eval(), second.eval()
    assert not torch.equal(first(images), second(images))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(images), first(images))


def test_weights_of_another_basis_raise():
    stopped = create_model("stl10/disco", **SMALL, basis_steps=3)
    with pytest.raises(ValueError, match="made with another basis"):
        create_model("stl10/disco", **SMALL).load_state_dict(stopped.state_dict())


def test_saved_and_loaded_by_name(tmp_path):
    net = ScaleModel("stl10/disco", **SMALL, pools="mean").eval()
    net.save_pretrained(tmp_path)
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(ScaleModel.from_pretrained(tmp_path).eval()(images), net(images))


def test_feature_maps_of_disco_have_the_authors_shapes():
    net = on_meta("stl10/disco")
    outputs = shapes(net, torch.empty(1, 3, 96, 96, device="meta"))
    assert outputs["stem"] == (16, 3, 96, 96)
    assert outputs["group1"] == (128, 3, 96, 96)
    project, lift, pool = (outputs[f"group2.0.conv1.{index}"] for index in range(3))
    assert (project, lift, pool) == ((128, 96, 96), (256, 3, 96, 96), (256, 3, 48, 48))
    assert outputs["group2.0.shortcut.0"] == (256, 3, 96, 96)
    assert outputs["group2.0.shortcut.1"] == outputs["group2"] == (256, 3, 48, 48)
    assert outputs["group3.0.conv1.1"] == (512, 3, 48, 48)
    assert outputs["group3"] == (512, 3, 24, 24)
    assert outputs["head.0"] == outputs["head.2"] == (512, 24, 24)
    assert outputs["head"] == (512,)


@pytest.mark.parametrize(
    ("name", "channels", "scales"),
    [
        ("wrn", (16, 128, 256, 512), ((), (), (), ())),
        ("si-convnet", (16, 128, 256, 512), ((), (), (), ())),
        ("ss-cnn", (11, 88, 176, 352), ((), (), (), ())),
        ("sicnn", (16, 128, 256, 512), ((3,), (3,), (3,), (3,))),
        ("dss", (16, 128, 240, 512), ((4,), (3,), (2,), (2,))),
        ("sesn-hermite", (16, 128, 256, 512), ((3,), (3,), (3,), (3,))),
    ],
)
def test_feature_maps_of_other_networks(name, channels, scales):
    outputs = shapes(on_meta(f"stl10/{name}"), torch.empty(1, 3, 96, 96, device="meta"))
    for module, width, extra, side in zip(
        ("stem", "group1", "group2", "group3"), channels, scales, (96, 96, 48, 24), strict=True
    ):
        assert outputs[module] == (width, *extra, side, side)


def test_dss_has_scale_extent_2_where_a_scale_is_removed():
    net = on_meta("stl10/dss")
    outputs = shapes(net, torch.empty(1, 3, 96, 96, device="meta"))
    extents = [layer.scale_extent for layer in net.modules() if isinstance(layer, DilatedScaleConv2d)]
    assert net.group1[0].conv1.scale_extent == net.group2[0].conv1.scale_extent == 2
    assert sorted(extents) == [1] * (len(extents) - 2) + [2, 2]
    assert outputs["group1.0.conv1"] == (128, 4, 96, 96)  # the scale is removed after it
    assert outputs["group1.0.conv2.0"] == (128, 3, 96, 96)
    assert outputs["group1.0.shortcut.0"] == (16, 3, 96, 96)
    assert outputs["group2.0.conv1"] == (240, 3, 48, 48)


def test_strides_and_projections_of_sesn():
    plain, projected = on_meta("stl10/sesn-hermite", layout="plain"), on_meta("stl10/sesn-hermite")
    for net, kind in ((plain, ScaleConv2d), (projected, ScaleLift2d)):
        for group in (net.group2, net.group3):
            assert isinstance(group[0].conv1[-1], kind)
            assert group[0].conv1[-1].stride == group[0].shortcut[-1].stride == 2
        assert isinstance(net.group1[0].conv1[-1], ScaleConv2d)
    base = [layer.basis.scales[0] for layer in on_meta("stl10/sesn-hermite", layout="interscale").modules()
            if isinstance(layer, ScaleLift2d)]  # fmt: skip
    assert base == [1.1]
    assert projected.stem.basis.scales[0] == 0.9


def test_disco_pools_instead_of_strides():
    for pools, kind in (("max", ScaleMaxPool2d), ("mean", ScaleAvgPool2d), ("blur", ScaleBlurPool2d)):
        net = on_meta("stl10/disco", pools=pools)
        assert all(layer.stride == 1 for layer in net.modules() if isinstance(layer, ScaleConvolution))
        assert sum(isinstance(layer, kind) for layer in net.modules()) == 4
    strided = on_meta("stl10/disco", pools="stride").modules()
    assert sum(layer.stride == 2 for layer in strided if isinstance(layer, ScaleConvolution)) == 4


@pytest.mark.parametrize("pools", ["mean", "blur"])
def test_averages_commute_with_the_shortcut(pools):
    layers = ScaleMaps(disco_basis(), "projected", pools)
    pointwise = layers.pointwise(4, 6, 2).double()
    pool, conv = pointwise
    x = torch.randn(2, 4, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(pointwise(x), pool(conv(x)))


def test_disco_basis_is_the_authors_at_integer_scales(shared):
    with np.load(shared / "facts" / "golden" / "discoA_stl.npz") as archive:
        theirs = torch.from_numpy(archive["basis"]).double()
    ours = disco_basis().dense()
    assert ours.shape == theirs.shape == (9, 3, 5, 5)
    torch.testing.assert_close(ours[:, 0::2], theirs[:, 0::2], atol=1e-6, rtol=0)
    white = disco_basis(prior="white").dense()
    assert float((white[:, 1] - theirs[:, 1]).norm() / theirs[:, 1].norm()) < 0.1


def test_basis_steps_stop_gradient_descent():
    errors = [disco_basis(prior="white", basis_steps=steps).error for steps in (0, 10, 60)]
    best = disco_basis(prior="white").error
    assert errors[0] > errors[1] > errors[2] > 0.999 * best
    net = create_model("stl10/disco", **SMALL, basis_steps=10, prior="white")
    assert net.stem.basis.spec["solver"] == "gradient"
    assert net.stem.basis.spec["steps"] == 10


@pytest.mark.parametrize("name", ["wrn", "sicnn", "si-convnet", "sesn-hermite", "disco"])
def test_weights_are_he_normal_with_fan_out(name):
    net = create_model(f"stl10/{name}", depth=10, width=4)
    checked = 0
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, ScaleConvolution)):
            weight = layer.weight.detach()
            expected = math.sqrt(2 / (weight.numel() / layer.in_channels))
            assert float(weight.std()) == pytest.approx(expected, rel=6 / math.sqrt(2 * weight.numel()))
            assert abs(float(weight.mean())) < 5 * expected / math.sqrt(weight.numel())
            checked += 1
    assert checked == 10  # seven of 3x3 and three shortcuts
    assert not net.classifier.bias.any()


def test_weights_of_all_neighboring_scales_are_initialized_alike():
    net = create_model("stl10/sesn-hermite", depth=10, width=8, layout="interscale")
    weight = net.group1[0].conv1[0].weight.detach()
    assert weight.shape == (128, 16, 2, 9)
    for scale_weight in weight.unbind(2):
        assert float(scale_weight.std()) == pytest.approx(math.sqrt(2 / (128 * 2 * 9)), rel=0.03)


def test_dss_and_ss_cnn_keep_their_initialization():
    for layer in create_model("stl10/dss", depth=10, width=1).modules():
        if isinstance(layer, DilatedScaleConv2d):
            assert float(layer.weight.detach().median().abs()) < 0.01 or layer.weight.shape[-1] == 1
            block = math.gcd(layer.in_channels, layer.out_channels) / layer.out_channels
            assert float(layer.weight.detach().max()) == pytest.approx(max(block, 0.01), rel=0.01)
    for layer in create_model("stl10/ss-cnn", depth=10, width=1).modules():
        if isinstance(layer, SteerableLift2d):
            bound = math.sqrt(2 / (9 * layer.in_channels * layer.out_channels))
            assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound


def test_ss_cnn_has_several_sizes_in_the_stem_only():
    layers = [layer for layer in on_meta("stl10/ss-cnn").modules() if isinstance(layer, SteerableConv2d)]
    assert [len(layer.lift.basis.scales) for layer in layers] == [3] + [1] * 12


def test_block_is_the_authors_formula():
    block = PreActBlock(WideResNetLayers(), 4, 6, BlockPosition(2, True), 0.0).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    active = F.relu(F.batch_norm(x, None, None, training=True))
    y = F.conv2d(active, block.conv1.weight, stride=2, padding=1)
    y = F.conv2d(F.relu(F.batch_norm(y, None, None, training=True)), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), y + F.conv2d(active, block.shortcut.weight, stride=2))
    same = PreActBlock(WideResNetLayers(), 4, 4, BlockPosition(2, False), 0.0).double().eval()
    nn.init.zeros_(same.conv2.weight)
    torch.testing.assert_close(same(x), x)  # not the activation


def test_projected_block_is_the_authors_formula():
    block = PreActBlock(ScaleMaps(disco_basis(), "projected", "max"), 4, 6, BlockPosition(2, True), 0.0).double()
    x = torch.randn(2, 4, 3, 8, 8, dtype=torch.float64)
    lift = block.conv1[1]
    active = F.relu(F.batch_norm(x, None, None, training=True))
    y = F.max_pool3d(reference.scale_lift(active.amax(2), lift.weight, lift.basis), (1, 2, 2))
    y = reference.scale_conv(F.relu(F.batch_norm(y, None, None, training=True)), block.conv2.weight, block.conv2.basis)
    point = block.shortcut[0].weight  # of the feature map that is not projected
    short = F.max_pool3d(F.conv3d(active, point.reshape(6, 4, 1, 1, 1)), (1, 2, 2))
    torch.testing.assert_close(block(x), y + short)


def test_dropout_is_before_the_second_convolution():
    net = create_model("stl10/wrn", **SMALL, dropout=0.5)
    x = torch.randn(1, 16, 8, 8)
    block = net.group1[0]
    seen = []
    block.dropout.register_forward_hook(lambda _, inputs, y: seen.append((inputs[0], y)))
    block(x)
    nonzero = seen[0][1] != 0
    assert 0.3 < float(nonzero.sum() / (seen[0][0] != 0).sum()) < 0.7
    torch.testing.assert_close(seen[0][1][nonzero], 2 * seen[0][0][nonzero])
    assert create_model("stl10/disco", **SMALL).group1[0].dropout.p == 0.3


def test_heads_have_the_authors_order_of_layers():
    order = {
        "sicnn": ["ColumnBatchNorm2d", "ReLU", "GlobalMean", "ScaleProject"],
        "dss": ["ScaleBatchNorm2d", "ReLU", "ScaleProject", "GlobalMean"],
        "disco": ["ScaleProject", "BatchNorm2d", "ReLU", "GlobalMean"],
        "wrn": ["BatchNorm2d", "ReLU", "GlobalMean"],
    }
    for name, expected in order.items():
        assert [type(layer).__name__ for layer in on_meta(f"stl10/{name}").head] == expected
    x = torch.randn(2, 3, 4, 5, 6)
    torch.testing.assert_close(GlobalMean()(x), x.flatten(-2).mean(-1))


def test_memory_stays_scale_major():
    """No layer between the stem and the head needs a copy to fold its map."""
    for name in ("stl10/disco", "stl10/sesn-hermite", "stl10/dss", "stl10/sicnn"):
        net = create_model(name, **SMALL)
        for module in net.modules():
            if not isinstance(module, FirstScales):
                module.register_forward_hook(
                    lambda _, __, y, name=name: (
                        None
                        if y.ndim < 5 or y.movedim(2, 0).is_contiguous()
                        else pytest.fail(f"{name}: {type(_).__name__}")
                    )
                )
        net(torch.randn(2, 3, 32, 32))


def test_dense_reference_is_the_same_network():
    net = create_model("stl10/disco", **SMALL).double().eval()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(on_reference(net)(x), net(x))


def test_baking_keeps_the_output():
    net = create_model("stl10/disco", **SMALL).double().eval()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(bake(net)(x), net(x))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wrn", {"depth": 12}, "stl10: depth must be 6n [+] 4 such as 10, 16 or 22, got 12"),
        ("wrn", {"depth": 4}, "stl10: depth must be 6n [+] 4 .* got 4"),
        ("dss", {"depth": 16.0}, "stl10: depth must be an integer >= 1, got 16.0"),
        ("disco", {"width": 0}, "stl10: width must be an integer >= 1, got 0"),
        ("wrn", {"classes": 0}, "stl10: classes must be an integer >= 1, got 0"),
        ("wrn", {"dropout": 1}, "stl10: dropout must be from 0 to below 1, got 1"),
        ("disco", {"pools": "avg"}, "stl10: pools must be one of stride, max, mean, blur, got 'avg'"),
        ("sesn-hermite", {"layout": "b"}, "stl10: layout must be one of plain, projected, interscale, got 'b'"),
        ("disco", {"support": 4}, "DiscreteBasis: support must be positive and odd like kernel_size 3"),
        ("disco", {"basis_steps": -1}, "DiscreteBasis: steps must be an integer >= 0, got -1"),
    ],
)
def test_invalid_options_raise_one_line(name, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        create_model(f"stl10/{name}", **options)
    assert "\n" not in str(caught.value)


def test_unknown_options_raise():
    with pytest.raises(TypeError, match="expected options of stl10/wrn among depth, width, classes, dropout, got 'poo"):
        create_model("stl10/wrn", pools="max")
