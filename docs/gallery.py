"""Draw the gallery of docs/scene.md: photos and their scale fields.

    python docs/gallery.py --photos PHOTOS --run RUN --pretrained RESNET50

PHOTOS are not part of the project. Photos of crowds cannot be published: only their scale field is drawn, without
training and in small windows, since all positions have the same content.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scale_disco.files import written_atomically
from scale_disco.tasks.io.figures import save_figure
from scale_disco.tasks.io.images import read_image
from scale_disco.tasks.scene.field import color_range, scale_field
from scale_disco.tasks.scene.networks import CHANNELS, SCALES, ScaleEstimator
from scale_disco.tasks.scene.plots import overlay
from scale_disco.tasks.scene.readout import READOUTS
from scale_disco.tasks.scene.training import scene_estimator

LONGEST, COLUMNS, INCHES = 640, 2, 2.3
# For every sheet: whether the photos are shown, and titles by file name.
SHEETS: dict[str, tuple[bool, dict[str, str]]] = {
    "scene_roads": (
        True,
        {
            "carnd_p1_solidYellowLeft.jpg": "road",
            "carnd_adv_test5.jpg": "road under trees",
            "carnd_adv_straight_lines1.jpg": "road (in training)",
            "dav2_demo01_street.jpg": "street (in training)",
        },
    ),
    "scene_places": (
        True,
        {
            "dav2_demo06_bridge.jpg": "bridge (in training)",
            "dav2_demo15_stairs.jpg": "stairs",
            "dav2_demo02_sunflowers.jpg": "sunflowers",
            "sklearn_china.jpg": "pagoda",
            "metric3d_wild_library.jpg": "room with books",
            "metric3d_wild_chess.jpg": "chess (in training)",
        },
    ),
    "scene_crowds": (
        False,
        {
            "crowd_IMG_32.jpg": "crowd",
            "crowd_IMG_153.jpg": "crowd",
            "crowd_IMG_126.jpg": "crowd (in training)",
            "crowd_IMG_170.jpg": "crowd (in training)",
        },
    ),
}


def draw(photos: Path, estimator: Any, window: int, shown: bool, names: dict[str, str]) -> Any:
    """Draw a sheet: photos next to their scale fields, or fields only, two of each in a row."""
    from matplotlib.figure import Figure

    panels: list[tuple[str, Tensor]] = []
    for name, title in names.items():
        image = read_image(photos / name, LONGEST)
        field = scale_field(estimator, image, window=window)
        limit = color_range(field)
        if shown:
            panels.append((title, image))
        under = image if shown else torch.full_like(image, 128)
        panels.append((f"within {limit:.1f} octaves", overlay(under, *field, limit)))
        print(f"{name}: {limit:.2f} octaves", flush=True)
    columns = COLUMNS * (2 if shown else 1)
    rows = -(-len(panels) // columns)
    shapes = [image.shape[1] / image.shape[2] for _, image in panels]
    heights = [max(shapes[row * columns : (row + 1) * columns]) for row in range(rows)]
    size = (INCHES * columns, sum(INCHES * height + 0.3 for height in heights))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flatten()
    for axis, (title, image) in zip(axes, panels, strict=False):
        axis.imshow(image.permute(1, 2, 0).numpy())
        axis.set_title(title, fontsize=8)
    for axis in axes:
        axis.axis("off")
    return figure


def lighten(path: Path) -> None:
    """Reduce an image to 256 colors: a quarter of the bytes, with slight banding in skies."""
    from PIL import Image

    with Image.open(path) as image:
        fewer = image.convert("RGB").quantize(256)
    with written_atomically(path) as draft:
        fewer.save(draft, optimize=True)


def main() -> None:
    """Draw all sheets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos")
    parser.add_argument("--run", type=Path, required=True, help="run of `disco train scene`")
    parser.add_argument("--pretrained", help="weights of its network")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the figures")
    options = parser.parse_args()
    trained = scene_estimator(options.run, options.pretrained)
    untrained = ScaleEstimator(trained.backbone, READOUTS["shift"](CHANNELS, SCALES))
    for name, (shown, names) in SHEETS.items():
        estimator, window = (trained, 128) if shown else (untrained, 64)
        save_figure(draw(options.photos, estimator, window, shown, names), options.out / f"{name}.png")
        lighten(options.out / f"{name}.png")


if __name__ == "__main__":
    main()
