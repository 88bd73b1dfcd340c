from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from scale_disco import Scales
from scale_disco.nn import ScaleDecision

LOGITS = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)) * 3


def test_reductions():
    mean_probability = LOGITS.softmax(1).mean(2)
    torch.testing.assert_close(ScaleDecision()(LOGITS).exp(), mean_probability)
    torch.testing.assert_close(ScaleDecision("max")(LOGITS), LOGITS.max(2).values)
    torch.testing.assert_close(ScaleDecision("mean")(LOGITS), LOGITS.mean(2))


def test_the_default_returns_log_probabilities():
    torch.testing.assert_close(ScaleDecision()(LOGITS).exp().sum(1), torch.ones(4))
    targets = torch.tensor([0, 1, 2, 3])
    expected = -LOGITS.softmax(1).mean(2)[range(4), targets].log().mean()
    torch.testing.assert_close(F.cross_entropy(ScaleDecision()(LOGITS), targets), expected)


def test_scales_that_cannot_tell_do_not_change_the_decision():
    """The decision of one certain scale outweighs many uncertain ones, unlike in the mean of logits."""
    flat = torch.zeros(4, 5, 20)
    more = torch.cat([5 * LOGITS[:, :, :1], flat], 2)
    assert torch.equal(ScaleDecision()(more).argmax(1), LOGITS[:, :, 0].argmax(1))


def test_large_logits_stay_finite():
    x = (1e4 * LOGITS).requires_grad_()
    F.cross_entropy(ScaleDecision()(x), torch.tensor([0, 1, 2, 3])).backward()
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("reduce", ["logsumexp", "max", "mean"])
def test_the_apparent_scale_follows_a_shift_along_the_scales(reduce):
    decision, scales = ScaleDecision(reduce), Scales.geometric(2**0.5, 7)
    logits = torch.zeros(1, 3, 7)
    logits[0, 1] = torch.tensor([-20.0, 2, 300, 2, -20, -20, -20])
    first, second = (decision.apparent_scale(x, scales) for x in (logits, logits.roll(2, 2)))
    assert math.isclose(float(first), scales[2], rel_tol=1e-5)
    assert math.isclose(float(second / first), 2, rel_tol=1e-5)
    torch.testing.assert_close(decision.posterior(LOGITS).sum(1), torch.ones(4))


def test_the_posterior_is_that_of_the_decided_class():
    decided = LOGITS.softmax(1).mean(2).argmax(1)
    expected = LOGITS.softmax(1)[range(4), decided]
    torch.testing.assert_close(ScaleDecision().posterior(LOGITS), expected / expected.sum(1, keepdim=True))


def test_maps_decide_at_every_position():
    maps = torch.randn(2, 5, 3, 4, 6)
    decision, scales = ScaleDecision(), (1, 2, 4)
    torch.testing.assert_close(decision(maps)[:, :, 1, 2], decision(maps[..., 1, 2]))
    torch.testing.assert_close(
        decision.apparent_scale(maps, scales)[:, 1, 2], decision.apparent_scale(maps[..., 1, 2], scales)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScaleDecision("median"), "reduce must be one of logsumexp, max, mean, got 'median'"),
        (lambda: ScaleDecision()(LOGITS[0]), r"expected logits \[B, K, S, ...\], got shape \(5, 3\)"),
        (lambda: ScaleDecision().apparent_scale(LOGITS[0], [1, 2]), r"expected logits \[B, K, S, ...\]"),
        (lambda: ScaleDecision().apparent_scale(LOGITS, [1, 2]), r"one entry per scale, got S = 3 and Scales\(1, 2\)"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
