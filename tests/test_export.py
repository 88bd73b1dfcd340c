from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from scale_disco import DiscreteBasis, HermiteBasis, bake, to_scale_equivariant
from scale_disco import nn as snn
from scale_disco.export import BakedConvolution, export_onnx, export_program
from tests.conftest import ROOT_2, tiered
from tests.nn import cases
from tests.nn.test_every_layer import everything

BASIS = DiscreteBasis(3, ROOT_2)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_baked_layer_gives_the_same(case, compact):
    layer, x = case.layer(), case.input()
    before = copy.deepcopy(layer.state_dict())
    baked = bake(layer, compact=compact)
    torch.testing.assert_close(baked(x), layer(x), rtol=1e-5, atol=1e-5)
    assert not any(isinstance(part, snn.conv.ScaleConvolution) for part in baked.modules())
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(pickle.loads(pickle.dumps(baked))(x), baked(x))


def norms(module):
    return [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def test_a_baked_network_has_no_norms_and_no_basis():
    net, images = everything(), torch.randn(2, 3, 20, 20)
    net.train()
    baked = bake(net)
    assert net.training
    assert len(norms(net)) == 2
    assert not norms(baked)
    assert not any(hasattr(part, "basis") for part in baked.modules())
    assert not baked.training
    torch.testing.assert_close(baked(images), net.eval()(images), rtol=1e-5, atol=1e-5)


class Branching(nn.Module):
    """Norms that follow convolutions; one whose convolution is also used without it, and one behind a linear layer."""

    def __init__(self):
        super().__init__()
        self.lift = snn.ScaleLift2d(1, 4, BASIS)
        self.first, self.second = snn.ScaleBatchNorm2d(4), snn.ScaleBatchNorm2d(4)
        self.conv = snn.ScaleConv2d(4, 4, BASIS, bias=False)
        self.plain, self.third = nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.head, self.last = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        lifted = self.lift(x)
        x = self.first(lifted) + lifted
        x = self.second(self.conv(x)).amax(2)
        return self.last(self.head(self.third(self.plain(x)).mean((2, 3))))


def trained(net):
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.uniform_(parameter, -1, 1)
    for part in norms(net):
        nn.init.uniform_(part.running_mean, -1, 1)
        nn.init.uniform_(part.running_var, 0.5, 2)
        nn.init.uniform_(part.weight, -1, 1)
    return net.eval()


def test_only_norms_that_alone_follow_are_folded():
    net, images = trained(Branching()), torch.randn(2, 1, 16, 16)
    baked = bake(net)
    assert norms(baked) == [baked.first, baked.last]
    torch.testing.assert_close(baked(images), net(images), rtol=1e-4, atol=1e-5)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(snn.ScaleLift2d(1, 4, BASIS), snn.ScaleBatchNorm2d(4), nn.ReLU())

    def forward(self, x):
        return self.body[0](x) + self.body(x) if x.sum() > 0 else self.body(x)


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.norm = snn.ScaleLift2d(1, 4, BASIS), snn.ScaleBatchNorm2d(4)

    def forward(self, x, gain=None):
        y = self.lift(x)
        return y if gain is None else self.norm(y) * gain


@pytest.mark.parametrize("build", [Untraceable, Optional])
def test_a_network_that_cannot_be_traced_keeps_its_norms_with_a_warning(build):
    net, images = trained(build()), torch.rand(2, 1, 16, 16)
    with pytest.warns(UserWarning, match=f"bake: cannot trace {build.__name__}, no norm is folded"):
        baked = bake(net)
    assert len(norms(baked)) == 1
    torch.testing.assert_close(baked(images), net(images), rtol=1e-4, atol=1e-5)


class Doubled(snn.ScaleLift2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Renamed(snn.ScaleLift2d):
    pass


def test_layers_that_do_more_than_their_class_stay():
    hooked = snn.ScaleLift2d(1, 4, BASIS)
    hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    images = torch.rand(2, 1, 16, 16)
    for lift, norms_left in ((Doubled(1, 4, BASIS), 1), (hooked, 1), (Renamed(1, 4, BASIS), 0)):
        net = trained(nn.Sequential(lift, snn.ScaleBatchNorm2d(4)))
        baked = bake(net)
        assert len(norms(baked)) == norms_left
        torch.testing.assert_close(baked(images), net(images), rtol=1e-4, atol=1e-5)


def test_a_layer_used_twice_is_baked_and_its_norms_are_kept():
    conv = snn.ScaleConv2d(4, 4, BASIS)
    net = trained(nn.Sequential(conv, snn.ScaleBatchNorm2d(4), nn.ReLU(), conv, snn.ScaleBatchNorm2d(4)))
    maps = torch.randn(1, 4, 3, 12, 12)
    baked = bake(net)
    assert len(norms(baked)) == 2
    torch.testing.assert_close(baked(maps), net(maps), rtol=1e-4, atol=1e-5)


def test_a_norm_without_statistics_stays():
    net = nn.Sequential(snn.ScaleLift2d(1, 4, BASIS), snn.ScaleBatchNorm2d(4, track_running_stats=False)).eval()
    images = torch.randn(2, 1, 12, 12)
    assert len(norms(bake(net))) == 1
    torch.testing.assert_close(bake(net)(images), net(images))


def test_dilations_share_their_kernel():
    baked = bake(snn.ScaleConv2d(4, 4, BASIS))
    assert isinstance(baked, BakedConvolution)
    assert [name for name, _ in baked.named_buffers()] == ["kernel0", "kernel1", "bias"]


def converted(*scales):
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 5)),
    )
    return to_scale_equivariant(trained(net), scales, example=torch.randn(1, 3, 32, 32))


def numbers(net):
    """Weights and biases of all convolutions and linear layers."""
    layers = [part for part in net.modules() if not isinstance(part, nn.BatchNorm2d)]
    return sum(parameter.numel() for part in layers for parameter in part.parameters(recurse=False))


def test_scales_of_integer_ratio_share_memory_and_are_saved_once(tmp_path):
    net, x = converted(1, 2, 4), torch.randn(2, 3, 32, 32)
    baked = bake(net)
    layers = [part for part in baked.modules() if isinstance(part, BakedConvolution)]
    assert len(layers) == 2
    for layer in layers:
        assert len(layer._names) == 3
        assert len({getattr(layer, name).data_ptr() for name in layer._names}) == 1
    tensors = baked.state_dict().values()
    assert sum(tensor.numel() for tensor in tensors) == numbers(net)
    torch.save(baked.state_dict(), tmp_path / "net.pt")
    assert (tmp_path / "net.pt").stat().st_size < 4 * numbers(net) + 10_000
    apart = copy.deepcopy(baked)
    for layer in (part for part in apart.modules() if isinstance(part, BakedConvolution)):
        kernels = [getattr(layer, name).clone() for name in layer._names]
        layer._names = tuple(f"own{k}" for k in range(3))
        for name, kernel in zip(layer._names, kernels, strict=True):
            layer.register_buffer(name, kernel)
    with torch.no_grad():
        assert torch.equal(apart(x), baked(x))
        torch.testing.assert_close(baked(x), net(x), rtol=1e-4, atol=1e-5)


def test_compact_networks_have_the_size_of_their_weights():
    for scales, smaller in (((1, 2**0.5, 2), True), ((1, 2, 4), False)):
        net, x = converted(*scales), torch.randn(2, 3, 32, 32)
        own, compact = (sum(t.numel() for t in bake(net, compact=c).state_dict().values()) for c in (False, True))
        assert compact < 1.02 * numbers(net)
        assert (compact < own / 5) if smaller else compact == own
        with torch.no_grad():
            torch.testing.assert_close(bake(net, compact=True)(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("scales", "compact"), [((1, 2, 4), False), ((1, 2**0.5, 2), True)])
def test_onnx_has_each_kernel_once(scales, compact, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    net, path, steps = converted(*scales), tmp_path / "net.onnx", []
    export_onnx(net, torch.randn(1, 3, 32, 32), path, compact=compact, progress=steps.append)
    assert steps == ["tracing", "translating", "writing", "comparing with onnxruntime"]
    tensors = [tensor for tensor in onnx.load(path).graph.initializer if math.prod(tensor.dims) >= 64 * 27]
    assert sum(math.prod(tensor.dims) for tensor in tensors) < 1.2 * numbers(net)
    if not compact:
        assert len(tensors) == 2  # of six kernels


def test_baked_layers_check_their_input():
    with pytest.raises(ValueError, match=r"ScaleConv2d: expected input \[B, C, S, H, W\] with S = 3"):
        bake(snn.ScaleConv2d(4, 4, BASIS))(torch.rand(1, 4, 2, 8, 8))
    with pytest.raises(TypeError, match="bake: expected a module, got int"):
        bake(3)


def test_export_program_takes_any_size():
    net = everything()
    program = export_program(net, torch.randn(1, 3, 16, 16))
    for shape in ((1, 3, 16, 16), (3, 3, 24, 20)):
        images = torch.randn(shape)
        torch.testing.assert_close(program.module()(images), net(images), rtol=1e-4, atol=1e-5)


def after_lifting(case):
    """A network from images with the layer of a case in it."""
    if case.takes_images:
        return case.layer(), case.input()
    dims = case.input().ndim - 3
    lift = getattr(snn, f"ScaleLift{dims}d")(4, 4, cases.basis(dims))
    return nn.Sequential(lift, case.layer()), case.input()[:, :, 0]


NETWORKS = {
    "network": lambda: (everything(), torch.randn(1, 3, 16, 16)),
    "DISCO 7x7": lambda: (snn.ScaleLift2d(3, 4, DiscreteBasis(7, ROOT_2)), torch.randn(1, 3, 24, 24)),
    "Hermite": lambda: (snn.ScaleLift2d(3, 4, HermiteBasis.preset("stl10")), torch.randn(1, 3, 24, 24)),
    **{case.name: partial(after_lifting, case) for case in cases.CASES},
}


@pytest.mark.parametrize("name", tiered(NETWORKS, lambda name: name in ("network", "DISCO 7x7")))
def test_onnx_runs_at_two_sizes(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    net, example = NETWORKS[name]()
    net.eval()
    export_onnx(net, example, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    names = ["depth", "height", "width"][2 - example.ndim :]
    assert session.get_inputs()[0].shape == ["batch", example.shape[1], *names]
    for images in (example, torch.randn(3, example.shape[1], *(side + 4 for side in example.shape[2:]))):
        (output,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), net(images).detach(), rtol=1e-4, atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = snn.ScaleLift2d(1, 4, BASIS)

    def forward(self, x):
        y = self.lift(x)
        return y, y.mean(2)


def test_onnx_of_feature_maps_and_of_two_outputs(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(snn.ScaleConv2d(4, 4, BASIS), torch.randn(1, 4, 3, 16, 16), tmp_path / "conv.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "conv.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 4, 3, "height", "width"]
    export_onnx(TwoOutputs(), torch.randn(1, 1, 16, 16), tmp_path / "two.onnx")


def test_onnx_writes_nothing_where_it_cannot(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=r"at least one image, got \(0, 3, 24, 24\)"):
        export_onnx(snn.ScaleLift2d(3, 4, BASIS), torch.randn(0, 3, 24, 24), tmp_path / "net.onnx")
    with pytest.raises(RuntimeError, match=r"onnxruntime cannot run torch\.float64 images here") as caught:
        export_onnx(snn.ScaleLift2d(3, 4, BASIS).double(), torch.randn(1, 3, 24, 24).double(), tmp_path / "net.onnx")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="does not exist"):
        export_onnx(snn.ScaleLift2d(3, 4, BASIS), torch.randn(1, 3, 24, 24), tmp_path / "no" / "net.onnx")
