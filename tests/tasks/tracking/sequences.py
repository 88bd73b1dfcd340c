"""Small videos in the layouts of OTB and GOT-10k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Boxes = Sequence[Sequence[float]]


def write_frames(folder: Path, count: int, *, first: int = 1, width: int = 4, suffix: str = ".png") -> None:
    """Frames of 12 x 8 pixels, whose gray value is their number."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.full((8, 12, 3), number % 256, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:0{width}d}{suffix}")


def write_otb(root: Path, name: str, boxes: Boxes, *, frames: int | None = None, first: int = 1) -> Path:
    """A sequence in the layout of OTB; boxes as in the file, counted from 1."""
    write_frames(root / name / "img", len(boxes) if frames is None else frames, first=first)
    (root / name / "groundtruth_rect.txt").write_text(lines(boxes))
    return root / name


def lines(boxes: Boxes, separator: str = ",") -> str:
    return "".join(f"{separator.join(map(str, box))}\n" for box in boxes)


def moving(count: int) -> list[list[int]]:
    return [[3 + number, 2, 4, 5] for number in range(count)]
