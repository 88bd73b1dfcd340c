"""`disco test scene`: scale estimators and baselines in one table."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

from ...io import terminal
from ...io.images import size_of
from ...io.progress import Progress, counter
from ...io.report import table
from ...io.weights import chosen_weights
from .. import evaluation
from ..classical import READS, Laplacian
from ..copies import ImageSource, Sizes, find
from ..evaluation import KINDS, Figures, LabeledScene, Ratio, copy_figures, median, read_pair, scene_figures
from ..networks import CHANNELS, SCALES, UNTRAINED, Backbone, ScaleEstimator
from ..options import SceneTestOptions
from ..planes import Rendered, planes
from ..plots import plot_readouts
from ..readout import Shift

_WIDTH, _HEIGHT = 640, 480  # of a plane, in pixels
_CONSTANT = "constant"


def run(options: SceneTestOptions) -> None:
    """Evaluate, print and plot."""
    terminal.check_outputs(options.out, options.plot)
    device = terminal.chosen_device(options.device)
    data = EvaluationData.of(options)
    estimators = {name: estimator.to(device) for name, estimator in _estimators(options).items()}
    with terminal.Progress("testing") as progress:
        figures = data.figures(estimators, options.cache, progress)
    document = data.document(options) | {"rows": {name: results.document() for name, results in figures.items()}}
    rows, about = _table(figures), data.about(options)
    terminal.show(options, document, "\n".join([table(*rows), *about]))
    parts = [f"{'. '.join(about)}.", table(*rows, markdown=True)]
    if data.pairs:
        parts.append(table(*_depth_table(figures), markdown=True))
    terminal.write_report(options.out, "Apparent scale", "\n\n".join(parts), document, command=options.call)
    curves = {name: results.ratio.curve for name, results in figures.items() if results.ratio and name != _CONSTANT}
    ranks = {kind: values for kind in ("planes", "depth") if (values := _ranks(figures, kind))}
    terminal.write_plot(options.plot, lambda: plot_readouts(curves, ranks))


@dataclass(frozen=True)
class EvaluationData:
    """What estimators are tested on: copies of images, rendered planes, and photos with depth."""

    images: list[ImageSource]
    sizes: Sizes
    planes: Iterator[tuple[str, Rendered]]
    count: int
    pairs: dict[str, tuple[Path, Path]]

    @classmethod
    def of(cls, options: SceneTestOptions) -> "EvaluationData":
        """Find the requested data."""
        if options.data is None and options.planes is None and options.depth is None:
            raise ValueError("scene: nothing to test on: pass --data DIR, --planes N or --depth DIR, or several")
        for name, needed in (("span", "data"), ("limit", "data"), ("textures", "planes")):
            if getattr(options, name) is not None and getattr(options, needed) is None:
                raise ValueError(f"scene: --{name} goes with --{needed}")
        images = find(options.data) if options.data else []
        random.Random(0).shuffle(images)  # so that a limit selects from all subfolders
        textured = iter(()) if options.planes is None else planes(options.textures, options.planes)
        pairs = evaluation.find_pairs(options.depth) if options.depth else {}
        return cls(images[: options.limit], Sizes(span=options.span), textured, options.planes or 0, pairs)

    def figures(
        self, estimators: dict[str, ScaleEstimator], cache: Path | None, progress: Progress
    ) -> dict[str, Figures]:
        """Evaluate all estimators, and the prediction that all copies have the same size."""
        # The time of a network is proportional to its parameters times the pixels.
        weights = {
            fingerprint: 1 + sum(weights.numel() for weights in next(iter(group.values())).backbone.parameters())
            for fingerprint, group in evaluation.by_network(estimators).items()
        }
        copied = self.images[0].read()[0].numel() * self.sizes.copies if self.images else 0
        pixels = self.count * _WIDTH * _HEIGHT + len(self.images) * copied
        pixels += sum(math.prod(size_of(photo)) for photo, _ in self.pairs.values())
        everything = sum(weights.values())
        add = counter(progress, pixels * everything)
        ratios: dict[str, Ratio] = {}
        if self.images:
            ratios = copy_figures(
                estimators, self.images, self.sizes, cache=cache, progress=lambda name: add(weights[name] * copied)
            )
        evaluate = partial(
            scene_figures, estimators, cache=cache, progress=lambda scene: add(everything * scene.image[0].numel())
        )
        on_planes = evaluate(starmap(LabeledScene.of_plane, self.planes))
        on_depth = evaluate(LabeledScene.of_depth(read_pair(name, *files)) for name, files in self.pairs.items())
        figures = {name: Figures(ratios.get(name), on_planes[name], on_depth[name]) for name in estimators}
        if ratios:
            first = next(iter(ratios.values()))
            figures[_CONSTANT] = Figures(Ratio(first.constant, first.constant, 0.0, 0.0, first.pairs, []))
        return figures

    def about(self, options: SceneTestOptions) -> list[str]:
        """Return lines that explain the columns of the table."""
        lines = []
        if self.images:
            by = "to sizes from 0.5 to 2" if options.span is None else f"by at most {options.span:g} octaves"
            lines.append(
                f"ratio: mean |log2| error, also over that of a constant, correlation and slope of the ratio of two "
                f"copies' sizes; {len(self.images)} images, resized {by}"
            )
        if self.count:
            lines.append(
                f"planes: median rank correlation of field and true scale over {self.count} slanted planes, also by "
                "kind of texture, and median slope"
            )
        if self.pairs:
            lines.append(f"depth: median rank correlation of field and nearness over {len(self.pairs)} photos")
        return lines

    def document(self, options: SceneTestOptions) -> dict[str, Any]:
        return {
            "experiment": "scene",
            "pretrained": options.pretrained,
            "pictures": len(self.images),
            "sizes": asdict(self.sizes),
            "planes": self.count,
            "depth": len(self.pairs),
        }


def _estimators(options: SceneTestOptions) -> dict[str, ScaleEstimator]:
    """Return the estimators of runs, then those without training."""
    estimators: dict[str, ScaleEstimator] = {}
    for folder in options.runs:
        from ..training import scene_estimator

        short = folder.resolve().name
        estimators[str(folder) if short in estimators else short] = scene_estimator(folder, options.pretrained)
    networks: dict[str, Any] = {}
    for estimator in estimators.values():
        estimator.backbone = networks.setdefault(str(estimator.backbone.fingerprint), estimator.backbone)
    if not networks:
        network = Backbone(pretrained=chosen_weights(options.pretrained, UNTRAINED))
        networks[network.fingerprint] = network
    for network in networks.values():
        estimators[f"no training, {network.kind} network"] = ScaleEstimator(network, Shift(CHANNELS, SCALES)).eval()
    estimators |= {f"Laplacian, {read}": Laplacian(read) for read in READS}
    return estimators


def _table(figures: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """Return the header and a row for every estimator, with the columns that were evaluated."""
    columns: dict[str, Callable[[Figures], float | None]] = {
        "ratio error": lambda row: row.ratio and row.ratio.error,
        "over constant": lambda row: row.ratio and row.ratio.error / row.ratio.constant,
        "correlation": lambda row: row.ratio and row.ratio.correlation,
        "slope": lambda row: row.ratio and row.ratio.slope,
        "planes": lambda row: median(row.planes),
        **{kind: partial(lambda kind, row: median(row.planes, kind), kind) for kind in KINDS},
        "slope on planes": lambda row: median(row.planes, figure="slope"),
        "depth": lambda row: median(row.depth),
    }
    values = {name: [column(row) for row in figures.values()] for name, column in columns.items()}
    values = {name: cells for name, cells in values.items() if any(cell is not None for cell in cells)}
    return ["readout", *values], _rows(figures, values)


def _depth_table(figures: dict[str, Figures]) -> tuple[list[str], list[list[str]]]:
    """Return the header and a row for every photo with depth."""
    names = next([scene.name for scene in row.depth] for row in figures.values() if row.depth)
    ranks = _ranks(figures, "depth")
    return ["photo with depth", *ranks], _rows(names, ranks)


def _rows(names: Iterable[str], columns: Mapping[str, Sequence[float | None]]) -> list[list[str]]:
    rows = zip(names, *columns.values(), strict=True)
    return [[name, *("-" if value is None else f"{value:.3f}" for value in values)] for name, *values in rows]


def _ranks(figures: dict[str, Figures], kind: str) -> dict[str, list[float]]:
    """Return the rank correlation in every image, by estimator."""
    scenes = {name: getattr(row, kind) for name, row in figures.items()}
    return {name: [scene.spearman for scene in agreements] for name, agreements in scenes.items() if agreements}
