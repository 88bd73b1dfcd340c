"""Runs next to the paper's Table 1."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from ...models import list_models
from ..io.report import table
from ..runs.plots import Point
from ..runs.tables import Outcome, RunGroup, TableRow, pooled
from .options import RECIPES


class Table1Entry(NamedTuple):
    """A row of Table 1: errors in percent with their std over six splits, and Eq. 14, as far as the paper has them."""

    name: str
    plain: tuple[float, float] | None
    augmented: tuple[float, float] | None
    equivariance: float | None


PAPER = {
    "mnist/cnn": Table1Entry("CNN", (2.02, 0.07), (1.60, 0.09), None),
    "mnist/sicnn": Table1Entry("SiCNN", (2.02, 0.14), (1.59, 0.03), None),
    "mnist/si-convnet": Table1Entry("SI-ConvNet", (1.82, 0.11), (1.59, 0.10), None),
    "mnist/sevf": Table1Entry("SEVF", (2.12, 0.13), (1.81, 0.09), None),
    "mnist/dss": Table1Entry("DSS", (1.97, 0.08), (1.57, 0.09), 0.0),
    "mnist/ss-cnn": Table1Entry("SS-CNN", (1.84, 0.10), (1.76, 0.07), None),
    "mnist/sesn-hermite": Table1Entry("SESN, Hermite", (1.68, 0.06), (1.42, 0.07), 0.107),
    "mnist/sesn-bspline": Table1Entry("SESN, B-spline", (1.74, 0.08), (1.49, 0.05), 0.163),
    "mnist/sesn-fourier": Table1Entry("SESN, Fourier", (1.88, 0.07), (1.55, 0.07), 0.170),
    "mnist/sesn-radial": Table1Entry("SESN, Radial", (1.74, 0.07), (1.55, 0.10), 0.200),
    "mnist/disco": Table1Entry("DISCO", (1.52, 0.06), (1.35, 0.05), 0.004),
    # Not of the paper: other heads and grids, and the networks of the quickstart.
    "mnist/disco-decide": Table1Entry("DISCO, decisions at every scale", None, None, 0.004),
    "mnist/decimated": Table1Entry("decimated", None, None, None),
    "mnist/decimated-decide": Table1Entry("decimated, decisions at every scale", None, None, None),
    "digits/cnn": Table1Entry("CNN", None, None, None),
    "digits/sesn-hermite": Table1Entry("SESN, Hermite", None, None, 0.107),
    "digits/disco": Table1Entry("DISCO", None, None, 0.004),
}


@dataclass(frozen=True)
class Table1(RunGroup):
    """Networks of one family, on splits of the same size, trained by the same recipe."""

    models: list[str]

    experiment = "mnist-scale"
    paper = PAPER
    data_of_paper = "MNIST-scale"
    merge = staticmethod(pooled)  # every split has test images of its own

    @classmethod
    def sort(cls, outcomes: Iterable[Outcome]) -> list[Self]:
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in outcomes:
            options, recipe = outcome.options, outcome.options.full_recipe
            family = options.model.partition("/")[0]
            stretched = "" if recipe == RECIPES[options.recipe] else f" stretched to {recipe.epochs} epochs"
            data = "MNIST-scale, mini stand-in" if options.split == "mini" else "MNIST-scale"
            data += "" if options.limit is None else f", {options.limit} training images"
            data += ", small networks" if family == "digits" else ""
            groups.setdefault((f"{data}, recipe {options.recipe}{stretched}", family), []).append(outcome)
        return [cls(title, members, list_models(family)) for (title, family), members in groups.items()]

    def comparisons(self) -> dict[str, list[TableRow]]:
        members: dict[tuple[str, bool], list[Outcome]] = {}
        for outcome in self.outcomes:
            members.setdefault((outcome.options.model, outcome.options.augment), []).append(outcome)
        return {
            name: [TableRow(PAPER[model].name, members.get((model, augment), [])) for model in self.models]
            for name, augment in (("MNIST", False), ("MNIST+", True))
        }

    def table(self) -> str:
        header = ["model", "MNIST", "paper", "MNIST+", "paper", "Eq. 14", "paper", "parameters", "s / epoch"]
        rows = []
        for model, plain, augmented in zip(self.models, *self.comparisons().values(), strict=True):
            paper = PAPER[model]
            both = TableRow(paper.name, plain.outcomes + augmented.outcomes)
            row = [paper.name]
            for ours, theirs in ((plain, paper.plain), (augmented, paper.augmented)):
                row += [ours.error_cell(), f"{theirs[0]:.2f} ± {theirs[1]:.2f}" if theirs else "-"]
            row += [both.equivariance_cell(), "-" if paper.equivariance is None else f"{paper.equivariance:.3f}"]
            row += [both.parameters_cell(), f"{both.seconds:.0f}" if both.measured else "-"]
            rows.append(row)
        return table(header, rows, markdown=True)

    def points(self) -> list[Point]:
        """Return those of every model trained without augmentation."""
        return [row.point() for row in self.comparisons()["MNIST"] if row.equivariance is not None]

    @classmethod
    def points_of_paper(cls) -> list[Point]:
        return [
            Point(row.name, row.equivariance, *row.plain)
            for row in PAPER.values()
            if row.plain is not None and row.equivariance is not None
        ]
