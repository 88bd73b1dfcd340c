"""Track an object that moves and grows, with one crop per frame by DISCO and with three by SiamFC+.

    python examples/track.py                      # on a synthetic sequence; needs the extra plot
    python examples/track.py --pretrained FILE    # of a run of `disco train tracker`, or of a ResNet-50

prints the size of the object relative to the first frame, the size estimated by either tracker, and the overlap of
their boxes with the true one. Both networks have the same ImageNet weights, which come with the package and were not
trained for tracking, unless a file is given.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from scale_disco.models import create_model
from scale_disco.tasks.io.images import load_frame
from scale_disco.tasks.io.report import table
from scale_disco.tasks.io.textures import source_images
from scale_disco.tasks.tracking.data.sequences import Sequence, read_sequences
from scale_disco.tasks.tracking.data.synthetic import SequenceSettings, build
from scale_disco.tasks.tracking.evaluation import overlap
from scale_disco.tasks.tracking.tracker import SiameseTracker

try:
    import PIL.Image  # noqa: F401 - writes and reads the frames
except ImportError as error:
    sys.exit(f'this example needs {error.name}: pip install "scale-disco[plot]" ({error})')


class Track(NamedTuple):
    """Relative sizes and overlaps with true boxes of every frame after the first; seconds per frame."""

    sizes: list[float]
    overlaps: list[float]
    seconds: float


def synthetic(folder: Path, frames: int, seed: int) -> Sequence:
    """A part of one image that moves over another and changes its size; bundled photos or synthetic textures."""
    build(folder, source_images(), SequenceSettings(part="test", count=1, frames=frames, size=(240, 180), seed=seed))
    return read_sequences(folder)[0]


def tracked(tracker: SiameseTracker, sequence: Sequence) -> Track:
    images = [load_frame(path) for path in sequence.frames]
    x, y, w, h = sequence.boxes[0].tolist()
    tracker.init(images[0], (x, y, w, h))
    start = time.perf_counter()
    estimates = [(tracker.update(image).box, tracker.scale) for image in images[1:]]
    seconds = (time.perf_counter() - start) / len(estimates)
    boxes = torch.tensor([box for box, _ in estimates], dtype=torch.float64)
    return Track([size for _, size in estimates], overlap(boxes, sequence.boxes[1:]).tolist(), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Track an object that changes its size, with two trackers.")
    parser.add_argument("--pretrained", type=Path, metavar="FILE", help="weights of both networks (default: packaged)")
    parser.add_argument("--frames", type=int, default=16, help="number of frames (default 16)")
    parser.add_argument("--seed", type=int, default=2, help="seed of the sequence (default 2)")
    options = parser.parse_args()
    if options.frames < 2:
        parser.error("--frames must be at least 2")
    tracks = {}
    with tempfile.TemporaryDirectory() as folder:
        sequence = synthetic(Path(folder), options.frames, options.seed)
        for name, network, mode in (("DISCO", "track/disco", "axis"), ("SiamFC+", "track/siamfc+", "pyramid")):
            siamese: Any = create_model(network, pretrained=options.pretrained or True)
            tracks[name] = tracked(SiameseTracker(siamese, mode), sequence)
    areas = sequence.boxes[:, 2:].prod(1)
    truth = (areas[1:] / areas[0]).sqrt().tolist()
    columns = {"true size": truth}
    for name, track in tracks.items():
        columns |= {f"{name}: size": track.sizes, f"{name}: overlap": track.overlaps}
    rows = zip(*columns.values(), strict=True)
    print(table(["frame", *columns], [[str(n), *(f"{x:.2f}" for x in row)] for n, row in enumerate(rows, 1)]))
    for name, (sizes, overlaps, seconds) in tracks.items():
        error = mean(abs(math.log2(size / true)) for size, true in zip(sizes, truth, strict=True))
        print(f"{name}: size error {error:.3f} octaves, overlap {mean(overlaps):.3f}, {seconds:.2f} s per frame")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(str(error))
