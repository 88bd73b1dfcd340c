from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scale_disco import Basis, DiscreteBasis, HermiteBasis, Scales, Stencil, equivariance_error, hermite_mixing_preset
from scale_disco import nn as snn
from scale_disco.functional import reference
from scale_disco.functional.layout import PADDING_MODES
from scale_disco.tasks.io.samples import photos
from tests.conftest import CUBE_ROOT_2, ROOT_2, tiered

LIFTS = {1: snn.ScaleLift1d, 2: snn.ScaleLift2d, 3: snn.ScaleLift3d}
CONVS = {1: snn.ScaleConv1d, 2: snn.ScaleConv2d, 3: snn.ScaleConv3d}
SIDES = {1: 96, 2: 64, 3: 60}  # large enough for an antialiased quarter and its border
THREE = DiscreteBasis(3, ROOT_2)


def randomized(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("scales", [[1, 2], [1, 3], [1, 2, 4]])
def test_lifting_is_exact_on_integer_scales(dims, scales, mode, antialias):
    basis = DiscreteBasis(3, scales, spatial_dims=dims)
    lift = randomized(LIFTS[dims](2, 3, basis))
    images = torch.randn(1, 2, *[SIDES[dims]] * dims, dtype=torch.float64)
    assert equivariance_error(lift, images, scales, mode=mode, antialias=antialias) < 1e-20  # a squared norm


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("extent", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("scales", [[1, 2], [1, 3], [1, 2, 4]])
def test_scale_convolution_is_exact_on_integer_scales(dims, scales, extent, mode):
    basis = DiscreteBasis(3, scales, spatial_dims=dims)
    conv = randomized(CONVS[dims](2, 3, basis, scale_extent=extent))
    maps = torch.randn(1, 2, len(scales), *[SIDES[dims]] * dims, dtype=torch.float64)
    assert equivariance_error(conv, maps, scales, mode=mode, spatial_dims=dims) < 1e-20


@pytest.mark.parametrize(
    ("kernel_size", "scales"), [(3, ROOT_2), (5, ROOT_2), (7, CUBE_ROOT_2), (3, Scales.geometric(1.3, 3))]
)
@pytest.mark.parametrize("extent", [None, 1, 2])
def test_error_stays_below_the_prediction_of_the_basis(kernel_size, scales, extent):
    basis = DiscreteBasis(kernel_size, scales)
    images = photos()[:, :, :128, :128]
    mapping = randomized(snn.ScaleLift2d(1, 8, basis)).float()
    error = equivariance_error(mapping, images, scales)
    if extent is not None:
        conv = randomized(snn.ScaleConv2d(8, 8, basis, scale_extent=extent)).float()
        error = equivariance_error(conv, mapping(images).detach(), scales)
    assert 0 < error < basis.error


@st.composite
def problems(draw):
    dims = draw(st.integers(1, 3))
    scales = draw(st.sampled_from([[1], [1, 2], [1, 2, 4], list(ROOT_2), [1, 1.3, 2.1]]))
    basis = DiscreteBasis(draw(st.integers(1, 3)), scales, spatial_dims=dims)
    groups = draw(st.integers(1, 3))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    options = {
        "stride": draw(st.integers(1, 3)),
        "padding": draw(st.sampled_from(["same", "valid", 0, 2])),
        "groups": groups,
        "padding_mode": draw(st.sampled_from(sorted(PADDING_MODES))),
    }
    extent = draw(st.sampled_from([None, *range(1, len(scales) + 1)]))
    side = {1: 40, 2: 24, 3: 18}[dims] + draw(st.integers(0, 2))
    return basis, channels, outputs, side, options, extent, draw(st.booleans())


@pytest.mark.filterwarnings("ignore:.*assumes equal steps")  # the twins agree on any scales
@settings(max_examples=60)
@given(problem=problems())
def test_layers_equal_their_dense_twins(problem):
    basis, channels, outputs, side, options, extent, bias = problem
    dims = basis.spatial_dims
    space = [side, side + 1, side + 2][:dims]
    if extent is None:
        layer = randomized(LIFTS[dims](channels, outputs, basis, bias=bias, **options))
        x = torch.randn(2, channels, *space, dtype=torch.float64, requires_grad=True)
        dense = reference.scale_lift(x, layer.weight, basis, layer.bias, **options)
    else:
        layer = randomized(CONVS[dims](channels, outputs, basis, bias=bias, scale_extent=extent, **options))
        x = torch.randn(2, channels, len(basis.scales), *space, dtype=torch.float64, requires_grad=True)
        dense = reference.scale_conv(x, layer.weight, basis, layer.bias, **options)
    y = layer(x)
    torch.testing.assert_close(y, dense)
    leaves = [x, *layer.parameters()]
    probe = torch.randn_like(y)
    for a, b in zip(
        *(torch.autograd.grad((out * probe).sum(), leaves, retain_graph=True) for out in (y, dense)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_one_pixel_kernels_are_one_ordinary_convolution():
    conv = randomized(snn.ScaleConv2d(4, 6, DiscreteBasis(1, [1, 1.3, 2]))).float()
    maps = torch.randn(2, 4, 3, 8, 8)
    plain = nn.functional.conv3d(maps, conv.weight[..., None], conv.bias)
    torch.testing.assert_close(conv(maps), plain)
    calls = []
    real = torch.conv2d

    class Count(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function in (real, nn.functional.conv2d):
                calls.append(function)
            return function(*args, **(kwargs or {}))

    with Count():
        conv(maps)
    assert len(calls) == 1


def test_strided_lifting_commutes_with_subsampling():
    lift = randomized(snn.ScaleLift2d(1, 4, DiscreteBasis(3, [1, 2]), stride=2))
    images = torch.randn(1, 1, 64, 64, dtype=torch.float64)
    assert equivariance_error(lift, images, [1, 2], mode="nearest") < 1e-20


@pytest.mark.parametrize(
    "down",
    [None, "stride", snn.ScaleMaxPool2d(2, scales=[1, 2, 4]), snn.ScaleAvgPool2d(2, scales=[1, 2, 4])],
    ids=["none", "stride", "max", "average"],
)
@pytest.mark.parametrize("extent", [1, 2])
@torch.no_grad()
def test_a_deep_network_is_exact_under_subsampling(down, extent):
    """With plain subsampling every part commutes: kernels, ReLU, strides, dilated windows."""
    basis = DiscreteBasis(3, [1, 2, 4])
    layers = [snn.ScaleLift2d(1, 6, basis)]
    for index in range(1, 6):
        stride = 2 if down == "stride" and index in (2, 4) else 1
        layers += [nn.ReLU(), snn.ScaleConv2d(6, 6, basis, stride, scale_extent=extent if index > 3 else 1)]
        if index in (2, 4) and isinstance(down, nn.Module):
            layers.append(down)
    network = randomized(nn.Sequential(*layers))
    images = torch.randn(1, 1, 256, 256, dtype=torch.float64)
    maps = network(images)
    for factor, moved in ((2, 1), (4, 2)):
        shrunk = network(images[..., ::factor, ::factor])
        # Neighbors past the last scale are zeros for both: compare the scales whose neighbors are all there.
        common = 3 - moved - 2 * (extent - 1)
        if common < 1:
            continue
        want, got = maps[:, :, moved : moved + common, ::factor, ::factor], shrunk[:, :, :common]
        margin = want.shape[-1] * 3 // 8  # six layers at scale 4, twice downsampled, see far over the edge
        want, got = (x[..., margin:-margin, margin:-margin] for x in (want, got))
        assert float((want - got).norm() / want.norm()) < 1e-9


BASES = {
    "pixels, sqrt 2": lambda: DiscreteBasis(3, ROOT_2),
    "pixels, integers": lambda: DiscreteBasis(3, [1, 2, 4]),
    "mixed 7x7": lambda: DiscreteBasis(7, CUBE_ROOT_2).mix(hermite_mixing_preset("mnist")).normalized(),
    "Hermite 3x3": lambda: HermiteBasis.preset("stl10"),
}


@pytest.mark.parametrize("extent", tiered([1, 2], lambda extent: extent == 1))
@pytest.mark.parametrize("name", BASES)
def test_initialization_keeps_the_variance_over_twenty_layers(name, extent):
    """He's rule for any basis: with weights scaled for pixels, smooth bases grow a millionfold."""
    basis = BASES[name]()
    images = (photos()[:1, :, :28, :28] - 0.5) / 0.25
    channels = 96 if basis.kernel_size == 3 else 64
    growth = []
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            maps = snn.ScaleLift2d(1, channels, basis, padding_mode="reflect")(images)
            first = maps.square().mean((0, 1, 3, 4))
            for _ in range(19):
                conv = snn.ScaleConv2d(channels, channels, basis, padding_mode="reflect", scale_extent=extent)
                maps = conv(maps.relu())
            growth.append((maps.square().mean((0, 1, 3, 4)) / first).log())
    # A draw is off by a factor of a few after 20 layers; Hermite functions amplify one scale more than another.
    typical = torch.stack(growth).mean(0).exp()
    assert bool(((typical > 0.1) & (typical < 10)).all()), typical


def test_neighboring_scales_start_at_zero():
    conv = snn.ScaleConv2d(4, 4, THREE, scale_extent=2)
    assert not conv.weight[:, :, 1].any()
    assert float(conv.weight[:, :, 0].detach().std()) == pytest.approx(math.sqrt(2 / (4 * THREE.power)), rel=0.3)


def test_checkpoint_of_another_basis_is_refused_with_both_specs():
    saved = snn.ScaleConv2d(4, 4, THREE)
    other = snn.ScaleConv2d(4, 4, DiscreteBasis(3, ROOT_2, prior="white", support=7))
    before = other.weight.clone()
    with pytest.raises(
        ValueError, match=r'another basis: .*"prior": "image.*; this layer has .*"prior": "white'
    ) as caught:
        nn.Sequential(other).load_state_dict(nn.Sequential(saved).state_dict())
    assert torch.equal(other.weight, before)
    assert "\n" not in str(caught.value)
    other.load_state_dict({"weight": saved.weight, "bias": saved.bias})  # plain weights carry no note


def test_the_same_numbers_are_the_same_basis(tmp_path):
    saved = snn.ScaleLift2d(1, 4, THREE)
    THREE.save(tmp_path / "basis.safetensors")
    noisy = [Stencil(s.functions * (1 + 1e-12), s.dilation) for s in THREE.stencils]
    for basis in (Basis.load(tmp_path / "basis.safetensors"), Basis(ROOT_2, noisy, kernel_size=3)):
        snn.ScaleLift2d(1, 4, basis).load_state_dict(saved.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_checkpoints_may_be_cast_and_averaged(dtype):
    layer = snn.ScaleLift2d(1, 4, THREE)
    state = {name: value.to(dtype) for name, value in layer.state_dict().items()}
    layer.load_state_dict({name: (value + value) / 2 for name, value in state.items()})
    with pytest.raises(ValueError, match="another basis"):
        snn.ScaleLift2d(1, 4, DiscreteBasis(3, [1, 2])).load_state_dict(state)


def test_assigned_weights_bring_their_precision():
    exact = randomized(snn.ScaleLift2d(1, 4, THREE))
    layer = snn.ScaleLift2d(1, 4, THREE)
    layer.load_state_dict(exact.state_dict(), assign=True)
    images = torch.randn(1, 1, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(images), exact(images), rtol=0, atol=0)


def test_scale_extent_warns_of_unequal_steps():
    with pytest.warns(UserWarning, match=r"ScaleConv2d: scale_extent 2 assumes equal steps between scales, got"):
        snn.ScaleConv2d(1, 1, DiscreteBasis(3, [1, 1.3, 2.1]), scale_extent=2)


def test_layout_attributes_are_read_only():
    layer = snn.ScaleLift2d(1, 4, THREE, stride=2)
    with pytest.raises(AttributeError, match="stride"):
        layer.stride = 1
    assert layer(torch.rand(1, 1, 12, 12)).shape[-1] == 6


@pytest.mark.parametrize("note", [b"", b"{}", b"not json", b'{"spec": {}, "fingerprint": ["x"]}', b"\xff"])
def test_a_damaged_extra_state_raises_a_one_line_error(note):
    layer = snn.ScaleLift2d(1, 4, THREE)
    state = layer.state_dict()
    state["_extra_state"] = torch.tensor(list(note), dtype=torch.uint8)
    with pytest.raises(ValueError, match="ScaleLift2d: the basis metadata in the checkpoint is corrupted") as caught:
        layer.load_state_dict(state)
    assert "\n" not in str(caught.value)


WIDE = DiscreteBasis(3, [1, 16])
FLAT = DiscreteBasis(3, [1, 2], spatial_dims=1)
IMAGES, MAPS = torch.rand(1, 4, 12, 12), torch.rand(1, 4, 3, 12, 12)
lift, conv = snn.ScaleLift2d(4, 4, THREE), snn.ScaleConv2d(4, 4, THREE)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: lift(IMAGES[0]), ValueError, r"ScaleLift2d: expected input \[B, C, H, W\] with C = 4, got"),
        (lambda: lift(IMAGES[:, :3]), ValueError, r"with C = 4, got shape \(1, 3, 12, 12\)"),
        (lambda: conv(IMAGES), ValueError, r"ScaleConv2d: expected input \[B, C, S, H, W\] with S = 3 \(the scales of"),
        (lambda: conv(MAPS[:, :, :2]), ValueError, r"with S = 3 \(the scales of its basis\) and C = 4, got shape"),
        (lambda: conv(MAPS.half()), TypeError, r"expected input of torch.float32 like its weights, got torch.float16"),
        (lambda: lift(IMAGES.long()), TypeError, r"expected input of torch.float32 like its weights, got torch.int64"),
        (lambda: lift(IMAGES.to("meta")), ValueError, "expected input on cpu like its weights, got meta"),
        (lambda: snn.ScaleConv2d(4, 4, FLAT), ValueError, "ScaleConv2d: expected a basis of 2 spatial axes, got 1"),
        (lambda: snn.ScaleLift2d(4, 4, 3), TypeError, r"ScaleLift2d: expected a basis such as .* got 3"),
        (lambda: snn.ScaleConv2d(4, 4, 3), TypeError, r"ScaleConv2d: expected a basis such as .* got 3"),
        (lambda: snn.ScaleConv2d(4, 4, THREE, scale_extent=4), ValueError, "an integer from 1 to 3 .* got 4"),
        (lambda: snn.ScaleConv2d(4, 4, THREE, scale_extent=0), ValueError, "an integer from 1 to 3 .* got 0"),
        (lambda: snn.ScaleConv2d(4, 0, THREE), ValueError, "out_channels must be an integer >= 1, got 0"),
        (lambda: snn.ScaleConv2d(4, 6, THREE, groups=4), ValueError, "out_channels .* multiple of the 4 groups, got 6"),
        (lambda: snn.ScaleLift2d(4, 4, THREE, padding_mode=["zeros"]), ValueError, r"one of zeros, .* \['zeros'\]"),
        (lambda: snn.ScaleLift2d(4, 4, THREE, padding="valid")(IMAGES[..., :5]), ValueError, "an image of 5 pixels is"),
        (lambda: snn.ScaleLift2d(4, 4, WIDE, padding_mode="reflect")(IMAGES), ValueError, "12 pixels .* 11, .* 16"),
        (lambda: snn.ScaleLift2d(4, 4, WIDE, padding_mode="circular")(IMAGES), ValueError, "12 pixels .* 12, .* 16"),
        (lambda: snn.ScaleLift2d(4, 4, THREE, stride=0), ValueError, "ScaleLift2d: stride must be an integer >= 1"),
        (lambda: snn.ScaleLift2d(4, 4, THREE, padding="full"), ValueError, 'padding must be "same", .* got \'full\''),
        (lambda: snn.ScaleLift2d(4, 4, THREE, padding_mode="wrap"), ValueError, "one of zeros, circular, .* 'wrap'"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise_one_line_errors(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_repr_says_what_differs_from_the_defaults():
    text = repr(snn.ScaleConv2d(4, 6, THREE, 2, groups=2, bias=False, scale_extent=2))
    assert "4, 6, DiscreteBasis(3, " in text
    assert "stride=2, groups=2, bias=False, scale_extent=2" in text
