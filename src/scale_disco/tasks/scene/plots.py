"""Plots of scale fields, of the relative scale of images, and of how well readouts predict scale."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..io.figures import OURS, Figure, finish, new_figure
from ..io.images import luma

_COLORMAP = "plasma"  # sequential and never gray, which stands for no confidence
_MASKED, _CONFIDENT = 0.1, 0.25  # confidence up to which pixels are masked, and of full opacity
_HATCH = 60  # hatch lines along the longer side
_OPACITY = 0.7  # of the colors over the image
_WIDTH = 9.0  # inches
_GAP = 0.05  # between images, of their mean width
_UNKNOWN = 4.0  # octaves drawn for an infinite uncertainty


def plot_readouts(
    curves: Mapping[str, Sequence[tuple[float, float]]], ranks: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """Plot predicted over true octaves, and the rank correlations of scale fields; a panel for each that is not empty.

    `curves` are by estimator, `ranks` by kind of scene and estimator.
    """
    panels = [*(["ratio"] if curves else []), *ranks]
    figure = new_figure(4.8 * len(panels), 4.2)
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel in ranks:
            names = list(ranks[panel])[::-1]
            axis.boxplot([ranks[panel][name] for name in names], orientation="horizontal", widths=0.6)
            axis.set_yticks(range(1, len(names) + 1), names, fontsize=8)
            axis.axvline(0, color="black", lw=0.8, alpha=0.5)
            axis.set(xlim=(-1, 1), xticks=[-1, -0.5, 0, 0.5, 1], xlabel="rank correlation per image")
            finish(axis, panel)
        else:
            for name, points in curves.items():
                axis.plot(*zip(*points, strict=True), marker=".", lw=1.2, label=name)
            ends = [true for true, _ in next(iter(curves.values()))]
            axis.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", lw=3, alpha=0.25, label="truth")
            axis.set(xlabel="true octaves between two copies", ylabel="predicted octaves, mean")
            finish(axis, "resized copies")
            axis.legend(loc="lower right", frameon=False, fontsize=7)
    return figure


def plot_field(image: Tensor, octaves: Tensor, confidence: Tensor, limit: float, title: str = "") -> Figure:
    """Plot an image uint8 [3, H, W] next to its scale field [H, W], which is hatched where it has no confidence.

    The color bar ends at `limit` octaves.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _, height, width = image.shape
    panel_height = min(max(0.44 * _WIDTH * height / width, 1.5), 9.0)
    figure = new_figure(_WIDTH, panel_height + 0.8)
    panels = figure.subplots(1, 2)
    colored = overlay(image, octaves, confidence, limit)
    for axis, pixels, name in zip(
        panels, (image, colored), ("image", "apparent scale (hatched: no confidence)"), strict=True
    ):
        axis.imshow(pixels.permute(1, 2, 0).numpy())
        axis.set(xticks=[], yticks=[])
        axis.set_title(name, fontsize=10)
    colors = ScalarMappable(Normalize(-limit, limit), _COLORMAP)
    bar = figure.colorbar(colors, ax=panels[1], extend="both", shrink=0.9)
    bar.set_label("octaves; larger = looks larger", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def plot_relative_scale(
    images: Sequence[Tensor], names: Sequence[str], octaves: Sequence[float], uncertainty: Sequence[float]
) -> Figure:
    """Plot images uint8 [3, H, W] at the sizes at which their content matches, above their octaves and uncertainty."""
    sizes = [
        (image.shape[2] * 2**-each, image.shape[1] * 2**-each) for image, each in zip(images, octaves, strict=True)
    ]
    gap = _GAP * sum(width for width, _ in sizes) / len(sizes)
    total, tallest = sum(width for width, _ in sizes) + gap * (len(sizes) - 1), max(height for _, height in sizes)
    panel_height = min(max(_WIDTH * tallest / total, 0.8), 6.0)
    figure = new_figure(_WIDTH, panel_height + 2.4)
    above, below = figure.subplots(2, 1, height_ratios=(panel_height, 2))
    left = 0.0
    for image, (width, height) in zip(images, sizes, strict=True):
        above.imshow(image.permute(1, 2, 0).numpy(), extent=(left, left + width, 0, height), interpolation="bilinear")
        left += width + gap
    above.set(xlim=(0, total), ylim=(0, tallest))
    above.set_axis_off()
    above.set_title("resized so that their content matches", fontsize=10)
    places = range(len(names))
    below.errorbar(places, octaves, [min(each, _UNKNOWN) for each in uncertainty], fmt="o", color=OURS, capsize=3)
    below.set_xticks(places, names, fontsize=8, rotation=30 if len(names) > 4 else 0)
    below.set(ylabel="octaves", xlim=(-0.5, len(names) - 0.5))
    below.axhline(0, color="black", lw=0.8, alpha=0.5)
    finish(below)
    return figure


def overlay(image: Tensor, octaves: Tensor, confidence: Tensor, limit: float) -> Tensor:
    """Color the gray image by its scale field, uint8 [3, H, W]; arguments as in `plot_field`.

    Without confidence the image stays gray, under hatch lines.
    """
    new_figure(1, 1)  # without matplotlib, its error names the extra
    from matplotlib import colormaps

    levels = (octaves / (2 * limit) + 0.5).clamp(0, 1)
    colors = torch.from_numpy(colormaps[_COLORMAP](levels.numpy())[..., :3]).permute(2, 0, 1).float() * 255
    gray = luma(image.float())
    opacity = _OPACITY * ((confidence - _MASKED) / (_CONFIDENT - _MASKED)).clamp(0, 1)
    height, width = confidence.shape
    step = max(6, max(height, width) // _HATCH)
    lines = (torch.arange(height)[:, None] + torch.arange(width)) % step < max(1, step // 6)
    masked = confidence <= _MASKED
    tone = 255 * (gray[0, masked].mean() < 128)  # of all lines: bright on a dark area, dark on a bright one
    gray = gray + 0.4 * (tone - gray) * (lines & masked)
    return (gray + opacity * (colors - gray)).round().clamp(0, 255).to(torch.uint8)
