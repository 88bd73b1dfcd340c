"""`disco data zoom`: render synthetic zooming sequences in the layout of OTB."""

import json
from typing import Any

from ...io.terminal import Progress
from ...io.textures import source_images
from ..data.synthetic import SequenceSettings, build
from ..options import ZoomOptions


def run(options: ZoomOptions) -> None:
    """Render the sequences of both parts that do not exist yet."""
    with Progress("zoom, images") as progress:
        images = source_images(options.images, progress)
    shared: dict[str, Any] = {"size": options.size, "seed": options.seed, "suffix": ".png" if options.png else ".jpg"}
    parts = [
        SequenceSettings(part="train", count=options.count, frames=options.frames, **shared),
        SequenceSettings(part="test", count=options.test_count, frames=options.test_frames, **shared),
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
