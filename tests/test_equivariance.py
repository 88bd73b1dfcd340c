from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from scale_disco import Basis, DiscreteBasis, Scales, Stencil, assert_equivariant, equivariance_error, resample
from scale_disco.equivariance import RELATIVE_TOLERANCE, basis_error
from scale_disco.functional import scale_conv, scale_lift
from scale_disco.nn import ScaleBlurPool2d, ScaleConv2d, ScaleLift2d
from scale_disco.tasks.io.samples import photos
from tests.conftest import CUBE_ROOT_2, ROOT_2

INTEGERS = Scales([1, 2, 4])


def random_weight(channels, basis, inputs=1):
    return torch.randn(channels, inputs, basis.num_functions, dtype=torch.float64)


def lift(basis, channels=4):
    weight = random_weight(channels, basis)
    return lambda x: scale_lift(x, weight.to(x), basis)


def scale_to_scale(basis, extent):
    weight = torch.randn(3, 2, extent, basis.num_functions, dtype=torch.float64)
    return lambda x: scale_conv(x, weight, basis)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kernel_size", [2, 3])
def test_a_lifting_layer_on_integer_scales_is_exact(dims, kernel_size):
    basis = DiscreteBasis(kernel_size, INTEGERS if dims < 3 else [1, 2], spatial_dims=dims)
    images = torch.randn(2, 1, *[{1: 128, 2: 64, 3: 32}[dims]] * dims, dtype=torch.float64)
    assert equivariance_error(lift(basis), images, basis.scales) < 1e-20


@pytest.mark.parametrize("extent", [1, 2])
def test_a_scale_to_scale_layer_on_integer_scales_is_exact(extent):
    basis = DiscreteBasis(3, INTEGERS)
    features = torch.randn(2, 2, 3, 64, 64, dtype=torch.float64)
    assert equivariance_error(scale_to_scale(basis, extent), features, INTEGERS) < 1e-20


def test_a_scale_to_scale_layer_in_one_dimension():
    basis = DiscreteBasis(3, INTEGERS, spatial_dims=1)
    features = torch.randn(2, 2, 3, 128, dtype=torch.float64)
    assert equivariance_error(scale_to_scale(basis, 1), features, INTEGERS, spatial_dims=1) < 1e-20


def test_a_layer_that_ignores_the_shift_fails():
    basis = DiscreteBasis(3, INTEGERS)
    images = photos()[:2].double()
    layer = lift(basis)
    assert equivariance_error(layer, images, INTEGERS) < 1e-20
    assert equivariance_error(lambda x: layer(x).flip(2), images, INTEGERS) > 0.1


def test_a_broken_basis_fails():
    good = DiscreteBasis(3, ROOT_2)
    images = photos()[:3]
    assert_equivariant(lift(good), images, ROOT_2)
    undilated = Basis(ROOT_2, [good.stencils[0], good.stencils[1], Stencil(good.stencils[2].functions)], kernel_size=3)
    middle = good.stencils[1].functions.clone()
    middle[:, 2, 2] += 0.3
    off = Basis(ROOT_2, [good.stencils[0], Stencil(middle), good.stencils[2]], kernel_size=3)
    for broken in (undilated, off):
        with pytest.raises(
            AssertionError, match=r"^relative .* exceeds the tolerance 0.2 \(ratio 1.414: .*, ratio 2: "
        ):
            assert_equivariant(lift(broken), images, ROOT_2)


def test_one_wrong_tap_is_detected_on_exact_scales():
    good = DiscreteBasis(3, [1, 2])
    functions = good.stencils[1].functions.clone()
    functions[4, 1, 1] += 1e-4
    broken = Basis([1, 2], [good.stencils[0], Stencil(functions, 2)], kernel_size=3)
    images = torch.rand(1, 1, 32, 32, dtype=torch.float64)
    assert_equivariant(lift(good), images, [1, 2], tolerance=1e-20)
    with pytest.raises(AssertionError):
        assert_equivariant(lift(broken), images, [1, 2], tolerance=1e-20)


def test_projected_networks():
    basis = DiscreteBasis(3, INTEGERS)
    layer = lift(basis)

    def projected(x):
        return layer(x).amax(2)

    map_error = equivariance_error(projected, photos()[:2].double(), [1, 2])
    assert 0 < map_error < 0.5


def test_pointwise_maps_commute_with_subsampling():
    assert equivariance_error(torch.relu, torch.randn(1, 2, 33, 31), [1, 2, 3], mode="nearest") == 0


def test_strided_networks_are_compared_on_their_own_grid():
    # Pure subsampling commutes with strides: an exact test of the alignment of the two grids.
    basis = DiscreteBasis(3, [1, 2], mode="nearest")
    layer = lift(basis)
    images = torch.randn(1, 1, 64, 64, dtype=torch.float64)
    assert equivariance_error(lambda x: layer(x)[..., ::2, ::2], images, [1, 2], mode="nearest") < 1e-20


def test_sum_over_ratios_and_each_ratio():
    basis = DiscreteBasis(3, ROOT_2)
    layer, images = lift(basis), photos()[:1]
    steps = equivariance_error(layer, images, ROOT_2, per_step=True)
    assert list(steps) == [pytest.approx(2**0.5), 2.0]
    assert steps[2.0] < 1e-10 < steps[next(iter(steps))]
    assert equivariance_error(layer, images, ROOT_2) == pytest.approx(sum(steps.values()))


def test_every_ratio_counts_once():
    """For {1, 1.5, 2}: 1.5 and 2 against 1, and 2 against 1.5; each ratio on its own."""
    steps = equivariance_error(lift(DiscreteBasis(3, [1, 1.5, 2])), photos()[:1], [1, 1.5, 2], per_step=True)
    assert list(steps) == [pytest.approx(4 / 3), 1.5, 2.0]


def test_padding_breaks_equivariance_at_the_border_only():
    basis = DiscreteBasis(3, INTEGERS)
    layer, images = lift(basis), torch.randn(1, 1, 64, 64, dtype=torch.float64)
    assert equivariance_error(layer, images, INTEGERS, border=0) > 1e-3
    assert equivariance_error(layer, images, INTEGERS, border=3) < 1e-20
    assert equivariance_error(layer, images, INTEGERS, border=np.int64(3)) < 1e-20
    assert equivariance_error(layer, images, INTEGERS, border=0.2) < 1e-20


def test_equals_the_definition():
    """Eq. 14 by hand for one ratio."""
    basis = DiscreteBasis(3, [1, 2**0.5])
    layer, images = lift(basis), photos()[:2].double()
    want = resample(layer(images)[:, :, 1], 2**-0.5)[..., 20:-20, 20:-20]
    got = layer(resample(images, 2**-0.5))[:, :, 0][..., 20:-20, 20:-20]
    by_hand = float((want - got).square().sum() / want.square().sum())
    assert equivariance_error(layer, images, [1, 2**0.5], border=20) == pytest.approx(by_hand)


def test_basis_error_does_not_depend_on_the_batch():
    basis, images = DiscreteBasis(3, ROOT_2), photos().double()
    seen = []
    error = basis_error(basis, images, channels=4, batch=4, progress=lambda done, total: seen.append((done, total)))
    assert error == pytest.approx(basis_error(basis, images, channels=4, batch=6))
    assert seen == [(4, 6), (6, 6)]


def test_a_module_in_training_mode_is_restored():
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5))
    network[2].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    first = equivariance_error(network, photos()[:1], [1, 2])
    assert first == equivariance_error(network, photos()[:1], [1, 2])
    assert [module.training for module in network] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_basis_error_needs_images_and_kernels():
    with pytest.raises(ValueError, match="at least one kernel, got 6 and 0"):
        basis_error(DiscreteBasis(3, [1, 2]), photos(), channels=0)


IMAGES = torch.rand(1, 1, 16, 16)


@pytest.mark.parametrize(
    ("mapping", "images", "options", "message"),
    [
        (torch.relu, IMAGES, {"scales": [1]}, "at least two scales"),
        (torch.relu, IMAGES, {"border": 0.5}, "border must be pixels >= 0 or a fraction of a side < 0.5, got 0.5"),
        (torch.relu, IMAGES, {"border": -1}, "border must be"),
        (torch.relu, IMAGES, {"border": "3"}, "border must be"),
        (lambda x: (x, x), IMAGES, {}, "must return one tensor, got tuple"),
        (torch.relu, IMAGES, {"border": 4}, "a border of 4 leaves nothing of 8 pixels"),
        (torch.relu, IMAGES[0, 0], {}, r"expected images .* got shape \(16, 16\)"),
        (torch.relu, torch.rand(1, 1, 5, 16, 16), {}, r"S = 2 \(the scales\), got shape \(1, 1, 5, 16, 16\)"),
        (lambda x: x[:, :, None].expand(-1, -1, 3, -1, -1), IMAGES, {}, r"output .* S = 2 \(the scales\)"),
        (lambda x: x.mean((1, 2, 3)), IMAGES, {}, "expected output"),
        (lambda x: x[..., 4:-4, 4:-4], IMAGES, {}, 'must keep the pixel grid .padding="same".'),
        (lambda x: 0 * x, IMAGES, {}, "the response vanishes"),
        (lambda x: x.mean((2, 3)), IMAGES, {}, r"a vector has no spatial axes .* got output of shape \(1, 1\)"),
        (lambda x: x.mean((2, 3), keepdim=True), IMAGES, {}, r"a vector has .* got output of shape \(1, 1, 1, 1\)"),
        (lambda x: 0 * x + 1, IMAGES, {}, "the output is constant"),
        (lambda x: 0 * x + torch.arange(x.shape[-1]), IMAGES, {}, "the output is constant, .* for all images"),
        (
            lambda x: x.mean((2, 3), keepdim=True).expand(x.shape),
            IMAGES,
            {},
            "the output is constant, the same at every",
        ),
        (torch.relu, torch.ones(1, 1, 16, 16), {}, "the output is constant"),
        (lambda x: x / 0, IMAGES, {}, "is not finite"),
        (torch.relu, IMAGES, {"spatial_dims": 3}, "expected images"),
        (torch.relu, IMAGES, {"mode": "sinc"}, "mode: expected one of"),
    ],
)
def test_invalid_arguments_raise_a_one_line_error(mapping, images, options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        equivariance_error(mapping, images, **{"scales": [1, 2], **options})
    assert "\n" not in str(caught.value)
    with pytest.raises((ValueError, TypeError), match=message):
        assert_equivariant(mapping, images, **{"scales": [1, 2], **options})


# The relative error and the default tolerance of `assert_equivariant`.

CROP = photos()[:1, :, 64:112, 64:112].contiguous()


def replicated(conv, count):
    return lambda x: torch.stack([conv(x)] * count, 2)


def random_conv(seed):
    torch.manual_seed(seed)
    channels, side = (1, 2, 4, 8)[seed % 4], (3, 5, 7)[seed % 3]
    return nn.Conv2d(1, channels, side, padding=side // 2, bias=seed % 8 < 4)


def assert_ordinary_convolutions_fail(seeds):
    for seed in seeds:
        with pytest.raises(AssertionError, match="relative equivariance error"):
            assert_equivariant(random_conv(seed), CROP, ([1, 2], ROOT_2)[seed % 2])


def test_a_hundred_ordinary_convolutions_fail():
    assert_ordinary_convolutions_fail(range(100))


@pytest.mark.thorough
def test_a_thousand_ordinary_convolutions_fail():
    assert_ordinary_convolutions_fail(range(1000))


def test_ordinary_convolutions_of_small_error_fail():
    """Kernels that nearly blur have less than 0.02 by Eq. 14, since photos are smooth."""
    images, small = photos()[:1], 0
    for seed in range(24):
        torch.manual_seed(seed)
        conv = nn.Conv2d(1, 1, 3, padding=1)
        small += equivariance_error(conv, images, ROOT_2) < 0.02
        for mapping in (conv, replicated(conv, 3)):
            with pytest.raises(AssertionError):
                assert_equivariant(mapping, images, ROOT_2)
    assert small > 0


@pytest.mark.parametrize("scales", [[1, 2], ROOT_2])
def test_an_ordinary_convolution_at_every_scale_has_relative_error_1(scales):
    for seed in range(20):
        mapping = replicated(random_conv(seed), len(scales))
        assert equivariance_error(mapping, CROP, scales, relative=True) == pytest.approx(1)
        steps = equivariance_error(mapping, CROP, scales, relative=True, per_step=True)
        assert list(steps.values()) == pytest.approx([1] * len(steps))


def test_ordinary_kernels_without_a_scale_axis_have_relative_error_1_on_average():
    torch.manual_seed(0)
    many = nn.Conv2d(1, 400, 3, padding=1)
    assert equivariance_error(many, CROP, ROOT_2, relative=True) == pytest.approx(1, abs=0.15)
    assert equivariance_error(nn.Conv2d(1, 4, 1), CROP, ROOT_2, relative=True) < 1e-10


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_exact_layers_have_no_relative_error(dims):
    basis = DiscreteBasis(3, [1, 2], spatial_dims=dims)
    images = torch.randn(1, 1, *[{1: 64, 2: 32, 3: 16}[dims]] * dims, dtype=torch.float64)
    assert equivariance_error(lift(basis), images, [1, 2], border=3, relative=True) < 1e-20
    features = torch.randn(1, 2, 2, *images.shape[2:], dtype=torch.float64)
    layer = scale_to_scale(basis, 1)
    assert equivariance_error(layer, features, [1, 2], border=3, relative=True, spatial_dims=dims) < 1e-20
    projected = equivariance_error(
        lambda x: layer(x).sum(2), features, [1, 2], border=3, relative=True, spatial_dims=dims
    )
    assert 0.2 < projected < 10


@pytest.mark.parametrize("scales", [INTEGERS, ROOT_2, CUBE_ROOT_2, [1, 1.5]], ids=str)
def test_correct_layers_pass_with_margin(scales):
    torch.manual_seed(0)
    basis = DiscreteBasis(3, scales)
    layers = [ScaleLift2d(1, 8, basis), nn.ReLU(), ScaleConv2d(8, 8, basis)]
    for network in (layers[0], nn.Sequential(*layers), nn.Sequential(*layers[:2], ScaleBlurPool2d(basis.scales))):
        assert_equivariant(network, photos()[:2], scales)
        assert equivariance_error(network, photos()[:2], scales, relative=True) < RELATIVE_TOLERANCE / 1.5


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_stencil_that_is_not_dilated_fails(wrong):
    good = DiscreteBasis(3, INTEGERS)
    stencils = list(good.stencils)
    stencils[wrong] = Stencil(stencils[wrong].functions)
    assert_equivariant(lift(good), photos()[:1], INTEGERS)
    with pytest.raises(AssertionError, match=r"^relative equivariance error .* exceeds the tolerance 0.2"):
        assert_equivariant(lift(Basis(INTEGERS, stencils, kernel_size=3)), photos()[:1], INTEGERS)


def test_parameters_per_scale_fail():
    layer, spread = lift(DiscreteBasis(3, ROOT_2)), torch.tensor([-1.0, 0, 1])[:, None, None]
    for broken in (lambda x: layer(x) + spread, lambda x: layer(x) * (1 + spread / 2), lambda x: layer(x).flip(2)):
        assert equivariance_error(broken, photos()[:1], ROOT_2, relative=True) > 2 * RELATIVE_TOLERANCE


def test_a_tolerance_bounds_equation_14():
    layer = replicated(random_conv(1), 2)
    error = equivariance_error(layer, CROP, [1, 2])
    assert_equivariant(layer, CROP, [1, 2], tolerance=1.01 * error)
    with pytest.raises(AssertionError, match=rf"^equivariance error {error:.3g} exceeds the tolerance"):
        assert_equivariant(layer, CROP, [1, 2], tolerance=0.99 * error)


def test_the_relative_error_needs_detail():
    with pytest.raises(ValueError, match="relative error at ratio 2 is undefined"):
        equivariance_error(lambda x: x[:, :, None].repeat(1, 1, 2, 1, 1), IMAGES, [1, 2], relative=True)
