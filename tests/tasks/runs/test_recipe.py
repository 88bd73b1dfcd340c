from __future__ import annotations

import pytest

from scale_disco.tasks.mnist_scale.options import RECIPES


def test_paper_divides_by_ten_after_20_and_40_epochs():
    paper, steps = RECIPES["paper"], 79  # of an epoch
    assert (paper.epochs, paper.batch, paper.learning_rate, paper.label_smoothing) == (60, 128, 0.01, 0)
    factors = [paper.lr_multiplier(step / (60 * steps)) for step in range(60 * steps)]
    expected = [1] * (20 * steps) + [0.1] * (20 * steps) + [0.01] * (20 * steps)
    assert factors == pytest.approx(expected)


def test_fast_goes_up_and_down_once():
    fast = RECIPES["fast"]
    assert fast.epochs <= 12
    factors = [fast.lr_multiplier(step / 100) for step in range(101)]
    assert (factors[0], factors[25], factors[100]) == (0, 1, 0)
    assert factors[:26] == sorted(factors[:26])
    assert factors[25:] == sorted(factors[25:], reverse=True)
