"""A plane that leans away from the viewer, and how large its texture looks, place by place.

    python examples/scene.py                   # untrained, on a picture that it makes
    python examples/scene.py --plot plane.png  # also drawn beside its scale field; needs the extra plot
    python examples/scene.py --weights FILE    # of a ResNet-50, instead of random ones

prints how large the texture is at rows of the picture, over its median, truly and by the network; and the rank
correlation of both over all places. The texture is a lawn, --photo takes another of the bundled photographs.

A frozen network with nine scales sees the picture. Its parts are compared with each other: how far must the answers of
one be shifted along the scales to look like those of the other? Nothing is learnt. With random weights it fails on
photographs with larger things in them, such as --photo 0, where those of ImageNet see through it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from scale_disco.models import create_model
from scale_disco.tasks.io.figures import check_figure, save_figure
from scale_disco.tasks.io.report import table
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.scene.evaluation import spearman
from scale_disco.tasks.scene.field import extent, scale_field
from scale_disco.tasks.scene.planes import Plane, Rendered, render
from scale_disco.tasks.scene.plots import plot_field

LAWN = 5  # among the bundled photographs
ROWS = 8  # that are printed


def picture(photo: int, ratio: float) -> Rendered:
    """A bundled photograph on a plane whose farthest point is so many times as far as its nearest."""
    texture = (255 * photos()[photo]).round().expand(3, -1, -1)
    return render(texture, Plane(ratio, density=0.7), width=320, height=240)


def main() -> None:
    parser = argparse.ArgumentParser(description="See how a texture gets smaller with distance.")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="of a ResNet-50 (default: random ones)")
    parser.add_argument("--photo", type=int, default=LAWN, choices=range(len(photos())), help="bundled (default 5)")
    parser.add_argument("--ratio", type=float, default=4.0, help="of largest to smallest distance (default 4)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the picture and its scale field")
    given = parser.parse_args()
    if given.plot:
        check_figure(given.plot)
    image, true = picture(given.photo, given.ratio)
    estimator = create_model("scene/shift", pretrained=given.weights)
    began = time.perf_counter()
    field = scale_field(estimator, image)
    seconds = time.perf_counter() - began
    true = true - true.median()
    rows = torch.linspace(15, image.shape[1] - 15, ROWS).long().tolist()
    sizes = [[f"{octaves[row].median().exp2():.2f}" for octaves in (true, field.octaves)] for row in rows]
    print(table(["row", "true size", "size found"], [[str(row), *both] for row, both in zip(rows, sizes, strict=True)]))
    ranks = spearman(field.octaves.flatten(), true.flatten())
    print(f"rank correlation {ranks:.3f} over the whole picture, {seconds:.1f} s")
    if given.plot:
        save_figure(plot_field(image, *field, extent(field)), given.plot)
        print(f"drawn {given.plot}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(str(error))
