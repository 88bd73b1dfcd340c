"""Plots of bases and their equivariance errors."""

from collections.abc import Mapping

import torch

from ...basis import Basis
from ..io.figures import OTHERS, OURS, Figure, new_figure

_MAX_FUNCTIONS = 9  # columns of a plotted basis


def plot_basis(basis: Basis) -> Figure:
    """Plot functions as columns and scales as rows, on one pixel grid: the right half of the paper's Fig. 2."""
    if basis.spatial_dims == 3:
        raise ValueError("plot_basis: expected a basis of 1 or 2 spatial dimensions, got 3")
    dense = basis.dense() if basis.spatial_dims == 2 else basis.dense()[..., None, :]
    aspect = "equal" if basis.spatial_dims == 2 else "auto"
    count = min(_MAX_FUNCTIONS, basis.num_functions)
    functions = torch.linspace(0, basis.num_functions - 1, count).round().long().tolist()
    limit = float(dense[functions].abs().max())
    figure = new_figure(0.62 * count + 2.2, 0.72 * len(basis.scales) + 0.7)
    axes = figure.subplots(len(basis.scales), count, squeeze=False)
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        for column, function in enumerate(functions):
            axis = axes[k][column]
            image = axis.imshow(dense[function, k].numpy(), aspect=aspect, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
            if k == 0:
                axis.set_title(f"{function}", fontsize=9)
        note = f"\ndilation {stencil.dilation}" if stencil.dilation > 1 else ""
        taps = " x ".join([str(stencil.side)] * basis.spatial_dims)
        axes[k][0].set_ylabel(f"scale {scale:.4g}\n{taps} taps{note}", fontsize=8, rotation=0, ha="right", va="center")
    figure.colorbar(image, ax=list(axes.flat), shrink=0.8)
    figure.suptitle(f"Basis functions of a {basis.kernel_size}-pixel kernel at {len(basis.scales)} scales", fontsize=10)
    return figure


def plot_errors(errors: Mapping[str, Mapping[str, float]], taps: Mapping[str, int], title: str) -> Figure:
    """Plot error and cost of every basis as bars, on a logarithmic axis; an exact basis has no bar.

    Errors are by basis, then by the name of the images; `taps` are the multiplications per output pixel.
    """
    names = list(errors)[::-1]
    sources = list(dict.fromkeys(source for row in errors.values() for source in row))
    figure = new_figure(7, (0.2 + 0.17 * len(sources)) * len(names) + 1.3)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.4))
    thickness = 0.8 / len(sources)
    for index, source in enumerate(sources):
        values = [errors[name].get(source, 0.0) for name in names]
        rows = [row + thickness * ((len(sources) - 1) / 2 - index) for row in range(len(names))]
        bars = left.barh(rows, values, 0.9 * thickness, color=[_color(name, light=index > 0) for name in names])
        left.bar_label(bars, [f"{value:.2g}" for value in values], padding=3, fontsize=8)
    positive = [value for row in errors.values() for value in row.values() if value > 0]
    if positive:
        left.set_xscale("log")
        left.set_xlim(min(positive) / 3, max(positive) * 6)
    left.set_xlabel("equivariance error", fontsize=9)
    costs = [taps[name] for name in names]
    bars = right.barh(range(len(names)), costs, 0.72, color=[_color(name) for name in names])
    right.bar_label(bars, [str(cost) for cost in costs], padding=3, fontsize=8)
    right.set_xlim(0, 1.3 * max(costs))
    right.set_xlabel("taps per pixel", fontsize=9)
    left.set_yticks(range(len(names)), names)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    shades = f"dark: {sources[0]}, light: {sources[1]}; " if len(sources) == 2 else ""
    figure.suptitle(f"{title}\n{shades}lower is better", fontsize=10)
    return figure


def _color(name: str, *, light: bool = False) -> str:
    if name.startswith("DISCO"):
        return "#8fc1d3" if light else OURS
    return "#cfcfcf" if light else OTHERS
