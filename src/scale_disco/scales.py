"""The scale factors of a basis, a layer or a measurement."""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from numbers import Real

from .checks import check_count, check_positive, short_repr

# Ratios that differ by less than this (relatively) are equal: far above the rounding of a product of floats, far below
# any step between scales that a kernel could resolve.
TOLERANCE = 1e-6
_MAX_RATIO = 1e6
_MAX_SCALES = 1000


class Scales:
    """Ascending scale factors, such as {1, sqrt 2, 2}.

    Only ratios matter to equivariance. Integer ratios and pairs of equal ratio are found with a relative tolerance of
    1e-6 on the factors themselves; rounding is for printing.

    Example:
        >>> scales = Scales.geometric(2 ** 0.5, 4)
        >>> scales
        Scales(1, 1.414, 2, 2.828)
        >>> scales.integer_ratio(3, 1), scales.integer_ratio(1, 0)
        (2, None)
    """

    __slots__ = ("_factors",)

    def __init__(self, factors: Iterable[float]) -> None:
        try:
            values = None if isinstance(factors, (str, bytes)) else list(factors)
        except TypeError:
            values = None
        if values is None:
            raise TypeError(f"Scales: expected a sequence of numbers, got {short_repr(factors)}")
        if not values:
            raise ValueError("Scales: expected at least one scale, got none")
        if len(values) > _MAX_SCALES:
            raise ValueError(f"Scales: expected at most {_MAX_SCALES:,} scales, got {len(values):,}")
        self._factors = tuple(check_positive("Scales", "every scale", value) for value in values)
        for low, high in pairwise(self._factors):
            if high <= low * (1 + TOLERANCE):
                rule = "different" if math.isclose(high, low, rel_tol=TOLERANCE) else "in ascending order"
                raise ValueError(f"Scales: scales must be {rule}, got {high:g} after {low:g}")
        low, high = self._factors[0], self._factors[-1]
        if high > _MAX_RATIO * low:
            raise ValueError(
                f"Scales: the largest must be at most {_MAX_RATIO:g} times the smallest, got {low:g} and {high:g}"
            )

    @classmethod
    def geometric(cls, step: float, count: int, *, start: float = 1.0) -> "Scales":
        """Return `count` scales `start * step**i`.

        Example:
            >>> list(Scales.geometric(2, 3))
            [1.0, 2.0, 4.0]
        """
        count = check_count("Scales.geometric", "count", count, 1)
        if not isinstance(step, Real) or not (math.isfinite(step) and step > 1 + TOLERANCE):
            raise ValueError(f"Scales.geometric: step must be a finite number > 1, got {step!r}")
        try:
            return cls(start * float(step) ** i for i in range(count))
        except OverflowError:
            raise ValueError(f"Scales.geometric: {step!r}**{count - 1} is too large for a scale") from None

    def ratio(self, k: int, l: int = 0) -> float:
        """Return scale `k` divided by scale `l`."""
        return self._factors[k] / self._factors[l]

    def integer_ratio(self, k: int, l: int = 0) -> int | None:
        """Return `ratio(k, l)` if it is an integer, else None."""
        return _as_integer(self.ratio(k, l))

    @property
    def step(self) -> float | None:
        """The ratio of neighboring scales if it is the same for all of them, else None."""
        ratios = [self.ratio(k + 1, k) for k in range(len(self) - 1)]
        equal = bool(ratios) and all(math.isclose(ratio, ratios[0], rel_tol=TOLERANCE) for ratio in ratios)
        return float(_as_integer(ratios[0]) or ratios[0]) if equal else None

    def steps(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """Return every ratio between two scales, ascending, with the pairs (k, l), k > l, that have it.

        Shrinking an image by the ratio moves the response at scale k to scale l, for each of its pairs.

        Example:
            >>> Scales([1, 2, 4]).steps()
            [(2.0, [(1, 0), (2, 1)]), (4.0, [(2, 0)])]
        """
        groups: list[tuple[float, list[tuple[int, int]]]] = []
        for ratio, pair in sorted((self.ratio(k, l), (k, l)) for k in range(len(self)) for l in range(k)):
            if groups and math.isclose(groups[-1][0], ratio, rel_tol=TOLERANCE):
                groups[-1][1].append(pair)
            else:
                groups.append((float(_as_integer(ratio) or ratio), [pair]))
        return [(ratio, sorted(pairs)) for ratio, pairs in groups]

    def __len__(self) -> int:
        return len(self._factors)

    def __getitem__(self, index: int) -> float:
        return self._factors[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self._factors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scales) and self._factors == other._factors

    def __hash__(self) -> int:
        return hash(self._factors)

    def __repr__(self) -> str:
        return f"Scales({', '.join(f'{factor:.4g}' for factor in self)})"


def as_scales(scales: Iterable[float]) -> Scales:
    """Return `scales` unchanged if they are `Scales`, else `Scales(scales)`."""
    return scales if isinstance(scales, Scales) else Scales(scales)


def _as_integer(ratio: float) -> int | None:
    nearest = round(ratio)
    return nearest if nearest >= 1 and math.isclose(ratio, nearest, rel_tol=TOLERANCE) else None
