"""Equivariance error of whole networks, by the way they go down: writes the end of results/equivariance.md.

Needs a folder of photos. The text before the heading "Whole networks" is kept.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import Basis, DiscreteBasis, HermiteBasis, Scales, equivariance_error
from scale_disco.files import written_atomically
from scale_disco.fold import fold, unfold
from scale_disco.nn import ScaleAvgPool2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleMaxPool2d, ScaleProject
from scale_disco.resampling import resample_matrix
from scale_disco.tasks.io.report import mean_and_std, provenance, table
from scale_disco.tasks.io.samples import SampleImages, sample_images

HEADING = "## Whole networks"
LAYERS, CHANNELS, DOWN_AFTER = 6, 16, (2, 4)
SEEDS = range(3)
ROUNDING = 1e-10  # an error below this is none: they are squared norms, in float32
ROOT, POWERS = Scales.geometric(2**0.5, 3), Scales([1, 2, 4])
SCALE_NAMES = {ROOT: "1, sqrt 2, 2", POWERS: "1, 2, 4"}


class Operator(NamedTuple):
    """The rescaling that is measured with, and that bases are solved for."""

    mode: str
    antialias: bool = False


BICUBIC = Operator("cubic")
OPERATORS = {
    "nearest": Operator("nearest"),
    "bilinear": Operator("linear"),
    "bicubic": BICUBIC,
    "bicubic, antialiased": Operator("cubic", antialias=True),
}


class Halve(nn.Module):
    """Filter all scales with the same taps and keep every second pixel: [B, C, S, H, W] -> [B, C, S, H/2, W/2].

    An odd number of taps is centered on a pixel, an even one between two, like 2x2 pooling.
    """

    def __init__(self, taps: Sequence[float]) -> None:
        super().__init__()
        line = torch.tensor(taps)
        self.register_buffer("kernel", torch.outer(line, line) / line.sum() ** 2)

    def forward(self, x: Tensor) -> Tensor:
        maps, reach = fold(x), (len(self.kernel) - 1) // 2
        kernel = self.kernel.expand(x.shape[1], 1, -1, -1)
        maps = F.conv2d(F.pad(maps, [reach] * 4, mode="replicate"), kernel, stride=2, groups=x.shape[1])
        return unfold(maps, x.shape[2])


class Centre(nn.Module):
    """Subtract the mean over space."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean((-2, -1), keepdim=True)


def disco(scales: Scales, operator: Operator) -> Basis:
    return DiscreteBasis(3, scales, mode=operator.mode, antialias=operator.antialias)


def halving_taps(operator: Operator) -> list[float]:
    """The operator's own filter when it shrinks by two."""
    row = resample_matrix(64, 1 / 2, mode=operator.mode, antialias=operator.antialias)[16]
    used = row.nonzero().flatten()
    return row[used[0] : used[-1] + 1].tolist()


# What follows convolution and ReLU to go down by two; None for a convolution that takes steps of two itself.
Way = Callable[[Scales, Operator], list[nn.Module]] | None
NONE, STRIDED, MAXIMUM, AVERAGE = "none", "strided convolution", "2x2 maximum", "2x2 average"
ODD_BLUR, EVEN_BLUR = "blur [1, 2, 1]", "blur [1, 3, 3, 1]"
BLUR_AVERAGE, BLUR_MAXIMUM = "growing blur + 2x2 average", "growing maximum + growing blur + 2x2 average"
WAYS: dict[str, Way] = {
    NONE: lambda scales, operator: [],
    "none + growing blur": lambda scales, operator: [ScaleBlurPool2d(scales, stride=1)],
    STRIDED: None,
    MAXIMUM: lambda scales, operator: [ScaleMaxPool2d(2)],
    "growing 2x2 maximum": lambda scales, operator: [ScaleMaxPool2d(2, scales=scales)],
    AVERAGE: lambda scales, operator: [ScaleAvgPool2d(2)],
    "growing 2x2 average": lambda scales, operator: [ScaleAvgPool2d(2, scales=scales)],
    ODD_BLUR: lambda scales, operator: [Halve([1, 2, 1])],
    EVEN_BLUR: lambda scales, operator: [Halve([1, 3, 3, 1])],
    "2x2 maximum + blur [1, 2, 1]": lambda scales, operator: [ScaleMaxPool2d(2, stride=1), Halve([1, 2, 1])],
    "rescaling itself": lambda scales, operator: [Halve(halving_taps(operator))],
    "growing blur + subsampling": lambda scales, operator: [ScaleBlurPool2d(scales, stride=1), Halve([1])],
    BLUR_AVERAGE: lambda scales, operator: [ScaleBlurPool2d(scales)],
    BLUR_MAXIMUM: lambda scales, operator: [ScaleMaxPool2d(2, stride=1, scales=scales), ScaleBlurPool2d(scales)],
}
WAYS_DOWN = [name for name in WAYS if not name.startswith(NONE)]


def hermite(scales: Scales, operator: Operator) -> Basis:
    """The authors' STL-10 settings; for the scales 1, 2, 4 the same width and the stencils that cover the kernels."""
    return HermiteBasis(3, scales, base_scale=0.9)


def wide_hermite(scales: Scales, operator: Operator) -> Basis:
    """The same functions on stencils that do not cut them off."""
    return HermiteBasis(3, scales, base_scale=0.9, size={ROOT: 15, POWERS: 29}[scales])


BASES = {"disco": disco, "hermite": hermite, "wide": wide_hermite}


def network(basis: Basis, operator: Operator, way: Way, seed: int) -> nn.Sequential:
    """Six stages of convolution and ReLU, two of them going down; the weights depend on the seed only."""
    torch.manual_seed(seed)
    convolutions: list[nn.Module] = [ScaleLift2d(1, CHANNELS, basis, padding_mode="reflect")]
    for layer in range(2, LAYERS + 1):
        stride = 2 if way is None and layer in DOWN_AFTER else 1
        convolutions.append(ScaleConv2d(CHANNELS, CHANNELS, basis, stride, padding_mode="reflect"))
    stages = []
    for layer, convolution in enumerate(convolutions, 1):
        down = way(basis.scales, operator) if way is not None and layer in DOWN_AFTER else []
        stages.append(nn.Sequential(convolution, nn.ReLU(), *down))
    return nn.Sequential(*stages)


def cell(errors: Sequence[float]) -> str:
    return mean_and_std(errors, least=ROUNDING)


def layer_by_layer(photos: SampleImages) -> str:
    """For every downsampling: the error after each layer, after projection, and of the zero-mean output."""
    basis = disco(ROOT, BICUBIC)
    rows = []
    for name, way in WAYS.items():
        columns: list[list[float]] = []
        for seed in SEEDS:
            net = network(basis, BICUBIC, way, seed)
            mappings = [net[: layer + 1] for layer in range(LAYERS)]
            mappings += [nn.Sequential(net, last) for last in (ScaleProject("max"), Centre())]
            columns.append([equivariance_error(each, photos.images, ROOT, border=photos.border) for each in mappings])
        rows.append([name, *(f"{statistics.mean(errors):.2g}" for errors in zip(*columns, strict=True))])
        progress(rows[-1])
    layers = [f"{layer} (down)" if layer in DOWN_AFTER else str(layer) for layer in range(1, LAYERS + 1)]
    return table(["downsampling", *layers, "projected", "zero-mean"], rows, markdown=True)


Errors = dict[str, dict[str, list[float]]]  # downsampling -> operator -> one error per seed


def last_layer(
    photos: SampleImages, build: Callable[[Scales, Operator], Basis], scales: Scales, ways: Sequence[str]
) -> Errors:
    """Errors after the last layer for every operator."""
    measured: Errors = {}
    for name in ways:
        measured[name] = {
            title: [
                equivariance_error(
                    network(build(scales, operator), operator, WAYS[name], seed),
                    photos.images,
                    scales,
                    border=photos.border,
                    **operator._asdict(),
                )
                for seed in SEEDS
            ]
            for title, operator in OPERATORS.items()
        }
        progress([name, *map(cell, measured[name].values())])
    return measured


def as_table(measured: Errors) -> str:
    rows = [[name, *map(cell, errors.values())] for name, errors in measured.items()]
    return table(["downsampling", *OPERATORS], rows, markdown=True)


def best_ways(measured: dict[Scales, Errors]) -> str:
    """For each operator and set of scales the downsampling with the smallest error."""
    rows = []
    for title in OPERATORS:
        row = [title]
        for errors in measured.values():
            best = min(WAYS_DOWN, key=lambda name: statistics.mean(errors[name][title]))
            least = cell(errors[best][title])
            row.append("those above that are exact" if least == "0" else f"{best}: {least}")
        rows.append(row)
    return table(["rescaling", *(f"scales {SCALE_NAMES[scales]}" for scales in measured)], rows, markdown=True)


def times(errors: Errors, worse: str, better: str) -> str:
    """Error relative to another downsampling: smallest and largest, over interpolating operators and draws."""
    ratios = [
        larger / smaller
        for title in list(OPERATORS)[1:]
        for larger, smaller in zip(errors[worse][title], errors[better][title], strict=True)
    ]
    return f"{min(ratios):.2g} to {max(ratios):.2g}"


def progress(row: Sequence[str]) -> None:
    print(f"  {' | '.join(row)}", file=sys.stderr, flush=True)


def spread(photos: SampleImages, count: int) -> SampleImages:
    """Evenly spaced images of the set: neighbors in a folder are often alike."""
    chosen = torch.linspace(0, len(photos.images) - 1, min(count, len(photos.images))).round().long()
    return photos._replace(images=photos.images[chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos")
    parser.add_argument("--count", type=int, default=4, help="number of photos (default 4)")
    parser.add_argument("--out", type=Path, default=Path("results/equivariance.md"))
    options = parser.parse_args()
    start = time.monotonic()
    photos = spread(sample_images(options.photos), options.count)

    print("layer by layer", file=sys.stderr)
    layers = layer_by_layer(photos)
    measured: dict[Scales, Errors] = {}
    compared: dict[Scales, Errors] = {}
    for scales, name in SCALE_NAMES.items():
        print(f"DISCO, scales {name}", file=sys.stderr)
        measured[scales] = last_layer(photos, disco, scales, list(WAYS))
    for scales, name in SCALE_NAMES.items():
        print(f"Hermite, scales {name}", file=sys.stderr)
        compared[scales] = last_layer(photos, hermite, scales, [NONE, STRIDED, AVERAGE, BLUR_AVERAGE])
        wide = last_layer(photos, wide_hermite, scales, [AVERAGE, BLUR_AVERAGE])
        compared[scales] |= {f"{way}, wide stencils": errors for way, errors in wide.items()}

    section = TEMPLATE.format(
        heading=HEADING,
        photos=len(photos.images),
        seeds=len(SEEDS),
        provenance=provenance(f"python benchmarks/networks.py --photos PHOTOS --count {options.count}"),
        minutes=(time.monotonic() - start) / 60,
        layers=layers,
        root=as_table(measured[ROOT]),
        powers=as_table(measured[POWERS]),
        best=best_ways(measured),
        strided_root=times(measured[ROOT], STRIDED, AVERAGE),
        strided_powers=times(measured[POWERS], STRIDED, AVERAGE),
        odd_root=times(measured[ROOT], ODD_BLUR, EVEN_BLUR),
        odd_powers=times(measured[POWERS], ODD_BLUR, EVEN_BLUR),
        gain_root=times(measured[ROOT], AVERAGE, BLUR_AVERAGE),
        gain_powers=times(measured[POWERS], AVERAGE, BLUR_AVERAGE),
        maximum_root=times(measured[ROOT], MAXIMUM, BLUR_MAXIMUM),
        maximum_powers=times(measured[POWERS], MAXIMUM, BLUR_MAXIMUM),
        hermite_root=as_table(compared[ROOT]),
        hermite_powers=as_table(compared[POWERS]),
        taps={name: [build(scales, BICUBIC).taps for scales in SCALE_NAMES] for name, build in BASES.items()},
    )
    before = options.out.read_text() if options.out.exists() else "# Equivariance error\n"
    before = re.split(rf"^{HEADING}$", before, maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    with written_atomically(options.out) as draft:
        draft.write_text(f"{before}\n\n{section}")
    print(section)


TEMPLATE = """\
{heading}

A layer can be exact while the network is not. These networks have six layers, a lift and five scale convolutions, 16
channels, 3x3 kernels, each followed by ReLU, with their default random weights and reflection padding. There is no
batch norm: in evaluation mode it is an affine map of each channel, which commutes with rescaling. After layers 2 and
4 the network downsamples by two, with one of many methods. Eq. 14 by the protocol above, on {photos} of the photos, in
float32; mean ± standard deviation over {seeds} draws of the weights. Draws differ a lot, but all methods use the same
ones. Discrete bases are solved for the rescaling that is measured, growing windows and blurs for bicubic.

{provenance}
- Time: {minutes:.0f} minutes

*Growing* windows and blurs are enlarged with the scale like kernels; all others have one size at all scales. The
growing blur is [1, 2, 1] along rows and columns; followed by the 2x2 average it is `ScaleBlurPool2d`. Of the other
blurs, which keep every second pixel, [1, 2, 1] is centered on a pixel and [1, 3, 3, 1] between two, like 2x2 windows.
A maximum followed by a blur is taken at every pixel. *Rescaling itself* filters as the measured operator does
when it halves an image: not at all for nearest, a 2x2 average for bilinear.

### Layer by layer

DISCO, scales 1, sqrt 2, 2, bicubic; means. Downsampling counts with the layer before it. *Projected* is the maximum
over scales after layer 6. *Zero-mean* is layer 6 without the mean of each map, which is most of its norm after ReLU
and which every downsampling preserves; the order of the methods is much the same.

{layers}

### DISCO after layer 6, scales 1, sqrt 2, 2

{root}

### DISCO after layer 6, scales 1, 2, 4

{powers}

### Which downsampling

The smallest error of all networks that downsample:

{best}

In what follows, ratios are the smallest and the largest over draws and over the three operators that interpolate, for
the scales 1, sqrt 2, 2 and in brackets for 1, 2, 4.

- Nearest rescaling checks the code: with integer scales growing windows and plain subsampling are exact.
- Where rescaling interpolates, the corner of an image stays in place and its first pixel does not: downsampling must be
  centered between two pixels. Strided convolution is half a pixel off and has {strided_root} ({strided_powers}) times
  the error of the 2x2 average; the blur on a pixel has {odd_root} ({odd_powers}) times that of the blur between
  pixels. Growing 2x2 windows keep their first pixel in place instead of their center, so they are off as well.
- The growing blur before the 2x2 average divides the error of the average by {gain_root} ({gain_powers}). It is one
  more equivariant layer, and removes detail from ReLU that is too fine for the next grid; at scale 1 the two together
  are [1, 3, 3, 1]. The same blur at all scales gains far less, or loses. A network without downsampling also gains
  from the growing blur.
- A maximum costs more than the average in the same place. Taken in growing windows at every pixel, then blurred and
  averaged, it divides the error of the 2x2 maximum by {maximum_root} ({maximum_powers}).

So the best downsampling where rescaling interpolates is convolution, ReLU, `ScaleBlurPool2d`; where it is plain
subsampling, the growing blur and every second pixel, or any exact method.

### Hermite after layer 6

Functions of width 0.9 on the authors' stencils for STL-10 ({taps[hermite][0]} taps with scales 1, sqrt 2, 2) and on
those that cover the kernels with 1, 2, 4 ({taps[hermite][1]} taps); then on wide stencils, 7x7 at scale 1
({taps[wide][0]} and {taps[wide][1]} taps). DISCO has {taps[disco][0]} and {taps[disco][1]}. Scales 1, sqrt 2, 2:

{hermite_root}

Scales 1, 2, 4:

{hermite_powers}

On the narrow stencils the functions are truncated, most at scale 1. That error of the basis accumulates from layer to
layer and hides the effect of downsampling. On the wide ones little of it is left, for many more taps. Kernels are then
smooth and 7x7 already at scale 1, so downsampling does less damage: with the plain average the error is below that of
DISCO where rescaling interpolates. The growing blur helps there as well.

"""


if __name__ == "__main__":
    main()
