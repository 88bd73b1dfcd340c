"""`disco test scene`: scale estimators and baselines in one table."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...io.figures import save_figure
from ...io.images import size_of
from ...io.report import table
from ...io.terminal import Progress, chosen_device, say, show, suggest, write_report
from ..classical import READS, Laplacian
from ..copies import ImageSource, Sizes, find
from ..depth import find_pairs, read_pair
from ..evaluation import (
    KINDS,
    Figures,
    LabeledScene,
    Ratio,
    by_network,
    copy_figures,
    depth_figures,
    median,
    median_slope,
    plane_figures,
)
from ..networks import CHANNELS, SCALES, Backbone, ScaleEstimator
from ..planes import Rendered, planes
from ..plots import plot_readouts
from ..readout import Shift

OPTIONS = ("textures", "planes", "depth", "span", "pretrained", "cache")
_WIDTH, _HEIGHT = 640, 480  # of a plane, in pixels
_CONSTANT = "constant"


def add(test: argparse.ArgumentParser) -> None:
    """Add the options to the parser of `disco test`."""
    scene = test.add_argument_group("options of disco test scene")
    scene.add_argument("--planes", type=int, metavar="N", help="test on N textured slanted planes")
    scene.add_argument("--textures", type=Path, metavar="DIR", help="pictures for planes (default: the bundled ones)")
    scene.add_argument(
        "--depth",
        type=Path,
        metavar="DIR",
        help="test on pictures NAME.jpg with depth, NAME_depth_mm.png (16 bits, mm)",
    )
    scene.add_argument(
        "--span",
        type=float,
        metavar="X",
        help="resize pictures of --data by X octaves at most (default: 0.5 to 2, as in the paper)",
    )
    pretrained = scene.add_argument(
        "--pretrained", metavar="FILE", help="weights of the ResNet-50: a file, or torchvision or timm"
    )
    suggest(pretrained, ["torchvision", "timm"])
    scene.add_argument("--cache", type=Path, metavar="DIR", help="keep here what networks see of pictures (10 MB each)")


def run(options: argparse.Namespace) -> None:
    """Measure, print and draw."""
    material = Material.of(options)
    estimators = _estimators(options)
    with Progress("testing") as progress:
        figures = material.figures(estimators, options.cache, progress)
    document = material.document(options) | {"rows": {name: one.document() for name, one in figures.items()}}
    shown, about = _table(figures), material.about(options)
    show(options, document, "\n".join([table(*shown), *about]))
    if options.out:
        parts = [f"{'. '.join(about)}.", table(*shown, markdown=True)]
        if material.pairs:
            parts.append(table(*_depth_table(figures), markdown=True))
        write_report(options.out, "How large things look", "\n\n".join(parts), document, command=options.call)
    if options.plot:
        curves = {name: one.ratio.curve for name, one in figures.items() if one.ratio and name != _CONSTANT}
        ranks = {kind: _ranks(figures, kind) for kind in ("planes", "depth")}
        save_figure(plot_readouts(curves, {kind: one for kind, one in ranks.items() if one}), options.plot)
        say(f"drawn {options.plot}")


@dataclass(frozen=True)
class Material:
    """What estimators are tested on."""

    pictures: list[ImageSource]
    sizes: Sizes
    planes: Iterator[tuple[str, Rendered]]
    count: int
    pairs: dict[str, tuple[Path, Path]]

    @classmethod
    def of(cls, options: argparse.Namespace) -> Material:
        """What was asked for, if it is there."""
        if options.data is options.planes is options.depth is None:
            raise ValueError("scene: nothing to test on: give --data DIR, --planes N or --depth DIR, or several")
        for name, needed in (("span", "data"), ("limit", "data"), ("textures", "planes")):
            if getattr(options, name) is not None and getattr(options, needed) is None:
                raise ValueError(f"scene: --{name} goes with --{needed}")
        pictures = find(options.data) if options.data else []
        random.Random(0).shuffle(pictures)  # so that a limit takes of all folders
        textured = iter(()) if options.planes is None else planes(options.textures, options.planes)
        pairs = find_pairs(options.depth) if options.depth else {}
        return cls(pictures[: options.limit], Sizes(span=options.span), textured, options.planes or 0, pairs)

    def figures(
        self, estimators: dict[str, ScaleEstimator], cache: Path | None, progress: Callable[[int, int], None]
    ) -> dict[str, Figures]:
        """Of all estimators, and of whoever says that all copies have one size."""
        work = _Work(self, estimators, progress)
        ratios: dict[str, Ratio] = {}
        if self.pictures:
            ratios = copy_figures(estimators, self.pictures, self.sizes, cache=cache, progress=work.copies)
        on_planes = plane_figures(estimators, self.planes, cache=cache, progress=work.scene)
        pairs = (read_pair(name, *files) for name, files in self.pairs.items())
        beside_depth = depth_figures(estimators, pairs, cache=cache, progress=work.scene)
        found = {name: Figures(ratios.get(name), on_planes[name], beside_depth[name]) for name in estimators}
        if ratios:
            one = next(iter(ratios.values()))
            found[_CONSTANT] = Figures(Ratio(one.constant, one.constant, 0.0, 0.0, one.pairs, []))
        return found

    def about(self, options: argparse.Namespace) -> list[str]:
        """Lines that say what the columns of the table are."""
        lines = []
        if self.pictures:
            by = "to sizes from 0.5 to 2" if options.span is None else f"by {options.span:g} octaves at most"
            lines.append(
                f"ratio: mean |log2| error, also over that of a constant, correlation and slope of the ratio of two "
                f"copies' sizes; {len(self.pictures)} pictures, resized {by}"
            )
        if self.count:
            lines.append(
                f"planes: median rank correlation of field and true scale over {self.count} slanted planes, also by "
                "kind of texture, and median slope"
            )
        if self.pairs:
            lines.append(f"depth: median rank correlation of field and nearness over {len(self.pairs)} pictures")
        return lines

    def document(self, options: argparse.Namespace) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "experiment": "scene",
            "pretrained": options.pretrained,
            "pictures": len(self.pictures),
            "sizes": asdict(self.sizes),
            "planes": self.count,
            "depth": len(self.pairs),
        }


class _Work:
    """Progress through all that is to be seen. A network takes time in proportion to its weights and the pixels."""

    def __init__(
        self, material: Material, estimators: dict[str, ScaleEstimator], progress: Callable[[int, int], None]
    ) -> None:
        self.progress, self.done = progress, 0
        self.weights = {
            mark: 1 + sum(weights.numel() for weights in next(iter(group.values())).backbone.parameters())
            for mark, group in by_network(estimators).items()
        }
        self.copied = material.pictures[0].read()[0].numel() * material.sizes.copies if material.pictures else 0
        pixels = material.count * _WIDTH * _HEIGHT + len(material.pictures) * self.copied
        for photograph, _ in material.pairs.values():
            width, height = size_of(photograph)
            pixels += width * height
        self.total = pixels * sum(self.weights.values())

    def copies(self, mark: str) -> None:
        """A network has seen the copies of a picture."""
        self._add(self.weights[mark] * self.copied)

    def scene(self, scene: LabeledScene) -> None:
        """All networks have seen a scene."""
        self._add(sum(self.weights.values()) * scene.image[0].numel())

    def _add(self, work: int) -> None:
        self.done += work
        self.progress(self.done, self.total)


def _estimators(options: argparse.Namespace) -> dict[str, ScaleEstimator]:
    """Those of runs, then those without training, on the device."""
    found: dict[str, ScaleEstimator] = {}
    for folder in map(Path, options.runs[1:]):
        short = folder.resolve().name
        found[str(folder) if short in found else short] = _opened(folder, options.pretrained)
    networks: dict[str, Any] = {}
    for estimator in found.values():
        estimator.backbone = networks.setdefault(str(estimator.backbone.mark), estimator.backbone)
    if not networks:
        network = Backbone(pretrained=options.pretrained)
        networks[network.mark] = network
        if network.sha256 is None:
            say("disco test: the network has random weights; --pretrained gives it those of a ResNet-50")
    for network in networks.values():
        found[f"no training, {network.kind} network"] = ScaleEstimator(network, Shift(CHANNELS, SCALES)).eval()
    found |= {f"Laplacian, {read}": Laplacian(read) for read in READS}
    return {name: estimator.to(chosen_device(options)) for name, estimator in found.items()}


def _opened(folder: Path, pretrained: str | None) -> ScaleEstimator:
    from ..training import scene_estimator

    return scene_estimator(folder, pretrained)


def _table(figures: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """A row for every estimator, with the columns that were measured."""
    columns: dict[str, Callable[[Figures], float | None]] = {
        "ratio error": lambda one: one.ratio and one.ratio.error,
        "over constant": lambda one: one.ratio and one.ratio.error / one.ratio.constant,
        "correlation": lambda one: one.ratio and one.ratio.correlation,
        "slope": lambda one: one.ratio and one.ratio.slope,
        "planes": lambda one: median(one.planes),
        **{kind: partial(_on_kind, kind) for kind in KINDS},
        "slope on planes": lambda one: median_slope(one.planes),
        "depth": lambda one: median(one.depth),
    }
    measured = {name: [of(one) for one in figures.values()] for name, of in columns.items()}
    measured = {name: values for name, values in measured.items() if any(value is not None for value in values)}
    rows = [[name, *map(_cell, values)] for name, *values in zip(figures, *measured.values(), strict=True)]
    return ["read-out", *measured], rows


def _on_kind(kind: str, one: Figures) -> float | None:
    return median(one.planes, kind)


def _depth_table(figures: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """A row for every picture with depth."""
    found = _ranks(figures, "depth")
    names = next([scene.name for scene in one.depth] for one in figures.values() if one.depth)
    rows = [[name, *map(_cell, values)] for name, *values in zip(names, *found.values(), strict=True)]
    return ["picture with depth", *found], rows


def _ranks(figures: dict[str, Figures], kind: str) -> dict[str, list[float]]:
    """By estimator, the rank correlation in every picture."""
    return {
        name: [scene.spearman for scene in getattr(one, kind)] for name, one in figures.items() if getattr(one, kind)
    }


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
