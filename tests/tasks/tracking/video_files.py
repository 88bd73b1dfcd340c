"""Small videos of a white square that moves to the right over a dark background."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 8


def pixels(number: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """Return frame `number`, [H, W, 3], with the square at x = 4 + 2 number, y = 12."""
    width, height = size
    image = np.full((height, width, 3), 40, np.uint8)
    image[12 : 12 + SIDE, 4 + 2 * number : 4 + 2 * number + SIDE] = 255
    return image


def place(image) -> tuple[float, float]:
    """Return x and y of the upper left corner of the square in [3, H, W]."""
    bright = image[0, :24] > 150
    return bright.any(0).nonzero()[0].item(), bright.any(1).nonzero()[0].item()


def write_video(path: Path, count: int = 20, *, size=(64, 48), rate=25, codec="libx264", times=None, **options) -> Path:
    """Write a video file; `times` are seconds of frames, `movflags=...` is for the container, `noise` enlarges it."""
    import av

    noise, turn = options.pop("noise", False), options.pop("turn", 0)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        if codec == "mpeg4":
            stream.bit_rate = 2_000_000
        if turn:
            stream.set_display_rotation(turn)
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(count):
            image = pixels(number % 20, size)
            if noise:
                image[24:] = np.random.default_rng(number).integers(0, 100, image[24:].shape)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(1000 * times[number]), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_audio(path: Path) -> Path:
    """Write a second of silence."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        for start in range(0, 8000, 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_images(folder: Path, numbers, *, suffix=".png", mode="RGB", size=(64, 48)) -> Path:
    """Write numbered images of the square."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.fromarray(pixels(number, size)).convert(mode).save(folder / f"{number}{suffix}")
    return folder


def truncate(path: Path, fraction: float) -> Path:
    """Remove the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    return path
