from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scale_disco import DiscreteBasis, Scales, functional
from scale_disco.convert.layers import FoldedConv
from scale_disco.functional import _winograd as winograd
from scale_disco.functional.layout import Layout
from scale_disco.nn import ScaleConv2d, ScaleLift2d

SIZES = {"whole tiles": (24, 16), "cut tiles": (13, 10), "one tile": (3, 4), "a pixel": (1, 1)}


def layout(stride=1, groups=1, padding_mode="zeros", dilation=1, pads=(1, 1)):
    """One scale, the same along both axes."""
    return Layout((stride,) * 2, groups, padding_mode, ((dilation,) * 2,), ((pads,) * 2,))


def plain(x, kernel, dilation=1):
    return F.conv2d(x, kernel, padding=dilation * (kernel.shape[-1] // 2), dilation=dilation)


def inputs_of(shape, taps, dtype=torch.float64):
    x = torch.randn(3, 5, *shape, dtype=dtype, requires_grad=True)
    return x, torch.randn(7, 5, taps, taps, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    ("tiles", "kernels"), [(128, 1 << 22), (7, 2000), (1, 1)], ids=["whole", "parts", "one by one"]
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("taps", "dilation"), [(3, 1), (5, 1), (3, 2), (5, 3)])
def test_equals_a_plain_convolution(taps, dilation, size, tiles, kernels, monkeypatch):
    monkeypatch.setattr(winograd, "_TILES", tiles)
    monkeypatch.setattr(winograd, "_KERNELS", kernels)
    x, kernel = inputs_of(SIZES[size], taps)
    fast, slow = winograd.correlate(x, kernel, dilation), plain(x, kernel, dilation)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    gradient = torch.randn_like(slow)
    for a, b in zip(*(torch.autograd.grad(y, [x, kernel], gradient) for y in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("taps", [3, 5])
def test_rounding_errors_in_single_precision_are_small(taps):
    x, kernel = torch.randn(1, 256, 24, 24), torch.randn(64, 256, taps, taps)
    exact = plain(x.double(), kernel.double())
    assert (winograd.correlate(x, kernel) - exact).std() < 1e-5 * exact.std()


@pytest.mark.parametrize(("taps", "dilation"), [(3, 2), (5, 1)])
def test_differentiates_twice(taps, dilation):
    x, kernel = torch.randn(1, 2, 5, 6), torch.randn(3, 2, taps, taps)
    inputs = [tensor.double().requires_grad_() for tensor in (x, kernel)]
    assert torch.autograd.gradcheck(lambda *given: winograd.correlate(*given, dilation), inputs)
    assert torch.autograd.gradgradcheck(lambda *given: winograd.correlate(*given, dilation), inputs)


@pytest.mark.parametrize("wanted", [0, 1])
def test_differentiates_by_one_of_two(wanted):
    inputs = [tensor.detach() for tensor in inputs_of((9, 9), 3)]
    inputs[wanted].requires_grad_()
    gradients = [torch.autograd.grad(f(*inputs).square().sum(), inputs[wanted])[0] for f in (winograd.correlate, plain)]
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func's own imports
def test_differentiates_forward_and_image_by_image():
    x, kernel = (tensor.detach() for tensor in inputs_of((9, 9), 5))
    changes = torch.randn_like(x), torch.randn_like(kernel)

    def every_way(f):
        yield torch.func.jvp(f, (x, kernel), changes)
        yield torch.func.jvp(lambda x: f(x, kernel), (x,), changes[:1])
        yield torch.func.jvp(lambda kernel: f(x, kernel), (kernel,), changes[1:])
        gradient = torch.func.grad(lambda kernel, image: f(image[None], kernel).square().sum())
        yield torch.vmap(gradient, (None, 0))(kernel, x)

    for a, b in zip(every_way(winograd.correlate), every_way(plain), strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture
def tiled(monkeypatch):
    """Sides and dilations of the kernels that ran by tiles."""
    seen = []
    correlate = winograd.correlate

    def noted(x, kernel, dilation):
        seen.append((kernel.shape[-1], dilation))
        return correlate(x, kernel, dilation)

    monkeypatch.setattr(winograd, "correlate", noted)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [ScaleLift2d, ScaleConv2d])
def test_layers_agree_with_and_without_transforms(kind, dtype, tiled):
    layer = kind(128, 256, DiscreteBasis(3, [1, 2**0.5, 2], support=5), dtype=dtype)
    torch.nn.init.normal_(layer.bias)
    scales = [3] if kind is ScaleConv2d else []
    x = torch.randn(1, 128, *scales, 32, 32, dtype=dtype, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    fast = layer(x)
    assert tiled == [(3, 1), (5, 1), (3, 2)]
    with functional.direct():
        direct = layer(x)
    assert len(tiled) == 3
    size = 1e-4 if dtype == torch.float32 else 1e-10
    gradient = torch.randn_like(fast)
    ways = [[y, *torch.autograd.grad(y, inputs, gradient)] for y in (fast, direct)]
    for a, b in zip(*ways, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=size * b.abs().max().item())


CASES = {
    "all large": ((1, 128, 256, 32), 3, 1, torch.float32, 1),
    "more taps": ((1, 128, 128, 32), 5, 1, torch.float32, 1),
    "many small images": ((21, 128, 256, 7), 3, 1, torch.float32, 1),
    "few channels": ((1, 96, 128, 32), 3, 1, torch.float32, 0),
    "few pixels": ((20, 128, 256, 7), 3, 1, torch.float32, 0),
    "tiles half empty": ((13, 128, 256, 9), 3, 1, torch.float32, 0),
    "a wide step": ((1, 128, 256, 36), 3, 3, torch.float32, 1),
    "too wide a step": ((1, 128, 256, 36), 3, 4, torch.float32, 0),
    "even kernel": ((1, 128, 256, 32), 4, 1, torch.float32, 0),
    "large kernel": ((1, 128, 128, 32), 7, 1, torch.float32, 0),
    "half precision": ((1, 128, 256, 32), 3, 1, torch.bfloat16, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_winograd_runs_only_where_it_is_faster(case, tiled):
    (batch, before, after, side), taps, dilation, dtype, times = CASES[case]
    x, kernel = torch.randn(batch, before, side, side, dtype=dtype), torch.randn(after, before, taps, taps, dtype=dtype)
    pads = dilation * (taps // 2), dilation * ((taps - 1) // 2)
    functional.lift(x, [kernel], None, layout(dilation=dilation, pads=pads))
    assert tiled == [(taps, dilation)] * times


@pytest.mark.parametrize(("channels", "times"), [(128, 0), (256, 1)])
def test_winograd_needs_more_channels_without_gradients(channels, times, tiled):
    with torch.no_grad():
        functional.lift(torch.randn(1, 128, 32, 32), [torch.randn(channels, 128, 3, 3)], None, layout())
    assert len(tiled) == times


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding_mode": "circular"}, {"groups": 2}, {"pads": (1, 2)}])
def test_other_layouts_run_directly(options, tiled):
    kernel = torch.randn(512, 128 // options.get("groups", 1), 3, 3)
    functional.lift(torch.randn(1, 128, 32, 32), [kernel], None, layout(**options))
    assert tiled == []


def test_a_rectangular_kernel_runs_directly(tiled):
    kernel = torch.randn(256, 128, 5, 3)
    functional.lift(
        torch.randn(1, 128, 32, 32), [kernel], None, Layout((1, 1), 1, "zeros", ((1, 1),), (((2, 2), (1, 1)),))
    )
    assert tiled == []


def test_networks_of_ordinary_convolutions_can_take_views(tiled):
    conv = torch.nn.Conv2d(128, 256, 3, padding=1)
    x = torch.randn(1, 128, 32, 32)
    y = FoldedConv(conv, Scales([1]))(x)
    assert tiled == [(3, 1)]
    torch.testing.assert_close(y.view(-1), conv(x).view(-1), rtol=0, atol=1e-4)


def test_exported_and_autocast_layers_run_directly(tiled):
    layer = ScaleConv2d(128, 256, DiscreteBasis(3, [1]))
    x = torch.randn(1, 128, 1, 32, 32)
    graph = torch.export.export(layer, (x,)).graph
    assert any("conv2d" in str(node.target) for node in graph.nodes)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert tiled == []
