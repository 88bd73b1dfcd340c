"""What the quickstart found, in words and pictures: every figure comes from the measured document."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...basis import DiscreteBasis
from ...scales import Scales
from ..bench.plots import plot_growth
from ..bench.timing import DENSE, LOWER_BOUND, OURS
from ..equivariance.plots import plot_basis, plot_errors
from ..io.report import binomial_std
from ..mnist_scale.data import FACTORS
from ..runs.plots import Range, plot_error_over_scale
from .page import PageFigure, Section, Table, page

BASIS = (3, Scales.geometric(2**0.5, 3))
DOING = {
    "basis": "solving a basis",
    "equivariance": "measuring equivariance",
    "speed": "timing layers",
    "networks": "training networks",
}
_KINDS = ("seen", "unseen", "larger", "smaller")
_TITLES = {
    "basis": "A basis",
    "equivariance": "Equivariance error",
    "speed": "Speed",
    "networks": "Seen and unseen scales",
}


def findings(found: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for every step that has been done."""
    told = {}
    if solved := found.get("basis"):
        told["basis"] = (
            f"The stencils of 3x3 kernels at scales 1, sqrt 2 and 2 are solved in {solved['milliseconds']:.0f} ms."
        )
    if measured := found.get("equivariance"):
        best, other = _two_best(measured["errors"], "photographs")
        told["equivariance"] = (
            f"On photographs {best[0]} has an equivariance error of {best[1]:.2g}; the next best basis, {other[0]}, "
            f"has {other[1]:.2g}, {other[1] / best[1]:.0f} times as much."
        )
    if timed := found.get("speed"):
        ratios = sorted(row["dense / ours"] for row in timed["layers"])
        told["speed"] = (
            f"The same layers on dense kernels, the authors' packing, take {ratios[0]:.1f} and {ratios[-1]:.1f} times "
            f"as long as ours."
        )
    if networks := found.get("networks"):
        larger, smaller = (
            ", ".join(f"{name} {statistics.mean(one[kind]):.1%}" for name, one in networks.items())
            for kind in ("larger", "smaller")
        )
        told["networks"] = f"Error on digits larger than any in training: {larger}; on smaller ones: {smaller}."
    return told


def report(found: Mapping[str, Any], out: Path) -> str:
    """The page."""
    told = findings(found)
    parts = {"basis": _basis, "equivariance": _equivariance, "speed": _speed, "networks": _networks}
    sections = [
        part(found, told[name], out)
        if name in told
        else Section(_TITLES[name], "Not measured yet.", commands=[found["command"]])
        for name, part in parts.items()
    ]
    sections.append(_next())
    lead = "Kernels that commute with rescaling, measured on this machine" + (
        "." if found["complete"] else f": a part of it. The same command goes on from here: {found['command']}"
    )
    if found["first"]:
        lead += f" Before the commands below, once: {found['first']}"
    made = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return page(
        "scale-disco, a first look",
        lead,
        sections,
        foot=[
            f"{found['command']}, {found['date']}, {found['seconds']:.0f} s{'' if found['complete'] else ' so far'}.",
            f"{found['machine']}; {made}.",
            "All figures are in report.json beside this page.",
        ],
    )


def _basis(found: Mapping[str, Any], told: str, out: Path) -> Section:
    solved = found["basis"]
    alt = "Nine basis functions at three scales: single pixels, their optimal enlargement, their dilation"
    return Section(
        _TITLES["basis"],
        f"{told} Each column is one pixel of the kernel: at scale 2 it is moved apart, which is exact; at sqrt 2, "
        "where nothing is exact, it is spread in the optimal way.",
        [PageFigure(plot_basis(DiscreteBasis(*BASIS)), alt)],
        ["disco basis --kernel-size 7 --step '2^(1/3)' --count 4 --plot basis.png"],
        [
            f"{solved['taps']} taps in all; predicted equivariance error {solved['predicted error']:.2g} for images of "
            "the default prior."
        ],
    )


def _equivariance(found: Mapping[str, Any], told: str, out: Path) -> Section:
    measured = found["equivariance"]
    errors, taps = measured["errors"], measured["taps"]
    sources = list(measured["images"])
    rows = [[name, *(f"{errors[name][source]:.4f}" for source in sources), str(taps[name])] for name in errors]
    best = _lowest([[*errors[name].values(), taps[name]] for name in errors])
    images = " and ".join(f"{count} {source}" for source, count in measured["images"].items())
    return Section(
        _TITLES["equivariance"],
        f"{told} It says how far convolving a shrunken image is from shrinking the convolved one; 0 would be perfect.",
        [
            PageFigure(
                plot_errors(errors, taps, f"7x7 kernels at four scales, {images}"),
                "Bars of equivariance error and of taps for six bases",
            ),
            Table(["basis", *sources, "taps"], rows, best),
        ],
        [
            "disco equivariance --setting stl10",
            "disco equivariance --images my/photos --plot errors.png   # a folder of pictures of yours",
        ],
        ["Random kernels of each basis, 7x7 pixels, scales 1, 2^(1/3), 2^(2/3), 2; Eq. 14 of the paper."],
    )


def _speed(found: Mapping[str, Any], told: str, out: Path) -> Section:
    timed = found["speed"]
    growth = {name: {int(n): row[name] for n, row in timed["growth"].items()} for name in (OURS, DENSE, LOWER_BOUND)}
    rows = [[row["layer"], f"{row['dense / ours']:.2f}", f"{row['ours / bare']:.2f}"] for row in timed["layers"]]
    return Section(
        _TITLES["speed"],
        f"{told} With more scales the gap widens: each scale of ours is one plain convolution with a small kernel, "
        "so that cost grows with their number, not with the square of the largest.",
        [
            PageFigure(plot_growth(growth), "Seconds over the number of scales: ours is nearly as fast as bare calls"),
            Table(["layer", "dense / ours", "ours / bare"], rows),
        ],
        ["disco bench --batch 8 --channels 64 64 --side 56 --scales 1 2^0.5 2", "disco bench"],
        [
            f"Forward and backward on the CPU, threads: {timed['threads']}; contenders in turns, medians of "
            f"{timed['rounds']} rounds. Bare are the very convolutions that ours runs and nothing else; on a busy "
            "machine ratios near 1 vary by some per cent."
        ],
    )


def _networks(found: Mapping[str, Any], told: str, out: Path) -> Section:
    networks = found["networks"]
    rows = [
        [
            name,
            *(_spread(one[kind]) for kind in _KINDS),
        ]
        for name, one in networks.items()
    ]
    best = _lowest([[statistics.mean(one[kind]) for kind in _KINDS] for one in networks.values()])
    sizes = " or ".join(f"{size:,}" for size in sorted({one["parameters"] for one in networks.values()}))
    seeds = " or ".join(map(str, sorted({len(one["seen"]) for one in networks.values()})))
    curves = {
        name: [
            Range(kind, low, high, errors / images, binomial_std(errors, images))
            for kind, low, high, errors, images in one["curve"]
        ]
        for name, one in networks.items()
    }
    trained = out / "runs" / f"digits-disco-{found['seeds'][0]}"
    notes = [
        f"Trained for {found['epochs']} epochs on {found['training images']:,} digits shrunk by 0.3 to 1, "
        "tested on 1,500 others of these sizes (seen), 500 enlarged by 1 to 2 and 500 shrunk to 0.15 to 0.3 (unseen: "
        f"the mean of both). The networks differ in their kernels only and have {sizes} parameters. Seeds of each: "
        f"{seeds}; where there are several, their mean and deviation.",
        "Digits shrunk to 0.15 are three pixels high: nobody reads them.",
        "Of the paper's networks, twenty times as large, DISCO errs least on digits up to 1.4 times the largest in "
        "training, and SESN from there on: results/mnist_scale.md in the project.",
    ]
    if found.get("reused"):
        notes.append(
            f"{found['reused']} of the networks were trained by an earlier call; delete {out / 'runs'} to train anew."
        )
    return Section(
        _TITLES["networks"],
        f"{told} The shaded scales were seen in training; to the right of them a line stays low as far as kernels "
        "follow the scale.",
        [
            PageFigure(
                plot_error_over_scale(curves, FACTORS),
                "Error over the scale of digits, a line for each of three networks",
            ),
            Table(["error, %", *_KINDS], rows, best),
        ],
        [
            f"disco test {shlex.quote(str(trained))} --plot scales.png",
            f"disco table mnist-scale {shlex.quote(str(out / 'runs'))}",
            "disco data mnist-scale --split 0 --download",
            "disco train mnist-scale --model mnist/disco --split 0 --out runs/disco   # an hour or two on a CPU",
        ],
        notes,
    )


def _next() -> Section:
    return Section(
        "Your own network",
        "A convolutional network that is trained already becomes scale-equivariant in one line, with its weights.",
        commands=[
            "python",
            ">>> from scale_disco import to_scale_equivariant",
            ">>> net = to_scale_equivariant(cnn, scales=(1, 2 ** 0.5, 2))   # cnn: any network of yours",
        ],
    )


def _lowest(rows: Sequence[Sequence[float]]) -> frozenset[tuple[int, int]]:
    """The lowest figure of every column, by row and column of a table whose first column has names."""
    lows = [min(column) for column in zip(*rows, strict=True)]
    return frozenset((n, k + 1) for n, row in enumerate(rows) for k, low in enumerate(lows) if row[k] == low)


def _two_best(errors: Mapping[str, Mapping[str, float]], source: str) -> list[tuple[str, float]]:
    """The basis with the lowest error, and the next of another kind."""
    ranked = sorted(((name, row[source]) for name, row in errors.items()), key=lambda pair: pair[1])
    family = ranked[0][0].split(",")[0]
    return [ranked[0], next(pair for pair in ranked if pair[0].split(",")[0] != family)]


def _spread(values: Sequence[float]) -> str:
    """Mean and deviation in per cent."""
    around = f" ±\N{NO-BREAK SPACE}{100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{around}"
