"""Plots of tracking results: success, precision and object size."""

import math
from collections.abc import Mapping, Sequence

from ..io.figures import OURS, Figure, finish, new_figure


def plot_success(
    trackers: Mapping[str, tuple[Sequence[float], Sequence[float]]], ours: str, title: str, near: int = 20
) -> Figure:
    """Plot success over the overlap and precision over the distance threshold, a line per tracker, best first.

    `trackers` has the fractions of frames at overlaps from 0 to 1 and at distances of 0, 1, 2, ... pixels, by name;
    `ours` is highlighted. The legend gives the mean success, and the precision at the distance `near`.
    """
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    colors = {name: f"C{index % 9 + 1}" for index, name in enumerate(name for name in trackers if name != ours)}
    for column, (axis, axis_title) in enumerate(((left, "success (mean)"), (right, f"precision (at {near} pixels)"))):
        curves = {name: list(pair[column]) for name, pair in trackers.items()}
        scores = {name: curve[near] if column else sum(curve) / len(curve) for name, curve in curves.items()}
        for name in sorted(curves, key=lambda name: -scores[name]):
            curve = curves[name]
            thresholds = range(len(curve)) if column else [index / (len(curve) - 1) for index in range(len(curve))]
            color, width = (OURS, 2.5) if name == ours else (colors[name], 1.2)
            label = f"{name} {scores[name]:.3f}"
            axis.plot(thresholds, curve, label=label, color=color, lw=width, zorder=2 + (name == ours))
        axis.set(xlim=(0, None), ylim=(0, 1.02))
        finish(axis, axis_title)
    left.set(xlabel="overlap threshold", ylabel="fraction of frames")
    right.set(xlabel="distance threshold between centers, pixels")
    figure.suptitle(title, fontsize=10)
    return figure


def plot_sizes(videos: Mapping[str, Mapping[str, Sequence[float]]], truth: str, ours: str) -> Figure:
    """Plot the object size over the frames, in octaves relative to the first; a panel per video.

    `videos` has the scale of the box in every frame, by video, then by tracker; `truth` and `ours` name two of these.
    """
    figure = new_figure(4.2 * len(videos), 3.6)
    panels = figure.subplots(1, len(videos), squeeze=False)[0]
    for axis, (video, trackers) in zip(panels, videos.items(), strict=True):
        for index, (name, scales) in enumerate(trackers.items()):
            styles = {truth: ("black", 3.5, 0.35), ours: (OURS, 2.0, 1.0)}
            color, width, alpha = styles.get(name, (f"C{index % 9 + 1}", 1.2, 1.0))
            octaves = [math.log2(scale / scales[0]) for scale in scales]
            axis.plot(octaves, color=color, lw=width, alpha=alpha, label=name)
        axis.set(xlabel="frame")
        finish(axis, video)
        if axis is not panels[0]:
            axis.get_legend().remove()
    panels[0].set(ylabel="size relative to the first frame, octaves")
    return figure
