"""`disco compare`: the relative scale of images."""

import math
from typing import Any

from ...io import terminal
from ...io.images import read_image
from ...io.report import table
from ...io.weights import chosen_weights
from ..compare import SHORTEST, RelativeScale, check_image, relative_scale
from ..networks import UNTRAINED, create
from ..options import CompareOptions
from ..plots import plot_relative_scale


def run(options: CompareOptions) -> None:
    """Compare, print, write and plot."""
    terminal.check_outputs(options.out, options.plot)
    device = terminal.chosen_device(options.device)
    images = [read_image(path, shortest=SHORTEST) for path in options.images]
    for path, image in zip(options.images, images, strict=True):
        check_image(str(path), image)
    estimator = create("shift", pretrained=chosen_weights(options.pretrained, UNTRAINED)).to(device)
    with terminal.Progress("comparing") as progress:
        result = relative_scale([image.to(device) for image in images], estimator, progress=progress)
    document = _document(options, result)
    terminal.show(options, document, f"{_table(document)}\n{_about(document)}")
    text = f"{_about(document)}\n\n{_table(document, markdown=True)}"
    terminal.write_report(options.out, "Relative scale", text, document, command=options.call)
    names = [path.name for path in options.images]
    octaves, uncertainty = result.octaves.tolist(), result.uncertainty.tolist()
    terminal.write_plot(options.plot, lambda: plot_relative_scale(images, names, octaves, uncertainty))


def _document(options: CompareOptions, result: RelativeScale) -> dict[str, Any]:
    columns = zip(options.images, result.octaves.tolist(), result.uncertainty.tolist(), strict=True)
    rows = [
        {
            "image": str(path),
            "octaves": octaves,
            "uncertainty": uncertainty if math.isfinite(uncertainty) else None,
            "factor": 2**octaves,
            "resize": 2**-octaves,
        }
        for path, octaves, uncertainty in columns
    ]
    return {"pretrained": options.pretrained, "images": rows, "pairs": result.pairs.tolist()}


def _table(document: dict[str, Any], *, markdown: bool = False) -> str:
    rows = []
    for row in document["images"]:
        uncertainty = "unknown" if row["uncertainty"] is None else f"{row['uncertainty']:.2f}"
        rows.append(
            [row["image"], f"{row['octaves']:+.2f}", uncertainty, f"{row['factor']:.3g}", f"{row['resize']:.3g}"]
        )
    return table(["image", "octaves", "uncertainty", "factor", "resize by"], rows, markdown=markdown)


def _about(document: dict[str, Any]) -> str:
    first = document["images"][0]["image"]
    return f"How large the content looks relative to {first}; resized by the last column, it looks as large."
