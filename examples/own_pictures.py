"""Pictures in a folder for each class: a narrow DISCO and its ordinary sibling, trained at one size, tested at five.

    python examples/own_pictures.py               # on patterns that it draws; needs the extras train and plot
    python examples/own_pictures.py my/pictures   # a folder for each class, or train/CLASS and test/CLASS

prints per cent of the test pictures that are named right, by their size over that in training. Both networks have the
same number of weights and the same training. The drawn patterns are four, in random colours and with meshes of 5 to 10
pixels; of these both networks know nearly all at the trained size, and at twice that size DISCO clearly more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scale_disco.tasks.io.report import table

try:
    from PIL import Image

    from scale_disco.tasks.runs.evaluate import bins_of, evaluate
    from scale_disco.tasks.runs.loop import train
    from scale_disco.tasks.stl10.training import Stl10Options
except ImportError as error:
    sys.exit(f'this example needs {error.name}: pip install "scale-disco[train,plot]" ({error})')

Places = np.ndarray  # float [H, W], in meshes
PATTERNS: dict[str, Callable[[Places, Places], np.ndarray]] = {
    "bricks": lambda y, x: (y % 1 < 0.2) | ((x + np.floor(y) / 2) / 2 % 1 < 0.1),
    "checks": lambda y, x: (np.floor(y) + np.floor(x)) % 2 == 0,
    "dots": lambda y, x: np.hypot(y % 1 - 0.5, x % 1 - 0.5) < 0.35,
    "stripes": lambda y, x: y % 1 < 0.5,
}


def draw(root: Path, side: int, counts: dict[str, int]) -> None:
    """So many files of every pattern for training and test, of twice the side that is trained on."""
    random = np.random.default_rng(0)
    for part, count in counts.items():
        for name, pattern in PATTERNS.items():
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                mesh, angle = 2 * random.uniform(5, 10), random.uniform(-0.3, 0.3)
                y, x = np.mgrid[: 2 * side, : 2 * side] / mesh + random.uniform(0, 10, (2, 1, 1))
                inside = pattern(y * np.cos(angle) - x * np.sin(angle), y * np.sin(angle) + x * np.cos(angle))
                dark, light = random.uniform(0, 100, 3), random.uniform(130, 255, 3)
                colours = (dark, light) if random.random() < 0.5 else (light, dark)
                pixels = np.where(inside[..., None], *colours) + random.normal(0, 15, (*inside.shape, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train DISCO and an ordinary network on pictures in folders.")
    parser.add_argument("pictures", type=Path, nargs="?", help="folder of your pictures (default: drawn ones)")
    parser.add_argument("--side", type=int, default=32, help="pixels to which they are cut and resized (default 32)")
    parser.add_argument("--epochs", type=int, default=8, help="of the training (default 8)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        root = given.pictures or work / "pictures"
        if given.pictures is None:
            draw(root, given.side, {"train": 50, "test": 20})
        has_parts = (root / "train").is_dir()
        rows = []
        for name, model in (("ordinary", "stl10/wrn"), ("DISCO", "stl10/disco")):
            options = Stl10Options(
                model=model,
                depth=10,
                width=1,
                dropout=0.0,
                format="folder",
                side=given.side,
                test_share=None if has_parts else 0.25,
                batch=10,
                epochs=given.epochs,
            )
            run = work / name
            train(options, data=root, out=run, say=lambda line, name=name: print(f"{name}, {line}"), bar=False)
            result = evaluate(run)
            bins = bins_of(result)
            right = [f"{100 * (1 - one.error):.1f}" for one in bins]
            rows.append([name, str(result["parameters"]), *right])
        print(table(["network", "weights", *(f"size {one.low:.2g}" for one in bins)], rows))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(str(error))
