"""Train a narrow DISCO network and its ordinary twin on images in one folder per class, and test them at five sizes.

    python examples/own_pictures.py             # on generated patterns; needs the extras train and plot
    python examples/own_pictures.py my/images   # one folder per class, or train/CLASS and test/CLASS

prints the accuracy on test images in percent, by their size relative to training. Both networks have the
same number of weights and the same training. There are four patterns, in random colors and with a period of 5 to 10
pixels; both networks recognize nearly all at the trained size, and DISCO clearly more at twice that size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from scale_disco.tasks.io.report import table

try:
    from PIL import Image

    from scale_disco.tasks.runs.evaluate import bins_of, evaluate
    from scale_disco.tasks.runs.loop import train
    from scale_disco.tasks.stl10.options import Stl10Options
except ImportError as error:
    sys.exit(f'this example needs {error.name}: pip install "scale-disco[train,plot]" ({error})')

Coordinates = np.ndarray  # float [H, W], in periods
PATTERNS: dict[str, Callable[[Coordinates, Coordinates], np.ndarray]] = {
    "bricks": lambda y, x: (y % 1 < 0.2) | ((x + np.floor(y) / 2) / 2 % 1 < 0.1),
    "checks": lambda y, x: (np.floor(y) + np.floor(x)) % 2 == 0,
    "dots": lambda y, x: np.hypot(y % 1 - 0.5, x % 1 - 0.5) < 0.35,
    "stripes": lambda y, x: y % 1 < 0.5,
}


def draw(root: Path, side: int, counts: dict[str, int]) -> None:
    """Write images of every pattern for training and testing, of twice the training side."""
    random = np.random.default_rng(0)
    for part, count in counts.items():
        for name, pattern in PATTERNS.items():
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                period, angle = 2 * random.uniform(5, 10), random.uniform(-0.3, 0.3)
                y, x = np.mgrid[: 2 * side, : 2 * side] / period + random.uniform(0, 10, (2, 1, 1))
                inside = pattern(y * np.cos(angle) - x * np.sin(angle), y * np.sin(angle) + x * np.cos(angle))
                dark, light = random.uniform(0, 100, 3), random.uniform(130, 255, 3)
                colors = (dark, light) if random.random() < 0.5 else (light, dark)
                pixels = np.where(inside[..., None], *colors) + random.normal(0, 15, (*inside.shape, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train DISCO and an ordinary network on images in folders.")
    parser.add_argument("images", type=Path, nargs="?", help="folder of your images (default: generated ones)")
    parser.add_argument("--side", type=int, default=32, help="side to which images are resized (default 32)")
    parser.add_argument("--epochs", type=int, default=8, help="number of epochs (default 8)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        root = arguments.images or work / "images"
        if arguments.images is None:
            draw(root, arguments.side, {"train": 50, "test": 20})
        has_parts = (root / "train").is_dir()
        rows = []
        for name, model in (("ordinary", "stl10/wrn"), ("DISCO", "stl10/disco")):
            options = Stl10Options(
                model=model,
                depth=10,
                width=1,
                dropout=0.0,
                format="folder",
                side=arguments.side,
                test_share=None if has_parts else 0.25,
                batch=10,
                epochs=arguments.epochs,
            )
            run = work / name
            train(options, data=root, out=run, say=partial(print, f"{name},"), bar=False)
            result = evaluate(run)
            bins = bins_of(result)
            accuracies = [f"{100 * (1 - scale.error):.1f}" for scale in bins]
            rows.append([name, str(result["parameters"]), *accuracies])
        print(table(["network", "weights", *(f"size {scale.low:.2g}" for scale in bins)], rows))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(str(error))
