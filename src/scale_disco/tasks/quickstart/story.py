"""Text and figures of the quickstart report; every number comes from the measured document."""

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
_KINDS = ("seen", "unseen", "larger", "smaller")


def summaries(results: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence for every finished step."""
    sentences = {}
    if basis := results.get("basis"):
        time = f"{basis['milliseconds']:.0f} ms"
        sentences["basis"] = f"The stencils of 3x3 kernels at scales 1, sqrt 2 and 2 are solved in {time}."
    if equivariance := results.get("equivariance"):
        errors = {name: row["photographs"] for name, row in equivariance["errors"].items()}
        best, *others = sorted(errors, key=lambda name: errors[name])
        other = next(name for name in others if name.split(",")[0] != best.split(",")[0])  # of another family
        sentences["equivariance"] = (
            f"On photos, {best} has an equivariance error of {errors[best]:.2g}; the next best basis, {other}, "
            f"has {errors[other]:.2g}, {errors[other] / errors[best]:.0f} times as much."
        )
    if speed := results.get("speed"):
        ratios = sorted(row["dense / ours"] for row in speed["layers"])
        sentences["speed"] = (
            f"The same layers with dense kernels, the authors' packing, take {ratios[0]:.1f} and {ratios[-1]:.1f} "
            f"times as long as ours."
        )
    if networks := results.get("networks"):
        larger, smaller = (
            ", ".join(f"{name} {statistics.mean(network[kind]):.1%}" for name, network in networks.items())
            for kind in ("larger", "smaller")
        )
        sentences["networks"] = f"Error on digits larger than in training: {larger}; on smaller digits: {smaller}."
    return sentences


def report(results: Mapping[str, Any], out: Path) -> str:
    """Return the report as HTML."""
    sentences = summaries(results)
    steps = {
        "basis": ("A basis", _basis),
        "equivariance": ("Equivariance error", _equivariance),
        "speed": ("Speed", _speed),
        "networks": ("Seen and unseen scales", _networks),
    }
    sections = [
        make(title, sentences[name], results, out)
        if name in sentences
        else Section(title, "Not measured yet.", commands=[results["command"]])
        for name, (title, make) in steps.items()
    ]
    network = Section(
        "Your own network",
        "A trained convolutional network becomes scale-equivariant in one line and keeps its weights.",
        commands=[
            "python",
            ">>> from scale_disco import to_scale_equivariant",
            ">>> net = to_scale_equivariant(cnn, scales=(1, 2 ** 0.5, 2))   # cnn: your network",
        ],
    )
    lead = "Convolutions that commute with rescaling, measured on this machine"
    lead += "." if results["complete"] else f" (incomplete). To continue, run the same command: {results['command']}"
    if results["first"]:
        lead += f" Before the commands below, run once: {results['first']}"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    so_far = "" if results["complete"] else " so far"
    foot = [
        f"{results['command']}, {results['date']}, {results['seconds']:.0f} s{so_far}.",
        f"{results['machine']}; {versions}.",
        "All numbers are in report.json in the same folder.",
    ]
    return page("scale-disco quickstart", lead, [*sections, network], foot=foot)


def _basis(title: str, summary: str, results: Mapping[str, Any], out: Path) -> Section:
    basis = results["basis"]
    alt = "Nine basis functions at three scales: single pixels, their optimal enlargement, their dilation"
    return Section(
        title,
        f"{summary} Each column is one pixel of the kernel. At scale 2 it is dilated, which is exact; at sqrt 2, where "
        "no stencil is exact, it is spread optimally.",
        [PageFigure(plot_basis(DiscreteBasis(*BASIS)), alt)],
        ["disco basis --kernel-size 7 --step '2^(1/3)' --count 4 --plot basis.png"],
        [
            f"{basis['taps']} taps in total; predicted equivariance error {basis['predicted error']:.2g} for images of "
            "the default prior."
        ],
    )


def _equivariance(title: str, summary: str, results: Mapping[str, Any], out: Path) -> Section:
    measured = results["equivariance"]
    labels = {source: source.replace("photographs", "photos") for source in measured["images"]}
    measured_errors, taps = measured["errors"], measured["taps"]
    errors = {name: {labels[source]: row[source] for source in labels} for name, row in measured_errors.items()}
    rows = [[name, *(f"{error:.4f}" for error in row.values()), str(taps[name])] for name, row in errors.items()]
    best = _lowest([[*row.values(), taps[name]] for name, row in errors.items()])
    images = " and ".join(f"{count} {labels[source]}" for source, count in measured["images"].items())
    figure = plot_errors(errors, taps, f"7x7 kernels at four scales, {images}")
    return Section(
        title,
        f"{summary} It is the distance between convolving a downscaled image and downscaling the convolved image; 0 is "
        "exact.",
        [
            PageFigure(figure, "Bars of equivariance error and of taps for six bases"),
            Table(["basis", *labels.values(), "taps"], rows, best),
        ],
        [
            "disco equivariance --setting stl10",
            "disco equivariance --images my/photos --plot errors.png   # a folder of your images",
        ],
        ["Random kernels of each basis, 7x7 pixels, scales 1, 2^(1/3), 2^(2/3), 2; Eq. 14 of the paper."],
    )


def _speed(title: str, summary: str, results: Mapping[str, Any], out: Path) -> Section:
    timed = results["speed"]
    growth = {name: {int(n): row[name] for n, row in timed["growth"].items()} for name in (OURS, DENSE, LOWER_BOUND)}
    rows = [[row["layer"], f"{row['dense / ours']:.2f}", f"{row['ours / bare']:.2f}"] for row in timed["layers"]]
    return Section(
        title,
        f"{summary} The gap widens with more scales: each scale of ours is one plain convolution with a small kernel, "
        "so the cost grows with the number of scales, not with the square of the largest.",
        [
            PageFigure(plot_growth(growth), "Seconds over the number of scales: ours is close to the lower bound"),
            Table(["layer", "dense / ours", "ours / lower bound"], rows),
        ],
        ["disco bench --batch 8 --channels 64 64 --side 56 --scales 1 2^0.5 2", "disco bench"],
        [
            f"Forward and backward on the CPU, threads: {timed['threads']}; contenders in turns, medians of "
            f"{timed['rounds']} rounds. The lower bound is plain F.conv2d calls with the same stencils; on a busy "
            "machine ratios near 1 vary by a few percent."
        ],
    )


def _networks(title: str, summary: str, results: Mapping[str, Any], out: Path) -> Section:
    networks = results["networks"]
    rows = [[name, *(_mean_and_std(network[kind]) for kind in _KINDS)] for name, network in networks.items()]
    best = _lowest([[statistics.mean(network[kind]) for kind in _KINDS] for network in networks.values()])
    sizes = " or ".join(f"{size:,}" for size in sorted({network["parameters"] for network in networks.values()}))
    seeds = " or ".join(map(str, sorted({len(network["seen"]) for network in networks.values()})))
    curves = {
        name: [
            Range(kind, low, high, errors / images, binomial_std(errors, images))
            for kind, low, high, errors, images in network["curve"]
        ]
        for name, network in networks.items()
    }
    runs = out / "runs"
    trained = runs / f"digits-disco-{results['seeds'][0]}"
    notes = [
        f"Trained for {results['epochs']} epochs on {results['training images']:,} digits scaled by 0.3 to 1. Tested "
        "on 1,500 other digits of these scales (seen), 500 scaled by 1 to 2 and 500 by 0.15 to 0.3 (unseen: the mean "
        f"of both). The networks differ only in their kernels and have {sizes} parameters. Seeds per network: {seeds}; "
        "for several seeds, mean and standard deviation.",
        "At scale 0.15 digits are three pixels high and illegible.",
        "Among the paper's networks, twenty times as large, DISCO has the lowest error up to 1.4 times the largest "
        "scale in training, and SESN beyond: results/mnist_scale.md in the project.",
    ]
    if results.get("reused"):
        notes.append(f"{results['reused']} of the networks were trained by an earlier call; delete {runs} to retrain.")
    return Section(
        title,
        f"{summary} Shaded scales were seen in training; to their right, a line stays low as far as the kernels follow "
        "the scale.",
        [
            PageFigure(plot_error_over_scale(curves, FACTORS), "Error vs. scale of digits for three networks"),
            Table(["error, %", *_KINDS], rows, best),
        ],
        [
            f"disco test {shlex.quote(str(trained))} --plot scales.png",
            f"disco table mnist-scale {shlex.quote(str(runs))}",
            "disco data mnist-scale --split 0 --download",
            "disco train mnist-scale --model mnist/disco --split 0 --out runs/disco   # an hour or two on a CPU",
        ],
        notes,
    )


def _lowest(rows: Sequence[Sequence[float]]) -> frozenset[tuple[int, int]]:
    """Return row and column of the lowest value per column, in a table with names in its first column."""
    lows = [min(column) for column in zip(*rows, strict=True)]
    return frozenset((n, k + 1) for n, row in enumerate(rows) for k, low in enumerate(lows) if row[k] == low)


def _mean_and_std(values: Sequence[float]) -> str:
    """Format mean and standard deviation in percent."""
    std = f" ±\N{NO-BREAK SPACE}{100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{std}"
