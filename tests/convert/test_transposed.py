"""Transposed convolutions on the full grid."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scale_disco import Scales, bake, equivariance_error, to_scale_equivariant
from scale_disco.convert.transposed import FoldedTransposed
from scale_disco.export import export_onnx, export_program
from tests.convert.networks import Decoder
from tests.convert.test_layers import lifted

SCALES = Scales([1, 2**0.5, 2])
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@settings(max_examples=80)
@given(
    sides=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    output_padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
)
def test_the_first_scale_is_the_transposed_convolution(sides, stride, padding, dilation, output_padding, groups, bias):
    output_padding = tuple(min(a, max(b, c) - 1) for a, b, c in zip(output_padding, stride, dilation, strict=True))
    conv = nn.ConvTranspose2d(4, 8, sides, stride, padding, output_padding, groups, bias, dilation).double()
    x = torch.randn(2, 4, 9, 11, dtype=torch.float64)
    expected = conv(x)
    output = lifted(FoldedTransposed(conv, Scales([1, 2, 3])), x)
    torch.testing.assert_close(output[:, :, 0], expected)
    assert output.shape == (*expected.shape[:2], 3, *expected.shape[2:])


@pytest.mark.parametrize("scales", [(1, 2, 4), (1, 2, 3, 6), (1, 2**0.5, 2, 2 * 2**0.5)], ids=str)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    ("side", "stride", "padding", "extra"),
    [(2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0), (3, 1, 1, 0), (5, 3, 2, 1), (8, 4, 3, 0), (1, 2, 0, 1), (7, 2, 3, 0)],
)
def test_integer_scales_commute_with_subsampling(side, stride, padding, extra, dims, scales):
    """Like strided convolutions: every other pixel of a response is the response to every other pixel."""
    conv = TRANSPOSED[dims](2, 3, side, stride, padding, extra).double()
    layer = FoldedTransposed(conv, Scales(scales))
    x = torch.randn(1, 2, *[36] * dims, dtype=torch.float64)
    whole, pairs = lifted(layer, x), 0
    for k, l in itertools.permutations(range(len(scales)), 2):
        ratio = layer.scales.integer_ratio(k, l)
        if ratio is None or k < l:
            continue
        pairs += 1
        every = (..., *[slice(None, None, ratio)] * dims)
        output, expected = lifted(layer, x[every])[:, :, l], whole[:, :, k][every]
        shape = [min(a, b) for a, b in zip(output.shape[2:], expected.shape[2:], strict=True)]
        assert min(shape) >= 6
        inside = (..., *[slice(0, size) for size in shape])
        torch.testing.assert_close(output[inside], expected[inside], rtol=1e-10, atol=1e-10)
    assert pairs >= 2


def waves(side, frequency):
    at = torch.arange(side, dtype=torch.float64)
    return torch.cos(frequency * at)[None, None, :, None] * torch.cos(frequency * at + 1)[None, None, None]


@pytest.mark.parametrize(("side", "weights"), [(4, [0.25, 0.75, 0.75, 0.25]), (2, [1.0, 1.0])])
def test_upsampling_stays_upsampling(side, weights):
    """A transposed convolution that interpolates does so at every scale, without holes between its pixels."""
    conv = nn.ConvTranspose2d(1, 1, side, 2, (side - 2) // 2, bias=False).double()
    row = torch.tensor(weights, dtype=torch.float64)
    conv.weight.data = (row[:, None] * row)[None, None]
    x = waves(48, math.tau / 48)
    output = lifted(FoldedTransposed(conv, Scales([1, 2**0.5, 2, 3])), x)
    expected = F.interpolate(x, scale_factor=2, mode="bilinear")
    error = (output - expected[:, :, None])[..., 16:-16, 16:-16].abs().amax((0, 1, 3, 4))
    assert error.max() < (0.1 if side == 4 else 0.3)  # fractions of the amplitude; nearest-neighbor steps are larger
    assert output.detach()[..., 16:-16, 16:-16].std() > 0.3


@pytest.fixture
def net():
    torch.manual_seed(0)
    decoder = Decoder()
    nn.init.uniform_(decoder.norm.running_mean, -0.5, 0.5)
    nn.init.uniform_(decoder.norm.running_var, 0.5, 2)
    return decoder.eval()


@torch.no_grad()
def test_networks_with_transposed_convolutions(net):
    x = torch.randn(2, 3, 32, 24)
    converted = to_scale_equivariant(net, SCALES, project=None)
    torch.testing.assert_close(converted(x)[:, :, 0], net(x))
    assert converted.state_dict().keys() == net.state_dict().keys()
    assert converted.unconverted == ()
    assert converted.network.up.stride == (2, 2)
    baked = bake(converted)
    assert not any(isinstance(part, (FoldedTransposed, nn.BatchNorm2d)) for part in baked.modules())
    torch.testing.assert_close(baked(x), converted(x), rtol=1e-4, atol=1e-5)
    more = converted.with_scales((1, 2, 4))
    torch.testing.assert_close(more(x), to_scale_equivariant(net, (1, 2, 4), project=None)(x))
    assert to_scale_equivariant(net, SCALES)(x).shape == net(x).shape


def test_a_decoder_is_exact_under_subsampling(net):
    net = net.double()
    converted = to_scale_equivariant(net, (1, 2, 4), project=None)
    x = torch.randn(1, 3, 128, 128, dtype=torch.float64)
    with torch.no_grad():
        whole, shrunk = converted(x), converted(x[..., ::2, ::2])
    for k in range(2):
        inside = (..., slice(16, -16), slice(16, -16))
        output, expected = shrunk[:, :, k], whole[:, :, k + 1, ::2, ::2]
        torch.testing.assert_close(output[inside], expected[inside], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [(2, 2), (4, 2, 1), (3, 2, 1, 1)], ids=str)
@torch.no_grad()
def test_enlarged_kernels_are_more_equivariant_than_unchanged_ones(options):
    torch.manual_seed(0)
    conv = nn.ConvTranspose2d(3, 4, *options).double()
    x = F.avg_pool2d(torch.randn(2, 3, 100, 100, dtype=torch.float64), 5, 1)
    for scales, factor in ((SCALES, 0.6), (Scales([1, 2]), 0.3)):
        layer, count = FoldedTransposed(conv, scales), len(scales)
        error = equivariance_error(lambda x, layer=layer: lifted(layer, x), x, scales)
        assert error < factor * equivariance_error(lambda x, n=count: torch.stack([conv(x)] * n, 2), x, scales)


@pytest.mark.parametrize("extent", [1, 2])
def test_gradients(extent):
    layer = FoldedTransposed(nn.ConvTranspose2d(2, 4, (2, 3), 2, (0, 1), groups=2), SCALES, extent).double()
    if extent > 1:
        nn.init.normal_(layer.neighbours)
    x = torch.randn(3, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *_: layer(x), (x, *layer.parameters()))


@pytest.mark.thorough
@torch.no_grad()
def test_programs_and_files(net, tmp_path):
    converted = to_scale_equivariant(net, SCALES)
    program = export_program(converted, torch.randn(1, 3, 32, 32)).module()
    x = torch.randn(3, 3, 48, 40)
    torch.testing.assert_close(program(x), converted(x), rtol=1e-4, atol=1e-5)
    pytest.importorskip("onnxruntime")
    export_onnx(converted, torch.randn(1, 3, 32, 32), tmp_path / "net.onnx")  # compares the outputs


class Own(nn.ConvTranspose2d):
    def forward(self, x):
        return super().forward(x).relu()


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 2, 3, 2, 1)

    def forward(self, x):
        return self.up(self.down(x), output_size=x.shape)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.weight = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(4, 2, 2, 2))

    def forward(self, x):
        return F.conv_transpose2d(self.down(x), self.weight)


def test_what_cannot_be_converted_is_refused():
    normed = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 2, 2))
    for model, text in (
        (nn.Sequential(nn.Conv2d(3, 4, 3), Own(4, 2, 2, 2)), "1 (Own has a forward of its own)"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), normed), "1 (its weights are computed by a parametrization"),
        (Functional(), "a functional transposed convolution"),
        (Sized(), "output_size"),
    ):
        with pytest.raises(ValueError, match=r"^to_scale_equivariant: ") as caught:
            to_scale_equivariant(model, SCALES)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
