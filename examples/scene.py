"""The apparent scale of the texture of a slanted plane, at every position.

    python examples/scene.py                      # on a rendered image
    python examples/scene.py --plot plane.png     # also plot the image and its scale field; needs the extra plot
    python examples/scene.py --pretrained FILE    # other weights of a ResNet-50 than those of the package

prints the size of the texture at rows of the image, relative to its median, true and estimated; and the rank
correlation of both over all positions. The texture is a lawn; --photo selects another bundled photo.

A frozen network with nine scales sees the image. Its windows are compared with each other: by how much must the
responses of one be shifted along the scales to match those of the other? Nothing is trained for this.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from scale_disco.models import create_model
from scale_disco.tasks.io.figures import check_figure, save_figure
from scale_disco.tasks.io.report import table
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.scene.evaluation import spearman
from scale_disco.tasks.scene.field import color_range, scale_field
from scale_disco.tasks.scene.planes import Plane, Rendered, render
from scale_disco.tasks.scene.plots import plot_field

LAWN = 5  # index of a bundled photo
ROWS = 8  # number of printed rows


def plane_image(photo: int, ratio: float) -> Rendered:
    """Render a bundled photo on a plane whose farthest point is `ratio` times as far as its nearest."""
    texture = (255 * photos()[photo]).round().expand(3, -1, -1)
    return render(texture, Plane(ratio, density=0.7), width=320, height=240)


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate how a texture gets smaller with distance.")
    parser.add_argument("--pretrained", type=Path, metavar="FILE", help="weights of a ResNet-50 (default: packaged)")
    parser.add_argument(
        "--photo", type=int, default=LAWN, choices=range(len(photos())), help="bundled photo (default 5)"
    )
    parser.add_argument("--ratio", type=float, default=4.0, help="ratio of largest to smallest distance (default 4)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the image and its scale field")
    options = parser.parse_args()
    if options.plot:
        check_figure(options.plot)
    image, true = plane_image(options.photo, options.ratio)
    estimator: Any = create_model("scene/shift", pretrained=options.pretrained or True)
    start = time.perf_counter()
    field = scale_field(estimator, image)
    seconds = time.perf_counter() - start
    true = true - true.median()
    rows = torch.linspace(15, image.shape[1] - 15, ROWS).long().tolist()
    sizes = [[f"{octaves[row].median().exp2():.2f}" for octaves in (true, field.octaves)] for row in rows]
    header = ["row", "true size", "estimated size"]
    print(table(header, [[str(row), *both] for row, both in zip(rows, sizes, strict=True)]))
    ranks = spearman(field.octaves.flatten(), true.flatten())
    print(f"rank correlation {ranks:.3f} over the whole image, {seconds:.1f} s")
    if options.plot:
        save_figure(plot_field(image, *field, color_range(field)), options.plot)
        print(f"saved {options.plot}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(str(error))
