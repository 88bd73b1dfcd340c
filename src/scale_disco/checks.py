"""Checks of arguments: each returns the value, or raises an error that names the caller, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeVar

T = TypeVar("T")


def check_count(who: str, name: str, value: object, least: int) -> int:
    """Return an integer that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{who}: {name} must be an integer >= {least}, got {value!r}")
    return int(value)


def check_positive(who: str, name: str, value: object) -> float:
    """Return a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not (math.isfinite(value) and float(value) > 0):
        raise ValueError(f"{who}: {name} must be a positive finite number, got {value!r}")
    return float(value)


def check_choice(who: str, name: str, value: T, choices: Iterable[T]) -> T:
    """Return a value that is one of the choices and of the same type."""
    choices = list(choices)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{who}: {name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    return value
