"""Pictures of bases and errors. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .basis import Basis
from .files import check_writable, written_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")
_SHOWN = 9  # functions of a basis that a picture shows at most


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
    figure = figure_class(figsize=(1.25 * len(picked) + 2.2, 1.35 * len(basis.scales) + 0.8), layout="constrained")
    axes = figure.subplots(len(basis.scales), len(picked), squeeze=False)
    image = None
    for k, (scale, stencil) in enumerate(zip(basis.scales, basis.stencils, strict=True)):
        for column, function in enumerate(picked):
            axis = axes[k][column]
            image = axis.imshow(dense[function, k].numpy(), aspect=aspect, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
            if k == 0:
                axis.set_title(f"{function}", fontsize=9)
        note = f", dilation {stencil.dilation}" if stencil.dilation > 1 else ""
        taps = " x ".join([str(stencil.side)] * basis.spatial_dims)
        axes[k][0].set_ylabel(f"scale {scale:.4g}\n{taps} taps{note}", fontsize=8)
    if image is not None:
        figure.colorbar(image, ax=list(axes.flat), shrink=0.8)
    figure.suptitle(f"Basis functions of a {basis.kernel_size}-pixel kernel at {len(basis.scales)} scales", fontsize=10)
    return figure


def plot_errors(errors: Mapping[str, float], title: str) -> Figure:
    """A bar per basis, errors on a logarithmic axis; an exact basis has no bar."""
    figure = _figure_class()(figsize=(7, 0.45 * len(errors) + 1.3), layout="constrained")
    axis = figure.subplots()
    names = list(errors)[::-1]
    values = [errors[name] for name in names]
    bars = axis.barh(names, values, color=["#1f6f8b" if name.startswith("DISCO") else "#b8b8b8" for name in names])
    axis.bar_label(bars, [f"{value:.2g}" for value in values], padding=4, fontsize=9)
    shown = [value for value in values if value > 0]
    if shown:
        axis.set_xscale("log")
        axis.set_xlim(min(shown) / 3, max(shown) * 3)
    axis.set_xlabel("equivariance error (Eq. 14), lower is better")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


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
    axis.legend(frameon=False, fontsize=9)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, whole or not at all; the suffix names the format."""
    form = check_picture(path)
    with written_atomically(path) as draft:
        figure.savefig(draft, dpi=150, format=form)


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
