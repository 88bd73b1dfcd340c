"""What holds for every layer: shapes, gradients, and that the tools of the ecosystem give what eager gives."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from scale_disco import nn as snn
from scale_disco.fold import fold, unfold
from tests.conftest import tiered
from tests.nn.cases import CASES, SCALES, basis

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# For tools that take a second per layer; networks of all layers are in the first tier below and in test_export.py.
every_case_tiered = pytest.mark.parametrize(
    "case", tiered(CASES, lambda case: case.name in ("lift 2d", "conv T=2 2d")), ids=lambda case: case.name
)


def test_the_table_has_every_layer():
    built = {type(case.layer()).__name__ for case in CASES}
    assert built == set(snn.__all__)


@every_case
def test_shape(case):
    assert case.layer()(case.input()).shape == case.output


@every_case
def test_output_is_scale_major(case):
    y = case.layer()(case.input())
    if case.keeps_scales:
        assert fold(y).data_ptr() == y.data_ptr()


@every_case
def test_foreign_strides_give_the_same_numbers(case):
    layer, x = case.layer(), case.input()
    torch.testing.assert_close(layer(x.contiguous()), layer(x))


@every_case
def test_gradients(case):
    layer = case.layer().double()
    x = case.input()[:1].double()
    x = x[(..., *[slice(0, 8)] * (1 if "1d" in case.name else 2))].requires_grad_()
    assert torch.autograd.gradcheck(layer, [x], fast_mode=True)


@every_case
def test_gradients_of_parameters(case):
    layer = case.layer().double()
    names = [name for name, _ in layer.named_parameters()]
    if not names:
        return
    x = case.input()[:1].double()

    def run(*parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, [p.detach().requires_grad_() for p in layer.parameters()], fast_mode=True)


@every_case_tiered
def test_compiles_in_one_graph(case):
    layer, x = case.layer(), case.input().requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (layer, compiled):
        x.grad = None
        y = run(x)
        y.square().sum().backward()
        if run is layer:
            expected, gradient = y, x.grad
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x.grad, gradient)


@every_case_tiered
def test_exports_with_any_batch_and_size(case):
    layer, x = case.layer().eval(), case.input()
    fixed = (1,) if case.takes_images else (1, 2)
    dynamic = {axis: torch.export.Dim.DYNAMIC for axis in range(x.ndim) if axis not in fixed}
    program = torch.export.export(layer, (x,), dynamic_shapes=(dynamic,))
    torch.testing.assert_close(program.module()(x), layer(x))
    other = torch.randn(*(side if axis in fixed else side + 2 for axis, side in enumerate(x.shape)))
    torch.testing.assert_close(program.module()(other), layer(other))


@every_case
def test_autocast(case):
    layer, x = case.layer(), case.input()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    expected = layer(x)
    assert (y.float() - expected).norm() <= 0.02 * expected.norm()


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(case, dtype):
    expected = case.layer()(case.input())
    y = case.layer().to(dtype)(case.input().to(dtype))
    assert y.dtype == dtype
    assert (y.float() - expected).norm() <= 0.03 * expected.norm()


@every_case
def test_channels_last(case):
    if "2d" not in case.name:
        return
    layer, x = case.layer(), case.input()
    last = (x if case.takes_images else fold(x)).contiguous(memory_format=torch.channels_last)
    last = last if case.takes_images else unfold(last, x.shape[2])
    torch.testing.assert_close(layer(last), layer(x))


@every_case
def test_vmap_over_weights(case):
    layers = [case.layer(seed) for seed in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    if not parameters:
        return

    def run(parameters, buffers, x):
        return torch.func.functional_call(layers[0], (parameters, buffers), (x,))

    x = case.input()
    y = torch.vmap(run, (0, 0, None))(parameters, buffers, x)
    torch.testing.assert_close(y, torch.stack([layer(x) for layer in layers]))


@every_case
def test_per_sample_gradients(case):
    layer, x = case.layer(), case.input()
    parameters = dict(layer.named_parameters())
    if not parameters:
        return

    def loss(parameters, sample):
        return torch.func.functional_call(layer, parameters, (sample[None],)).square().sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for k, sample in enumerate(x):
        layer.zero_grad()
        layer(sample[None]).square().sum().backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(gradients[name][k], parameter.grad, rtol=1e-4, atol=1e-4)


@every_case
def test_copies(case):
    layer, x = case.layer(), case.input()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


@every_case
def test_built_on_the_meta_device(case):
    layer, x = case.layer(), case.input()
    with torch.device("meta"):
        empty, assigned = case.build(), case.build()
    assert all(tensor.is_meta for tensor in [*empty.parameters(), *empty.buffers()])
    assert empty(x.to("meta")).shape == case.output
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assigned.load_state_dict(layer.state_dict(), assign=True)
    for other in (empty, assigned):
        torch.testing.assert_close(other.train(layer.training)(x), layer(x), rtol=0, atol=0)


@every_case
def test_state(case, tmp_path):
    layer, x = case.layer(), case.input()
    state = layer.train().state_dict()
    assert list(state) == list(layer.eval().state_dict())
    assert not [name for name in state if name.startswith(("stencil", "window"))]
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "layer.safetensors")
    other = case.layer(seed=1).eval()
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


@every_case
def test_half_precision_and_back_keeps_the_fixed_tensors(case):
    layer = case.layer()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers() if name.startswith(("stencil", "window"))}
    layer.half().float()
    for name, buffer in before.items():
        torch.testing.assert_close(layer.get_buffer(name), buffer, rtol=0, atol=0)


class Everything(nn.Module):
    """A network of every kind of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            snn.ScaleLift2d(3, 8, basis(2)),
            snn.ScaleBatchNorm2d(8),
            nn.ReLU(),
            snn.ScaleAvgPool2d(2),
            snn.ScaleConv2d(8, 8, basis(2), scale_extent=2, bias=False),
            snn.ScaleBatchNorm2d(8),
            nn.ReLU(inplace=True),
            snn.ScaleMaxPool2d(2, scales=SCALES),
            snn.ScaleDropout(0.5),
            snn.ScaleBlurPool2d(SCALES, stride=1),
        )
        self.up = nn.Sequential(snn.ScaleUpsample(2), snn.ScaleConv2d(8, 8, basis(2, 1)))
        self.project = snn.ScaleProject("logsumexp")
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.relu(self.project(self.up(self.down(x)))).mean((2, 3)))


def everything() -> nn.Module:
    torch.manual_seed(0)
    net = Everything()
    net(torch.randn(8, 3, 16, 16))  # statistics for the norms
    return net.eval()


@pytest.mark.parametrize("backend", tiered(["aot_eager", "inductor"], lambda backend: backend == "aot_eager"))
def test_a_compiled_network_equals_eager(backend):
    net = everything()
    torch.compiler.reset()
    # Inductor 2.13 fails on cat + conv of symbolic size.
    compiled = torch.compile(net, fullgraph=True, dynamic=False, backend=backend)
    for shape in ((2, 3, 20, 20), (3, 3, 28, 24)):
        x, gradients = torch.randn(shape), []
        for run in (net, compiled):
            net.zero_grad()
            y = run(x)
            y.square().sum().backward()
            gradients.append([y.detach(), *(p.grad.clone() for p in net.parameters())])
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def _train(net, images, targets, steps=2):
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(net(images), targets).backward()
        optimizer.step()


def _worker(rank: int, port: int, images, targets, path: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.simplefilter("error")  # such as of gradients that DDP would have to copy
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    net = nn.parallel.DistributedDataParallel(everything())
    _train(net, images[rank::2], targets[rank::2])
    if rank == 0:
        torch.save(net.module.state_dict(), path)
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_two_processes_train_as_one(tmp_path):
    images, targets = torch.randn(4, 3, 16, 16), torch.randn(4, 5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "net.pt"
    torch.multiprocessing.spawn(_worker, (port, images, targets, str(path)), nprocs=2)
    alone = everything()
    _train(alone, images, targets)
    together = torch.load(path, weights_only=True)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)
