"""`disco track`: track an object through a video, an image folder or the frames of a camera."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from ....files import make_folder, written_atomically
from ...io.terminal import Progress, Stopped, add_command, add_out, say, show, signal_handler
from ...io.video import Box, Frame, FrameFolder, VideoSource, VideoWriter, counted, draw, open_video
from ..data.sequences import first_box
from ..tracker import TrackedFrame, checked_box
from ..tracker import track as track_frames
from .options import add_tracker, open_tracker, tracker_name
from .window import Window

_EXAMPLES = """\
  disco track holiday.mp4 --box 320,180,64,48 --tracker runs/tracker
  disco track OTB/Deer --tracker runs/tracker --out deer
  disco track holiday.mp4 --show
  disco track 0 --show --frames 500
  disco track holiday.mp4 --box=-12,40,80,60 --start 100 --no-video --json

A box is x,y,w,h in pixels, with x and y of its upper left corner counted from 0. It may extend beyond the frame; write
--box=-12,40,80,60 if it begins with a minus. A folder with groundtruth_rect.txt (OTB) or groundtruth.txt (GOT-10k)
needs no --box: the ground truth of its first frame is used.

OUT gets track.csv with a line per frame (number from 0, box, score, scale relative to the first frame, lost 0 or 1,
milliseconds of the tracker) and track.mp4 with the box drawn into every frame, red and dashed while the object is lost.
Both files are always complete: after Ctrl-C, kill or an error they contain the frames tracked so far. During the run
the lines are in OUT/.track-*.csv. A second Ctrl-C does not wait for the current frame.

An image that is damaged, or of another size than the first, keeps its line, with the previous box and marked as lost.
Damaged packets of a video are skipped, as in players. Both are reported at the end, as is a video that ends early; the
exit code is 0. After Ctrl-C it is 130, except for a camera, which has no other end.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    track = add_command(commands, "track", run, "track an object through a video, images or a camera", _EXAMPLES)
    track.add_argument("source", metavar="VIDEO", help="video file, image folder, or number of a camera")
    track.add_argument("--box", type=parse_box, metavar="X,Y,W,H", help="object in the first frame (see below)")
    track.add_argument("--target", type=int, metavar="N", help="number of the object, if the ground truth has several")
    add_tracker(track)
    track.add_argument("--start", type=int, metavar="N", help="number of the first frame (default 0)")
    track.add_argument("--frames", type=int, metavar="N", help="maximum number of frames (default: all)")
    track.add_argument("--show", action="store_true", help="show a window, where you can draw the first box")
    track.add_argument("--no-video", action="store_true", help="write track.csv only")
    track.add_argument("--fps", type=parse_rate, metavar="N", help="frame rate of track.mp4 (default: as VIDEO, or 25)")
    add_out(track, "track.csv and track.mp4 into this folder (default track/NAME)", folder=True)


def run(options: argparse.Namespace) -> None:
    """Track, write and print."""
    for name, least in (("start", 0), ("frames", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    video = open_video(options.source)
    out = options.out or Path("track") / video.name
    result = out / "track.mp4"
    if result.exists() and result.resolve() == Path(options.source).resolve():
        raise ValueError(f"{options.source} would be replaced by the result; use another --out folder")
    start, box = _start(options, video)
    with ExitStack() as stack:
        frames = stack.enter_context(closing(video.frames(start)))
        first, image = _first(frames, video, start)
        window = stack.enter_context(Window(f"disco track {video.name}", image)) if options.show else None
        box = box or (window.drawn_box(image) if window else None)
        if box is None:
            raise ValueError("no box was drawn in the window, so there is nothing to track")
        checked_box(video.name, image, box)
        tracker = open_tracker(options)
        make_folder(out)
        summary = _record(options, video, track_frames(tracker, chain([first], frames), box), out, window)
    for remark in video.remarks():
        say(f"disco track: {remark}")
    show(options, summary.document(options, video), summary.text(video))
    if summary.error:
        raise summary.error


def parse_box(text: str) -> Box:
    """Parse four numbers, of which the last two are positive."""
    try:
        x, y, w, h = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected four numbers x,y,w,h, got {text!r}") from None
    if not all(map(math.isfinite, (x, y, w, h))):
        raise argparse.ArgumentTypeError(f"expected finite numbers x,y,w,h, got {text!r}")
    if w <= 0 or h <= 0:
        raise argparse.ArgumentTypeError(f"width and height must be positive, got {text!r}")
    return x, y, w, h


def parse_rate(text: str) -> Fraction:
    """Parse frames per second, such as 25, 29.97 or 30000/1001."""
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"expected frames per second from 0.001 to 1000, got {text!r}")
    return rate


@dataclass
class TrackSummary:
    """Statistics of a run."""

    files: list[Path]
    last: TrackedFrame
    frames: int = 0
    lost: int = 0
    tracking: float = 0.0  # seconds in the tracker, without the first frame
    seconds: float = 0.0  # in total
    error: BaseException | None = None

    def count(self, tracked: TrackedFrame) -> None:
        self.tracking += tracked.seconds if self.frames else 0.0
        self.last, self.frames, self.lost = tracked, self.frames + 1, self.lost + tracked.lost

    @property
    def ms(self) -> float:
        """Milliseconds per frame in the tracker."""
        return 1000 * self.tracking / max(1, self.frames - 1)

    def document(self, options: argparse.Namespace, video: VideoSource) -> dict[str, Any]:
        return {
            "source": options.source,
            "tracker": tracker_name(options),
            "frames": self.frames,
            "lost": self.lost,
            "last": {"frame": self.last.frame.number, "box": self.last.box, "scale": self.last.scale},
            "fps": self.frames / self.seconds,
            "ms": self.ms,
            "stopped": self.error is not None,
            "remarks": video.remarks(),
            "files": [str(file) for file in self.files],
        }

    def text(self, video: VideoSource) -> str:
        line = (
            f"{video.name}: {counted(self.frames, 'frame')}, {self.lost} lost; final scale {self.last.scale:.3g}; "
            f"{self.frames / self.seconds:.1f} frames/s, {self.ms:.1f} ms per frame in the tracker"
        )
        return "\n".join([line, *(f"wrote {file}" for file in self.files)])


def _record(
    options: argparse.Namespace, video: VideoSource, results: Iterator[TrackedFrame], out: Path, window: Window | None
) -> TrackSummary:
    """Track and write the files, which after an interruption contain the frames so far."""
    started = time.perf_counter()
    first = next(results)
    summary = TrackSummary([out / "track.csv", *([] if options.no_video else [out / "track.mp4"])], first)
    limits = [options.frames, video.count and video.count - first.frame.number]
    total = min((number for number in limits if number), default=0)
    rate = options.fps or video.rate
    with ExitStack() as stack:
        stop, progress = _Stop(), stack.enter_context(Progress(video.name))
        stack.enter_context(signal_handler(("SIGINT", "SIGTERM", "SIGHUP"), stop))
        draft = stack.enter_context(written_atomically(summary.files[0]))
        table = stack.enter_context(draft.open("w", buffering=1, newline=""))
        writer = stack.enter_context(_video_writer(summary, rate, first.image))
        table.write("frame,x,y,w,h,score,scale,lost,ms\n")
        try:
            for tracked in chain([first], islice(results, options.frames and options.frames - 1)):
                box = ",".join(f"{number:.3f}" for number in tracked.box)
                state = f"{tracked.score:.6g},{tracked.scale:.6g},{tracked.lost:d},{1000 * tracked.seconds:.2f}"
                table.write(f"{tracked.frame.number},{box},{state}\n")
                summary.count(tracked)
                if writer or window:
                    label = "lost" if tracked.lost else f"{tracked.score:.2f}  x{tracked.scale:.2f}"
                    drawn = draw(tracked.image, tracked.box, label, lost=tracked.lost)
                    if writer:
                        seconds = tracked.frame.time - first.frame.time
                        writer.add(drawn, (summary.frames - 1) / rate if options.fps else seconds)
                    if window and not window.show(drawn):
                        break
                if stop.signal:
                    raise stop.signal
                if total:
                    progress(min(summary.frames, total), total)
        except (Exception, KeyboardInterrupt) as error:
            camera_ended = video.live and isinstance(error, KeyboardInterrupt)
            summary.error = None if camera_ended else error
        stop.finishing = True
    summary.seconds = time.perf_counter() - started
    return summary


@contextmanager
def _video_writer(summary: TrackSummary, rate: Fraction, first: Tensor) -> Iterator[VideoWriter | None]:
    """Write the video if requested; if that fails, as on a full disk, the table is written without it."""
    if len(summary.files) == 1:
        yield None
        return
    try:
        with written_atomically(summary.files[1]) as draft, VideoWriter(draft, rate, first) as writer:
            yield writer
    except Exception as error:
        if not summary.frames:
            raise
        if not isinstance(summary.error, KeyboardInterrupt):
            summary.error = error  # which names the file, unlike that of a frame
        del summary.files[1]


class _Stop:
    """Handler of Ctrl-C and kill: the first signal stops after the current frame, a second one interrupts it."""

    signal: Stopped | None = None
    finishing = False  # files are being completed

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal and not self.finishing:
            raise self.signal
        self.signal = Stopped(number)


def _start(options: argparse.Namespace, video: VideoSource) -> tuple[int, Box | None]:
    """Return the number of the first frame, and its box unless it is to be drawn."""
    if options.box is None and isinstance(video, FrameFolder) and video.has_boxes():
        return first_box(video.folder, video.paths, options.start, options.target)
    if options.target is not None:
        raise ValueError("--target is for a folder with boxes of several objects, and without --box")
    if options.box is None and not options.show:
        raise ValueError("--box x,y,w,h is required, the object in the first frame; or --show, to draw it in a window")
    return options.start or 0, options.box


def _first(frames: Iterator[Frame], video: VideoSource, start: int) -> tuple[Frame, Tensor]:
    """Return the first frame and its image."""
    frame = next(frames, None)
    if frame is None and start:
        raise ValueError(f"--start {start}: {video.name} has fewer frames")
    if frame is None or frame.image is None:
        why = "; ".join(video.remarks()) or "nothing can be decoded"
        raise ValueError(f"{video.name}: no first frame: {why}" + (" (--start N begins later)" if frame else ""))
    return frame, frame.image
