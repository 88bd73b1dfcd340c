"""Small textured videos in the layout of OTB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_videos(root: Path, count: int, *, frames: int = 4, side: int = 96) -> Path:
    """Write videos of a textured square that drifts and grows over a smooth background."""
    for number in range(count):
        generator = np.random.default_rng(number)
        coarse = generator.integers(60, 190, (6, 6, 3), np.uint8)
        background = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        texture = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
        folder = root / f"video{number:02d}" / "img"
        folder.mkdir(parents=True)
        lines = []
        for frame in range(frames):
            size, x, y = 20 + 2 * frame, 20 + 3 * frame + number % 5, 30 + 2 * frame
            image = background.copy()
            image.paste(texture.resize((size, size), Image.Resampling.BICUBIC), (x, y))
            image.save(folder / f"{frame + 1:04d}.png")
            lines.append(f"{x + 1},{y + 1},{size},{size}")
        (folder.parent / "groundtruth_rect.txt").write_text("\n".join(lines))
    return root
