"""Pictures of bases, errors and costs. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .basis import Basis
from .files import check_writable, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")
_SHOWN = 9  # functions of a basis that a picture shows at most
_FIELD = "plasma"  # sequential and never grey, which is what has no confidence
_SURE = 0.25  # confidence from which a field shows in full colour
_OPAQUE = 0.7  # part of the colour there, the rest is the photograph
_WIDTH = 9.0  # inches of a figure with a field


def plot_basis(basis: Basis) -> Figure:
    """Functions as columns, scales as rows, all on one pixel grid: the right half of the paper's Fig. 2."""
    if basis.spatial_dims == 3:
        raise ValueError("plot_basis: stencils of 1 or 2 spatial axes can be drawn, got 3")
    figure_class = _figure_class()
    dense = basis.dense()
    aspect = "equal"
    if basis.spatial_dims == 1:
        dense, aspect = dense[..., None, :], "auto"
    picked = torch.linspace(0, basis.num_functions - 1, min(_SHOWN, basis.num_functions)).round().long().tolist()
    limit = float(dense[picked].abs().max())
    figure = figure_class(figsize=(0.62 * len(picked) + 2.2, 0.72 * len(basis.scales) + 0.7), layout="constrained")
    axes = figure.subplots(len(basis.scales), len(picked), squeeze=False)
    image = None
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        for column, function in enumerate(picked):
            axis = axes[k][column]
            image = axis.imshow(dense[function, k].numpy(), aspect=aspect, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
            if k == 0:
                axis.set_title(f"{function}", fontsize=9)
        note = f"\ndilation {stencil.dilation}" if stencil.dilation > 1 else ""
        taps = " x ".join([str(stencil.side)] * basis.spatial_dims)
        label = f"scale {scale:.4g}\n{taps} taps{note}"
        axes[k][0].set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center")
    if image is not None:
        figure.colorbar(image, ax=list(axes.flat), shrink=0.8)
    figure.suptitle(f"Basis functions of a {basis.kernel_size}-pixel kernel at {len(basis.scales)} scales", fontsize=10)
    return figure


def plot_errors(errors: Mapping[str, Mapping[str, float]], taps: Mapping[str, int], title: str) -> Figure:
    """Error and cost of every basis, side by side; an exact basis has no bar.

    Args:
        errors: By basis, then by the images it was measured on; on a logarithmic axis.
        taps: Multiplications per output pixel of every basis.
        title: Of the figure.
    """
    names = list(errors)[::-1]
    sources = list(dict.fromkeys(source for row in errors.values() for source in row))
    figure = _figure_class()(figsize=(7, (0.2 + 0.17 * len(sources)) * len(names) + 1.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.4))
    thickness = 0.8 / len(sources)
    for place, source in enumerate(sources):
        values = [errors[name].get(source, 0.0) for name in names]
        rows = [row + thickness * ((len(sources) - 1) / 2 - place) for row in range(len(names))]
        bars = left.barh(rows, values, 0.9 * thickness, color=[_colour(name, place) for name in names])
        left.bar_label(bars, [f"{value:.2g}" for value in values], padding=3, fontsize=8)
    shown = [value for row in errors.values() for value in row.values() if value > 0]
    if shown:
        left.set_xscale("log")
        left.set_xlim(min(shown) / 3, max(shown) * 6)
    left.set_xlabel("equivariance error", fontsize=9)
    bars = right.barh(
        range(len(names)), [taps[name] for name in names], 0.72, color=[_colour(name, 0) for name in names]
    )
    right.bar_label(bars, [str(taps[name]) for name in names], padding=3, fontsize=8)
    right.set_xlim(0, 1.3 * max(taps.values()))
    right.set_xlabel("taps per pixel", fontsize=9)
    left.set_yticks(range(len(names)), names)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    shades = f"dark: {sources[0]}, light: {sources[1]}; " if len(sources) == 2 else ""
    figure.suptitle(f"{title}\n{shades}lower is better", fontsize=10)
    return figure


def _colour(name: str, place: int) -> str:
    """Of a bar: ours stand out, further images are lighter."""
    dark, light = ("#1f6f8b", "#8fc1d3") if name.startswith("DISCO") else ("#8a8a8a", "#cfcfcf")
    return light if place else dark


def plot_growth(growth: Mapping[str, Mapping[int, float]]) -> Figure:
    """Seconds over the number of scales, a line per contender, both axes logarithmic: a straight line of slope 1 is
    linear cost.
    """
    figure = _figure_class()(figsize=(6.5, 4), layout="constrained")
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
    _finish(axis)
    return figure


class Range(NamedTuple):
    """An error in [0, 1] and its deviation, over a range of scales; `kind` tells one series from another."""

    kind: str
    low: float
    high: float
    error: float
    deviation: float


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
    figure = _figure_class()(figsize=(7, 4), layout="constrained")
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
                [100 * one.deviation for one in part],
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
    _finish(axis)
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
    deviation: float


def plot_equivariance_and_error(
    ours: Sequence[Point], paper: Sequence[Point], data: tuple[str, str] | None = None
) -> Figure:
    """Classification error over equivariance error: the right half of the paper's Fig. 1, with ours beside.

    Args:
        ours: Measured here.
        paper: The paper's.
        data: Names of our data and the paper's if they are not the same; then each has its own axis of errors.
    """
    figure = _figure_class()(figsize=(9 if data else 7, 4.2), layout="constrained")
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
                [point.deviation for point in shown],
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
        _finish(axis)
    title = "Error of networks over the equivariance error of their bases"
    if data:
        figure.suptitle(title, fontsize=10)
    else:
        axes[0].set_title(title, fontsize=10)
    return figure


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
    figure = _figure_class()(figsize=(10, 4.2), layout="constrained")
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
        _finish(axis)
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
    figure = _figure_class()(figsize=(4.2 * len(videos), 3.6), layout="constrained")
    panels = figure.subplots(1, len(videos), squeeze=False)[0]
    for axis, (video, trackers) in zip(panels, videos.items(), strict=True):
        for index, (name, scales) in enumerate(trackers.items()):
            look = {truth: ("black", 3.5, 0.35), ours: ("#1f6f8b", 2.0, 1.0)}.get(name, (f"C{index % 9 + 1}", 1.2, 1.0))
            octaves = [math.log2(scale / scales[0]) for scale in scales]
            axis.plot(octaves, color=look[0], lw=look[1], alpha=look[2], label=name)
        axis.set_title(video, fontsize=10)
        axis.set(xlabel="frame")
        _finish(axis)
        if axis is not panels[0]:
            axis.get_legend().remove()
    panels[0].set(ylabel="size over the first frame, octaves")
    return figure


def plot_readouts(
    curves: Mapping[str, Sequence[tuple[float, float]]], ranks: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """Predicted over true octaves, and how well fields of scenes are ranked; a panel for each that there is.

    Args:
        curves: By estimator, means of true and predicted octaves.
        ranks: By kind of scene and estimator, the rank correlation in every picture.
    """
    panels = [*(["ratio"] if curves else []), *ranks]
    figure = _figure_class()(figsize=(4.8 * len(panels), 4.2), layout="constrained")
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel in ranks:
            names = list(ranks[panel])[::-1]
            axis.boxplot([ranks[panel][name] for name in names], orientation="horizontal", widths=0.6)
            axis.set_yticks(range(1, len(names) + 1), names, fontsize=8)
            axis.axvline(0, color="black", lw=0.8, alpha=0.5)
            axis.set(xlim=(-1, 1), xticks=[-1, -0.5, 0, 0.5, 1], xlabel="rank correlation in a picture")
            axis.set_title(panel, fontsize=10)
        else:
            for name, points in curves.items():
                axis.plot(*zip(*points, strict=True), marker=".", lw=1.2, label=name)
            ends = [true for true, _ in next(iter(curves.values()))]
            axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", lw=3, alpha=0.25, label="truth")
            axis.set(xlabel="true octaves between two copies", ylabel="predicted octaves, mean")
            axis.set_title("resized copies", fontsize=10)
        _finish(axis)
        if panel not in ranks:
            axis.legend(loc="lower right", frameon=False, fontsize=7)
    return figure


def plot_field(image: Tensor, octaves: Tensor, confidence: Tensor, limit: float, title: str = "") -> Figure:
    """A photograph, and beside it how large things look in it, with a bar in octaves; grey where there is no telling.

    Args:
        image: uint8 [3, H, W] in RGB.
        octaves: The scale field, [H, W].
        confidence: From 0 to 1, [H, W].
        limit: Octaves at the ends of the bar.
        title: Of the figure.
    """
    figure_class = _figure_class()
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _, height, width = image.shape
    tall = min(max(0.44 * _WIDTH * height / width, 1.5), 9.0)
    figure = figure_class(figsize=(_WIDTH, tall + 0.8), layout="constrained")
    panels = figure.subplots(1, 2)
    pictures = (image, overlay(image, octaves, confidence, limit))
    names = ("photograph", "how large things look (grey: cannot tell)")
    for axis, picture, name in zip(panels, pictures, names, strict=True):
        axis.imshow(picture.permute(1, 2, 0).numpy())
        axis.set(xticks=[], yticks=[])
        axis.set_title(name, fontsize=10)
    colours = ScalarMappable(Normalize(-limit, limit), _FIELD)
    bar = figure.colorbar(colours, ax=panels[1], extend="both", shrink=0.9)
    bar.set_label("octaves: larger is nearer", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def overlay(image: Tensor, octaves: Tensor, confidence: Tensor, limit: float) -> Tensor:
    """A photograph in grey with its scale field in colour over it, uint8 [3, H, W]; the arguments of `plot_field`."""
    _figure_class()
    from matplotlib import colormaps

    places = (octaves / (2 * limit) + 0.5).clamp(0, 1)
    colours = torch.from_numpy(colormaps[_FIELD](places.numpy())[..., :3]).permute(2, 0, 1).float() * 255
    grey = (image.float() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0)
    share = _OPAQUE * (confidence / _SURE).clamp(0, 1)
    return (grey + share * (colours - grey)).round().clamp(0, 255).to(torch.uint8)


def _finish(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, whole or not at all; the suffix names the format."""
    form = check_picture(path)
    drawn = io.BytesIO()  # a full disk makes some formats fail on themselves
    figure.savefig(drawn, dpi=150, format=form)
    write(Path(path), drawn.getvalue())


def check_picture(path: str | os.PathLike[str]) -> str:
    """The format of a picture that can be drawn to this path; refuse others before the work is done."""
    _figure_class()
    check_writable(path)
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"cannot draw {path}: the name must end in {', '.join(_FORMATS)}, got {suffix!r}")
    return suffix[1:]


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scale-disco[plot]"') from error
    return Figure
