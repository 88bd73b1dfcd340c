"""Runs beside the paper's Table 1."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..models import list_models
from ..report import deviation, table
from .evaluate import bins_of
from .mnist_scale import RECIPES
from .record import RECORD, read_record, read_tested, settings_of
from .settings import Bin

MISSING = "missing"


class Paper(NamedTuple):
    """A row of Table 1: errors in per cent with their deviations over six realisations, and Eq. 14; what it has."""

    name: str
    plain: tuple[float, float] | None
    augmented: tuple[float, float] | None
    equivariance: float | None


PAPER = {
    "mnist/cnn": Paper("CNN", (2.02, 0.07), (1.60, 0.09), None),
    "mnist/sicnn": Paper("SiCNN", (2.02, 0.14), (1.59, 0.03), None),
    "mnist/si-convnet": Paper("SI-ConvNet", (1.82, 0.11), (1.59, 0.10), None),
    "mnist/sevf": Paper("SEVF", (2.12, 0.13), (1.81, 0.09), None),
    "mnist/dss": Paper("DSS", (1.97, 0.08), (1.57, 0.09), 0.0),
    "mnist/ss-cnn": Paper("SS-CNN", (1.84, 0.10), (1.76, 0.07), None),
    "mnist/sesn-hermite": Paper("SESN, Hermite", (1.68, 0.06), (1.42, 0.07), 0.107),
    "mnist/sesn-bspline": Paper("SESN, B-spline", (1.74, 0.08), (1.49, 0.05), 0.163),
    "mnist/sesn-fourier": Paper("SESN, Fourier", (1.88, 0.07), (1.55, 0.07), 0.170),
    "mnist/sesn-radial": Paper("SESN, Radial", (1.74, 0.07), (1.55, 0.10), 0.200),
    "mnist/disco": Paper("DISCO", (1.52, 0.06), (1.35, 0.05), 0.004),
    "digits/cnn": Paper("CNN", None, None, None),  # of the quickstart, not of the paper
    "digits/sesn-hermite": Paper("SESN, Hermite", None, None, 0.107),
    "digits/disco": Paper("DISCO", None, None, 0.004),
}


@dataclass(frozen=True)
class Outcome:
    """A run, with what was measured on it if it was tested in whole."""

    run: Path
    settings: Any
    record: dict[str, Any]
    tested: dict[str, Any] | None

    @property
    def error(self) -> float:
        """In per cent."""
        assert self.tested is not None
        return 100 * float(self.tested["errors"]) / float(self.tested["images"])

    @property
    def deviation(self) -> float:
        """Binomial, in per cent."""
        assert self.tested is not None
        return 100 * deviation(self.tested["errors"], self.tested["images"])

    @property
    def seconds(self) -> float:
        """Of a middling epoch, validation included."""
        return float(statistics.median(row["seconds"] for row in self.record["epochs"]))

    @property
    def state(self) -> str:
        """Why there is no figure."""
        done, epochs = len(self.record["epochs"]), self.settings.full_recipe.epochs
        return f"{MISSING} (not tested)" if done == epochs else f"{MISSING} ({done} of {epochs} epochs)"


def outcomes(folders: Sequence[Path]) -> list[Outcome]:
    """All runs in these folders: runs themselves, or folders of runs; each once."""
    found: dict[Path, Outcome] = {}
    for folder in folders:
        runs = sorted(path.parent for path in folder.rglob(RECORD)) if folder.is_dir() else []
        if not runs:
            raise FileNotFoundError(f"{folder}: no training run in it: no {RECORD}")
        for run in runs:
            found.setdefault(run.resolve(), _outcome(run))
    return list(found.values())


def _outcome(run: Path) -> Outcome:
    record, tested = read_record(run), read_tested(run)
    settings = settings_of(record)
    counts = tested is not None and tested["complete"] and tested["checkpoint"] == settings.full_recipe.weights
    return Outcome(run, settings, record, tested if counts else None)


class Group(NamedTuple):
    """Runs that may stand in one table: networks of a size, on the same data, trained for the same time."""

    title: str
    models: list[str]
    outcomes: list[Outcome]

    def of(self, model: str, augment: bool) -> list[Outcome]:
        return [one for one in self.outcomes if (one.settings.model, one.settings.augment) == (model, augment)]

    def tested(self, model: str, augment: bool) -> list[Outcome]:
        return [one for one in self.of(model, augment) if one.tested is not None]


def groups(found: Iterable[Outcome]) -> list[Group]:
    """Runs, sorted into tables."""
    sorted_: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        family = one.settings.model.partition("/")[0]
        recipe = one.settings.full_recipe
        stretched = "" if recipe == RECIPES[one.settings.recipe] else f" stretched to {recipe.epochs} epochs"
        data = "MNIST-scale, mini stand-in" if one.settings.split == "mini" else "MNIST-scale"
        data += "" if one.settings.limit is None else f", {one.settings.limit} training images"
        data += ", small networks" if family == "digits" else ""
        sorted_.setdefault((f"{data}, recipe {one.settings.recipe}{stretched}", family), []).append(one)
    return [Group(title, list_models(family), members) for (title, family), members in sorted_.items()]


def table_of(group: Group) -> str:
    """Table 1 with our figures beside the paper's, as Markdown; test errors in per cent."""
    header = ["model", "MNIST", "paper", "MNIST+", "paper", "Eq. 14", "paper", "parameters", "s / epoch"]
    rows = []
    for model in group.models:
        paper = PAPER[model]
        measured = group.tested(model, False) + group.tested(model, True)
        row = [paper.name]
        for augment, theirs in ((False, paper.plain), (True, paper.augmented)):
            row += [_cell(group, model, augment), f"{theirs[0]:.2f} ± {theirs[1]:.2f}" if theirs else "-"]
        equivariance = next((one.tested["equivariance error"] for one in measured if one.tested), None)
        row.append("-" if equivariance is None else "0" if equivariance < 1e-9 else f"{equivariance:.3g}")
        row.append("-" if paper.equivariance is None else f"{paper.equivariance:.3f}")
        row.append(next((f"{one.tested['parameters']:,}" for one in measured if one.tested), "-"))
        row.append(f"{statistics.median(one.seconds for one in measured):.0f}" if measured else "-")
        rows.append(row)
    return table(header, rows, markdown=True)


def gaps_of(group: Group) -> str:
    """How far each model is behind the best one, with the binomial deviation of the difference."""
    lines = []
    for augment in (False, True):
        means = {}
        for model in group.models:
            if measured := group.tested(model, augment):
                error = statistics.mean(one.error for one in measured)
                means[model] = error, sum(one.deviation**2 for one in measured) / len(measured) ** 2
        if len(means) > 1:
            best = min(means, key=lambda model: means[model][0])
            others = [
                f"{PAPER[model].name} +{error - means[best][0]:.2f} ± {(variance + means[best][1]) ** 0.5:.2f}"
                for model, (error, variance) in sorted(means.items(), key=lambda item: item[1])
                if model != best
            ]
            lines.append(f"MNIST{'+' if augment else ''}: best {PAPER[best].name}; {'; '.join(others)} points")
    return "\n".join(f"- {line}" for line in lines)


def scales_of(group: Group) -> dict[str, list[Bin]]:
    """Errors over the scale of digits of every model tested without augmentation, all its runs together."""
    curves = {}
    for model in group.models:
        pooled: dict[tuple[str, float, float], list[int]] = {}
        for one in group.tested(model, False):
            assert one.tested is not None
            for part in bins_of(one.tested):
                counts = pooled.setdefault((part.kind, part.low, part.high), [0, 0])
                counts[0] += part.images
                counts[1] += part.errors
        if pooled:
            curves[PAPER[model].name] = [Bin(*where, *counts) for where, counts in pooled.items()]
    return curves


def scale_table_of(group: Group) -> str:
    """The same as Markdown, in per cent with binomial deviations."""
    curves = scales_of(group)
    ranges = sorted({(one.low, one.high) for bins in curves.values() for one in bins})
    rows = []
    for low, high in ranges:
        row = [f"{low:g} to {high:g}"]
        for bins in curves.values():
            found = next((one for one in bins if (one.low, one.high) == (low, high)), None)
            row.append(MISSING if found is None else f"{100 * found.error:.2f} ± {100 * found.deviation:.2f}")
        rows.append(row)
    return table(["scale of digits", *curves], rows, markdown=True) if rows else ""


def runs_of(group: Group) -> str:
    """How every figure was made: commands, versions, machines and dates."""
    lines = []
    for one in group.outcomes:
        if one.tested is not None:
            where = ", ".join(f"{name} {version}" for name, version in one.record["versions"].items())
            lines.append(
                f"- `{one.settings.command}`, then `disco test`: {one.record['machine']}; {where}; {one.tested['date']}"
            )
    return "\n".join(lines)


def points_of(group: Group) -> list[tuple[str, float, float, float]]:
    """Name, equivariance error, mean error and its deviation of every model tested without augmentation."""
    points = []
    for model in group.models:
        measured = group.tested(model, False)
        equivariance = next((one.tested["equivariance error"] for one in measured if one.tested), None)
        if equivariance is not None:
            errors = [one.error for one in measured]
            spread = statistics.stdev(errors) if len(errors) > 1 else measured[0].deviation
            points.append((PAPER[model].name, equivariance, statistics.mean(errors), spread))
    return points


def _cell(group: Group, model: str, augment: bool) -> str:
    measured = group.tested(model, augment)
    if not measured:
        return next((one.state for one in group.of(model, augment)), MISSING)
    errors = [one.error for one in measured]
    if len(errors) == 1:
        return f"{errors[0]:.2f} ± {measured[0].deviation:.2f} (1 run)"
    return f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f} ({len(errors)} runs)"
