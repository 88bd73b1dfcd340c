"""Draw the figures of the documentation; every number in them is computed here, or read from results/.

    python docs/figures.py             # all of them, into docs/
    python docs/figures.py --only square --out figures

Needs matplotlib and pillow, the extra `plot`.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scale_disco import Basis, DiscreteBasis, HermiteBasis, Scales, Stencil, resample
from scale_disco.equivariance import basis_error
from scale_disco.nn import ScaleConv2d, ScaleLift2d
from scale_disco.tasks.equivariance.plots import plot_errors
from scale_disco.tasks.io.samples import photos

DISCO, OTHER, DARK = "#1f6f8b", "#c0392b", "#333333"
WIDTH = 5.0  # inches; with 9-point letters it is readable on a phone
CAT, GRASS = 3, 5  # indices of bundled photos
# Diagonal edges, of sum zero.
KERNEL = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, -1.0], [0.0, -1.0, -1.0]], dtype=torch.float64)
ROOT2 = Scales.geometric(2**0.5, 3)


def photo(index: int) -> Tensor:
    """A bundled photo in float64, [1, 1, 160, 160]."""
    return photos()[index : index + 1].double()


def kernel_at(basis: Basis, k: int, kernel: Tensor = KERNEL) -> Stencil:
    """Return the kernel of scale k that equals `kernel` at the first scale."""
    first = basis.stencils[0].functions.flatten(1)
    weights = torch.linalg.lstsq(first.T, kernel.reshape(-1, 1)).solution[:, 0]
    stencil = basis.stencils[k]
    return Stencil(torch.tensordot(weights, stencil.functions, dims=1)[None], stencil.dilation)


def convolved(stencil: Stencil, image: Tensor) -> Tensor:
    """Correlate an image [1, 1, H, W] with a stencil, with replicate padding."""
    before, after = stencil.reach
    wide = nn.functional.pad(image, (before, after, before, after), mode="replicate")
    return nn.functional.conv2d(wide, stencil.functions[:, None], dilation=stencil.dilation)


def relative(difference: Tensor, whole: Tensor, margin: int = 8) -> float:
    """Squared norm of a difference relative to that of `whole`, without a margin."""
    inner = (..., slice(margin, -margin), slice(margin, -margin))
    return float(difference[inner].square().sum() / whole[inner].square().sum())


# Data of the figures.


class Square(NamedTuple):
    """Both paths around the square of Eq. 7 for one basis."""

    convolved: Tensor
    then_shrunk: Tensor
    shrunk: Tensor
    then_convolved: Tensor

    @property
    def error(self) -> float:
        return relative(self.then_shrunk - self.then_convolved, self.then_shrunk)


def square(basis: Basis, ratio: float, image: Tensor) -> Square:
    """Convolve and shrink an image, in both orders; the second scale of the basis is `ratio`."""
    large = convolved(kernel_at(basis, 1), image)
    shrunk = resample(image, 1 / ratio)
    return Square(large, resample(large, 1 / ratio), shrunk, convolved(kernel_at(basis, 0), shrunk))


def error_over_ratio(ratios: Sequence[float], image: Tensor) -> list[float]:
    """Eq. 14 of the best 3x3 kernels between scale 1 and each ratio."""
    return [basis_error(DiscreteBasis(3, [1, ratio]), image, channels=8) for ratio in ratios]


def error_over_steps(steps: Sequence[int]) -> tuple[list[float], float]:
    """Predicted errors of bases after so many steps of gradient descent, and of the closed form, both of side 5."""
    errors = [DiscreteBasis(3, ROOT2, support=5, solver="gradient", steps=n).error for n in steps]
    return errors, DiscreteBasis(3, ROOT2, support=5).error


def taps(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Multiplications per pixel with stencils and with the dense packing, for so many scales at steps of sqrt 2."""
    bases = [DiscreteBasis(3, Scales.geometric(2**0.5, count)) for count in counts]
    return [basis.taps for basis in bases], [basis.dense()[0].numel() for basis in bases]


class Search(NamedTuple):
    """A frame, the template, and the cosine at every position and scale."""

    frame: Tensor
    template: Tensor
    cosines: list[Tensor]


def tracked(factor: float) -> Search:
    """The search of docs/tracking.md, in a frame where the object is enlarged by `factor`."""
    torch.manual_seed(0)
    basis = DiscreteBasis(3, ROOT2)
    net = nn.Sequential(ScaleLift2d(1, 16, basis), nn.ReLU(), ScaleConv2d(16, 16, basis)).requires_grad_(False)
    eye = photos()[CAT : CAT + 1, :, 20:116, 20:116]
    small = resample(eye, 1 / 3)
    template = net(small)[:, :, 0, 6:-6, 6:-6]
    frame, pasted = photos()[0:1], resample(eye, factor / 3)
    side = pasted.shape[-1]
    frame[:, :, 60 : 60 + side, 30 : 30 + side] = pasted
    cosines = []
    for scale, features in zip(ROOT2, net(frame).unbind(2), strict=True):
        on_grid = resample(features, 1 / scale)
        energy = nn.functional.conv2d(on_grid.square().sum(1, keepdim=True), torch.ones(1, 1, *template.shape[2:]))
        cosines.append((nn.functional.conv2d(on_grid, template) / (energy.sqrt() * template.norm()))[0, 0])
    return Search(frame[0, 0], small[0, 0], cosines)


def profiles(distance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two halves of the lawn, one farther away, and their scale profiles (log energies), [C, S] each."""
    torch.manual_seed(0)
    scales = Scales.geometric(2**0.5, 5)
    lift = ScaleLift2d(1, 32, DiscreteBasis(3, scales, antialias=True), padding_mode="reflect").requires_grad_(False)
    lift.weight.sub_(lift.weight.mean(-1, keepdim=True))

    def profile(patch: Tensor) -> Tensor:
        maps = [resample(y, 1 / s, antialias=True) for y, s in zip(lift(patch).unbind(2), scales, strict=True)]
        return torch.stack([y.square().mean((0, 2, 3)).log() for y in maps], 1)

    near, right = photos()[GRASS : GRASS + 1].chunk(2, dim=3)
    far = resample(right, 1 / distance, antialias=True)
    return near[0, 0], far[0, 0], profile(near), profile(far)


# Drawing.


def new_figure(height: float) -> Any:
    """An empty figure of width `WIDTH`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('the figures need matplotlib: pip install "scale-disco[plot]"') from error
    return Figure(figsize=(WIDTH, height), facecolor="white")


def number(value: float) -> str:
    """One significant digit; "0" for exact zero."""
    return f"{value:.0e}" if value else "0"


def place(figure: Any, box: tuple[float, float, float, float], title: str = "", color: str = DARK) -> Any:
    """Axes for an image at left, bottom, width and height in inches."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9, color=color, pad=3)
    axes.spines[:].set_visible(False)
    return axes


def arrow(figure: Any, start: tuple[float, float], end: tuple[float, float], label: str = "", **where: Any) -> None:
    """Draw an arrow between two points in inches, with a label at its middle."""
    from matplotlib.patches import FancyArrowPatch

    width, height = figure.get_size_inches()
    points = [(x / width, y / height) for x, y in (start, end)]
    color = where.pop("color", DARK)
    figure.add_artist(
        FancyArrowPatch(*points, arrowstyle="-|>", mutation_scale=11, lw=1.4, color=color, shrinkA=0, shrinkB=0)
    )
    if label:
        x, y = ((a + b) / 2 for a, b in zip(*points, strict=True))
        shift = where.pop("shift", (0, 0))
        figure.text(x + shift[0] / width, y + shift[1] / height, label, fontsize=8.5, color=color, **where)


def gray(axes: Any, image: Tensor, **options: Any) -> None:
    """Show a photo, or a map with values from 0 to 1."""
    axes.imshow(image.squeeze().numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest", **options)


def signed(axes: Any, image: Tensor, limit: float) -> None:
    """Show positive values red, negative blue, zero white."""
    axes.imshow(image.squeeze().numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")


def finish_curves(axes: Any, across: str, up: str, fontsize: float = 8.5, **legend: Any) -> None:
    """Label the axes of a plot and add a legend; no minor ticks, no frame."""
    axes.minorticks_off()
    axes.set_xlabel(across, fontsize=9, labelpad=1)
    axes.set_ylabel(up, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.legend(frameon=False, fontsize=fontsize, **legend)
    axes.spines[["top", "right"]].set_visible(False)


def draw_axis(quick: bool) -> Any:
    """A photo and its half: the response of one at scale 2 is that of the other at scale 1."""
    basis = DiscreteBasis(3, [1, 2, 4])
    image = photo(CAT)
    small = resample(image, 1 / 2)
    large_maps = [convolved(kernel_at(basis, k), image) for k in range(3)]
    small_maps = [convolved(kernel_at(basis, k), small) for k in range(3)]
    limit = 0.6 * float(max(x.abs().max() for x in large_maps))
    figure = new_figure(2.75)
    side, step, top, low = 1.1, 1.24, 1.35, 0.3
    for row, (shown, maps) in enumerate(((image, large_maps), (small, small_maps))):
        size = side / (1 + row)
        bottom = top if row == 0 else low
        gray(place(figure, (0.08, bottom, size, size), "image" if row == 0 else "its half"), shown)
        for k, response in enumerate(maps):
            title = f"scale {basis.scales[k]:g}"
            signed(place(figure, (0.08 + (k + 1) * step, bottom, size, size), title), response, limit)
    differences = []
    for k in (1, 2):
        differences.append(float((resample(large_maps[k], 1 / 2) - small_maps[k - 1])[..., 8:-8, 8:-8].abs().max()))
        x = 0.08 + k * step
        arrow(figure, (x + step - 0.02, top - 0.03), (x + side / 2 + 0.05, low + side / 2 - 0.08), color=DISCO)
    text = f"the same after shrinking; largest difference {number(max(differences))}"
    figure.text((0.08 + step) / WIDTH, 0.07 / 2.75, text, fontsize=8.5, color=DISCO)
    return figure


def draw_square(quick: bool) -> Any:
    """Eq. 7 with a photo, and the difference for two bases."""
    ratio = 2**0.5
    disco = square(DiscreteBasis(3, ROOT2), ratio, photo(CAT))
    hermite = square(HermiteBasis.preset("stl10"), ratio, photo(CAT))
    limit = 0.6 * float(disco.convolved.abs().max())
    height, side, small = 5.5, 1.75, 1.75 / ratio
    figure = new_figure(height)
    left, right, top, middle = 0.3, 3.0, 3.5, 1.75
    gray(place(figure, (left, top, side, side), "image f"), photo(CAT))
    signed(place(figure, (right, top, side, side), r"convolved by $\psi_{\sqrt{2}}$"), disco.convolved, limit)
    gray(place(figure, (left, middle, small, small)), disco.shrunk)
    signed(place(figure, (right, middle, small, small)), disco.then_shrunk, limit)
    arrow(
        figure,
        (left + side + 0.08, top + side / 2),
        (right - 0.08, top + side / 2),
        "convolve",
        ha="center",
        shift=(0, 0.07),
    )
    arrow(
        figure,
        (left + small + 0.08, middle + small / 2),
        (right - 0.08, middle + small / 2),
        r"convolve by $\psi_1$",
        ha="center",
        shift=(0, 0.07),
    )
    for x in (left, right):
        arrow(
            figure,
            (x + small / 2, top - 0.05),
            (x + small / 2, middle + small + 0.06),
            "shrink",
            va="center",
            shift=(0.08, 0),
        )
    worst = float((hermite.then_shrunk - hermite.then_convolved)[..., 8:-8, 8:-8].abs().max())
    times = round(2 * limit / worst)  # hardly visible in the colors of the maps
    text = f"difference between the two paths, amplified {times} times:"
    figure.text(0.06, 1.5 / height, text, fontsize=9, color=DARK)
    for x, name, result, color in ((left, "Hermite", hermite, OTHER), (right, "DISCO", disco, DISCO)):
        axes = place(figure, (x, 0.06, small, small))
        signed(axes, times * (result.then_shrunk - result.then_convolved), limit)
        axes.spines[:].set(visible=True, color=color)
        figure.text(
            (x + small + 0.08) / WIDTH, 0.75 / height, f"{name}\n{100 * result.error:.2g} %", fontsize=9.5, color=color
        )
    return figure


def draw_dilation(quick: bool) -> Any:
    """A kernel and its dilation, and the error of the best kernel over the ratio of scales."""
    from matplotlib.ticker import LogLocator

    height = 4.2
    figure = new_figure(height)
    basis = DiscreteBasis(3, [1, 2, 3])
    unit = 0.16
    x = 0.35
    for k, stencil in enumerate(kernel_at(basis, k) for k in range(3)):
        side = 2 * stencil.dilation + 1
        spread = torch.zeros(side, side, dtype=torch.float64)
        spread[:: stencil.dilation, :: stencil.dilation] = stencil.functions[0]
        box = (x, 3.35 - side * unit / 2, side * unit, side * unit)
        axes = place(figure, box, f"scale {basis.scales[k]:g}")
        signed(axes, spread, 1.3)
        axes.set_xticks([i - 0.5 for i in range(1, side)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(1, side)], minor=True)
        axes.grid(which="minor", color="#dddddd", lw=0.6)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set(visible=True, color="#bbbbbb")
        x += side * unit + 0.75
    axes = figure.add_axes((0.14, 0.45 / height, 0.83, 1.95 / height))
    integers = [2.0, 3.0, 4.0]
    count = 8 if quick else 46
    ratios = sorted({1.05 + (4.3 - 1.05) * i / (count - 1) for i in range(count)} - set(integers))
    image = photo(CAT)
    axes.plot(ratios, error_over_ratio(ratios, image), color="#888888", lw=1.6, label="best kernel, other ratios")
    exact = error_over_ratio(integers, image)
    floor = 1e-33  # where an error of exactly 0 is drawn
    drawn = [max(error, floor) for error in exact]
    axes.plot(integers, drawn, "o", color=DISCO, ms=7, label="dilation, integer ratios")
    for ratio, error, where in zip(integers, exact, drawn, strict=True):
        axes.annotate(
            number(error), (ratio, where), (0, 9), textcoords="offset points", ha="center", fontsize=9, color=DISCO
        )
    axes.set_yscale("log")
    axes.set_ylim(floor / 1e2, 10)
    axes.yaxis.set_major_locator(LogLocator(base=1e8, numticks=6))
    finish_curves(axes, "ratio of the two scales", "error (Eq. 14)", loc="center left", bbox_to_anchor=(0.0, 0.55))
    return figure


def draw_optimum(quick: bool) -> Any:
    """The pixels of a kernel at sqrt 2, and how gradient descent approaches the closed form."""
    height = 4.9
    figure = new_figure(height)
    basis = DiscreteBasis(3, ROOT2)
    dense = basis.dense()
    unit = 1.0
    for row, (function, name) in enumerate(((0, "corner pixel"), (1, "edge pixel"))):
        for k, scale in enumerate((r"$1$", r"$\sqrt{2}$", r"$2$")):
            axes = place(figure, (0.75 + k * 1.3, 3.62 - row * 1.12, unit, unit), f"scale {scale}" if row == 0 else "")
            signed(axes, dense[function, k], float(dense[[0, 1]].abs().max()))
            axes.spines[:].set(visible=True, color="#bbbbbb")
            if k == 0:
                axes.set_ylabel(name, fontsize=9)
    axes = figure.add_axes((0.14, 0.45 / height, 0.83, 1.75 / height))
    steps = [1, 30] if quick else [1, 10, 20, 30, 50, 70, 100, 140, 200, 300]
    errors, best = error_over_steps(steps)
    axes.plot(steps, errors, "o-", color="#888888", lw=1.6, ms=4, label="gradient descent, as in the paper")
    axes.axhline(best, color=DISCO, lw=2, label=f"closed form: {best:.3f}")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    finish_curves(axes, "steps", "predicted error", loc="center left", bbox_to_anchor=(0.0, 0.45))
    return figure


def draw_cost(quick: bool) -> Any:
    """Multiplications with stencils and with the dense packing."""
    figure = new_figure(2.6)
    axes = figure.add_axes((0.14, 0.19, 0.83, 0.77))
    counts = [2, 3, 4] if quick else [2, 3, 4, 5, 6, 7, 8, 9]
    ours, dense = taps(counts)
    axes.plot(counts, dense, "o-", color=OTHER, lw=1.6, ms=5, label="dense packing")
    axes.plot(counts, ours, "o-", color=DISCO, lw=2.4, ms=5, label="stencils")
    for values, color, shift in ((dense, OTHER, (-8, 5)), (ours, DISCO, (0, -15))):
        for index in sorted({1, len(counts) - 1}):
            axes.annotate(
                f"{values[index]:,}", (counts[index], values[index]), shift, textcoords="offset points",
                ha="right" if shift[0] else "center", fontsize=9, color=color,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(counts)
    axes.set_ylim(min(ours) / 3, max(dense) * 2.5)
    finish_curves(axes, r"scales, at steps of $\sqrt{2}$", "multiplications per pixel", fontsize=9, loc="upper left")
    return figure


def draw_tracking(quick: bool) -> Any:
    """A template, a frame with the object twice as large, and the cosines at every scale."""
    from matplotlib.patches import Rectangle

    search = tracked(2.0)
    height = 3.9
    figure = new_figure(height)
    gray(place(figure, (0.7, 2.55, 0.36, 0.36), "template"), search.template)
    axes = place(figure, (1.5, 1.82, 1.8, 1.8), "frame")
    gray(axes, search.frame)
    axes.add_patch(Rectangle((29.5, 59.5), 64, 64, fill=False, color=DISCO, lw=2))
    low = float(torch.cat([x.flatten() for x in search.cosines]).quantile(0.4))  # colors for the upper part
    for k, (scale, cosines) in enumerate(zip((r"$1$", r"$\sqrt{2}$", r"$2$"), search.cosines, strict=True)):
        peak = float(cosines.max())
        best = peak == max(float(x.max()) for x in search.cosines)
        axes = place(figure, (0.2 + 1.6 * k, 0.05, 1.4, 1.4), f"scale {scale}: {peak:.3f}", DISCO if best else DARK)
        axes.imshow(cosines.numpy(), cmap="viridis", vmin=low, vmax=1, interpolation="nearest")
        if best:
            row, column = divmod(int(cosines.argmax()), cosines.shape[1])
            axes.plot(column, row, "o", ms=16, mfc="none", mec="white", mew=1.6)
    return figure


def draw_scene(quick: bool) -> Any:
    """Two patches of grass, and their scale profiles, one shifted by the ratio of sizes."""
    near, far, of_near, of_far = profiles(2.0)
    height = 3.0
    figure = new_figure(height)
    gray(place(figure, (0.1, 0.75, 0.8, 1.6), "near"), near)
    gray(place(figure, (1.0, 0.75, 0.4, 0.8), "far"), far)
    axes = figure.add_axes((2.15 / WIDTH, 0.45 / height, 2.75 / WIDTH, 2.35 / height))
    axes.plot(range(5), of_near.mean(0), "o-", color=OTHER, lw=2, label="near")
    axes.plot(range(5), of_far.mean(0), "o-", color=DISCO, lw=2, label="far")
    axes.plot(
        [k + 2 for k in range(3)], of_far.mean(0)[:3], "o--", color=DISCO, mfc="white", label="far, shifted by 2 steps"
    )
    axes.set_xticks(range(5), ["1", r"$\sqrt{2}$", "2", r"$2\sqrt{2}$", "4"])
    finish_curves(axes, "scale", "log energy, mean over channels")
    return figure


def draw_front(quick: bool) -> Any:
    """Error and cost of every basis, from the table of results/equivariance.md."""
    errors: dict[str, dict[str, float]] = {}
    costs: dict[str, int] = {}
    for row in ("DISCO", "DISCO as released", "Hermite", "Fourier-Bessel", "B-spline", "log-radial"):
        on_digits, on_photos, cost = measured_row(row)
        name = row.replace(" as released", ", the authors'")
        errors[name] = {"photos": on_photos, "digits": on_digits}
        costs[name] = cost
    return plot_errors(errors, costs, "7x7 kernels at scales 1, 2^(1/3), 2^(2/3), 2")


def measured_row(name: str) -> tuple[float, float, int]:
    """Errors on digits and photos, and taps, of a basis; from the first table of the results."""
    table = (Path(__file__).parents[1] / "results" / "equivariance.md").read_text()
    row = next(line for line in table.splitlines() if line.startswith(f"| {name} "))
    on_digits, on_photos, cost = (cell.split()[0] for cell in row.split("|")[2:5])
    return float(on_digits), float(on_photos), int(cost)


FIGURES: dict[str, Callable[[bool], Any]] = {
    "front": draw_front,
    "axis": draw_axis,
    "square": draw_square,
    "dilation": draw_dilation,
    "optimum": draw_optimum,
    "cost": draw_cost,
    "tracking": draw_tracking,
    "scene": draw_scene,
}


def save(figure: Any, path: Path) -> None:
    """Save as a PNG of 256 colors, a third of the bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the requested figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder (default: that of this file)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), help="draw only these figures")
    parser.add_argument("--quick", action="store_true", help="fewer points, for a test")
    options = parser.parse_args(arguments)
    for name in options.only:
        path = options.out / f"{name}.png"
        save(FIGURES[name](options.quick), path)
        print(path, path.stat().st_size // 1024, "kB", flush=True)


if __name__ == "__main__":
    main()
