"""NaN and infinity in an image are visible in its output, and reach no other image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scale_disco import Scales, functional
from scale_disco.convert.pools import GrowingMaxPool
from scale_disco.functional import _fft, _winograd
from tests.nn.test_every_layer import every_case
from tests.reliability.numbers import (
    CLOSE,
    dims_of,
    problems,
    relative_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*assumes equal steps")  # any scales will do


@every_case
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_values_are_visible_and_reach_no_other_image(case, value):
    layer, x = case.layer().eval(), case.input()
    expected = layer(x)
    x[0, 0, ..., *[4] * dims_of(case)] = value
    y = layer(x)
    assert not y[0].isfinite().all()
    assert relative_error(y[1:], expected[1:]) <= CLOSE[torch.float32]


@settings(max_examples=40)
@given(problem=problems(), value=st.sampled_from([torch.nan, torch.inf]))
def test_direct_path_spreads_non_finite_values_within_the_kernel(problem, value):
    layer, dims = problem.layer, problem.layer.spatial_dims
    x = torch.rand(problem.shape(1, ({1: 60, 2: 41, 3: 13}[dims],) * dims))
    spot = (..., *[6 if dims == 3 else 20] * dims)
    impulse = torch.zeros_like(x)
    impulse[spot] = 1.0
    x[spot] = value
    run = functional.lift if layer.lifting else functional.convolve
    reached = run(impulse, [torch.ones_like(kernel) for kernel in layer.kernels()], None, layer.layout) > 0
    assert torch.equal(~layer(x).isfinite() & ~reached, torch.zeros_like(reached))


def reached_from_non_finite(x, taps, step, more):
    """Return the pixels that a kernel with `more` additional taps per side reaches from non-finite ones."""
    bad = (~x.isfinite()).any(1, keepdim=True).float()
    side = 2 * step * (taps // 2 + more) + 1
    return nn.functional.max_pool2d(bad, side, 1, side // 2)[:, 0] > 0


@pytest.mark.parametrize(("taps", "step"), [(3, 1), (5, 1), (3, 2), (5, 2)])
def test_winograd_spreads_non_finite_values_three_taps_farther(taps, step):
    x, kernel = torch.randn(2, 8, 33, 30), torch.randn(6, 8, taps, taps)
    for row in range(8, 16):
        spoiled = x.clone()
        spoiled[0, 3, row, row + 5] = torch.nan
        y = _winograd.correlate(spoiled, kernel, step)
        bad = (~y.isfinite()).any(1)
        assert (reached_from_non_finite(spoiled, taps, 1, 0) & bad).any()
        assert not (bad & ~reached_from_non_finite(spoiled, taps, step, 3)).any()
        assert torch.equal(y[1], _winograd.correlate(x, kernel, step)[1])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e6, 1e30])
def test_fft_spreads_non_finite_values_within_their_image(value):
    x, kernel = torch.randn(16, 16, 20, 20), torch.randn(4, 16, 15, 15)
    expected = _fft.correlate(x, kernel)
    x[3, 5, 9, 9] = value
    y = _fft.correlate(x, kernel)
    others = [k for k in range(16) if k != 3]
    assert relative_error(y[others], expected[others]) <= CLOSE[torch.float32]
    assert y.isfinite().all() == (value < torch.inf)
    if value < torch.inf:
        assert relative_error(y, torch.conv2d(x, kernel, padding=7)) <= CLOSE[torch.float32]


def test_growing_windows_do_not_hide_nan():
    pool = GrowingMaxPool(nn.MaxPool2d(3, 2, 1), Scales([1, 2, 4]))
    x = torch.zeros(3, 1, 4, 4)  # so small that windows may reach over all of it
    x[..., 2, 2] = torch.nan
    assert pool(x)[:, 0, 0, 0].isnan().tolist() == [False, True, False]
    assert pool(x)[:, 0, 1, 1].isnan().all()
