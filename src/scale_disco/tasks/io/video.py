"""Frames of video files, image folders and cameras, read one at a time; videos with a box drawn into every frame."""

import math
import platform
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...files import reason
from .images import SUFFIXES, Image, list_images, load_frame, to_image, to_tensor

if TYPE_CHECKING:
    from av import VideoFrame

Box = tuple[float, float, float, float]  # x, y, w, h

_RATE = Fraction(25)  # default frames per second
_GREEN, _RED = (0, 220, 0), (255, 0, 0)


class Frame(NamedTuple):
    """Number counted from 0, image uint8 [3, H, W] in RGB or None if unreadable, and seconds from the start."""

    number: int
    image: Tensor | None
    time: Fraction


class VideoSource(ABC):
    """Frames of one size, read on demand."""

    name: str  # of the file, the folder or the camera
    rate: Fraction  # frames per second
    count: int | None = None  # number of frames, if known in advance
    live = False  # whether it continues until it is stopped

    @abstractmethod
    def frames(self, start: int = 0) -> Generator[Frame]:
        """Yield the frames from a number on, counted from 0 whatever their names are."""

    @abstractmethod
    def remarks(self) -> list[str]:
        """Return the problems with the frames read so far, a line each."""


def open_video(source: str) -> VideoSource:
    """Open a video file, an image folder, or a camera by its number."""
    if re.fullmatch(r"\d+", source, re.ASCII):
        return camera(int(source))
    path = Path(source)
    if path.is_dir():
        return FrameFolder(path)
    if not path.is_file():
        raise FileNotFoundError(f"video: no file and no folder {path}; a camera is a number, 0 for the first")
    return VideoFile(str(path.absolute()), path.stem, label=str(path), options={"protocol_whitelist": "file"})


class FrameFolder(VideoSource):
    """Images of a folder, or of `img` in it as in OTB, in the order of the numbers in their names.

    The image of a damaged frame, or of one with another size than the first, is None.
    """

    rate = _RATE

    def __init__(self, folder: Path) -> None:
        folder = folder if folder.name else folder.resolve()
        self.folder = folder.resolve().parent if folder.name == "img" else folder
        parent = self.folder / "img" if (self.folder / "img").is_dir() else self.folder
        self.paths = sorted(list_images(parent), key=_natural)
        if not self.paths:
            raise ValueError(f"video: no images in {parent} (looked for {', '.join(SUFFIXES)})")
        self.name = self.folder.name
        self.count = len(self.paths)
        self.faults: list[str] = []

    def frames(self, start: int = 0) -> Generator[Frame]:
        size = None
        for number, path in enumerate(self.paths[start:], start):
            image: Tensor | None = None
            try:
                image = load_frame(path)
                size = size or image.shape
                if image.shape != size:
                    own, first = (f"{width} x {height}" for _, height, width in (image.shape, size))
                    raise ValueError(f"{path}: {own} pixels, the first has {first}")
            except ValueError as error:
                self.faults.append(f"{path.name}: {reason(error).rpartition(f'{path}: ')[2]}")
                image = None
            yield Frame(number, image, number / self.rate)

    def remarks(self) -> list[str]:
        remarks = []
        if self.faults:
            more = f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else ""
            remarks.append(f"{counted(len(self.faults), 'image')} skipped: {'; '.join(self.faults[:3])}{more}")
        numbers = [int(match[0]) if (match := re.search(r"\d+$", path.stem)) else 0 for path in self.paths]
        gaps = [index for index, (number, following) in enumerate(pairwise(numbers)) if following > number + 1]
        if gaps:
            before, after = self.paths[gaps[0]].name, self.paths[gaps[0] + 1].name
            more = f", and {counted(len(gaps) - 1, 'more gap')}" if len(gaps) > 1 else ""
            remarks.append(f"images are missing: after {before} comes {after}{more}")
        return remarks

    def has_boxes(self) -> bool:
        """Return whether the folder has ground truth."""
        return any(self.folder.glob("groundtruth*.txt"))


class VideoFile(VideoSource):
    """Frames decoded by FFmpeg, rotated as the metadata says.

    Packets that cannot be decoded are skipped, as in players; frames are counted without them.
    """

    def __init__(
        self, url: str, name: str, *, label: str, form: str | None = None, options: dict[str, str] | None = None
    ) -> None:
        import av

        self.name, self.label, self.live = name, label, form is not None
        try:
            self.container = av.open(url, format=form, options=options or {})
        except (av.error.FFmpegError, ValueError) as error:
            why = getattr(error, "strerror", "") or reason(error)
            raise ValueError(f"video: cannot read {label}: {why}") from error
        streams = self.container.streams.video
        videos = [stream for stream in streams if not stream.disposition & stream.disposition.attached_pic]
        if not videos or self.container.format.name == "tty":  # FFmpeg decodes any text as a video
            raise ValueError(f"video: {label} has no video stream")
        self.stream = videos[0]
        self.rate = self.stream.average_rate or self.stream.guessed_rate or _RATE
        seconds = (self.container.duration or 0) / 1_000_000
        if self.stream.frames and self.container.format.name == "avi":  # whose duration is guessed from the file size
            seconds = self.stream.frames / float(self.rate)
        self.length = None if self.live or seconds <= 0 else seconds
        self.tolerance = 1.0 if len(self.container.streams) > 1 else 2.5 / float(self.rate)  # audio may be longer
        self.count = self.stream.frames or (round(self.length * self.rate) if self.length else 0) or None
        self.damaged: list[int] = []
        self.ended = ""

    def frames(self, start: int = 0) -> Generator[Frame]:
        """Yield the frames from a number on; earlier ones are decoded and dropped."""
        number, size, first, seconds = -1, None, None, Fraction(0)
        with self.container:
            for number, frame in enumerate(self._decoded()):
                stamp = None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
                first = stamp if first is None else first
                seconds = number / self.rate if stamp is None or first is None else stamp - first
                if number >= start:
                    size = size or (frame.width, frame.height)
                    pixels = frame.to_ndarray(format="rgb24", width=size[0], height=size[1])
                    upright = np.rot90(pixels, round(frame.rotation / 90)).transpose(2, 0, 1)
                    yield Frame(number, torch.from_numpy(np.ascontiguousarray(upright)), seconds)
        end = float(seconds + 1 / self.rate)
        if number >= 0 and not self.ended and self.length and end < self.length - self.tolerance:
            self.ended = f"ends early after frame {number}, at {end:.1f} of {self.length:.1f} seconds"

    def _decoded(self) -> "Iterator[VideoFrame]":
        import av

        packets, number = self.container.demux(self.stream), 0
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except av.error.BlockingIOError:  # a camera has no new frame yet
                time.sleep(0.002)
                packets = self.container.demux(self.stream)
                continue
            except av.error.FFmpegError as error:
                self.ended = f"ends early after frame {number - 1}: {error.strerror}"
                return
            try:
                decoded = packet.decode()
            except av.error.FFmpegError:
                self.damaged.append(number)
                continue
            number += len(decoded)
            yield from decoded

    def remarks(self) -> list[str]:
        remarks = [f"{self.label}: {self.ended}"] if self.ended else []
        if self.damaged:
            packets = f"{counted(len(self.damaged), 'damaged packet')} skipped"
            remarks.insert(0, f"{self.label}: {packets}, the first near frame {self.damaged[0]}")
        return remarks


def camera(number: int) -> VideoFile:
    """Open a camera by its number from 0: Video4Linux, AVFoundation (macOS) or DirectShow (Windows)."""
    label, options = f"camera {number}", {}
    system = platform.system()
    if system == "Windows":
        import av

        names = [device.name for device in av.enumerate_input_devices("dshow") if "video" in device.media_types]
        if number >= len(names):
            raise ValueError(f"video: no {label}, only {counted(len(names), 'camera')} here")
        form, url = "dshow", f"video={names[number]}"
    elif system == "Darwin":
        form, url, options = "avfoundation", f"{number}:none", {"framerate": "30"}  # its default rate fails
    else:
        form, url = "v4l2", f"/dev/video{number}"
    return VideoFile(url, f"camera-{number}", label=label, form=form, options=options)


class VideoWriter(AbstractContextManager["VideoWriter"]):
    """Writes uint8 frames [3, H, W] to an MP4 file: H.264, or MPEG-4 if FFmpeg lacks an encoder for it.

    Odd sides are padded by repeating the last row or column.
    """

    def __init__(self, path: Path, rate: Fraction, first: Tensor) -> None:
        import av

        _, height, width = first.shape
        self.file = _ErrorKeeper(path)
        self.container = av.open(self.file, "w", format="mp4")
        rate = rate.limit_denominator(1000)
        if "libx264" in av.codecs_available:
            self.stream = self.container.add_stream("libx264", rate, {"preset": "veryfast", "crf": "20"})
        else:
            self.stream = self.container.add_stream("mpeg4", rate)
            self.stream.bit_rate = 1_000_000 + width * height * 8
        self.stream.width, self.stream.height = width + width % 2, height + height % 2
        self.stream.pix_fmt = "yuv420p"
        self.clock = 60_000  # ticks per second; more do not fit into MPEG-4
        self.stream.codec_context.time_base = Fraction(1, self.clock)
        self.last = -1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.file.file:
            try:
                if kind is None:
                    self._write(None)
            finally:
                self.container.close()
            if kind is None:
                self.file.check()

    def add(self, image: Tensor, seconds: Fraction) -> None:
        """Write a frame that is shown from a time on."""
        import av

        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        pixels = np.pad(pixels, ((0, len(pixels) % 2), (0, pixels.shape[1] % 2), (0, 0)), mode="edge")
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        self.last = max(self.last + 1, round(seconds * self.clock))
        frame.pts, frame.time_base = self.last, Fraction(1, self.clock)
        self._write(frame)

    def _write(self, frame: "VideoFrame | None") -> None:
        self.container.mux(self.stream.encode(frame))
        self.file.check()


class _ErrorKeeper:
    """A file that accepts every write and stores the first error, as FFmpeg crashes if a write fails on a full disk."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.error: OSError | None = None
        self.seek, self.tell = self.file.seek, self.file.tell

    def write(self, content: bytes) -> int:
        rest = memoryview(content)
        try:
            while rest and self.error is None:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.error = error
        return len(content)

    def check(self) -> None:
        """Raise the stored error."""
        if self.error is not None:
            raise self.error


def draw(image: Tensor, box: Box, label: str = "", *, lost: bool = False) -> Tensor:
    """Return a frame with a labeled box, uint8 [3, H, W]: green, or red and dashed for a lost object.

    Example:
        >>> drawn = draw(torch.zeros(3, 40, 60, dtype=torch.uint8), (10, 5, 30, 20))
        >>> drawn[:, 5, 10], drawn[:, 15, 25]
        (tensor([  0, 220,   0], dtype=torch.uint8), tensor([0, 0, 0], dtype=torch.uint8))
    """
    from PIL import Image, ImageDraw

    if not all(map(math.isfinite, box)):
        return image.clone()
    canvas = to_image(image)
    width, height = canvas.size
    thick = max(2, round(max(height, width) / 400))
    ends = (box[0], width), (box[1], height), (box[0] + box[2], width), (box[1] + box[3], height)
    left, top, right, bottom = (math.floor(min(max(end, -thick), size + thick) + 0.5) for end, size in ends)
    right, bottom = max(left + 1, right), max(top + 1, bottom)
    line = Image.new("L", canvas.size)
    inside = min(thick, right - left, bottom - top)
    ImageDraw.Draw(line).rectangle((left, top, right - 1, bottom - 1), outline=255, width=inside)
    if lost:
        y, x = np.ogrid[:height, :width]
        dashes = (x - left + y - top) // (3 * thick) % 2 == 0
        line = Image.fromarray(np.asarray(line) * dashes.astype(np.uint8))
    canvas.paste(_RED if lost else _GREEN, mask=line)
    if label:
        _draw_label(canvas, label, lost, left, top, bottom)
    return to_tensor(canvas)


def _draw_label(canvas: Image, label: str, lost: bool, left: int, top: int, bottom: int) -> None:
    """Draw a label above the box, or below it, or inside, wherever there is room."""
    from PIL import ImageDraw, ImageFont

    width, height = canvas.size
    size = max(10, round(max(height, width) / 45))
    font, margin = ImageFont.load_default(size), max(1, size // 5)
    x, y, right, lower = (round(side) for side in font.getbbox(label))
    wide, tall = right - x + 2 * margin, lower - y + 2 * margin
    upper = top - tall if top >= tall else bottom if bottom + tall <= height else top
    upper, left = max(0, min(upper, height - tall)), max(0, min(left, width - wide))
    pen = ImageDraw.Draw(canvas)
    pen.rectangle((left, upper, left + wide - 1, upper + tall - 1), fill=_RED if lost else _GREEN)
    pen.text((left + margin - x, upper + margin - y), label, fill="white" if lost else "black", font=font)


def _natural(path: Path) -> list[str | int]:
    """Sort key by which 9 comes before 10."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", path.name))]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number} {noun}{'s' * (number != 1)}"
