"""Plots of the classification error, over the scale of images and over the equivariance error."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..io.figures import OURS, Figure, finish, new_figure


class Range(NamedTuple):
    """Error in [0, 1] and its standard deviation for images of a range of scales; `kind` is the name of a series."""

    kind: str
    low: float
    high: float
    error: float
    std: float


def plot_error_over_scale(
    curves: Mapping[str, Sequence[Range]],
    trained: tuple[float, float] | None,
    subject: str = "digits",
    bars: str = "binomial standard deviations",
) -> Figure:
    """Plot the classification error over the scale of images, a line per network; the range `trained` is shaded.

    Ranges of a single scale form one line, others one line per kind. `trained` is None if networks have no such range
    in common; `subject` is what the images show, `bars` what the error bars are.
    """
    figure = new_figure(7, 4)
    axis = figure.subplots()
    if trained and trained[0] == trained[1]:
        axis.axvline(trained[0], color="#e4e4e4", lw=8, zorder=0, label="scale in training")
    elif trained:
        axis.axvspan(*trained, color="#f0f0f0", zorder=0, label="scales in training")
    for index, (name, ranges) in enumerate(curves.items()):
        for number, line in enumerate(_lines(ranges)):
            scales = [(span.low * span.high) ** 0.5 for span in line]
            errors, stds = [100 * span.error for span in line], [100 * span.std for span in line]
            label = None if number else name
            axis.errorbar(scales, errors, stds, fmt="o-", ms=4, capsize=2, color=f"C{index}", label=label)
    axis.set(xscale="log", xlabel=f"scale of the {subject}", ylabel="error, %")
    spans = [span for ranges in curves.values() for span in ranges]
    bounds = [bound for span in spans for bound in (span.low, span.high)] or list(trained or (1.0,))
    ticks = [0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 14, 20, 28, 40, 56, 80, 112, 160, 224]  # or pixels
    ticks = [tick for tick in ticks if 0.98 * min(bounds) <= tick <= 1.02 * max(bounds)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if all(span.error > 0 for span in spans):
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
        if len(ticks) > 1:
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        else:
            axis.set_yscale("linear")
    axis.minorticks_off()
    finish(axis, f"Error vs. scale of {subject}, with {bars}")
    return figure


def _lines(ranges: Sequence[Range]) -> list[list[Range]]:
    """Group ranges into lines: the same images at several scales, or images of one kind."""
    if all(span.low == span.high for span in ranges):
        return [sorted(ranges, key=lambda span: span.low)]
    return [[span for span in ranges if span.kind == kind] for kind in dict.fromkeys(span.kind for span in ranges)]


class Point(NamedTuple):
    """A network: its name, equivariance error, classification error and the standard deviation of that, in percent."""

    name: str
    equivariance: float
    error: float
    std: float


def plot_equivariance_and_error(
    ours: Sequence[Point], paper: Sequence[Point], data: tuple[str, str] | None = None
) -> Figure:
    """Plot the classification error over the equivariance error: the right half of the paper's Fig. 1, next to ours.

    `data` are the names of our data and the paper's if they differ; then each has its own error axis.
    """
    figure = new_figure(9 if data else 7, 4.2)
    axes = figure.subplots(1, 2, sharex=True) if data else [figure.subplots()] * 2
    on = [f", on {name}" for name in data] if data else ["", ""]
    for axis, points, label, color, face, side, shift in (
        (axes[0], paper, f"paper{on[1]}", "#9a9a9a", "white", "right", -6),
        (axes[1], ours, f"measured here{on[0]}", OURS, OURS, "left", 6),
    ):
        plotted = [point for point in points if point.equivariance > 0]
        if plotted:
            _, x, y, stds = zip(*plotted, strict=True)
            axis.errorbar(x, y, stds, fmt="o", color=color, mfc=face, capsize=2, label=label)
        for index, point in enumerate(sorted(plotted, key=lambda point: point.error)):
            offset = shift, (5, -11)[index % 2]  # neighbors above and below
            where = point.equivariance, point.error
            axis.annotate(point.name, where, offset, textcoords="offset points", ha=side, fontsize=8, color=color)
    for axis in axes if data else axes[:1]:
        axis.set(xscale="log", xlabel="equivariance error (Eq. 14) of the basis", ylabel="classification error, %")
        axis.margins(0.2)
        finish(axis)
    figure.suptitle("Error of networks over the equivariance error of their bases", fontsize=10)
    return figure
