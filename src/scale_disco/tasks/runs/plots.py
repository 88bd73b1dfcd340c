"""Plots of classification errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..io.figures import figure_class, finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Range(NamedTuple):
    """An error in [0, 1] and its deviation, over a range of scales; `kind` tells one series from another."""

    kind: str
    low: float
    high: float
    error: float
    std: float


def plot_error_over_scale(
    curves: Mapping[str, Sequence[Range]],
    trained: tuple[float, float],
    subject: str = "digits",
    bars: str = "binomial deviations",
) -> Figure:
    """Classification error over the scale of images, a line per network; the training range is shaded.

    Args:
        curves: By network. Of one scale each, ranges are points of one line; others are lines of their own per kind.
        trained: Scales in training, from and to.
        subject: What the images show.
        bars: What the deviations are.
    """
    figure = figure_class()(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    if trained[0] == trained[1]:
        axis.axvline(trained[0], color="#e4e4e4", lw=8, zorder=0, label="scale in training")
    else:
        axis.axvspan(*trained, color="#f0f0f0", zorder=0, label="scales in training")
    for index, (name, ranges) in enumerate(curves.items()):
        for place, part in enumerate(_lines(ranges)):
            axis.errorbar(
                [(one.low * one.high) ** 0.5 for one in part],
                [100 * one.error for one in part],
                [100 * one.std for one in part],
                fmt="o-",
                ms=4,
                capsize=2,
                color=f"C{index}",
                label=None if place else name,
            )
    axis.set(xscale="log", xlabel=f"scale of the {subject}", ylabel="error, %")
    bounds = [bound for ranges in curves.values() for one in ranges for bound in (one.low, one.high)] or list(trained)
    ticks = [0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0]
    ticks = [tick for tick in ticks if 0.98 * min(bounds) <= tick <= 1.02 * max(bounds)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if all(one.error > 0 for ranges in curves.values() for one in ranges):
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
        if len(ticks) > 1:
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        else:
            axis.set_yscale("linear")
    axis.minorticks_off()
    axis.set_title(f"Error over the scale of {subject}, with {bars}", fontsize=10)
    finish(axis)
    return figure


def _lines(ranges: Sequence[Range]) -> list[list[Range]]:
    """What lines join: the same images at several scales, or images of one kind."""
    if all(one.low == one.high for one in ranges):
        return [sorted(ranges, key=lambda one: one.low)]
    return [[one for one in ranges if one.kind == kind] for kind in dict.fromkeys(one.kind for one in ranges)]


class Point(NamedTuple):
    """A network: its name, equivariance error, classification error and the deviation of that, in per cent."""

    name: str
    equivariance: float
    error: float
    std: float


def plot_equivariance_and_error(
    ours: Sequence[Point], paper: Sequence[Point], data: tuple[str, str] | None = None
) -> Figure:
    """Classification error over equivariance error: the right half of the paper's Fig. 1, with ours beside.

    Args:
        ours: Measured here.
        paper: The paper's.
        data: Names of our data and the paper's if they are not the same; then each has its own axis of errors.
    """
    figure = figure_class()(figsize=(9 if data else 7, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True) if data else [figure.subplots()] * 2
    on = [f", on {name}" for name in data] if data else ["", ""]
    for axis, points, label, colour, face in (
        (axes[0], paper, f"paper{on[1]}", "#9a9a9a", "white"),
        (axes[1], ours, f"measured here{on[0]}", "#1f6f8b", "#1f6f8b"),
    ):
        shown = [point for point in points if point.equivariance > 0]
        if shown:
            axis.errorbar(
                [point.equivariance for point in shown],
                [point.error for point in shown],
                [point.std for point in shown],
                fmt="o",
                color=colour,
                mfc=face,
                capsize=2,
                label=label,
            )
        left = points is paper
        for index, point in enumerate(sorted(shown, key=lambda point: point.error)):
            axis.annotate(
                point.name,
                (point.equivariance, point.error),
                (-6 if left else 6, (5, -11)[index % 2]),  # neighbours above and below
                textcoords="offset points",
                ha="right" if left else "left",
                fontsize=8,
                color=colour,
            )
    for axis in axes if data else axes[:1]:
        axis.set(xscale="log", xlabel="equivariance error (Eq. 14) of the basis", ylabel="classification error, %")
        axis.margins(0.2)
        finish(axis)
    title = "Error of networks over the equivariance error of their bases"
    if data:
        figure.suptitle(title, fontsize=10)
    else:
        axes[0].set_title(title, fontsize=10)
    return figure
