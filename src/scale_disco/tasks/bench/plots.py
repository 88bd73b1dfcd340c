"""Plots of the cost over the number of scales."""

from collections.abc import Mapping

from ..io import figures
from .timing import DENSE, LABELS, LOWER_BOUND, OURS, PLAIN

_COLORS = {OURS: figures.OURS, DENSE: "#c0392b", LOWER_BOUND: "#e8a33d", PLAIN: "#b8b8b8"}


def plot_growth(growth: Mapping[str, Mapping[int, float]]) -> figures.Figure:
    """Plot seconds over the number of scales, a line per contender; both axes are logarithmic."""
    figure = figures.new_figure(6.5, 4)
    axis = figure.subplots()
    for name, seconds in growth.items():
        width, order = (2.5, 3) if name == OURS else (1.2, 2)
        label, color = LABELS.get(name, name), _COLORS.get(name)
        axis.plot(list(seconds), list(seconds.values()), "o-", label=label, color=color, lw=width, zorder=order)
    ticks = sorted({count for seconds in growth.values() for count in seconds})
    axis.set(xscale="log", yscale="log", xlabel="scales, at steps of sqrt 2", ylabel="seconds, forward and backward")
    axis.set_xticks(ticks, [str(count) for count in ticks])
    axis.minorticks_off()
    figures.finish(axis, "Cost of a 3x3 scale convolution")
    return figure
