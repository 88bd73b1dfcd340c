"""Plots of scale fields and readouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..io.figures import figure_class, finish
from ..io.images import luma

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIELD = "plasma"  # sequential and never grey, which is what has no confidence
_SURE = 0.25  # confidence from which a field shows in full colour
_OPAQUE = 0.7  # part of the colour there, the rest is the photograph
_WIDTH = 9.0  # inches of a figure with a field


def plot_readouts(
    curves: Mapping[str, Sequence[tuple[float, float]]], ranks: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """Predicted over true octaves, and how well fields of scenes are ranked; a panel for each that there is.

    Args:
        curves: By estimator, means of true and predicted octaves.
        ranks: By kind of scene and estimator, the rank correlation in every picture.
    """
    panels = [*(["ratio"] if curves else []), *ranks]
    figure = figure_class()(figsize=(4.8 * len(panels), 4.2), layout="constrained")
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
        finish(axis)
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
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _, height, width = image.shape
    tall = min(max(0.44 * _WIDTH * height / width, 1.5), 9.0)
    figure = figure_class()(figsize=(_WIDTH, tall + 0.8), layout="constrained")
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
    figure_class()
    from matplotlib import colormaps

    places = (octaves / (2 * limit) + 0.5).clamp(0, 1)
    colours = torch.from_numpy(colormaps[_FIELD](places.numpy())[..., :3]).permute(2, 0, 1).float() * 255
    gray = luma(image.float())
    share = _OPAQUE * (confidence / _SURE).clamp(0, 1)
    return (gray + share * (colours - gray)).round().clamp(0, 255).to(torch.uint8)
