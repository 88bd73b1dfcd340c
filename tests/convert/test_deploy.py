from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from scale_disco import bake, to_scale_equivariant
from scale_disco.convert.layers import FoldedConv
from scale_disco.export import export_onnx, export_program
from tests.conftest import tiered
from tests.convert.networks import every_network, images, network

SCALES = (1, 2**0.5, 2)


def count(net, kind):
    return sum(isinstance(part, kind) for part in net.modules())


@every_network
def test_bake(kind):
    x = images(kind)
    net = to_scale_equivariant(network(kind), SCALES, example=x)
    with torch.no_grad():
        baked = bake(net)
        for output, expected in zip(tree_leaves(baked(x)), tree_leaves(net(x)), strict=True):
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    hooked = {"reused": 1}.get(kind, 0)  # a layer with a hook stays as it is
    assert count(baked, FoldedConv) == hooked
    assert count(baked, _BatchNorm) == {"dense, strided 7x7": 1}.get(kind, 0)  # its norm follows a concatenation


@pytest.mark.parametrize(
    "options", [{"downsampling": "centred", "pooling": "average"}, {"scale_extent": 2, "pooling": "growing"}], ids=str
)
def test_bake_with_options(options):
    net = to_scale_equivariant(network("resnet18"), SCALES, **options)
    for name, parameter in net.named_parameters():
        if "neighbours" in name:
            nn.init.normal_(parameter, 0, 0.01)
    x, baked = images("resnet18"), bake(net)
    with torch.no_grad():
        torch.testing.assert_close(baked(x), net(x), rtol=1e-4, atol=1e-4)
    # Strided 1x1 convolutions that became means keep their norms: the shortcuts of the last three stages.
    assert count(baked, _BatchNorm) == (3 if "downsampling" in options else 0)


def test_copies_and_pickles_have_a_projection_of_their_own():
    net = to_scale_equivariant(network("resnet18"), SCALES, reduce="logsumexp").eval()
    x = images("resnet18")
    with torch.no_grad():
        expected = net(x)
        for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            torch.testing.assert_close(twin(x), expected)
            nn.init.constant_(twin.project.log_temperature, 3)
            assert not torch.allclose(twin(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize(
    "kind", tiered(["sequential", "reused", "u-net", "resnet18"], lambda kind: kind == "sequential")
)
def test_a_program_takes_any_batch_and_size(kind):
    net = to_scale_equivariant(network(kind), SCALES, example=images(kind))
    program = export_program(net, images(kind, 1)).module()
    x = torch.randn(3, 3, 96, 72)
    with torch.no_grad():
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(program(x[:1]), net(x[:1]), rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "pooling"), [("dense, strided 7x7", "as-is"), ("sequential", "growing")])
def test_onnx(kind, pooling, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs scale-disco[onnx]")
    pytest.importorskip("onnxscript", reason="needs scale-disco[onnx]")
    net = to_scale_equivariant(network(kind), SCALES, pooling=pooling)
    export_onnx(net, images(kind), tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    x = torch.randn(3, 3, 48, 40)
    with torch.no_grad():
        output = torch.from_numpy(session.run(None, {"images": x.numpy()})[0])
        torch.testing.assert_close(output, net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", tiered(["aot_eager", "inductor"], lambda backend: backend == "aot_eager"))
def test_compile(backend):
    net = to_scale_equivariant(network("sequential"), SCALES).train()
    twin = copy.deepcopy(net)
    x = images("")
    torch.compiler.reset()
    compiled = torch.compile(twin, dynamic=False, backend=backend)
    expected, output = net(x), compiled(x)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)
    expected.square().sum().backward()
    output.square().sum().backward()
    for own, ref in zip(twin.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(own.grad, ref.grad, rtol=2e-2, atol=2e-2 * float(ref.grad.abs().max()) + 1e-5)
