from __future__ import annotations

import pytest
import torch
from torch import nn

from scale_disco import nn as snn


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_statistics_are_shared_over_scales(dims):
    norm = getattr(snn, f"ScaleBatchNorm{dims}d")(4).double()
    x = torch.randn(3, 4, 2, *[6] * dims, dtype=torch.float64) * 3 + 1
    y = norm(x)
    flat = y.transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(4, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(flat.var(1, unbiased=False), torch.ones(4, dtype=torch.float64), atol=1e-4, rtol=0)
    assert not torch.allclose(y[:, :, 0].mean(), torch.zeros((), dtype=torch.float64), atol=1e-6)
    whole = nn.BatchNorm1d(4).double()  # statistics over everything but channels
    whole(x.transpose(0, 1).flatten(1).T)
    torch.testing.assert_close(norm.running_var, whole.running_var)


def test_state_is_that_of_torch():
    ours, theirs = snn.ScaleBatchNorm2d(4), nn.BatchNorm2d(4)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_dropout_zeros_channels_at_all_scales():
    x = torch.ones(64, 32, 3, 4, 4)
    y = snn.ScaleDropout(0.25)(x)
    per_channel = y.flatten(2)
    assert bool((per_channel == per_channel[:, :, :1]).all())
    dropped = float((per_channel[:, :, 0] == 0).float().mean())
    assert dropped == pytest.approx(0.25, abs=0.05)
    assert float(per_channel.max()) == pytest.approx(1 / 0.75)
    assert torch.equal(snn.ScaleDropout(0.25).eval()(x), x)
    snn.ScaleDropout(0.25, inplace=True)(x)
    assert bool((x == 0).any())


@pytest.mark.parametrize("shape", [(2, 3, 2, 8, 8), (2, 4, 8, 8)])
def test_invalid_input_raises_one_line_errors(shape):
    with pytest.raises(ValueError, match=r"ScaleBatchNorm2d: expected input \[B, C, S, H, W\] with C = 4, got shape"):
        snn.ScaleBatchNorm2d(4)(torch.rand(shape))
