"""Accuracy over sizes, next to what STIR reports."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from ..io.figures import Figure
from ..io.report import table
from ..runs.experiments import ScaleBin
from ..runs.plots import Range
from ..runs.tables import MISSING, Outcome, RunGroup, TableRow, over_runs
from .plots import SizeCurve, plot_sizes

_SHOWN = {"stir-mnist": (17, 24, 32, 40, 48, 56, 64), "mnist-large-scale": (14, 28, 40, 56, 79, 112, 158, 224)}
_CNN = "generalization/cnn"


class StirEntry(NamedTuple):
    """A network, and its mean accuracy over 17 to 64 pixels by scenario in percent, as far as STIR reports it."""

    name: str
    accuracy: Mapping[str, float]


PAPER = {
    _CNN: StirEntry("CNN", {"1": 63.4, "4": 91.3}),
    "generalization/ensemble": StirEntry("octave ensemble", {"1": 92.8}),
    "generalization/sesn-hermite": StirEntry("SESN, Hermite", {"1": 74.7}),
    "generalization/disco": StirEntry("DISCO", {"1": 77.9, "4": 90.7}),
    "generalization/decimated": StirEntry("decimated", {}),
}


@dataclass(frozen=True)
class SizeTable(RunGroup):
    """Networks trained on digits of the same sizes by the same recipe."""

    data_set: str
    scenario: str

    experiment = "generalization"
    paper = PAPER
    data_of_paper = "STIR-MNIST"
    merge = staticmethod(over_runs)

    @classmethod
    def sort(cls, outcomes: Iterable[Outcome]) -> list[Self]:
        groups: dict[tuple[str, str, str], list[Outcome]] = {}
        for outcome in outcomes:
            options = outcome.options
            low, high = options.training_sizes
            sizes = f"{low} pixels" if low == high else f"{low} to {high} pixels"
            title = f"{options.data_set}, trained on {sizes}, recipe {options.recipe}"
            title += f", {options.full_recipe.epochs} epochs"
            title += "" if options.limit is None else f", {options.limit} training images"
            groups.setdefault((title, options.data_set, options.scenario), []).append(outcome)
        return [cls(key[0], members, *key[1:]) for key, members in sorted(groups.items())]

    def comparisons(self) -> dict[str, list[TableRow]]:
        members: dict[str, list[Outcome]] = {}
        for outcome in sorted(self.outcomes, key=lambda outcome: [*PAPER].index(outcome.options.model)):
            members.setdefault(_name(outcome), []).append(outcome)
        return {self.data_set: [TableRow(name, outcomes) for name, outcomes in members.items()]}

    def table(self) -> str:
        """Return a line for every network and every set of scales that it was tested with; accuracies in percent."""
        shown = _SHOWN[self.data_set]
        header = ["model", "scales at test time", "mean over sizes", "worst size", "best size", *map(str, shown)]
        header += ["STIR", "parameters", "s / epoch", "over CNN"]
        rows = []
        (networks,) = self.comparisons().values()
        times = [row.seconds for row in networks if row.measured and row.outcomes[0].options.model == _CNN]
        for network in networks:
            if not network.measured:
                rows.append([network.name, network.error_cell(), *["-"] * (len(header) - 2)])
            for kind, curve in self._by_scales(network).items():
                accuracy = {point.low: 100 - 100 * point.error for point in curve}
                errors = ([each.error for each in outcome.bins if each.kind == kind] for outcome in network.outcomes)
                means = [100 - 100 * statistics.mean(of_run) for of_run in errors if of_run]
                std = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
                entry = PAPER[network.outcomes[0].options.model]
                published = entry.accuracy.get(self.scenario) if self.data_set == "stir-mnist" else None
                row = [network.name, "as in training" if kind == "test" else kind, f"{statistics.mean(means):.1f}{std}"]
                row += [f"{min(accuracy.values()):.1f}", f"{max(accuracy.values()):.1f}"]
                row += [f"{accuracy[size]:.1f}" if size in accuracy else MISSING for size in shown]
                row += ["-" if published is None else f"{published:.1f}", network.parameters_cell()]
                row += [f"{network.seconds:.0f}", f"{network.seconds / times[0]:.2f}" if times else "-"]
                rows.append(row)
        return table(header, rows, markdown=True)

    def curves(self) -> dict[str, list[Range]]:
        """Return errors over the size of every network, with every set of scales."""
        return {name: curve.errors for name, curve in self._size_curves().items()}

    def _size_curves(self) -> dict[str, SizeCurve]:
        (networks,) = self.comparisons().values()
        return {
            network.name if kind == "test" else f"{network.name}, {kind}": SizeCurve(curve, network.seconds)
            for network in networks
            for kind, curve in self._by_scales(network).items()
        }

    def _by_scales(self, network: TableRow) -> dict[str, list[Range]]:
        """Return the errors over the size by the set of scales, merged over runs."""
        by_kind: dict[str, dict[float, list[ScaleBin]]] = {}
        for each in (each for outcome in network.outcomes for each in outcome.bins):
            by_kind.setdefault(each.kind, {}).setdefault(each.low, []).append(each)
        return {
            kind: [Range(kind, size, size, *self.merge(bins)) for size, bins in sorted(sizes.items())]
            for kind, sizes in by_kind.items()
        }

    def gaps(self) -> str:
        return ""  # the table has the means over sizes, with every set of scales

    @classmethod
    def figure(cls, groups: Sequence[Self]) -> Figure:
        """Return accuracies over the size, and over the time of an epoch."""
        curves = {group.title: (group.outcomes[0].options.training_sizes, group._size_curves()) for group in groups}
        return plot_sizes(curves)


def _name(outcome: Outcome) -> str:
    options = outcome.options
    name = PAPER[options.model].name
    scales = options.scale_set(options.scales)
    if scales is not None:
        how = "decisions at every scale" if options.head == "decide" else "largest responses projected"
        name += f", {len(scales)} scales, {how}"
    return f"{name}, scale augmentation" if options.augment else name
