"""Matplotlib figures in one style, and how they are written to files. Needs the extra `plot`."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...files import check_writable, write

if TYPE_CHECKING:
    import matplotlib.figure

Figure: TypeAlias = "matplotlib.figure.Figure"  # for annotations: matplotlib is imported when a figure is drawn
OURS, OTHERS = "#1f6f8b", "#8a8a8a"  # colors of DISCO and of other methods
_FORMATS = (".png", ".svg", ".pdf")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; raise an error with the pip command if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scale-disco[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def finish(axis: Any, title: str = "") -> None:
    """Add a title, a grid and a legend if there are labels, and hide the upper and right spines."""
    if title:
        axis.set_title(title, fontsize=10)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure atomically; the suffix sets the format."""
    suffix = check_figure(path)
    content = io.BytesIO()  # some writers of matplotlib fail in other ways on a full disk
    figure.savefig(content, dpi=150, format=suffix)
    write(Path(path), content.getvalue())


def check_figure(path: str | os.PathLike[str]) -> str:
    """Return the format of a figure file; raise an error if it cannot be written."""
    new_figure(1, 1)  # without matplotlib, fail before the work
    check_writable(path)
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"cannot draw {path}: the name must end in {', '.join(_FORMATS)}, got {suffix!r}")
    return suffix[1:]
