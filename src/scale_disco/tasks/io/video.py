"""Frames of videos, folders of pictures and cameras, one at a time, and videos with a box drawn into every frame."""

from __future__ import annotations

import functools
import math
import platform
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...files import reason
from .images import SUFFIXES, list_images, load_frame

if TYPE_CHECKING:
    from types import TracebackType

    from av import VideoFrame

Box = tuple[float, float, float, float]  # x, y, w, h
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_RATE = Fraction(25)  # frames per second where nothing says how many
_FOUND, _LOST = (0, 220, 0), (255, 0, 0)


class Frame(NamedTuple):
    """A frame by its number from 0: uint8 [3, H, W] in RGB, or None where it cannot be read; seconds from the start."""

    number: int
    image: Tensor | None
    time: Fraction


class VideoSource(ABC):
    """What a tracker sees: frames of one size, read when they are asked for.

    Attributes:
        name: Of the file, the folder or the camera.
        rate: Frames per second.
        count: How many frames there are, as far as that is known before they are read.
        live: Whether it goes on until someone stops it.
    """

    name: str
    rate: Fraction
    count: int | None = None
    live = False

    @abstractmethod
    def frames(self, start: int = 0) -> Generator[Frame]:
        """The frames from a number on."""

    @abstractmethod
    def remarks(self) -> list[str]:
        """What was wrong with the frames that were read, a line each."""


def open_video(source: str) -> VideoSource:
    """The video file, the folder of pictures or the camera that a user names; a bare number is a camera."""
    if re.fullmatch(r"\d+", source, re.ASCII):
        return camera(int(source))
    path = Path(source)
    if path.is_dir():
        return FrameFolder(path)
    if not path.is_file():
        raise FileNotFoundError(f"video: no file and no folder {path}; a camera is a bare number, 0 for the first")
    return VideoFile(str(path.absolute()), path.stem, what=str(path), options={"protocol_whitelist": "file"})


class FrameFolder(VideoSource):
    """FrameFolder of a folder, or of `img` in it as OTB has them, in the order of the numbers in their names.

    A picture that is damaged, or of another size than the first, is a frame without an image.
    """

    rate = _RATE

    def __init__(self, folder: Path) -> None:
        folder = folder if folder.name else folder.resolve()
        self.folder = folder.resolve().parent if folder.name == "img" else folder
        place = self.folder / "img" if (self.folder / "img").is_dir() else self.folder
        self.paths = sorted(list_images(place), key=_by_numbers)
        if not self.paths:
            raise ValueError(f"video: no pictures in {place} (looked for {', '.join(SUFFIXES)})")
        self.name = self.folder.name
        self.count = len(self.paths)
        self.faults: list[str] = []

    def frames(self, start: int = 0) -> Generator[Frame]:
        """The pictures from a number on, which counts them from 0 whatever their names say."""
        size = None
        for number, path in enumerate(self.paths[start:], start):
            image = None
            try:
                image = load_frame(path)
            except ValueError as error:
                self.faults.append(f"{path.name}: {reason(error).rpartition(f'{path}: ')[2]}")
            if image is not None:
                size = size or image.shape
                if image.shape != size:
                    self.faults.append(f"{path.name}: {_pixels(image.shape)} pixels, the first has {_pixels(size)}")
                    image = None
            yield Frame(number, image, number / self.rate)

    def remarks(self) -> list[str]:
        """FrameFolder that could not be used, and numbers that are missing."""
        remarks = []
        if self.faults:
            more = f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else ""
            remarks.append(f"{_some(len(self.faults), 'picture')} left out: {'; '.join(self.faults[:3])}{more}")
        numbers = [int(match[0]) if (match := re.search(r"\d+$", path.stem)) else 0 for path in self.paths]
        gaps = [index for index, (one, other) in enumerate(pairwise(numbers)) if other > one + 1]
        if gaps:
            before, after = self.paths[gaps[0]].name, self.paths[gaps[0] + 1].name
            more = f", and {_some(len(gaps) - 1, 'more gap')}" if len(gaps) > 1 else ""
            remarks.append(f"pictures are missing: after {before} comes {after}{more}")
        return remarks

    def has_boxes(self) -> bool:
        """Whether there is a ground truth beside the pictures."""
        return any(self.folder.glob("groundtruth*.txt"))


class VideoFile(VideoSource):
    """Frames that FFmpeg decodes, turned upright.

    Parts that cannot be decoded are left out, as players do; frames are counted without them.
    """

    def __init__(
        self, url: str, name: str, *, what: str, form: str | None = None, options: dict[str, str] | None = None
    ) -> None:
        import av

        self.name, self.what, self.live = name, what, form is not None
        try:
            self.container = av.open(url, format=form, options=options or {})
        except (av.error.FFmpegError, ValueError) as error:
            raise ValueError(f"video: cannot read {what}: {getattr(error, 'strerror', '') or reason(error)}") from error
        films = [film for film in self.container.streams.video if not film.disposition & film.disposition.attached_pic]
        if not films or self.container.format.name == "tty":  # FFmpeg makes films of any text
            raise ValueError(f"video: {what} has no video in it")
        self.stream = films[0]
        self.rate = self.stream.average_rate or self.stream.guessed_rate or _RATE
        seconds = (self.container.duration or 0) / 1_000_000
        if (
            self.stream.frames and self.container.format.name == "avi"
        ):  # its duration is guessed by the size of the file
            seconds = self.stream.frames / float(self.rate)
        self.length = None if self.live or seconds <= 0 else seconds
        self.tolerance = 1.0 if len(self.container.streams) > 1 else 2.5 / float(self.rate)  # sound may be longer
        self.count = self.stream.frames or (round(self.length * self.rate) if self.length else 0) or None
        self.damaged: list[int] = []
        self.ended = ""

    def frames(self, start: int = 0) -> Generator[Frame]:
        """The frames from a number on; those before are decoded and dropped."""
        number, size, began, seconds = -1, None, None, Fraction(0)
        with self.container:
            for number, frame in enumerate(self._decoded()):
                stamp = None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
                began = stamp if began is None else began
                seconds = number / self.rate if stamp is None or began is None else stamp - began
                if number >= start:
                    size = size or (frame.width, frame.height)
                    yield Frame(number, _upright(frame, size), seconds)
        end = float(seconds + 1 / self.rate)
        if number >= 0 and not self.ended and self.length and end < self.length - self.tolerance:
            self.ended = f"it breaks off after frame {number}, at {end:.1f} of {self.length:.1f} seconds"

    def _decoded(self) -> Iterator[VideoFrame]:
        import av

        packets = self.container.demux(self.stream)
        number = 0
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except av.error.BlockingIOError:  # a camera that has nothing yet
                time.sleep(0.002)
                packets = self.container.demux(self.stream)
                continue
            except av.error.FFmpegError as error:
                self.ended = f"it breaks off after frame {number - 1}: {error.strerror}"
                return
            try:
                decoded = packet.decode()
            except av.error.FFmpegError:
                self.damaged.append(number)
                continue
            number += len(decoded)
            yield from decoded

    def remarks(self) -> list[str]:
        """Parts that could not be decoded, and an end before the time."""
        remarks = []
        if self.damaged:
            parts = f"{_some(len(self.damaged), 'damaged part')} left out"
            remarks.append(f"{self.what}: {parts}, the first near frame {self.damaged[0]}")
        return [*remarks, *([f"{self.what}: {self.ended}"] if self.ended else [])]


def camera(number: int) -> VideoFile:
    """A camera by its number, 0 for the first: Video4Linux, AVFoundation (macOS) or DirectShow (Windows)."""
    what, options = f"camera {number}", {}
    system = platform.system()
    if system == "Windows":
        import av

        named = [one.name for one in av.enumerate_input_devices("dshow") if "video" in one.media_types]
        if number >= len(named):
            raise ValueError(f"video: no {what}, only {_some(len(named), 'camera')} here")
        form, url = "dshow", f"video={named[number]}"
    elif system == "Darwin":
        form, url, options = "avfoundation", f"{number}:none", {"framerate": "30"}  # it has no default that works
    else:
        form, url = "v4l2", f"/dev/video{number}"
    return VideoFile(url, f"camera-{number}", what=what, form=form, options=options)


class VideoWriter:
    """A video in a file: H.264, or MPEG-4 where FFmpeg has no encoder of it. Frames are uint8 [3, H, W] as the first.

    The right and lower border are repeated where a side is odd, which no player would show.
    """

    def __init__(self, path: Path, rate: Fraction, first: Tensor) -> None:
        import av

        _, height, width = first.shape
        self.file = _Taking(path)
        self.container = av.open(self.file, "w", format="mp4")
        rate = rate.limit_denominator(1000)
        if "libx264" in av.codecs_available:
            self.stream = self.container.add_stream("libx264", rate, {"preset": "veryfast", "crf": "20"})
        else:
            self.stream = self.container.add_stream("mpeg4", rate)
            self.stream.bit_rate = 1_000_000 + width * height * 8
        self.stream.width, self.stream.height = width + width % 2, height + height % 2
        self.stream.pix_fmt = "yuv420p"
        self.clock = 60_000  # ticks in a second: what MPEG-4 has room for
        self.stream.codec_context.time_base = Fraction(1, self.clock)
        self.last = -1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.file:
            try:
                if kind is None:
                    self._write(None)
            finally:
                self.container.close()
            if kind is None:
                self.file.check()

    def add(self, image: Tensor, seconds: Fraction) -> None:
        """A frame, shown from a time on."""
        import av

        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        pixels = np.pad(pixels, ((0, len(pixels) % 2), (0, pixels.shape[1] % 2), (0, 0)), mode="edge")
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        self.last = max(self.last + 1, round(seconds * self.clock))
        frame.pts, frame.time_base = self.last, Fraction(1, self.clock)
        self._write(frame)

    def _write(self, frame: VideoFrame | None) -> None:
        self.container.mux(self.stream.encode(frame))
        self.file.check()


class _Taking:
    """A file that takes all that is written and keeps the first error: a full disk would make FFmpeg crash."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.error: OSError | None = None
        self.seek, self.tell = self.file.seek, self.file.tell

    def __enter__(self) -> _Taking:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> int:
        rest = memoryview(content)
        try:
            while rest and self.error is None:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.error = error
        return len(content)

    def check(self) -> None:
        """Raise what was kept."""
        if self.error is not None:
            raise self.error


def draw(image: Tensor, box: Box, label: str = "", *, lost: bool = False) -> Tensor:
    """The frame with a box and a label at it, uint8 [3, H, W]: green lines, or red and dashed ones for a lost object.

    Example:
        >>> drawn = draw(torch.zeros(3, 40, 60, dtype=torch.uint8), (10, 5, 30, 20))
        >>> drawn[:, 5, 10], drawn[:, 15, 25]
        (tensor([  0, 220,   0], dtype=torch.uint8), tensor([0, 0, 0], dtype=torch.uint8))
    """
    drawn = image.clone()
    if not all(map(math.isfinite, box)):
        return drawn
    _, height, width = image.shape
    thick = max(2, round(max(height, width) / 400))
    colour = torch.tensor(_LOST if lost else _FOUND, dtype=torch.uint8)
    left, top = (math.floor(place + 0.5) for place in box[:2])
    right, bottom = (max(low + 1, math.floor(place + 0.5)) for low, place in zip((left, top), _far(box), strict=True))
    rows, columns = _within(top, bottom, height), _within(left, right, width)
    upper, lower = _within(top, min(top + thick, bottom), height), _within(max(bottom - thick, top), bottom, height)
    first, last = _within(left, min(left + thick, right), width), _within(max(right - thick, left), right, width)
    for y, x in ((upper, columns), (lower, columns), (rows, first), (rows, last)):
        along = torch.arange(y.start, y.stop)[:, None] - top + torch.arange(x.start, x.stop) - left
        shown = along // (3 * thick) % 2 == 0 if lost else torch.ones_like(along, dtype=torch.bool)
        drawn[:, y, x] = torch.where(shown, colour[:, None, None], drawn[:, y, x])
    if label:
        _write(drawn, label, colour, left, top, bottom)
    return drawn


def _write(drawn: Tensor, label: str, colour: Tensor, left: int, top: int, bottom: int) -> None:
    """Put a label above the box; below it where there is no room, and inside where there is none at all."""
    _, height, width = drawn.shape
    mask = _text(label, max(10, round(max(height, width) / 45)))[:height, :width]
    tall, wide = mask.shape
    upper = top - tall if top >= tall else bottom if bottom + tall <= height else top
    upper, left = max(0, min(upper, height - tall)), max(0, min(left, width - wide))
    share = torch.from_numpy(mask).float() / 255
    ink = 255 * (colour[0] > 0)  # white on red, black on green
    patch = colour[:, None, None] * (1 - share) + ink * share
    drawn[:, upper : upper + tall, left : left + wide] = patch.to(torch.uint8)


@functools.lru_cache(64)
def _text(label: str, size: int) -> Pixels:
    """The ink of a line of text, [h, w]."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    left, top, right, bottom = (round(side) for side in font.getbbox(label))
    margin = max(1, size // 5)
    paper = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin))
    ImageDraw.Draw(paper).text((margin - left, margin - top), label, fill=255, font=font)
    return np.array(paper)


def _within(low: int, high: int, size: int) -> slice:
    """A range, as far as it is in the frame."""
    return slice(min(max(low, 0), size), min(max(high, 0), size))


def _far(box: Box) -> tuple[float, float]:
    return box[0] + box[2], box[1] + box[3]


def _upright(frame: VideoFrame, size: tuple[int, int]) -> Tensor:
    """Pixels [3, H, W] of a frame, at the size of the first, turned as its metadata says."""
    pixels = frame.to_ndarray(format="rgb24", width=size[0], height=size[1])
    turned = np.rot90(pixels, round(frame.rotation / 90))
    return torch.from_numpy(np.ascontiguousarray(turned.transpose(2, 0, 1)))


def _by_numbers(path: Path) -> list[str | int]:
    """Words and numbers of a name in turns, so that 9 comes before 10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", path.name))]


def _pixels(shape: torch.Size) -> str:
    return f"{shape[2]} x {shape[1]}"


def _some(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
