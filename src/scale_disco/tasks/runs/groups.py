"""Runs that may stand in one table, and what all tables say of them."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from ..io.report import table
from .evaluate import bins_of
from .options import RunOptions, ScaleBin, span
from .outcomes import MISSING, Outcome
from .plots import Point, Range


class TableRow(NamedTuple):
    """Runs of one network: they differ in what they drew, not in what was asked for."""

    name: str
    outcomes: list[Outcome]

    @property
    def measured(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.tested is not None]

    @property
    def error(self) -> float:
        """The mean over runs, in per cent."""
        return statistics.mean(one.error for one in self.measured)

    @property
    def spread(self) -> float:
        """The standard deviation over runs, or the binomial one of a single run; in per cent."""
        return _spread([one.error for one in self.measured], self.measured[0].deviation)

    @property
    def variance(self) -> float:
        """Of the mean."""
        return self.spread**2 / len(self.measured)

    @property
    def equivariance(self) -> float | None:
        """Eq. 14 of its kernels, which no training changes."""
        return next((one.tested["equivariance error"] for one in self.measured if one.tested), None)

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return statistics.median(one.seconds for one in self.measured)

    def point(self, name: str) -> Point:
        """Error over equivariance error, if it has one."""
        assert self.equivariance is not None
        return Point(name, self.equivariance, self.error, self.spread)

    def error_cell(self) -> str:
        if not self.measured:
            return next((one.state for one in self.outcomes), MISSING)
        count = len(self.measured)
        return f"{self.error:.2f} ± {self.spread:.2f} ({count} run{'s' if count > 1 else ''})"

    def equivariance_cell(self) -> str:
        value = self.equivariance
        return "-" if value is None else "0" if value < 1e-9 else f"{value:.3g}"

    def parameters_cell(self) -> str:
        return next((f"{one.tested['parameters']:,}" for one in self.measured if one.tested), "-")


@dataclass(frozen=True)
class RunGroup(ABC):
    """Runs that may stand in one table."""

    title: str
    outcomes: list[Outcome]

    settings: ClassVar[type[RunOptions]]
    paper: ClassVar[Mapping[str, Any]]  # rows of the paper's table, by model
    data_of_paper: ClassVar[str]

    @classmethod
    @abstractmethod
    def sort(cls, found: Iterable[Outcome]) -> list[Self]:
        """Runs, sorted into tables."""

    @abstractmethod
    def contests(self) -> dict[str, list[TableRow]]:
        """Rows whose errors may be compared, by the name of what they were tested on; the first is the main one."""

    @abstractmethod
    def table(self) -> str:
        """The paper's table with our figures beside its own, as Markdown; test errors in per cent."""

    @abstractmethod
    def points(self) -> list[Point]:
        """Error over equivariance error."""

    @classmethod
    @abstractmethod
    def points_of_paper(cls) -> list[Point]:
        """The same in the paper."""

    @staticmethod
    @abstractmethod
    def together(bins: Sequence[ScaleBin]) -> tuple[float, float]:
        """Error and deviation of several runs at one scale."""

    def other_data(self) -> str:
        """The name of its data if these are not the paper's: such errors share no axis with the paper's."""
        return ""

    def bars(self) -> str:
        """What the deviations over the scale are."""
        return "binomial deviations"

    def parts(self) -> list[str]:
        """All there is to say, as Markdown."""
        return [part for part in (self.table(), self.gaps(), self.scale_table(), self.provenance()) if part]

    def gaps(self) -> str:
        """How far each model is behind the best one, with the deviation of the difference."""
        lines = []
        for name, rows in self.contests().items():
            ranking = sorted((row for row in rows if row.measured), key=lambda row: row.error)
            if len(ranking) > 1:
                best = ranking[0]
                others = [
                    f"{row.name} +{row.error - best.error:.2f} ± {(row.variance + best.variance) ** 0.5:.2f}"
                    for row in ranking[1:]
                ]
                lines.append(f"- {name}: best {best.name}; {'; '.join(others)} points")
        return "\n".join(lines)

    def curves(self) -> dict[str, list[Range]]:
        """Errors over the scale of images of every network of the main contest, all its runs together."""
        curves = {}
        for row in next(iter(self.contests().values())):
            places: dict[tuple[str, float, float], list[ScaleBin]] = {}
            for one in row.measured:
                assert one.tested is not None
                for part in bins_of(one.tested):
                    places.setdefault((part.kind, part.low, part.high), []).append(part)
            if places:
                curves[row.name] = [Range(*place, *self.together(bins)) for place, bins in places.items()]
        return curves

    def scale_table(self) -> str:
        """The same as Markdown, in per cent."""
        curves = self.curves()
        ranges = sorted({(one.low, one.high) for line in curves.values() for one in line})
        rows = []
        for low, high in ranges:
            row = [span(low, high)]
            for line in curves.values():
                found = next((one for one in line if (one.low, one.high) == (low, high)), None)
                row.append(MISSING if found is None else f"{100 * found.error:.2f} ± {100 * found.std:.2f}")
            rows.append(row)
        return table([f"scale of {self.settings.subject}", *curves], rows, markdown=True) if rows else ""

    def provenance(self) -> str:
        """How every figure was made: commands, versions, machines and dates."""
        lines = []
        for one in self.outcomes:
            if one.tested is not None:
                where = ", ".join(f"{name} {version}" for name, version in one.record["versions"].items())
                lines.append(
                    f"- `{one.settings.command}`, then `disco test`: "
                    f"{one.record['machine']}; {where}; {one.tested['date']}"
                )
        return "\n".join(lines)


def pooled(bins: Sequence[ScaleBin]) -> tuple[float, float]:
    """Error and binomial deviation of all images of several runs, if each run has its own."""
    images, errors = sum(one.images for one in bins), sum(one.errors for one in bins)
    whole = ScaleBin("", 0, 0, images, errors)
    return whole.error, whole.deviation


def over_runs(bins: Sequence[ScaleBin]) -> tuple[float, float]:
    """Mean error and standard deviation of several runs on the same images; of one run the binomial one."""
    errors = [one.error for one in bins]
    return statistics.mean(errors), _spread(errors, bins[0].deviation)


def _spread(values: Sequence[float], alone: float) -> float:
    return statistics.stdev(values) if len(values) > 1 else alone
