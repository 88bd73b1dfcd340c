"""Equivariance error of every basis on digits and photos: writes results/equivariance.md.

Needs MNIST's files, a folder of photos and, for the authors' released bases, their tensors as .npz files
(`disco_proxy_size15_eff7.npz`, `disco_proxy_size5_eff3.npz`, key `basis` [F, S, K, K]).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from scale_disco import (
    Basis,
    BSplineBasis,
    DiscreteBasis,
    FourierBesselBasis,
    HermiteBasis,
    LogRadialBasis,
    Scales,
    hermite_mixing_preset,
)
from scale_disco.equivariance import basis_error
from scale_disco.files import written_atomically
from scale_disco.tasks.io.report import mean_and_std, provenance, table
from scale_disco.tasks.io.samples import sample_images

SEVEN, THREE = Scales.geometric(2 ** (1 / 3), 4), Scales.geometric(2**0.5, 3)
SEEDS = range(3)
PAPER = {
    "DISCO": "0.004",
    "Hermite": "0.107",
    "B-spline": "0.163",
    "Fourier-Bessel": "0.170",
    "log-radial": "0.200",
}


def mixed(basis: Basis, setting: str) -> Basis:
    return basis.mix(hermite_mixing_preset(setting)).normalized()


def released(folder: Path, name: str, scales: Scales, kernel_size: int) -> Basis:
    with np.load(folder / f"{name}.npz") as archive:
        return Basis.from_dense(torch.from_numpy(archive["basis"]), scales, kernel_size=kernel_size)


class Images:
    """The two kinds of images, each with the border that suits it."""

    def __init__(self, mnist: Path, photos: Path, digits: int) -> None:
        self.sets = {"digits": sample_images(mnist, count=digits), "photos": sample_images(photos)}

    def errors(self, basis: Basis, scales: Scales, kind: str, **operator: object) -> list[float]:
        images, border = self.sets[kind]
        return [
            basis_error(basis, images, scales=scales, seed=seed, border=border, channels=16, **operator)  # type: ignore[arg-type]
            for seed in SEEDS
        ]


def compare(images: Images, bases: Mapping[str, Basis], scales: Scales, *, paper: bool = False) -> str:
    rows = []
    measured = {}
    for name, basis in bases.items():
        measured[name] = {kind: images.errors(basis, scales, kind) for kind in images.sets}
        row = [name, *(mean_and_std(errors) for errors in measured[name].values()), str(basis.taps)]
        rows.append([*row, PAPER.get(name, "")] if paper else row)
        print(f"  {' | '.join(rows[-1])}", file=sys.stderr, flush=True)
    ratios = {
        kind: [ours / theirs for ours, theirs in zip(errors, measured["DISCO as released"][kind], strict=True)]
        for kind, errors in measured["DISCO"].items()
    }
    words = ", ".join(f"{min(r):.3f} to {max(r):.3f} on {kind}" for kind, r in ratios.items())
    header = ["basis", "digits", "photos", "taps", *(["paper, its own protocol"] if paper else [])]
    return f"{table(header, rows, markdown=True)}\n\nRatio of DISCO to DISCO as released, over draws: {words}."


def priors(images: Images) -> str:
    rows = []
    for prior in ("white", 0.5, 0.7, 0.8, "image", 0.95, 0.98):
        name = {"white": "white noise (0)", "image": "image (0.9), the default"}.get(str(prior), str(prior))
        row = [name]
        for kernel_size, scales, setting in ((7, SEVEN, "mnist"), (3, THREE, "stl10")):
            basis = mixed(DiscreteBasis(kernel_size, scales, prior=prior), setting)
            row += [mean_and_std(images.errors(basis, scales, kind)) for kind in images.sets]
        rows.append(row)
        print(f"  {' | '.join(row)}", file=sys.stderr, flush=True)
    return table(["neighbor correlation", "7x7 digits", "7x7 photos", "3x3 digits", "3x3 photos"], rows, markdown=True)


def supports(images: Images) -> str:
    rows = []
    choices: list[tuple[int, Scales, str, int | tuple[int, ...]]] = [
        *((3, THREE, "stl10", side) for side in (3, 5, 7, 9)),
        *((7, SEVEN, "mnist", side) for side in ((7, 7, 9, 7), (7, 9, 11, 7), (7, 11, 13, 7), (7, 15, 15, 7))),
    ]
    for kernel_size, scales, setting, support in choices:
        basis = DiscreteBasis(kernel_size, scales, support=support)
        default = basis.support == DiscreteBasis(kernel_size, scales).support
        name = (
            f"{kernel_size}x{kernel_size}, sides {', '.join(map(str, basis.support))}{' (default)' if default else ''}"
        )
        errors = [mean_and_std(images.errors(mixed(basis, setting), scales, kind)) for kind in images.sets]
        rows.append([name, str(basis.taps), f"{basis.error:.4f}", *errors])
        print(f"  {' | '.join(rows[-1])}", file=sys.stderr, flush=True)
    return table(["basis", "taps", "predicted error", "digits", "photos"], rows, markdown=True)


def interpolations(images: Images) -> tuple[str, str]:
    """Bases fitted with one interpolation against those fitted with another; and their errors under each."""
    modes = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
    differences, crossed = [], []
    for kernel_size, scales, support in ((3, THREE, (3, 9, 3)), (7, SEVEN, (7, 15, 15, 7))):
        for prior in ("white", "image"):
            solved = {
                name: DiscreteBasis(kernel_size, scales, prior=prior, mode=mode, support=support)
                for name, mode in modes.items()
            }
            row = [f"{kernel_size}x{kernel_size}, {prior} prior"]
            for first, second in (("nearest", "bicubic"), ("bilinear", "bicubic"), ("nearest", "bilinear")):
                a, b = solved[first].dense(), solved[second].dense()
                free = [k for k in range(len(scales)) if scales.integer_ratio(k) is None]
                whole = float((a - b).square().sum() / b.square().sum())
                part = float((a[:, free] - b[:, free]).square().sum() / b[:, free].square().sum())
                row.append(f"{100 * part:.1f} % ({100 * whole:.1f} %)")
            differences.append(row)
            print(f"  {' | '.join(row)}", file=sys.stderr, flush=True)
            if prior == "image":
                for name, basis in solved.items():
                    errors = [
                        mean_and_std(images.errors(basis, scales, "photos", mode=mode)) for mode in modes.values()
                    ]
                    crossed.append([f"{kernel_size}x{kernel_size}, solved for {name}", *errors])
                    print(f"  {' | '.join(crossed[-1])}", file=sys.stderr, flush=True)
    first = table(
        ["basis", "nearest vs bicubic", "bilinear vs bicubic", "nearest vs bilinear"], differences, markdown=True
    )
    return first, table(["basis", *(f"{name} rescaling" for name in modes)], crossed, markdown=True)


def whole_networks(report: Path) -> str:
    """What benchmarks/networks.py wrote at the end of the report."""
    section = re.search(r"^## Whole networks$.*", report.read_text(), re.M | re.S) if report.exists() else None
    return f"\n{section[0]}" if section else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder with t10k-images-idx3-ubyte(.gz)")
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos")
    parser.add_argument("--released", type=Path, required=True, help="folder with the authors' bases")
    parser.add_argument("--digits", type=int, default=200, help="digits (default 200)")
    parser.add_argument("--out", type=Path, default=Path("results/equivariance.md"))
    options = parser.parse_args()
    start = time.monotonic()
    images = Images(options.mnist, options.photos, options.digits)
    digits, photos = (len(images.sets[kind].images) for kind in ("digits", "photos"))

    def disco(kernel_size: int, scales: Scales, setting: str, **options: object) -> Basis:
        return mixed(DiscreteBasis(kernel_size, scales, **options), setting)  # type: ignore[arg-type]

    print("7x7", file=sys.stderr)
    seven = {
        "DISCO": disco(7, SEVEN, "mnist"),
        "DISCO, sides of 15": disco(7, SEVEN, "mnist", support=(7, 15, 15, 7)),
        "DISCO, white-noise prior": disco(7, SEVEN, "mnist", prior="white"),
        "DISCO as released": mixed(released(options.released, "disco_proxy_size15_eff7", SEVEN, 7), "mnist"),
        "Hermite": HermiteBasis.preset("mnist"),
        "Hermite, settings for augmented training": HermiteBasis.preset("mnist+"),
        "B-spline": BSplineBasis.preset("mnist"),
        "Fourier-Bessel": FourierBesselBasis.preset("mnist"),
        "log-radial": LogRadialBasis.preset("mnist"),
    }
    table_seven = compare(images, seven, SEVEN, paper=True)
    print("3x3", file=sys.stderr)
    three = {
        "DISCO": disco(3, THREE, "stl10"),
        "DISCO, side 5": disco(3, THREE, "stl10", support=5),
        "DISCO, white-noise prior": disco(3, THREE, "stl10", prior="white"),
        "DISCO as released": mixed(released(options.released, "disco_proxy_size5_eff3", THREE, 3), "stl10"),
        "Hermite": HermiteBasis.preset("stl10"),
    }
    table_three = compare(images, three, THREE)
    print("priors", file=sys.stderr)
    table_priors = priors(images)
    print("supports", file=sys.stderr)
    table_supports = supports(images)
    print("interpolations", file=sys.stderr)
    table_differences, table_crossed = interpolations(images)

    command = f"python benchmarks/equivariance.py --mnist MNIST --photos PHOTOS --released RELEASED --digits {digits}"
    text = TEMPLATE.format(
        digits=digits,
        photos=photos,
        seeds=len(SEEDS),
        provenance=provenance(command),
        minutes=(time.monotonic() - start) / 60,
        seven=table_seven,
        three=table_three,
        priors=table_priors,
        supports=table_supports,
        differences=table_differences,
        crossed=table_crossed,
    )
    with written_atomically(options.out) as draft:
        draft.write_text(text + whole_networks(options.out))
    print(text)


TEMPLATE = """\
# Equivariance error

Eq. 14 of the paper for a lifting convolution with random weights, by the protocol of
[docs/equivariance.md](../docs/equivariance.md): every ratio of scales once, bicubic rescaling without antialiasing,
16 random kernels, mean ± standard deviation over {seeds} draws of the weights (the same for all bases, so differences
between bases are much more certain than the standard deviation suggests). *Digits* are {digits} MNIST test digits,
scaled by 0.3 to 1 on an empty canvas, no border left out. *Photos* are {photos} gray photos (256 x 256
center crops), a quarter of the side left out at each end. *Taps* are multiplications per output pixel and channel pair,
summed over scales. Discrete bases use the authors' Hermite mixing, all bases are normalized as in their code.

{provenance}
- Time: {minutes:.0f} minutes

## 7x7 kernels, scales 1, 2^(1/3), 2^(2/3), 2 (the MNIST setting)

{seven}

The paper does not say which images, rescalings, scale pairs and borders its column was measured with: compare within
a column.

## 3x3 kernels, scales 1, sqrt 2, 2 (the STL-10 setting)

{three}

## Which prior

Discrete bases solved for images of different smoothness, default support:

{priors}

## Which support

{supports}

## Does the interpolation matter?

The appendix says that bases fitted with nearest, bilinear and bicubic interpolation differ by a relative mean squared
error below one percent. Relative squared difference of the solved stencils, all on the same large support; in
brackets over all scales, where the exact ones count as equal:

{differences}

And their errors (pixel bases, on the photos) under different rescaling of the image:

{crossed}
"""


if __name__ == "__main__":
    main()
