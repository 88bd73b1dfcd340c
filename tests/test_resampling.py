from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from scale_disco import Scales, resample
from scale_disco.resampling import canonical_mode, kernel_weights, pyramid, resample_matrix

MODES = ["nearest", "nearest-exact", "linear", "cubic"]


@pytest.mark.parametrize("scale", [1 / 2, 1 / 3, 2**-0.5, 1 / 1.26, 1 / 1.2, 0.37, 1.7])
@pytest.mark.parametrize(
    ("mode", "antialias"),
    [
        *((mode, False) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")),
        ("bilinear", True),
        ("bicubic", True),
    ],
)
def test_equals_torch_where_torch_has_the_mode(scale, mode, antialias):
    images = torch.rand(2, 3, 37, 42, dtype=torch.float64)
    corners = None if mode.startswith("nearest") else False
    expected = F.interpolate(images, scale_factor=scale, mode=mode, align_corners=corners, antialias=antialias)
    torch.testing.assert_close(resample(images, scale, mode=mode, antialias=antialias), expected)


def test_equals_torch_in_one_and_three_dimensions():
    signal, volume = torch.rand(2, 3, 50, dtype=torch.float64), torch.rand(1, 2, 9, 10, 11, dtype=torch.float64)
    linear = F.interpolate(signal, scale_factor=0.7, mode="linear", align_corners=False)
    torch.testing.assert_close(resample(signal, 0.7, mode="linear"), linear)
    trilinear = F.interpolate(volume, scale_factor=0.7, mode="trilinear", align_corners=False)
    torch.testing.assert_close(resample(volume, 0.7, mode="trilinear"), trilinear)


@given(
    size=st.integers(2, 14),
    scale=st.floats(0.2, 3),
    mode=st.sampled_from(MODES),
    antialias=st.booleans(),
    dims=st.integers(1, 3),
)
def test_matrix_and_image_form_agree(size, scale, mode, antialias, dims):
    """One axis at a time: the matrix on explicitly laid-out vectors, against the operator on images."""
    if size * scale < 1:
        return
    matrix = resample_matrix(size, scale, mode=mode, antialias=antialias)
    images = torch.rand(1, 1, *[size] * dims, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    letters = ["", "ia", "jb", "kc"]
    subscripts = ",".join(letters[1 : dims + 1]) + ",xy" + "abc"[:dims] + "->xy" + "ijk"[:dims]
    expected = torch.einsum(subscripts, *[matrix] * dims, images)
    torch.testing.assert_close(resample(images, scale, mode=mode, antialias=antialias), expected)


@given(size=st.integers(2, 60), scale=st.floats(0.1, 3), mode=st.sampled_from(MODES), antialias=st.booleans())
def test_constants_stay_constant(size, scale, mode, antialias):
    if size * scale < 1:
        return
    rows = resample_matrix(size, scale, mode=mode, antialias=antialias).sum(1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("ratio", [2, 3, 4])
def test_integer_shrinking_is_a_filter_and_subsampling(mode, antialias, ratio):
    matrix = resample_matrix(20 * ratio, 1 / ratio, mode=mode, antialias=antialias)
    for row in range(7, 13):
        torch.testing.assert_close(matrix[row], matrix[row - 1].roll(ratio))


def test_antialiased_nearest_averages_the_pixels_it_replaces():
    images = torch.arange(6.0).reshape(1, 1, 6)
    assert resample(images, 1 / 3, mode="nearest", antialias=True).tolist() == [[[1.0, 4.0]]]


def test_nearest_is_pure_subsampling():
    images = torch.rand(1, 1, 12, 12)
    assert torch.equal(resample(images, 1 / 3, mode="nearest"), images[..., ::3, ::3])


def test_sizes_that_are_integers_up_to_rounding_are_exact():
    # 39 / 1.3 is 29.999999999999996 in floating point; torch makes it 29 pixels.
    assert resample(torch.rand(1, 1, 39), 1 / 1.3).shape[-1] == 30
    # At 1.1 row 10 reads pixel 11, though 10 * 1.1 comes out as 11.000000000000002 and 30 * 1.1 as 33.0.
    picked = resample_matrix(77, 1 / 1.1, mode="nearest").argmax(1)
    assert picked.tolist() == [(11 * row) // 10 for row in range(70)]


def test_gradients_flow():
    images = torch.rand(1, 1, 6, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resample(x, 0.6, antialias=True), [images])


def test_keeps_dtype():
    assert resample(torch.rand(1, 1, 8), 0.5).dtype == torch.float32


def test_weights_on_an_infinite_image_sum_to_one():
    where = torch.linspace(0, 1, 11, dtype=torch.float64)
    for mode in MODES:
        for antialias in (False, True):
            weights = kernel_weights(where, torch.arange(-12, 13), 2.7, mode, antialias)
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(where))


def test_modes_of_torch_are_aliases():
    names = ("bilinear", "trilinear", "bicubic", "nearest", "cubic")
    assert [canonical_mode(name) for name in names] == ["linear", "linear", "cubic", "nearest", "cubic"]


@pytest.mark.parametrize("step", [2, 2**0.5, 2 ** (1 / 3), 1.3])
@pytest.mark.parametrize("shape", [(37,), (37, 52), (19, 23, 20)])
def test_the_pyramid_of_a_shrunk_image_is_the_pyramid_without_its_first_level(step, shape):
    images = torch.randn(2, 3, *shape)
    levels = pyramid(images, Scales.geometric(step, 5))
    assert levels[0] is images
    for j in range(1, 5):
        shrunk = levels[j]
        for k, level in enumerate(pyramid(shrunk, Scales.geometric(step, 5 - j))):
            assert torch.equal(level, levels[k + j])


def test_levels_have_the_geometry_of_the_operator():
    """A level that is computed step by step is near the one of a single step: no shift accumulates."""
    rows = torch.linspace(0, 6, 128, dtype=torch.float64).sin()
    images = (rows[:, None] * rows).reshape(1, 1, 128, 128)
    for scale, level in zip(scales := Scales.geometric(2**0.5, 5), pyramid(images, scales), strict=True):
        direct = resample(images, 1 / scale, antialias=True)
        cut = tuple(slice(0, side) for side in level.shape)
        assert all(0 <= b - a <= 2 for a, b in zip(level.shape, direct.shape, strict=True))
        assert float((direct[cut] - level)[..., 2:-2, 2:-2].abs().max()) < 0.02


def test_levels_of_unequal_steps_and_of_scales_below_one():
    images = torch.randn(1, 1, 32, 32)
    low, first, high = pyramid(images, Scales([0.5, 1, 3]))
    assert first is images
    torch.testing.assert_close(low, resample(images, 2, antialias=True))
    torch.testing.assert_close(high, resample(images, 1 / 3, antialias=True))
    equal = pyramid(images, Scales.geometric(2**0.5, 5, start=0.5))
    assert [level.shape[-1] for level in equal] == [63, 45, 32, 22, 15]
    assert equal[2] is images
    assert torch.equal(equal[4], pyramid(images, Scales.geometric(2**0.5, 3))[2])
    (only,) = pyramid(images, Scales([2]))
    torch.testing.assert_close(only, resample(images, 1 / 2, antialias=True))


def test_scales_that_leave_no_pixel_raise_an_error():
    message = "pyramid: scale 16 leaves no pixel of images of 8x12 pixels"
    with pytest.raises(ValueError, match=message):
        pyramid(torch.randn(1, 1, 8, 12), Scales([1, 2, 4, 8, 16]))
    with pytest.raises(ValueError, match=message):
        pyramid(torch.randn(1, 1, 8, 12), Scales([1, 16, 17]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: resample(x, 0.5, mode="area"), ValueError, "mode: expected one of nearest, .* got 'area'"),
        (lambda x: resample(x, 0), ValueError, "scale must be a positive finite number, got 0"),
        (lambda x: resample(x, float("nan")), ValueError, "got nan"),
        (lambda x: resample(x, 0.01), ValueError, "8 pixels scaled by 0.01 leave none"),
        (lambda x: resample(x[0, 0], 0.5), ValueError, r"expected images .* got shape \(8, 8\)"),
        (lambda x: resample(x.long(), 0.5), TypeError, "floating-point"),
    ],
)
def test_invalid_arguments_raise_an_error(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.rand(1, 1, 8, 8))


def test_matrices_are_not_made_on_the_default_device():
    images = torch.rand(1, 1, 23, 23)
    with torch.device("meta"):
        resample(images.to("meta"), 1 / 1.37)  # never before
    assert resample(images, 1 / 1.37).device.type == "cpu"
