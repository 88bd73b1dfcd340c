"""Runs beside the paper's Tables 2 and 3."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ...models import default_options
from ..io.report import table
from ..runs.groups import RunGroup, TableRow, over_runs
from ..runs.outcomes import Outcome
from ..runs.plots import Point
from .training import RECIPES, Stl10Options


class Table2Entry(NamedTuple):
    """A column of Table 2, and of DISCO the rows of Table 3: equivariance errors of its bases, and errors with these.

    Errors are in per cent, on STL-10, of one run each; seconds are those of an epoch.
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
_WITHIN = ("model", "layout", "pools", "basis_steps", "seed")  # in which runs of one table may differ
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Stl10Options)}


class Variant(NamedTuple):
    """A network of the table, with what may be changed in it; None where it is as in the paper."""

    model: str
    layout: str | None
    pools: str | None

    @property
    def name(self) -> str:
        layout = f", {self.layout} layout" if self.layout else ""
        return f"{PAPER[self.model].name}{layout}" + (f", {self.pools} pools" if self.pools else "")


@dataclass(frozen=True)
class Tables2And3(RunGroup):
    """Networks of a depth and width, trained on the same images in the same way."""

    data: str  # by the name that its reader gave it

    settings = Stl10Options
    paper = PAPER
    data_of_paper = "STL-10"
    together = staticmethod(over_runs)  # all runs see the same test images

    @classmethod
    def sort(cls, found: Iterable[Outcome]) -> list[Self]:
        groups: dict[str, list[Outcome]] = {}
        for one in found:
            settings = {name: value for name, value in one.settings.as_dict().items() if name not in _WITHIN}
            settings["epochs"] = one.settings.full_recipe.epochs
            facts = one.record["facts"]
            groups.setdefault(json.dumps([settings, facts["name"], facts["train"]]), []).append(one)
        titles = [_title(members[0]) for members in groups.values()]
        tables = []
        for title, members in zip(titles, groups.values(), strict=True):
            facts = members[0].record["facts"]
            # The same name may be that of other images.
            more = f", images {facts['train'][:8]}" if titles.count(title) > 1 else ""
            tables.append(cls(title + more, members, facts["name"]))
        return tables

    def contests(self) -> dict[str, list[TableRow]]:
        return {_called(self.data): [self._row(variant) for variant in self._variants()]}

    def parts(self) -> list[str]:
        first, *others = super().parts()
        return [part for part in (first, self.table_of_bases(), *others) if part]

    def table(self) -> str:
        theirs = "paper, STL-10" if self.other_data() else "paper"
        header = ["model", "error, %", theirs, "s / epoch", "over WRN", "paper", "Eq. 14", "parameters"]
        rows = []
        for variant in self._variants():
            row, paper = self._row(variant), PAPER[variant.model]
            ratio = self._over_wrn(row)
            own = variant == Variant(variant.model, None, None)
            rows.append(
                [
                    row.name,
                    row.error_cell(),
                    f"{paper.error:.2f}" if own else "-",
                    f"{row.seconds:.{0 if row.seconds >= 10 else 1}f}" if row.measured else "-",
                    "-" if ratio is None else f"{ratio:.1f}",
                    f"{paper.seconds / PAPER[_WRN].seconds:g}" if own else "-",
                    row.equivariance_cell(),
                    row.parameters_cell(),
                ]
            )
        return table(header, rows, markdown=True)

    def table_of_bases(self) -> str:
        """Table 3: DISCO with bases whose descent was stopped, and with the optimum; empty without such runs."""
        rows = [[row.name, row.equivariance_cell(), row.error_cell()] for row in self._bases()]
        theirs = [["paper, STL-10", f"{value:.3f}", f"{error:.2f}"] for value, error in PAPER[_DISCO].bases]
        return table(["basis of DISCO", "Eq. 14", "error, %"], rows + theirs, markdown=True) if rows else ""

    def other_data(self) -> str:
        return "" if self.data == "stl10" else self.data

    def bars(self) -> str:
        counts = {len(row.measured) for row in next(iter(self.contests().values()))} - {0}
        if counts <= {1}:
            return "binomial deviations"
        return "deviations over seeds" + (" (of one run: binomial)" if 1 in counts else "")

    def points(self) -> list[Point]:
        """Of DISCO with every basis."""
        rows = self._bases() or [TableRow("optimum", self._row(Variant(_DISCO, None, None)).outcomes)]
        return [row.point(row.name) for row in rows if row.equivariance is not None]

    @classmethod
    def points_of_paper(cls) -> list[Point]:
        return [Point("", value, error, 0.0) for value, error in PAPER[_DISCO].bases]

    def _variants(self) -> list[Variant]:
        """Those of the paper, each with the others that were trained behind it."""
        trained = {_variant(one) for one in self.outcomes if one.settings.basis_steps is None}
        own = {Variant(model, None, None) for model in PAPER}
        order = list(PAPER)
        return sorted(own | trained, key=lambda one: (order.index(one.model), one.layout or "", one.pools or ""))

    def _row(self, variant: Variant, steps: int | None = None) -> TableRow:
        members = [one for one in self.outcomes if (_variant(one), one.settings.basis_steps) == (variant, steps)]
        return TableRow(variant.name, members)

    def _bases(self) -> list[TableRow]:
        """Rows of Table 3: by the steps of the descent, the optimum last."""
        stopped: dict[Variant, set[int]] = {}
        for one in self.outcomes:
            if one.settings.basis_steps is not None:
                stopped.setdefault(_variant(one), set()).add(one.settings.basis_steps)
        rows = []
        for variant in sorted(stopped, key=lambda one: (one.layout or "", one.pools or "")):
            words = variant.name.removeprefix(PAPER[_DISCO].name)
            for steps in (*sorted(stopped[variant]), None):
                name = "optimum" if steps is None else f"{steps} step{'' if steps == 1 else 's'}"
                rows.append(TableRow(f"{name}{words}", self._row(variant, steps).outcomes))
        return rows

    def _over_wrn(self, row: TableRow) -> float | None:
        """Seconds of an epoch over those of WRN on the same machine."""
        wrn = _by_machine(self._row(Variant(_WRN, None, None)))
        ratios = [seconds / wrn[machine] for machine, seconds in _by_machine(row).items() if wrn.get(machine)]
        return statistics.median(ratios) if ratios else None


def _variant(one: Outcome) -> Variant:
    usual = default_options(one.settings.model)
    chosen = {name: getattr(one.settings, name) for name in ("layout", "pools")}
    return Variant(
        one.settings.model, **{name: None if value == usual.get(name) else value for name, value in chosen.items()}
    )


def _by_machine(row: TableRow) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for one in row.measured:
        found.setdefault(one.record["machine"], []).append(one.seconds)
    return {machine: statistics.median(seconds) for machine, seconds in found.items()}


def _called(data: str) -> str:
    """STL-10 is what has its checksums, and nothing else."""
    return "STL-10" if data == "stl10" else data


def _title(one: Outcome) -> str:
    """What the runs have in common, with all settings that are not the usual ones."""
    settings, data = one.settings, one.record["facts"]["name"]
    words = [_called(data)]
    if settings.format == "folder":
        words[0] += f" at {settings.side} pixels"
    if data != "stl10":
        words.append("not STL-10")
    if settings.limit is not None:
        words.append(f"{settings.limit} training images")
    words.append(f"WRN-{settings.depth}-{settings.width}")
    epochs = settings.full_recipe.epochs
    stretched = "" if epochs == RECIPES[settings.recipe].epochs else f" stretched to {epochs} epochs"
    words.append(f"recipe {settings.recipe}{stretched}")
    told = {*_WITHIN, "format", "side", "limit", "depth", "width", "recipe", "epochs"}
    for name, value in settings.as_dict().items():
        if name not in told and value != _DEFAULTS[name]:
            words.append(f"{name.replace('_', ' ')} {_plain(value)}")
    return ", ".join(words)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
