"""Layers of the methods that the paper compares with."""

from ...checks import check_count


def check_odd(who: str, name: str, value: object) -> int:
    """Return a positive odd integer."""
    if (size := check_count(who, name, value, 1)) % 2 == 0:
        raise ValueError(f"{who}: {name} must be odd, got {size}")
    return size
