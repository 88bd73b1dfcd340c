from __future__ import annotations

import math

import numpy as np
import pytest

from scale_disco.checks import check_choice, check_count, check_positive


def test_valid_values_are_returned():
    assert check_count("f", "n", np.int64(3), 1) == 3
    assert check_positive("f", "x", 2) == 2.0
    assert check_choice("f", "mode", "b", ["a", "b"]) == "b"


@pytest.mark.parametrize("value", [0, 1.0, True, "1", None])
def test_a_count_is_an_integer_with_a_lower_bound(value):
    with pytest.raises(ValueError, match=r"^f: n must be an integer >= 1, got "):
        check_count("f", "n", value, 1)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_a_positive_number_is_finite(value):
    with pytest.raises(ValueError, match=r"^f: x must be a positive finite number, got "):
        check_positive("f", "x", value)


@pytest.mark.parametrize("value", [4, 1.0, True, [], None])
def test_a_choice_is_of_the_same_type(value):
    with pytest.raises(ValueError, match=r"^f: order must be one of 1, 2, 3, got "):
        check_choice("f", "order", value, (1, 2, 3))
