"""Results of runs, and tables of them next to the paper's."""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from ..io.figures import Figure
from ..io.report import binomial_std, table
from .evaluate import bins_of
from .experiments import EXPERIMENTS, ScaleBin, range_label
from .plots import Point, Range, plot_equivariance_and_error
from .record import RECORD, options_of, read_record, read_tested

MISSING = "missing"


@dataclass(frozen=True)
class Outcome:
    """A run, with its results on the whole test set if it has been tested."""

    run: Path
    options: Any
    record: dict[str, Any]
    tested: dict[str, Any] | None

    @property
    def error(self) -> float:
        """Test error, in percent."""
        assert self.tested is not None
        return 100 * float(self.tested["errors"]) / float(self.tested["images"])

    @property
    def std(self) -> float:
        """Binomial standard deviation of the error, in percent."""
        assert self.tested is not None
        return 100 * binomial_std(self.tested["errors"], self.tested["images"])

    @property
    def bins(self) -> list[ScaleBin]:
        """Errors over the scale, ascending."""
        return [] if self.tested is None else bins_of(self.tested)

    @property
    def seconds(self) -> float:
        """Median time of an epoch, validation included."""
        return float(statistics.median(row["seconds"] for row in self.record["epochs"]))

    @property
    def state(self) -> str:
        """Why there is no result."""
        done, epochs = len(self.record["epochs"]), self.options.full_recipe.epochs
        return f"{MISSING} (not tested)" if done == epochs else f"{MISSING} ({done} of {epochs} epochs)"


def outcomes(folders: Sequence[Path], experiment: str) -> list[Outcome]:
    """Return all runs of an experiment in these folders: runs, or folders of runs; each once."""
    by_path: dict[Path, Outcome] = {}
    for folder in folders:
        runs = sorted(path.parent for path in folder.rglob(RECORD)) if folder.is_dir() else []
        if not runs:
            raise FileNotFoundError(f"{folder}: no training run in it: no {RECORD}")
        for run in runs:
            record, tested = read_record(run), read_tested(run)
            options = options_of(record)
            counts = tested and tested["complete"] and tested["checkpoint"] == options.full_recipe.weights
            by_path.setdefault(run.resolve(), Outcome(run, options, record, tested if counts else None))
    chosen = [outcome for outcome in by_path.values() if outcome.options.experiment == experiment]
    if not chosen:
        others = ", ".join(sorted({outcome.options.experiment for outcome in by_path.values()}))
        raise ValueError(f"no run of {experiment} in {', '.join(map(str, folders))}: those are of {others}")
    return chosen


class TableRow(NamedTuple):
    """Runs of one network, which differ in nothing but seeds and splits."""

    name: str
    outcomes: list[Outcome]

    @property
    def measured(self) -> list[Outcome]:
        """Runs that have been tested."""
        return [outcome for outcome in self.outcomes if outcome.tested is not None]

    @property
    def error(self) -> float:
        """Mean over runs, in percent."""
        return statistics.mean(outcome.error for outcome in self.measured)

    @property
    def std(self) -> float:
        """Standard deviation over runs, or the binomial one of a single run, in percent."""
        return _std([outcome.error for outcome in self.measured], self.measured[0].std)

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        return self.std**2 / len(self.measured)

    @property
    def equivariance(self) -> float | None:
        """Eq. 14 of its kernels, which training does not change."""
        return next((outcome.tested["equivariance error"] for outcome in self.measured if outcome.tested), None)

    @property
    def seconds(self) -> float:
        """Median time of an epoch."""
        return statistics.median(outcome.seconds for outcome in self.measured)

    def point(self) -> Point:
        """Return its error and equivariance error for a plot."""
        assert self.equivariance is not None
        return Point(self.name, self.equivariance, self.error, self.std)

    def error_cell(self) -> str:
        """Return the cell of the error, or why there is none."""
        if not self.measured:
            return next((outcome.state for outcome in self.outcomes), MISSING)
        count = len(self.measured)
        return f"{self.error:.2f} ± {self.std:.2f} ({count} run{'s' if count > 1 else ''})"

    def equivariance_cell(self) -> str:
        value = self.equivariance
        return "-" if value is None else "0" if value < 1e-9 else f"{value:.3g}"

    def parameters_cell(self) -> str:
        return next((f"{outcome.tested['parameters']:,}" for outcome in self.measured if outcome.tested), "-")


@dataclass(frozen=True)
class RunGroup(ABC):
    """Runs of one table: trained on the same data in the same way."""

    title: str
    outcomes: list[Outcome]

    experiment: ClassVar[str]
    paper: ClassVar[Mapping[str, Any]]  # rows of the paper's table, by model
    data_of_paper: ClassVar[str]

    @classmethod
    @abstractmethod
    def sort(cls, outcomes: Iterable[Outcome]) -> list[Self]:
        """Group runs into tables."""

    @abstractmethod
    def comparisons(self) -> dict[str, list[TableRow]]:
        """Return rows whose errors are comparable, by the name of their test data; the first is the main comparison."""

    @abstractmethod
    def table(self) -> str:
        """Return the paper's table with our results next to its own, as Markdown; test errors in percent."""

    def points(self) -> list[Point]:
        """Return error and equivariance error of every network, for `figure`."""
        return []

    @classmethod
    def points_of_paper(cls) -> list[Point]:
        """Return the same from the paper."""
        return []

    @classmethod
    def figure(cls, groups: Sequence[Self]) -> Figure:
        """Return the plot of several tables: error and equivariance error, ours and the paper's."""
        ours = [point for group in groups for point in group.points()]
        other = ", ".join(dict.fromkeys(name for group in groups if (name := group.other_data())))
        return plot_equivariance_and_error(ours, cls.points_of_paper(), (other, cls.data_of_paper) if other else None)

    @staticmethod
    @abstractmethod
    def merge(bins: Sequence[ScaleBin]) -> tuple[float, float]:
        """Return error and std of several runs at one scale."""

    def other_data(self) -> str:
        """Return the name of the data if it is not the paper's; such errors have an axis of their own in plots."""
        return ""

    def bars(self) -> str:
        """Describe the error bars over the scale."""
        return "binomial standard deviations"

    def parts(self) -> list[str]:
        """Return all sections as Markdown."""
        return [part for part in (self.table(), self.gaps(), self.scale_table(), self.provenance()) if part]

    def gaps(self) -> str:
        """Return the gap of every model to the best one, with the std of the difference."""
        lines = []
        for name, rows in self.comparisons().items():
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
        """Return errors over the scale of every network of the main comparison, merged over its runs.

        Test sets named "NAME, VARIANT" are of another form of the network, with a curve of its own.
        """
        curves: dict[str, list[Range]] = {}
        for row in next(iter(self.comparisons().values())):
            by_range: dict[tuple[str, str, float, float], list[ScaleBin]] = {}
            for scale_bin in (scale_bin for outcome in row.outcomes for scale_bin in outcome.bins):
                kind, _, variant = scale_bin.kind.partition(", ")
                name = f"{row.name}, {variant}" if variant else row.name
                by_range.setdefault((name, kind, scale_bin.low, scale_bin.high), []).append(scale_bin)
            for (name, kind, low, high), bins in by_range.items():
                curves.setdefault(name, []).append(Range(kind, low, high, *self.merge(bins)))
        return curves

    def scale_table(self) -> str:
        """Return the same as Markdown, in percent."""
        cells = {
            name: {(point.low, point.high): f"{100 * point.error:.2f} ± {100 * point.std:.2f}" for point in curve}
            for name, curve in self.curves().items()
        }
        ranges = sorted({key for column in cells.values() for key in column})
        rows = [[range_label(*key), *(column.get(key, MISSING) for column in cells.values())] for key in ranges]
        subject = EXPERIMENTS[self.experiment].subject
        return table([f"scale of {subject}", *cells], rows, markdown=True) if rows else ""

    def provenance(self) -> str:
        """Return commands, versions, machines and dates of all results."""
        lines = []
        for outcome in self.outcomes:
            if outcome.tested is not None:
                versions = ", ".join(f"{name} {version}" for name, version in outcome.record["versions"].items())
                where = f"{outcome.record['machine']}; {versions}; {outcome.tested['date']}"
                lines.append(f"- `{outcome.options.command}`, then `disco test`: {where}")
        return "\n".join(lines)


def pooled(bins: Sequence[ScaleBin]) -> tuple[float, float]:
    """Return error and binomial std over all images of several runs, each tested on images of its own."""
    images, errors = sum(each.images for each in bins), sum(each.errors for each in bins)
    return errors / images, binomial_std(errors, images)


def over_runs(bins: Sequence[ScaleBin]) -> tuple[float, float]:
    """Return mean error and std over several runs on the same images; of a single run the binomial std."""
    errors = [each.error for each in bins]
    return statistics.mean(errors), _std(errors, bins[0].std)


def _std(values: Sequence[float], single: float) -> float:
    return statistics.stdev(values) if len(values) > 1 else single
