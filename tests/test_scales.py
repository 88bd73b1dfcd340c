from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco import Scales


def test_is_a_sequence_of_floats():
    scales = Scales([1, 1.5, 2.25])
    assert len(scales) == 3
    assert scales[1] == 1.5
    assert list(scales) == [1.0, 1.5, 2.25]
    assert all(isinstance(factor, float) for factor in Scales(np.array([1, 2])))
    assert scales == Scales((1, 1.5, 2.25))
    assert hash(scales) == hash(Scales((1, 1.5, 2.25)))


@given(root=st.integers(1, 7), octaves=st.integers(1, 3), start=st.floats(0.01, 100))
def test_finds_the_integer_ratios_of_a_geometric_set(root, octaves, start):
    scales = Scales.geometric(2 ** (1 / root), root * octaves + 1, start=start)
    for k in range(len(scales)):
        for l in range(k + 1):
            octave, rest = divmod(k - l, root)
            assert scales.integer_ratio(k, l) == (2**octave if rest == 0 else None)


def test_near_integers_are_not_integers():
    scales = Scales([1, 1.41, 1.9881, 2.0002])
    assert [scales.integer_ratio(k) for k in range(4)] == [1, None, None, None]


def test_rounded_multiples_count_as_multiples():
    # A user who rounds to four digits still has 2.8284 = 2 * 1.4142.
    assert Scales([1, 1.4142, 2, 2.8284]).integer_ratio(3, 1) == 2


def test_step_is_the_common_ratio_of_neighbors():
    assert Scales.geometric(2, 4).step == 2
    assert math.isclose(Scales.geometric(2**0.5, 9, start=0.3).step, 2**0.5)
    assert Scales([1, 2, 4, 7]).step is None
    assert Scales([1, 1.41, 2]).step is None
    assert Scales([2]).step is None


def test_steps_group_all_pairs_by_ratio():
    steps = Scales.geometric(2 ** (1 / 3), 4).steps()
    assert [pairs for _, pairs in steps] == [[(1, 0), (2, 1), (3, 2)], [(2, 0), (3, 1)], [(3, 0)]]
    assert steps[-1][0] == 2.0
    assert len(Scales([1, 1.3, 1.9, 2.2]).steps()) == 6


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([], "at least one"),
        ([2, 1], "ascending order, got 1 after 2"),
        ([1, 1], "different, got 1 after 1"),
        ([1, 1 + 1e-9], "different"),
        ([0, 1], "positive finite number, got 0"),
        ([-1, 1], "positive finite number, got -1"),
        ([1, math.nan], "positive finite number, got nan"),
        ([1, math.inf], "positive finite number, got inf"),
        (["1"], "positive finite number, got '1'"),
        ([True], "positive finite number, got True"),
        ([None], "positive finite number, got None"),
        ([1, 10**400], "positive finite number, got 1000"),
        (np.ones((30, 30)), "positive finite number, got array"),
        ([1e-320, 1e300], "at most 1e.06 times the smallest"),
    ],
)
def test_invalid_scales_raise_a_one_line_error(factors, message):
    with pytest.raises(ValueError, match=message) as caught:
        Scales(factors)
    assert str(caught.value).startswith("Scales: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factors", ["12", 2.0, None, np.float64(2), torch.tensor(2.0)])
def test_scales_must_be_a_sequence(factors):
    with pytest.raises(TypeError, match="expected a sequence of numbers"):
        Scales(factors)


@pytest.mark.parametrize(
    ("step", "count", "message"),
    [(1, 3, "step"), (0.5, 3, "step"), (math.nan, 3, "step"), (2, 0, "count"), (2, 1.5, "count"), (1e300, 3, "1e.300")],
)
def test_invalid_geometric_sets_raise_an_error(step, count, message):
    with pytest.raises(ValueError, match=message):
        Scales.geometric(step, count)
