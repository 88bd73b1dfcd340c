"""Runs next to the paper's Tables 2 and 3."""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from ...models import default_options
from ..io.report import table
from ..runs.plots import Point
from ..runs.record import METADATA
from ..runs.tables import Outcome, RunGroup, TableRow, over_runs
from .options import RECIPES


class Table2Entry(NamedTuple):
    """A column of Table 2: seconds per epoch, and the error on STL-10 of one run, in percent.

    `bases` holds the rows of Table 3: equivariance errors of bases, and the errors of networks with them.
    """

    name: str
    seconds: float
    error: float
    bases: tuple[tuple[float, float], ...] = ()


PAPER = {
    "stl10/wrn": Table2Entry("WRN", 10, 11.48),
    "stl10/sicnn": Table2Entry("SiCNN", 110, 11.62),
    "stl10/si-convnet": Table2Entry("SI-ConvNet", 55, 12.48),
    "stl10/dss": Table2Entry("DSS", 40, 11.28),
    "stl10/ss-cnn": Table2Entry("SS-CNN", 15, 25.47),
    "stl10/sesn-hermite": Table2Entry("SESN, Hermite", 165, 8.51),
    "stl10/disco": Table2Entry("DISCO", 50, 8.07, ((0.240, 8.63), (0.082, 8.25), (0.003, 8.07))),
}
_WRN, _DISCO = "stl10/wrn", "stl10/disco"
_VARIED = ("model", "layout", "pools", "basis_steps", "seed")  # options in which the runs of a table may differ


class Variant(NamedTuple):
    """A network of the table, and its options where they differ from the paper's."""

    model: str
    layout: str | None = None
    pools: str | None = None
    steps: int | None = None  # of a stopped descent to the basis (Table 3), not part of the name

    @property
    def name(self) -> str:
        layout = f", {self.layout} layout" if self.layout else ""
        return f"{PAPER[self.model].name}{layout}" + (f", {self.pools} pools" if self.pools else "")


@dataclass(frozen=True)
class Tables2And3(RunGroup):
    """Networks of one depth and width, trained on the same images in the same way."""

    data: str  # its name in the metadata

    experiment = "stl10"
    paper = PAPER
    data_of_paper = "STL-10"
    merge = staticmethod(over_runs)  # all runs are tested on the same images

    @classmethod
    def sort(cls, outcomes: Iterable[Outcome]) -> list[Self]:
        groups: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            common = {name: value for name, value in outcome.options.as_dict().items() if name not in _VARIED}
            common["epochs"] = outcome.options.full_recipe.epochs
            metadata = outcome.record[METADATA]
            groups.setdefault(json.dumps([common, metadata["name"], metadata["train"]]), []).append(outcome)
        titles = [_title(members[0]) for members in groups.values()]
        tables = []
        for title, members in zip(titles, groups.values(), strict=True):
            metadata = members[0].record[METADATA]
            # Other images may have the same name.
            checksum = f", images {metadata['train'][:8]}" if titles.count(title) > 1 else ""
            tables.append(cls(title + checksum, members, metadata["name"]))
        return tables

    def comparisons(self) -> dict[str, list[TableRow]]:
        return {_data_name(self.data): [self._row(variant) for variant in self._variants()]}

    def parts(self) -> list[str]:
        first, *others = super().parts()
        return [part for part in (first, self.table_of_bases(), *others) if part]

    def table(self) -> str:
        theirs = "paper, STL-10" if self.other_data() else "paper"
        header = ["model", "error, %", theirs, "s / epoch", "over WRN", "paper", "Eq. 14", "parameters"]
        wrn, rows = _seconds_by_machine(self._row(Variant(_WRN))), []
        for variant in self._variants():
            row, paper = self._row(variant), PAPER[variant.model]
            # Times of an epoch over those of WRN on the same machine.
            ratios = [value / wrn[machine] for machine, value in _seconds_by_machine(row).items() if wrn.get(machine)]
            of_paper = variant == Variant(variant.model)
            cells = [row.name, row.error_cell(), f"{paper.error:.2f}" if of_paper else "-"]
            cells += [f"{row.seconds:.{0 if row.seconds >= 10 else 1}f}" if row.measured else "-"]
            cells += [f"{statistics.median(ratios):.1f}" if ratios else "-"]
            cells += [f"{paper.seconds / PAPER[_WRN].seconds:g}" if of_paper else "-"]
            rows.append([*cells, row.equivariance_cell(), row.parameters_cell()])
        return table(header, rows, markdown=True)

    def table_of_bases(self) -> str:
        """Return Table 3: DISCO with bases of a stopped descent, and with the optimum; empty without such runs."""
        rows = [[row.name, row.equivariance_cell(), row.error_cell()] for row in self._bases()]
        theirs = [["paper, STL-10", f"{value:.3f}", f"{error:.2f}"] for value, error in PAPER[_DISCO].bases]
        return table(["basis of DISCO", "Eq. 14", "error, %"], rows + theirs, markdown=True) if rows else ""

    def other_data(self) -> str:
        return "" if self.data == "stl10" else self.data

    def bars(self) -> str:
        counts = {len(row.measured) for row in next(iter(self.comparisons().values()))} - {0}
        if counts <= {1}:
            return super().bars()
        return "standard deviations over seeds" + (" (of one run: binomial)" if 1 in counts else "")

    def points(self) -> list[Point]:
        """Return those of DISCO with every basis."""
        rows = self._bases() or [TableRow("optimum", self._row(Variant(_DISCO)).outcomes)]
        return [row.point() for row in rows if row.equivariance is not None]

    @classmethod
    def points_of_paper(cls) -> list[Point]:
        return [Point("", value, error, 0.0) for value, error in PAPER[_DISCO].bases]

    def _variants(self) -> list[Variant]:
        """Return the networks of the paper, each followed by its trained variants."""
        trained = {variant for outcome in self.outcomes if (variant := _variant(outcome)).steps is None}
        return sorted(trained | {Variant(model) for model in PAPER}, key=_position)

    def _row(self, variant: Variant) -> TableRow:
        return TableRow(variant.name, [outcome for outcome in self.outcomes if _variant(outcome) == variant])

    def _bases(self) -> list[TableRow]:
        """Return the rows of Table 3: by the steps of the descent, the optimum last."""
        stopped = {variant for outcome in self.outcomes if (variant := _variant(outcome)).steps is not None}
        rows = []
        for variant in sorted(stopped | {variant._replace(steps=None) for variant in stopped}, key=_position):
            name = "optimum" if variant.steps is None else f"{variant.steps} step{'' if variant.steps == 1 else 's'}"
            suffix = variant.name.removeprefix(PAPER[_DISCO].name)
            rows.append(TableRow(f"{name}{suffix}", self._row(variant).outcomes))
        return rows


def _variant(outcome: Outcome) -> Variant:
    defaults = default_options(outcome.options.model)
    values = {name: getattr(outcome.options, name) for name in ("layout", "pools")}
    changed = {name: value for name, value in values.items() if value != defaults.get(name)}
    return Variant(outcome.options.model, **changed, steps=outcome.options.basis_steps)


def _position(variant: Variant) -> tuple[int, str, str, float]:
    steps = math.inf if variant.steps is None else variant.steps
    return list(PAPER).index(variant.model), variant.layout or "", variant.pools or "", steps


def _seconds_by_machine(row: TableRow) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for outcome in row.measured:
        seconds.setdefault(outcome.record["machine"], []).append(outcome.seconds)
    return {machine: statistics.median(values) for machine, values in seconds.items()}


def _data_name(data: str) -> str:
    """Return the name for the reader; only data with the checksums of STL-10 is named stl10."""
    return "STL-10" if data == "stl10" else data


def _title(outcome: Outcome) -> str:
    """Return what the runs have in common, with all options that are not at their defaults."""
    options, data = outcome.options, outcome.record[METADATA]["name"]
    parts = [_data_name(data)]
    if options.format == "folder":
        parts[0] += f" at {options.side} pixels"
    if data != "stl10":
        parts.append("not STL-10")
    if options.limit is not None:
        parts.append(f"{options.limit} training images")
    parts.append(f"WRN-{options.depth}-{options.width}")
    epochs = options.full_recipe.epochs
    stretched = "" if epochs == RECIPES[options.recipe].epochs else f" stretched to {epochs} epochs"
    parts.append(f"recipe {options.recipe}{stretched}")
    named = {*_VARIED, "format", "side", "limit", "depth", "width", "recipe", "epochs"}
    for name, each in options.fields().items():
        value = getattr(options, name)
        if name not in named and value != each.default:
            parts.append(f"{name.replace('_', ' ')} {f'{value:g}' if isinstance(value, float) else value}")
    return ", ".join(parts)
