"""Plots of cost over the number of scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..io.figures import figure_class, finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_growth(growth: Mapping[str, Mapping[int, float]]) -> Figure:
    """Seconds over the number of scales, a line per contender, both axes logarithmic: a straight line of slope 1 is
    linear cost.
    """
    figure = figure_class()(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    colours = {"ours": "#1f6f8b", "dense reference": "#c0392b", "bare convolutions": "#e8a33d", "S plain": "#b8b8b8"}
    for name, seconds in growth.items():
        counts, values = list(seconds), list(seconds.values())
        ours = name == "ours"
        axis.plot(counts, values, "o-", label=name, color=colours.get(name), lw=2.5 if ours else 1.2, zorder=2 + ours)
    ticks = sorted({count for seconds in growth.values() for count in seconds})
    axis.set(xscale="log", yscale="log", xlabel="scales, at steps of sqrt 2", ylabel="seconds, forward and backward")
    axis.set_xticks(ticks, [str(count) for count in ticks])
    axis.minorticks_off()
    axis.set_title("Cost of a 3x3 scale convolution", fontsize=10)
    finish(axis)
    return figure
