"""Plots of bases and their equivariance errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ...basis import Basis
from ..io.figures import figure_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 9  # functions of a basis that a picture shows at most


def plot_basis(basis: Basis) -> Figure:
    """Functions as columns, scales as rows, all on one pixel grid: the right half of the paper's Fig. 2."""
    if basis.spatial_dims == 3:
        raise ValueError("plot_basis: stencils of 1 or 2 spatial axes can be drawn, got 3")
    dense = basis.dense()
    aspect = "equal"
    if basis.spatial_dims == 1:
        dense, aspect = dense[..., None, :], "auto"
    picked = torch.linspace(0, basis.num_functions - 1, min(_SHOWN, basis.num_functions)).round().long().tolist()
    limit = float(dense[picked].abs().max())
    figure = figure_class()(figsize=(0.62 * len(picked) + 2.2, 0.72 * len(basis.scales) + 0.7), layout="constrained")
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
    figure = figure_class()(figsize=(7, (0.2 + 0.17 * len(sources)) * len(names) + 1.3), layout="constrained")
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
