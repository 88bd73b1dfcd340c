from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scale_disco import DiscreteBasis, Scales
from scale_disco.convert.layers import FoldedConv, call_of
from scale_disco.fold import fold, unfold
from scale_disco.functional import reference

SCALES = Scales([1, 2**0.5, 2])


def lifted(layer, x):
    """The response of every scale to images."""
    return unfold(layer(torch.cat([x] * len(layer.scales))), len(layer.scales))


@pytest.mark.parametrize("side", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("dims", [1, 2])
def test_it_is_the_scale_convolution_of_the_discrete_basis(dims, side):
    kind = {1: nn.Conv1d, 2: nn.Conv2d}[dims]
    conv = kind(4, 6, side, groups=2).double()
    basis = DiscreteBasis(side, SCALES, spatial_dims=dims)
    x = torch.randn(2, 4, *[24] * dims, dtype=torch.float64)
    output = lifted(FoldedConv(conv, SCALES), F.pad(x, [side // 2] * 2 * dims))
    expected = reference.scale_lift(x, conv.weight.flatten(2), basis, conv.bias, groups=2)
    inside = (..., *[slice(9, 15)] * dims)  # an even kernel's center is off by one pixel where it is padded
    shift = (side + 1) % 2
    torch.testing.assert_close(output[(..., *[slice(9 + shift, 15 + shift)] * dims)], expected[inside])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # of the ordinary convolution
@settings(max_examples=60)
@given(
    sides=st.tuples(st.integers(1, 6), st.integers(1, 6)).filter(lambda sides: max(sides) > 1),
    dilation=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.one_of(st.just("same"), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    mode=st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
)
def test_the_first_scale_is_the_convolution(sides, dilation, stride, padding, mode, groups, bias):
    stride = 1 if padding == "same" else stride
    conv = nn.Conv2d(4, 8, sides, stride, padding, dilation, groups, bias, mode).double()
    x = torch.randn(2, 4, 70, 64, dtype=torch.float64)
    layer = FoldedConv(conv, SCALES)
    output, expected = lifted(layer, x), conv(x)
    assert torch.equal(output[:, :, 0], expected)
    assert output.shape == (*expected.shape[:2], 3, *expected.shape[2:])


@settings(max_examples=40)
@given(
    sides=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda sides: max(sides) > 1),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.sampled_from([1, 2]),
)
def test_integer_scales_commute_with_subsampling(sides, dilation, stride):
    """Every other pixel of a response is the response to every other pixel, whatever the kernel's shape."""
    pads = [d * (k - 1) // 2 for k, d in zip(sides, dilation, strict=True)]
    conv = nn.Conv2d(1, 2, sides, stride, pads, dilation).double()
    layer = FoldedConv(conv, Scales([1, 2, 4]))
    x = torch.randn(1, 1, 128, 128, dtype=torch.float64)
    whole, shrunk = lifted(layer, x), lifted(layer, x[..., ::2, ::2])
    for k in range(2):
        expected, output = whole[:, :, k + 1, ::2, ::2], shrunk[:, :, k]
        rows, cols = (slice(14, min(a, b) - 14) for a, b in zip(expected.shape[-2:], output.shape[-2:], strict=True))
        if stride == 1:
            torch.testing.assert_close(output[..., rows, cols], expected[..., rows, cols])


def test_rectangular_kernels_are_close_to_the_square_optimum():
    """Products of the axes, where a cube has its own optimum: the two differ by little."""
    wide = nn.Conv2d(1, 1, (5, 7), padding=(2, 3), bias=False).double()
    square = nn.Conv2d(1, 1, 7, padding=3, bias=False).double()
    with torch.no_grad():
        square.weight.zero_()[..., 1:-1, :] = wide.weight
    x = F.avg_pool2d(torch.randn(4, 1, 68, 68, dtype=torch.float64), 5, 1)
    output, expected = (lifted(FoldedConv(conv, SCALES), x) for conv in (wide, square))
    assert float((output - expected).detach().square().sum() / expected.detach().square().sum()) < 0.01


def test_large_and_widely_dilated_kernels_stay_affordable():
    wide = FoldedConv(nn.Conv2d(2, 2, 3, padding=12, dilation=12), SCALES)
    assert [tuple(kernel.shape[3:]) for kernel in wide.kernels()] == [(3, 3)] * 3
    assert wide.layout.dilations == ((12, 12), (17, 17), (24, 24))
    large = FoldedConv(nn.Conv2d(2, 2, 31, padding=15, groups=2), SCALES)
    assert large(torch.randn(3, 2, 40, 40)).shape == (3, 2, 40, 40)


class Padded(nn.Conv2d):
    """Pads more at the far end, as TensorFlow does, and then convolves."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        x = self.static_padding(x)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def test_subclasses_that_pad_and_convolve():
    conv = Padded(4, 8, 3, 2, groups=4)
    layer = FoldedConv(conv, SCALES)
    x = torch.randn(2, 4, 32, 32)
    assert torch.equal(lifted(layer, x)[:, :, 0], conv(x))
    assert list(layer.state_dict()) == ["weight", "bias"]


def forwarding(function):
    """A convolution with a forward of its own."""
    return type("Own", (nn.Conv2d,), {"forward": function})(3, 3, 3, padding=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: F.conv2d(x, self.weight * 2, self.bias),
        lambda self, x: F.conv2d(x, self.weight),
        lambda self, x: F.conv2d(x, self.weight, self.bias).relu(),
        lambda self, x: F.conv2d(x.relu(), self.weight, self.bias),
        lambda self, x: F.conv2d(x, self.weight, self.bias, padding="same"),
        lambda self, x: F.conv2d(x, self.weight, self.bias) if x.sum() > 0 else x,
        lambda self, x: x,
    ],
)
def test_subclasses_that_do_more_are_refused(function):
    with pytest.raises(ValueError, match="Own has a forward of its own"):
        call_of(forwarding(function))


def test_parametrized_weights_are_refused():
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 3))
    with pytest.raises(ValueError, match="computed by a parametrization"):
        call_of(normed)


def test_invalid_input_raises_errors():
    layer = FoldedConv(nn.Conv2d(3, 4, 3), SCALES)
    for shape in ((4, 3, 8, 8), (3, 2, 8, 8), (3, 3, 8)):
        with pytest.raises(ValueError, match=r"FoldedConv: expected input \[S \* B, C, H, W\] with S = 3 and C = 3"):
            layer(torch.randn(shape))


def test_gradients():
    layer = FoldedConv(nn.Conv2d(2, 2, (2, 3), 2, 1), SCALES, 2).double()
    nn.init.normal_(layer.neighbours)
    x = torch.randn(6, 2, 7, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: layer(x), (x, *layer.parameters()))


def test_cached_kernels_follow_the_weights():
    layer = FoldedConv(nn.Conv2d(2, 2, 3, padding=1), SCALES, 2)
    x = torch.randn(3, 2, 8, 8)

    def check():
        with torch.no_grad():
            output = layer(x)
        torch.testing.assert_close(output, layer(x))  # with gradients nothing is kept
        return output

    before = check()
    for change in (
        lambda: layer.weight.data.mul_(2),  # behind autograd's back
        lambda: nn.init.normal_(layer.neighbours),
        lambda: layer.load_state_dict({"weight": torch.ones(2, 2, 3, 3), "bias": torch.ones(2)}),
        lambda: setattr(layer, "weight", nn.Parameter(torch.randn(2, 2, 3, 3))),
    ):
        with torch.no_grad():
            layer(x)
        change()
        after = check()
        assert not torch.allclose(before, after)
        before = after
    with torch.no_grad():
        layer(x)
        doubled = layer.double()(x.double())
    torch.testing.assert_close(doubled.float(), before)
    with torch.inference_mode():
        layer(x.double())
    torch.testing.assert_close(layer(x.double()), doubled)


def test_kernels_are_cached_while_weights_stay_equal(monkeypatch):
    layer = FoldedConv(nn.Conv2d(2, 2, 3, padding=1), SCALES)
    made = []
    monkeypatch.setattr(layer, "kernels", lambda: made.append(1) or FoldedConv.kernels(layer))
    with torch.no_grad():
        for _ in range(3):
            layer(torch.randn(3, 2, 8, 8))
    assert len(made) == 1
    layer(torch.randn(3, 2, 8, 8))
    layer(torch.randn(3, 2, 8, 8))
    assert len(made) == 3


def test_folded_maps_are_scale_major():
    layer = FoldedConv(nn.Conv2d(2, 2, 3, padding=1), SCALES)
    x = torch.randn(2, 2, 3, 8, 8)
    out = unfold(layer(fold(x)), 3)
    for k in range(3):
        alone = torch.zeros_like(x)
        alone[:, :, k] = x[:, :, k]
        torch.testing.assert_close(unfold(layer(fold(alone)), 3)[:, :, k], out[:, :, k])
