from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_disco import DiscreteBasis, HermiteBasis, Scales
from scale_disco.fold import fold
from scale_disco.functional import reference, scale_conv, scale_lift
from scale_disco.functional.layout import PADDING_MODES
from tests.conftest import ROOT_2

SCALE_SETS = ([1], [1, 2], [1, 2, 4], list(ROOT_2), [1, 1.3, 2.1])


@st.composite
def problems(draw):
    """A basis, sizes and options; both twins must agree on all of them."""
    dims = draw(st.integers(1, 3))
    basis = DiscreteBasis(draw(st.integers(1, 3)), draw(st.sampled_from(SCALE_SETS)), spatial_dims=dims)
    groups = draw(st.integers(1, 2))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    side = {1: 40, 2: 24, 3: 18}[dims] + draw(st.integers(0, 2))
    padding = draw(st.sampled_from(["same", "valid", 0, 2]))
    options = {
        "stride": draw(st.integers(1, 3)),
        "padding": padding,
        "groups": groups,
        "padding_mode": draw(st.sampled_from(sorted(PADDING_MODES))),
    }
    return basis, channels, outputs, [side, side + 1, side + 2][:dims], options, draw(st.booleans())


def agree(fast, dense, *tensors):
    """Equal values, and equal gradients of a random functional of them."""
    tensors = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    values = fast(*tensors), dense(*tensors)
    torch.testing.assert_close(*values)
    probe = torch.randn_like(values[0])
    gradients = [torch.autograd.grad((value * probe).sum(), tensors) for value in values]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
    return values[0]


@settings(max_examples=60)
@given(problem=problems())
def test_lifting_equals_its_dense_twin(problem):
    basis, channels, outputs, space, options, has_bias = problem
    x = torch.randn(2, channels, *space, dtype=torch.float64)
    weight = torch.randn(outputs, channels // options["groups"], basis.num_functions, dtype=torch.float64)
    bias = torch.randn(outputs, dtype=torch.float64) if has_bias else None
    y = agree(
        lambda x, weight, bias=None: scale_lift(x, weight, basis, bias, **options),
        lambda x, weight, bias=None: reference.scale_lift(x, weight, basis, bias, **options),
        x,
        weight,
        bias,
    )
    if options["padding"] == "same":
        assert y.shape == (2, outputs, len(basis.scales), *(-(-side // options["stride"]) for side in space))


@settings(max_examples=60)
@given(problem=problems(), data=st.data())
def test_scale_to_scale_equals_its_dense_twin(problem, data):
    basis, channels, outputs, space, options, has_bias = problem
    extent = data.draw(st.integers(1, min(3, len(basis.scales))))
    x = torch.randn(2, channels, len(basis.scales), *space, dtype=torch.float64)
    weight = torch.randn(outputs, channels // options["groups"], extent, basis.num_functions, dtype=torch.float64)
    bias = torch.randn(outputs, dtype=torch.float64) if has_bias else None
    agree(
        lambda x, weight, bias=None: scale_conv(x, weight, basis, bias, **options),
        lambda x, weight, bias=None: reference.scale_conv(x, weight, basis, bias, **options),
        x,
        weight,
        bias,
    )


@pytest.mark.parametrize(
    ("name", "layer", "preset"), [("z2h", scale_lift, "stl10"), ("hh_interscale", scale_conv, "stl10-c")]
)
def test_golden_layers_of_the_authors(shared, name, layer, preset):
    with np.load(shared / "facts" / "golden" / f"layer_ses_{name}.npz") as file:
        x, weight, y = (torch.from_numpy(file[key]) for key in ("x", "weight", "y"))
    torch.testing.assert_close(layer(x, weight, HermiteBasis.preset(preset)), y, atol=1e-5, rtol=0)


def test_output_is_scale_major():
    basis = DiscreteBasis(3, [1, 2, 4])
    maps = scale_lift(torch.randn(2, 3, 16, 16), torch.randn(5, 3, 9), basis)
    assert fold(maps).data_ptr() == maps.data_ptr()
    again = scale_conv(maps, torch.randn(4, 5, 1, 9), basis)
    assert fold(again).data_ptr() == again.data_ptr()


def test_foreign_strides_give_the_same_numbers():
    basis = DiscreteBasis(3, [1, 2])
    maps, weight = torch.randn(2, 3, 2, 12, 12), torch.randn(4, 3, 2, 9)
    scale_major = maps.movedim(2, 0).contiguous().movedim(0, 2)
    torch.testing.assert_close(scale_conv(maps, weight, basis), scale_conv(scale_major, weight, basis))


def test_scales_past_the_last_are_zero():
    basis = DiscreteBasis(1, [1, 2])
    maps = torch.randn(1, 1, 2, 4, 4)
    y = scale_conv(maps, torch.ones(1, 1, 2, 1), basis)
    torch.testing.assert_close(y[:, :, 0], maps[:, :, 0] + maps[:, :, 1])
    torch.testing.assert_close(y[:, :, 1], maps[:, :, 1])


def test_gradients_by_finite_differences():
    basis = DiscreteBasis(2, [1, 1.5], spatial_dims=1)
    x = torch.randn(1, 2, 2, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: scale_conv(x, w, basis, groups=2, padding_mode="reflect"), [x, weight])


X, MAPS = torch.rand(1, 4, 12, 12), torch.rand(1, 4, 2, 12, 12)
WEIGHT, WEIGHTS = torch.rand(2, 4, 9), torch.rand(2, 4, 1, 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: scale_lift(X[0], WEIGHT, b), r"input \[B, C, H, W\] with C = 4, got shape \(4, 12, 12\)"),
        (lambda b: scale_lift(X, WEIGHT[:, :3], b), r"with C = 3, got shape \(1, 4, 12, 12\)"),
        (
            lambda b: scale_lift(X, WEIGHT[..., :5], b),
            r"expected weight \[C', C / groups, 9\], .* got shape \(2, 4, 5\)",
        ),
        (lambda b: scale_lift(X, WEIGHT, b, groups=3), r"C' divisible by 3 groups"),
        (lambda b: scale_lift(X, WEIGHT, b, stride=0), "stride must be an integer >= 1, got 0"),
        (lambda b: scale_lift(X, WEIGHT, b, padding=-1), 'padding must be "same", "valid" or .* got -1'),
        (lambda b: scale_lift(X, WEIGHT, b, padding_mode="wrap"), "padding_mode must be one of .* got 'wrap'"),
        (
            lambda b: scale_conv(X, WEIGHTS, b),
            r"with S = 2 \(the scales of its basis\) and C = 4, got shape \(1, 4, 12",
        ),
        (lambda b: scale_conv(MAPS[:, :, :1], WEIGHTS, b), r"input \[B, C, S, H, W\] with S = 2 .*\(1, 4, 1, 12, 12\)"),
        (lambda b: scale_conv(MAPS, WEIGHT, b), r"expected weight \[C', C / groups, T, 9\], .* got shape \(2, 4, 9\)"),
        (lambda b: scale_conv(MAPS, torch.rand(2, 4, 3, 9), b), "scale extent must be an integer from 1 to 2 .* got 3"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(DiscreteBasis(3, Scales([1, 2])))
    assert "\n" not in str(caught.value)
