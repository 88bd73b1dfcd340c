"""`disco track`: follow an object through a video, a folder of pictures or what a camera sees."""

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
from typing import Any, NamedTuple

from torch import Tensor

from ....files import make_folder, written_atomically
from ...io.terminal import Progress, Stopped, add_command, add_out, say, show, signal_handler
from ...io.video import Box, Frame, FrameFolder, VideoSource, VideoWriter, draw, open_video
from .. import Tracker
from ..data.sequences import first_box
from .options import add_tracker, open_tracker, tracker_name
from .window import Window

_EXAMPLES = """\
  disco track holiday.mp4 --box 320,180,64,48 --tracker runs/tracker
  disco track OTB/Deer --tracker runs/tracker --out deer
  disco track holiday.mp4 --show
  disco track 0 --show --frames 500
  disco track holiday.mp4 --box=-12,40,80,60 --start 100 --no-video --json

A box is x,y,w,h in pixels, x and y of its upper left corner counted from 0. It may be partly outside of the frame;
write --box=-12,40,80,60 if it begins with a minus. A folder with groundtruth_rect.txt (OTB) or groundtruth.txt
(GOT-10k) needs none: the box of its first frame is taken.

OUT gets track.csv with a line for every frame (number from 0, box, score, scale over the first frame, lost 0 or 1,
milliseconds of the tracker) and track.mp4 with the box in every frame, red and dashed where the object is lost. These
files are complete whenever they are there; after Ctrl-C, kill or an error half-way they have what was tracked until
then. While it runs, the lines so far are in OUT/.track-*.csv. A second Ctrl-C does not wait for the frame at hand.

A picture that is damaged, or of another size than the first, keeps its line, with the box before it and as lost. What
cannot be decoded in a video is left out, as players do. Both are said at the end, as is a video that breaks off before
its time; the exit code is 0. After Ctrl-C it is 130, but for a camera, which has no other end.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    track = add_command(commands, "track", run, "follow an object through a video, pictures or a camera", _EXAMPLES)
    track.add_argument("source", metavar="VIDEO", help="video file, folder of pictures, or number of a camera")
    track.add_argument(
        "--box", type=box_of, metavar="X,Y,W,H", help="the object in the first frame, in pixels (see below)"
    )
    track.add_argument("--target", type=int, metavar="N", help="which object, if the folder has boxes of several")
    add_tracker(track)
    track.add_argument("--start", type=int, metavar="N", help="number of the first frame (default 0)")
    track.add_argument("--frames", type=int, metavar="N", help="frames at most (default: all)")
    track.add_argument(
        "--show", action="store_true", help="show it in a window; draw the first box there with the mouse"
    )
    track.add_argument("--no-video", action="store_true", help="write track.csv only")
    track.add_argument(
        "--fps", type=rate_of, metavar="N", help="frames per second of track.mp4 (default: as VIDEO; pictures 25)"
    )
    add_out(track, "track.csv and track.mp4 into this folder (default track/NAME)", folder=True)


def run(options: argparse.Namespace) -> None:
    """Track, write and print."""
    for name, least in (("start", 0), ("frames", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    footage = open_video(options.source)
    out = options.out or Path("track") / footage.name
    _spare_source(options.source, out)
    start, box = _start(options, footage)
    with ExitStack() as stack:
        frames = stack.enter_context(closing(footage.frames(start)))
        first, image = _first(frames, footage, start)
        window = stack.enter_context(Window(f"disco track {footage.name}", image)) if options.show else None
        box = box or (window.drawn_box(image) if window else None)
        if box is None:
            raise ValueError("no box was drawn in the window, so there is nothing to track")
        check_box(box, image)
        tracker = open_tracker(options)
        make_folder(out)
        summary = _record(options, footage, followed(tracker, first, image, box, frames), out, window)
    for remark in footage.remarks():
        say(f"disco track: {remark}")
    show(options, summary.document(options, footage), summary.text(footage))
    if summary.error:
        raise summary.error


def box_of(text: str) -> Box:
    """Four numbers, of which the last two are positive."""
    try:
        x, y, w, h = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected four numbers x,y,w,h, got {text!r}") from None
    if not all(map(math.isfinite, (x, y, w, h))):
        raise argparse.ArgumentTypeError(f"expected finite numbers x,y,w,h, got {text!r}")
    if w <= 0 or h <= 0:
        raise argparse.ArgumentTypeError(f"width and height must be positive, got {text!r}")
    return x, y, w, h


def rate_of(text: str) -> Fraction:
    """Frames per second, such as 25, 29.97 or 30000/1001."""
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"expected frames per second from 0.001 to 1000, got {text!r}")
    return rate


def check_box(box: Box, image: Tensor) -> None:
    """Refuse a box that shows nothing of the frame."""
    _, height, width = image.shape
    x, y, w, h = box
    if x >= width or y >= height or x + w <= 0 or y + h <= 0:
        shown = ",".join(f"{number:g}" for number in box)
        raise ValueError(f"--box {shown} is outside of the first frame, which has {width} x {height} pixels")


class TrackRow(NamedTuple):
    """A line of track.csv."""

    frame: int
    box: Box
    score: float
    scale: float
    lost: bool
    ms: float

    def line(self) -> str:
        """The line as it is written."""
        box = ",".join(f"{number:.3f}" for number in self.box)
        return f"{self.frame},{box},{self.score:.6g},{self.scale:.6g},{self.lost:d},{self.ms:.2f}\n"

    def label(self) -> str:
        """What stands at the box in a picture."""
        return "lost" if self.lost else f"{self.score:.2f}  x{self.scale:.2f}"


class TrackedFrame(NamedTuple):
    """What a tracker saw: seconds from the first frame, the frame (the last one, if it could not be read), a line."""

    time: Fraction
    image: Tensor
    row: TrackRow


def followed(
    tracker: Tracker, first: Frame, image: Tensor, box: Box, frames: Iterator[Frame]
) -> Iterator[TrackedFrame]:
    """Where the tracker finds what the box of the first frame shows, frame by frame."""
    began = time.perf_counter()
    tracker.init(image, box)
    row = TrackRow(first.number, box, 1.0, tracker.scale, False, 1000 * (time.perf_counter() - began))
    yield TrackedFrame(Fraction(0), image, row)
    for frame in frames:
        if frame.image is None:
            row = TrackRow(frame.number, row.box, math.nan, row.scale, True, 0.0)
        else:
            image, began = frame.image, time.perf_counter()
            found = tracker.update(image)
            ms = 1000 * (time.perf_counter() - began)
            row = TrackRow(frame.number, found.box, found.score, tracker.scale, tracker.lost, ms)
        yield TrackedFrame(frame.time - first.time, image, row)


@dataclass
class Summary:
    """What a run comes to."""

    files: list[Path]
    last: TrackRow
    rows: int = 0
    lost: int = 0
    ms: float = 0.0  # in the tracker, after its first frame
    seconds: float = 0.0  # of everything
    error: BaseException | None = None

    def count(self, row: TrackRow) -> None:
        """One frame more."""
        self.ms += row.ms if self.rows else 0.0
        self.last, self.rows, self.lost = row, self.rows + 1, self.lost + row.lost

    def document(self, options: argparse.Namespace, footage: VideoSource) -> dict[str, Any]:
        """As JSON."""
        return {
            "source": options.source,
            "tracker": tracker_name(options),
            "frames": self.rows,
            "lost": self.lost,
            "last": {"frame": self.last.frame, "box": self.last.box, "scale": self.last.scale},
            "fps": self.rows / self.seconds,
            "ms": self.ms / max(1, self.rows - 1),
            "stopped": self.error is not None,
            "remarks": footage.remarks(),
            "files": [str(file) for file in self.files],
        }

    def text(self, footage: VideoSource) -> str:
        """In words."""
        line = (
            f"{footage.name}: {self.rows} frame{'s' * (self.rows != 1)}, {self.lost} of them lost; "
            f"scale at the end {self.last.scale:.3g}; {self.rows / self.seconds:.1f} frames/s, "
            f"{self.ms / max(1, self.rows - 1):.1f} ms a frame in the tracker"
        )
        return "\n".join([line, *(f"written {file}" for file in self.files)])


def _record(
    options: argparse.Namespace, footage: VideoSource, sights: Iterator[TrackedFrame], out: Path, window: Window | None
) -> Summary:
    """Track and write the files; if something stops it, with what there is until then."""
    began = time.perf_counter()
    first = next(sights)
    summary = Summary([out / "track.csv", *([] if options.no_video else [out / "track.mp4"])], first.row)
    known = [options.frames, footage.count and footage.count - first.row.frame]
    total = min((number for number in known if number), default=0)
    rate = options.fps or footage.rate
    with ExitStack() as stack:
        stop, progress = _Stop(), stack.enter_context(Progress(footage.name))
        stack.enter_context(signal_handler(("SIGINT", "SIGTERM", "SIGHUP"), stop))
        draft = stack.enter_context(written_atomically(summary.files[0]))
        table = stack.enter_context(draft.open("w", buffering=1, newline=""))
        film = stack.enter_context(_film(summary, rate, first.image))
        table.write("frame,x,y,w,h,score,scale,lost,ms\n")
        try:
            for seen in chain([first], islice(sights, options.frames and options.frames - 1)):
                table.write(seen.row.line())
                summary.count(seen.row)
                if film or window:
                    drawn = draw(seen.image, seen.row.box, seen.row.label(), lost=seen.row.lost)
                    if film:
                        film.add(drawn, (summary.rows - 1) / rate if options.fps else seen.time)
                    if window and not window.show(drawn):
                        break
                if stop.asked:
                    raise stop.asked
                if total:
                    progress(min(summary.rows, total), total)
        except (Exception, KeyboardInterrupt) as error:
            camera_ended = footage.live and isinstance(error, KeyboardInterrupt)
            summary.error = None if camera_ended else error
        stop.patient = True
    summary.seconds = time.perf_counter() - began
    return summary


@contextmanager
def _film(summary: Summary, rate: Fraction, first: Tensor) -> Iterator[VideoWriter | None]:
    """The video, if one is wanted; if it cannot be finished, as on a full disk, the table is kept without it."""
    if len(summary.files) == 1:
        yield None
        return
    try:
        with written_atomically(summary.files[1]) as draft, VideoWriter(draft, rate, first) as film:
            yield film
    except Exception as error:
        if not summary.rows:
            raise
        if not isinstance(summary.error, KeyboardInterrupt):
            summary.error = error  # which names the file, unlike that of a frame
        del summary.files[1]


class _Stop:
    """Ctrl-C and kill: the first one is a wish, which is granted after the frame at hand; a second one interrupts."""

    asked: Stopped | None = None
    patient = False  # files are being finished

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise self.asked
        self.asked = Stopped(number)


def _spare_source(source: str, out: Path) -> None:
    """Refuse to write the result over the video that it comes from."""
    film = out / "track.mp4"
    if film.exists() and film.resolve() == Path(source).resolve():
        raise ValueError(f"{source} would be replaced by the result: give another folder by --out")


def _start(options: argparse.Namespace, footage: VideoSource) -> tuple[int, Box | None]:
    """The number of the first frame, and the box in it unless it is to be drawn."""
    if options.box is None and isinstance(footage, FrameFolder) and footage.has_boxes():
        return first_box(footage.folder, footage.paths, options.start, options.target)
    if options.target is not None:
        raise ValueError("--target is for a folder with boxes of several objects, and without --box")
    if options.box is None and not options.show:
        raise ValueError("--box x,y,w,h is needed, the object in the first frame; or --show, to draw it in a window")
    return options.start or 0, options.box


def _first(frames: Iterator[Frame], footage: VideoSource, start: int) -> tuple[Frame, Tensor]:
    """The frame that the box is in, and its image."""
    frame = next(frames, None)
    if frame is None and start:
        raise ValueError(f"--start {start}: {footage.name} has fewer frames")
    if frame is None or frame.image is None:
        why = "; ".join(footage.remarks()) or "nothing can be decoded"
        raise ValueError(f"{footage.name}: no first frame: {why}" + (" (--start N begins later)" if frame else ""))
    return frame, frame.image
