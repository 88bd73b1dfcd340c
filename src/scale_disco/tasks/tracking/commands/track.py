"""`disco track`: track an object through a video, an image folder or the frames of a camera."""

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
from ...io.terminal import Progress, Stopped, say, show, signal_handler
from ...io.video import Box, Frame, FrameFolder, VideoSource, VideoWriter, counted, draw, open_video
from ..data.sequences import first_box
from ..options import TrackOptions, box_in_pixels
from ..tracker import TrackedFrame, checked_box
from ..tracker import track as track_frames
from .chosen import open_tracker, remarks, tracker_name
from .window import Window


def run(options: TrackOptions) -> None:
    """Track, write and print."""
    video = open_video(options.source)
    out = options.out or Path("track") / video.name
    result = out / "track.mp4"
    if result.exists() and result.resolve() == Path(options.source).resolve():
        raise ValueError(f"{options.source} would be replaced by the result; use another --out folder")
    start, box = _start(options, video)
    with ExitStack() as stack:
        frames = stack.enter_context(closing(video.frames(start)))
        first, image = _first(frames, video, start)
        drawing = options.show or box is None
        window = stack.enter_context(Window(f"disco track {video.name}", image)) if drawing else None
        if box is None:
            box = window.drawn_box(image) if window else None
        else:
            box = box_in_pixels(box, image.shape[2], image.shape[1])
        if box is None:
            raise ValueError("no box was drawn in the window, so there is nothing to track")
        checked_box(video.name, image, box)
        tracker = open_tracker(options)
        make_folder(out)
        summary = _record(options, video, track_frames(tracker, chain([first], frames), box), out, window)
    for remark in video.remarks():
        say(f"disco track: {remark}")
    show(options, summary.document(options, video), "\n".join([summary.text(video), *remarks(options)]))
    if summary.error:
        raise summary.error


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

    def document(self, options: TrackOptions, video: VideoSource) -> dict[str, Any]:
        return {
            "source": options.source,
            "tracker": tracker_name(options),
            "frames": self.frames,
            "lost": self.lost,
            "last": {"frame": self.last.frame.number, "box": self.last.box, "scale": self.last.scale},
            "fps": self.frames / self.seconds,
            "ms": self.ms,
            "stopped": self.error is not None,
            "remarks": [*video.remarks(), *remarks(options)],
            "files": [str(file) for file in self.files],
        }

    def text(self, video: VideoSource) -> str:
        line = (
            f"{video.name}: {counted(self.frames, 'frame')}, {self.lost} lost; final scale {self.last.scale:.3g}; "
            f"{self.frames / self.seconds:.1f} frames/s, {self.ms:.1f} ms per frame in the tracker"
        )
        return "\n".join([line, *(f"wrote {file}" for file in self.files)])


def _record(
    options: TrackOptions, video: VideoSource, results: Iterator[TrackedFrame], out: Path, window: Window | None
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


def _start(options: TrackOptions, video: VideoSource) -> tuple[int, Box | None]:
    """Return the number of the first frame, and its box unless it is to be drawn."""
    if options.box is None and isinstance(video, FrameFolder) and video.has_boxes():
        return first_box(video.folder, video.paths, options.start, options.target)
    if options.target is not None:
        raise ValueError("--target is for a folder with boxes of several objects, and without --box")
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
