from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scale_disco import equivariance_error
from scale_disco import nn as snn
from scale_disco.tasks.io.samples import photos

MAX = {1: snn.ScaleMaxPool1d, 2: snn.ScaleMaxPool2d, 3: snn.ScaleMaxPool3d}
AVG = {1: snn.ScaleAvgPool1d, 2: snn.ScaleAvgPool2d, 3: snn.ScaleAvgPool3d}


def maps(dims, side=16, scales=3, dtype=torch.float64):
    return torch.randn(2, 3, scales, *[side] * dims, dtype=dtype)


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_fixed_windows_are_those_of_torch_at_every_scale(dims, options):
    x = maps(dims)
    for pool, plain in ((MAX[dims], getattr(F, f"max_pool{dims}d")), (AVG[dims], getattr(F, f"avg_pool{dims}d"))):
        expected = torch.stack([plain(x[:, :, k], *options) for k in range(3)], 2)
        torch.testing.assert_close(pool(*options)(x), expected)


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), (3, 1, 1), (4, 2, 1)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_following_windows_equal_fixed_ones_at_the_first_scale(dims, options):
    x = maps(dims, side=13)
    for kind in (MAX, AVG):
        fixed, following = kind[dims](*options)(x), kind[dims](*options, scales=[1, 2, 4])(x)
        assert fixed.shape == following.shape
        inner = (slice(None), slice(None), 0, *[slice(2, -2)] * dims)
        torch.testing.assert_close(following[inner], fixed[inner])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", [MAX, AVG], ids=["max", "average"])
def test_following_windows_commute_with_subsampling(kind, dims, size):
    pool = kind[dims](size, 2, (size - 1) // 2, scales=[1, 2, 4])
    x = maps(dims, side={1: 128, 2: 64, 3: 64}[dims])
    assert equivariance_error(pool, x, [1, 2, 4], mode="nearest", spatial_dims=dims) < 1e-20
    assert equivariance_error(kind[dims](size), x, [1, 2, 4], mode="nearest", spatial_dims=dims) > 1e-3


def test_following_averages_are_optimal_between_integers():
    """An average of sqrt 2 times the width comes from the solver, and is better than one that stays as it is."""
    x = photos()[:, :, None].expand(-1, -1, 3, -1, -1)
    scales = [1, 2**0.5, 2]
    following, fixed = (snn.ScaleAvgPool2d(3, 1, 1, scales=s) for s in (scales, None))
    assert equivariance_error(following, x, scales) < equivariance_error(fixed, x, scales) / 5


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_blurring_commutes_with_subsampling(dims):
    blur = getattr(snn, f"ScaleBlurPool{dims}d")([1, 2, 4], stride=1)
    x = maps(dims, side={1: 128, 2: 64, 3: 64}[dims])
    assert equivariance_error(blur, x, [1, 2, 4], mode="nearest", spatial_dims=dims) < 1e-20


def test_blur_and_mean_at_the_first_scale():
    x = maps(1, side=16)
    expected = F.conv1d(x[:, :, 0, 1:].flatten(0, 1)[:, None], x.new_tensor([[[1, 3, 3, 1]]]) / 8, stride=2)
    y = snn.ScaleBlurPool1d([1, 2, 4])(x)[:, :, 0].flatten(0, 1)[:, None]
    torch.testing.assert_close(y[..., 1:-1], expected)


def test_windows_keep_what_is_constant():
    x = torch.full((1, 2, 3, 9, 9), 0.7)
    pools = snn.ScaleMaxPool2d(2, scales=[1, 1.5, 3]), snn.ScaleAvgPool2d(2, scales=[1, 1.5, 3])
    for pool in (*pools, snn.ScaleBlurPool2d([1, 1.5, 3])):
        torch.testing.assert_close(pool(x), torch.full((1, 2, 3, 4, 4), 0.7))


def test_upsampling_undoes_averaging_of_smooth_maps():
    line = torch.linspace(0, 1, 16).expand(1, 1, 3, 16, 16)
    back = snn.ScaleUpsample(2)(snn.ScaleAvgPool2d(2)(line))
    torch.testing.assert_close(back[..., 1:-1], line[..., 1:-1])


def test_upsampling_to_a_size():
    assert snn.ScaleUpsample()(maps(2), size=(21, 19)).shape == (2, 3, 3, 21, 19)
    for mode in ("nearest", "nearest-exact", "cubic"):
        assert snn.ScaleUpsample(3, mode)(maps(2)).shape == (2, 3, 3, 48, 48)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: snn.ScaleMaxPool2d(0), "ScaleMaxPool2d: kernel_size must be an integer >= 1, got 0"),
        (lambda: snn.ScaleAvgPool2d(2, stride=0), "ScaleAvgPool2d: stride must be an integer >= 1, got 0"),
        (lambda: snn.ScaleAvgPool2d(2, padding=2), "padding must be at most half of kernel_size 2, got 2"),
        (lambda: snn.ScaleMaxPool2d(3, 2, scales=[1, 2]), "padding must be 1 for kernel_size 3, got 0"),
        (lambda: snn.ScaleMaxPool2d(2)(maps(1)), r"expected input \[B, C, S, H, W\], got shape \(2, 3, 3, 16\)"),
        (lambda: snn.ScaleMaxPool2d(2, scales=[1, 2])(maps(2)), r"S = 2 \(its scales\), got shape \(2, 3, 3, 16, 16\)"),
        (lambda: snn.ScaleBlurPool2d([1, 2], 0), "ScaleBlurPool2d: stride must be an integer >= 1, got 0"),
        (lambda: snn.ScaleBlurPool2d([1, 2])(maps(2)), r"S = 2 \(its scales\), got shape \(2, 3, 3, 16, 16\)"),
        (lambda: snn.ScaleUpsample(0), "scale_factor must be a positive finite number, got 0"),
        (lambda: snn.ScaleUpsample(mode="area"), "mode must be one of nearest, .* got 'area'"),
        (lambda: snn.ScaleUpsample(mode="cubic")(maps(1)), "with 2 spatial axes, got shape"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
