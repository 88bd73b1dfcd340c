"""`disco data zoom`: render synthetic zooming sequences in the layout of OTB."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

from ...io.terminal import Progress
from ...io.textures import source_images
from ..data.synthetic import SequenceSettings, build

_COUNTS = {
    "--count": "number of training sequences (default 240)",
    "--frames": "frames per training sequence (default 20)",
    "--test-count": "number of test sequences (default 24)",
    "--test-frames": "frames per test sequence (default 60)",
}
OPTIONS = ("--images", *_COUNTS, "--size", "--png", "--seed")


def add(group: argparse._ArgumentGroup, source: argparse._MutuallyExclusiveGroup) -> None:
    """Add the options of this data set; without argparse defaults, so that `disco data` sees which were given."""
    photos = "photos to cut from (default: six small bundled ones)"
    group.add_argument("--images", "--pictures", type=Path, metavar="DIR", help=photos)
    for option, about in _COUNTS.items():
        group.add_argument(option, type=int, metavar="N", help=about)
    group.add_argument("--size", type=_size, metavar="WxH", help="frame size (default 320x240)")
    group.add_argument("--png", action="store_true", help="write lossless frames (default: JPEG of quality 92)")
    seed = "random seed of the sequences (default 0)"
    group.add_argument("--seed", type=int, default=argparse.SUPPRESS, metavar="N", help=seed)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected width x height such as 320x240, got {text!r}")
    return int(match[1]), int(match[2])


def run(options: argparse.Namespace) -> None:
    """Render the sequences of both parts that do not exist yet."""
    with Progress("zoom, images") as progress:
        images = source_images(options.images, progress)
    shared = {"size": options.size, "seed": getattr(options, "seed", None), "suffix": ".png" if options.png else None}

    def settings(part: str, default: SequenceSettings, **counts: int | None) -> SequenceSettings:
        changes = {name: value for name, value in (shared | counts).items() if value is not None}
        return replace(default, part=part, **changes)

    parts = [
        settings("train", SequenceSettings(), count=options.count, frames=options.frames),
        settings("test", SequenceSettings(count=24, frames=60), count=options.test_count, frames=options.test_frames),
    ]
    rows = []
    for part in parts:
        folder = options.out / part.part
        with Progress(f"zoom {part.part}") as progress:
            rendered = build(folder, images, part, progress)
        rows.append({"folder": str(folder), "sequences": part.count, "frames": part.frames, "made": rendered})
        if not options.json:
            existing = f"{rendered:,} rendered, {part.count - rendered:,} already there"
            print(f"{folder}: {part.count:,} sequences of {part.frames} frames, {existing}", flush=True)
    if options.json:
        print(json.dumps(rows))
