"""Plots of accuracy over the size of digits, over cost, and over the distance of materials."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..io.figures import Figure, finish, new_figure
from ..runs.plots import Range
from .materials import DISTANCES, STEP

_TICKS = (14, 17, 20, 24, 28, 32, 40, 48, 56, 64, 80, 112, 160, 224)  # pixels


class SizeCurve(NamedTuple):
    """Errors over the size, and the seconds of an epoch."""

    errors: list[Range]
    seconds: float

    @property
    def accuracy(self) -> list[float]:
        """Accuracy at every size, in percent."""
        return [100 - 100 * each.error for each in self.errors]


def plot_sizes(panels: Mapping[str, tuple[tuple[int, int], Mapping[str, SizeCurve]]]) -> Figure:
    """Plot accuracy over the size, and its mean over the time of training: a row per title.

    Args:
        panels: By title, the smallest and largest size in training, and curves by network.
    """
    figure = new_figure(11, 4 * max(1, len(panels)))
    axes: Any = figure.subplots(max(1, len(panels)), 2, width_ratios=(2, 1), squeeze=False)
    for (left, right), (title, (trained, curves)) in zip(axes, panels.items(), strict=False):
        left.axvspan(trained[0] * 0.99, trained[1] * 1.01, color="#f0f0f0", zorder=0, label="sizes in training")
        for index, (name, curve) in enumerate(curves.items()):
            sizes = [each.low for each in curve.errors]
            left.plot(sizes, curve.accuracy, "-", color=f"C{index}", label=name)
            right.plot(curve.seconds, np.mean(curve.accuracy), "o", color=f"C{index}")
        bounds = [each.low for curve in curves.values() for each in curve.errors] or list(trained)
        ticks = [tick for tick in _TICKS if min(bounds) <= tick <= max(bounds)]
        left.set(xscale="log", xlabel="size of digits, pixels", ylabel="accuracy, %")
        left.set_xticks(ticks, list(map(str, ticks)))
        left.minorticks_off()
        right.set(xlabel="seconds of an epoch", ylabel="mean accuracy over sizes, %")
        right.set_xlim(left=0)
        finish(left, title)
        finish(right)
    return figure


def plot_distances(accuracy: Mapping[str, np.ndarray]) -> Figure:
    """Plot the accuracy of classifiers, each [training distances, test distances] from 0 to 1.

    Left: the mean over test distances, by the distance in training. Right: by the change of scale between them.
    """
    figure = new_figure(11, 5.5)
    left, right = figure.subplots(1, 2)
    count = len(DISTANCES)
    octaves = [shift * np.log2(STEP) for shift in range(1 - count, count)]
    for index, (name, values) in enumerate(accuracy.items()):
        style: dict[str, Any] = {"color": f"C{index % 10}", "ls": "-" if index < 10 else "--"}
        left.plot(DISTANCES, 100 * values.mean(1), label=name, **style)
        right.plot(octaves, [100 * np.diagonal(values, shift).mean() for shift in range(1 - count, count)], **style)
    left.set(xlabel="distance in training, 1 is the nearest", ylabel="mean accuracy over test distances, %")
    right.set(xlabel="test distance over training distance, octaves", ylabel="accuracy, %")
    finish(left)
    finish(right)
    left.get_legend().remove()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure
