"""Matplotlib figures, and how they are written to files. Needs the extra `plot`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files import check_writable, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg", ".pdf")


def finish(axis: Any) -> None:
    """Add a legend if there are labels, and hide the upper and right spines."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, whole or not at all; the suffix names the format."""
    form = check_figure(path)
    drawn = io.BytesIO()  # a full disk makes some formats fail on themselves
    figure.savefig(drawn, dpi=150, format=form)
    write(Path(path), drawn.getvalue())


def check_figure(path: str | os.PathLike[str]) -> str:
    """The format of a picture that can be drawn to this path; refuse others before the work is done."""
    figure_class()
    check_writable(path)
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"cannot draw {path}: the name must end in {', '.join(_FORMATS)}, got {suffix!r}")
    return suffix[1:]


def figure_class() -> type[Figure]:
    """Matplotlib's `Figure`, or an error that says how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scale-disco[plot]"') from error
    return Figure
