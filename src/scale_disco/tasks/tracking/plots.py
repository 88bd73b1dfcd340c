"""Plots of trackers: success, precision and sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..io.figures import figure_class, finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_success(
    trackers: Mapping[str, tuple[Sequence[float], Sequence[float]]], ours: str, title: str, near: int = 20
) -> Figure:
    """Success over the overlap and precision over the distance that are asked for, a line per tracker, best first.

    Args:
        trackers: By name, the parts of frames for overlaps from 0 to 1 and for distances of 0, 1, 2, ... pixels.
        ours: The name of the one that stands out.
        title: Of the figure.
        near: The distance whose precision stands in the legend; of success it is the mean.
    """
    figure = figure_class()(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    colours = {name: f"C{index % 9 + 1}" for index, name in enumerate(name for name in trackers if name != ours)}
    for axis, place in ((left, 0), (right, 1)):
        curves = {name: list(pair[place]) for name, pair in trackers.items()}
        scores = {name: curve[near] if place else sum(curve) / len(curve) for name, curve in curves.items()}
        for name in sorted(curves, key=lambda name: -scores[name]):
            curve, mine = curves[name], name == ours
            steps = range(len(curve)) if place else [index / (len(curve) - 1) for index in range(len(curve))]
            colour, width = ("#1f6f8b", 2.5) if mine else (colours[name], 1.2)
            label = f"{name} {scores[name]:.3f}"
            axis.plot(steps, curve, label=label, color=colour, lw=width, zorder=2 + mine)
        axis.set(xlim=(0, None), ylim=(0, 1.02))
        finish(axis)
    left.set(xlabel="overlap of boxes, more than", ylabel="part of frames")
    right.set(xlabel="distance of centres in pixels, at most")
    left.set_title("success, with its mean", fontsize=10)
    right.set_title(f"precision, with its value at {near} pixels", fontsize=10)
    figure.suptitle(title, fontsize=10)
    return figure


def plot_sizes(videos: Mapping[str, Mapping[str, Sequence[float]]], truth: str, ours: str) -> Figure:
    """The size of an object over the frames of a video, in octaves over the first; a panel per video.

    Args:
        videos: By video, then by tracker, the scale of the box in every frame.
        truth: The name of what is true among the trackers.
        ours: The name of the one that stands out.
    """
    figure = figure_class()(figsize=(4.2 * len(videos), 3.6), layout="constrained")
    panels = figure.subplots(1, len(videos), squeeze=False)[0]
    for axis, (video, trackers) in zip(panels, videos.items(), strict=True):
        for index, (name, scales) in enumerate(trackers.items()):
            look = {truth: ("black", 3.5, 0.35), ours: ("#1f6f8b", 2.0, 1.0)}.get(name, (f"C{index % 9 + 1}", 1.2, 1.0))
            octaves = [math.log2(scale / scales[0]) for scale in scales]
            axis.plot(octaves, color=look[0], lw=look[1], alpha=look[2], label=name)
        axis.set_title(video, fontsize=10)
        axis.set(xlabel="frame")
        finish(axis)
        if axis is not panels[0]:
            axis.get_legend().remove()
    panels[0].set(ylabel="size over the first frame, octaves")
    return figure
