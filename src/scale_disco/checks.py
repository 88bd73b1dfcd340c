"""Checks of arguments: each returns the value, or raises an error that names the caller, the rule and the value."""

import math
import reprlib
from collections.abc import Iterable
from numbers import Integral
from typing import Any, TypeVar

T = TypeVar("T")


def check_count(who: str, name: str, value: object, least: int) -> int:
    """Return an integer that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{who}: {name} must be an integer >= {least}, got {value!r}")
    return int(value)


def check_positive(who: str, name: str, value: Any) -> float:
    """Return a positive finite number."""
    try:
        number = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{who}: {name} must be a positive finite number, got {short_repr(value)}")
    return number


def check_choice(who: str, name: str, value: T, choices: Iterable[T]) -> T:
    """Return a value that is one of the choices and of the same type."""
    choices = list(choices)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{who}: {name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    return value


def short_repr(value: object) -> str:
    """Return `repr(value)`, abbreviated to one line."""
    return " ".join(reprlib.repr(value).split())
