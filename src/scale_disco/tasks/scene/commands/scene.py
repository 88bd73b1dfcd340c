"""`disco scene`: scale fields of images and videos."""

import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from ....files import make_folder, write, written_atomically
from ...io import terminal
from ...io.figures import check_figure, save_figure
from ...io.images import SHORTEST, find_images, is_image, read_image, shrink, size_of, to_image
from ...io.progress import Progress, part_of
from ...io.video import VideoSource, VideoWriter, counted, open_video
from ...io.weights import chosen_weights, fingerprint
from ..field import Field, cell_field, color_range, enlarged, scale_field
from ..networks import UNTRAINED, ScaleEstimator, create
from ..options import SceneOptions
from ..plots import overlay, plot_field
from .outputs import KEY, Job, jobs_of

_SETTINGS = ("window", "step", "longest", "frames", "every")  # that a field depends on
_LISTED = 3  # skipped images that are listed
_SAVED = 60.0  # seconds between writes of the fields of a video


def open_estimator(options: SceneOptions) -> ScaleEstimator:
    """Return the chosen estimator, on its device."""
    if options.run is not None:
        from ..training import scene_estimator

        estimator = scene_estimator(options.run, options.pretrained)
    else:
        estimator = create("shift", pretrained=chosen_weights(options.pretrained, UNTRAINED))
    return estimator.to(terminal.chosen_device(options.device))


def run(options: SceneOptions) -> None:
    """Compute the fields, write and print."""
    source: Path = options.source
    video = source.is_file() and not is_image(source)
    _check(options, video)
    paths = find_images(source) if source.is_dir() else [source]
    writer, report = FieldWriter(options), Report(options, len(paths))
    if options.out.resolve() == source.resolve():
        raise ValueError(f"--out must be another folder than that of the images, {source}")
    make_folder(options.out)
    jobs = list(jobs_of(paths, options.out, video))
    import_module("av" if video else "PIL")  # optional packages are missed before the network is loaded
    if not options.no_figure:
        check_figure(jobs[0].file(".png"))
    try:
        with terminal.Progress(source.resolve().name) as progress:
            for number, job in enumerate(jobs):
                _process(job, writer, report, part_of(progress, number, len(jobs)))
    except (Exception, KeyboardInterrupt) as error:
        report.error = error
    report.print()


def _check(options: SceneOptions, video: bool) -> None:
    """Raise ValueError for invalid options."""
    if options.longest < SHORTEST:
        raise ValueError(f"--longest must be at least {SHORTEST}, got {options.longest}")
    for name in ("frames", "every"):
        if getattr(options, name) is not None and not video:
            raise ValueError(f"--{name} is for videos, got {options.source}")
    if options.window is not None and options.step is not None and options.step > options.window:
        raise ValueError(f"--step must be at most --window {options.window}, got {options.step}")
    terminal.chosen_device(options.device)


def _process(job: Job, writer: "FieldWriter", report: "Report", progress: Progress) -> None:
    """Compute the field of an image or a video, unless an earlier call has."""
    options, key = writer.options, writer.cache_key(job)
    note = {} if options.again else job.note()
    same = note.get(KEY) == key
    if same and note.get("complete") is True and all(file.is_file() for file in job.files(options)):
        report.reused.append(job.path.name)
    elif job.video:
        writer.video(job, key, job.load_frames() if same else [], report, progress)
    else:
        try:
            image = read_image(job.path, options.longest)
        except (ValueError, FileNotFoundError) as error:
            report.skipped.append(str(error))
        else:
            writer.image(job, key, image, report, progress)


class FieldWriter:
    """Computes and writes the fields of images and videos."""

    def __init__(self, options: SceneOptions) -> None:
        self.options = options
        run, weights = options.run, options.pretrained
        file = weights if run else chosen_weights(weights, UNTRAINED)
        sums = fingerprint(run, Path(file) if file and Path(file).is_file() else None)
        # identifies the estimator
        self.weights = {"run": run is not None, "pretrained": None if sums else weights, "weights": sums}

    @cached_property
    def estimator(self) -> ScaleEstimator:
        return open_estimator(self.options)

    def cache_key(self, job: Job) -> dict[str, Any]:
        """Return everything that the files of a job depend on."""
        status = job.path.stat()
        settings = {name: getattr(self.options, name) for name in _SETTINGS}
        return {"bytes": status.st_size, "modified": status.st_mtime_ns, **self.weights, **settings}

    def image(self, job: Job, key: dict[str, Any], image: Tensor, report: "Report", progress: Progress) -> None:
        """Write the files of an image."""
        start = time.perf_counter()
        result = self._compute(scale_field, image, progress)
        job.save(result, key)
        if not self.options.no_figure:
            save_figure(plot_field(image, *result, color_range(result)), job.file(".png"))
            packed = io.BytesIO()  # Pillow hides why it cannot write to a disk
            to_image(overlay(image, *result, color_range(result))).save(packed, "PNG")
            write(job.file("-overlay.png"), packed.getvalue())
        report.rows.append(self._row(job, image, result, start, shrunk=max(size_of(job.path)) / max(image.shape)))
        job.write_note(report.rows[-1], key)

    def video(self, job: Job, key: dict[str, Any], fields: list[Field], report: "Report", progress: Progress) -> None:
        """Write the files of a video, after the fields of an earlier call. If interrupted, they have fewer frames."""
        start, saved, interruption = time.perf_counter(), time.monotonic(), None
        video, limit = open_video(str(job.path.absolute())), self.options.frames
        if fields:
            terminal.say(f"{job.path.name}: resumes after {len(fields)} frames")
        counts = [limit, video.count and math.ceil(video.count / (self.options.every or 1))]
        total = min((number for number in counts if number), default=0)
        try:
            for image, _ in islice(self._frames(video, len(fields)), limit and limit - len(fields)):
                within = part_of(progress, len(fields), max(total, len(fields) + 1)) if total else None
                fields.append(self._compute(cell_field, image, within))
                if time.monotonic() - saved > _SAVED:
                    job.save_frames(fields, key)
                    saved = time.monotonic()
        except (Exception, KeyboardInterrupt) as error:
            interruption = error
        report.remarks += video.remarks()
        if not fields:
            raise interruption or ValueError(f"{job.path}: no frame of it can be decoded")
        result = job.save_frames(fields, key)
        image = self._overlaid(job, result)
        row = self._row(job, image, result, start, frames=len(fields), complete=interruption is None)
        report.rows.append(row)
        job.write_note(row, key)
        if interruption:
            raise interruption

    def _overlaid(self, job: Job, result: Field) -> Tensor:
        """Write the video with its fields over the frames, if requested, and return the first frame."""
        video, limit = open_video(str(job.path.absolute())), color_range(result)
        frames = islice(self._frames(video), len(result.octaves))
        first, start = next(frames)
        if self.options.no_figure:
            return first
        rate = video.rate / (self.options.every or 1)
        with written_atomically(job.file(".mp4")) as draft, VideoWriter(draft, rate, first) as output:
            for (image, seconds), *cells in zip(chain([(first, start)], frames), *result, strict=True):
                pixels = enlarged(Field(*cells), self.estimator.cell, (image.shape[1], image.shape[2]))
                output.add(overlay(image, *pixels, limit), seconds)
        return first

    def _frames(self, video: VideoSource, skipped: int = 0) -> Iterator[tuple[Tensor, Fraction]]:
        """Yield every N-th frame of a video and its time, after skipping some of these."""
        every = self.options.every or 1
        with closing(video.frames(skipped * every)) as frames:
            for frame in frames:
                if frame.image is not None and frame.number % every == 0:
                    yield shrink(frame.image, self.options.longest), frame.time

    def _compute(self, function: Callable[..., Field], image: Tensor, progress: Progress | None) -> Field:
        windows = {"window": self.options.window, "step": self.options.step}
        return function(
            self.estimator, image.to(terminal.chosen_device(self.options.device)), **windows, progress=progress
        )

    def _row(self, job: Job, image: Tensor, result: Field, start: float, **more: Any) -> dict[str, Any]:
        return {
            "source": job.path.name,
            "name": job.name,
            "size": [image.shape[2], image.shape[1]],
            "octaves": color_range(result),
            "confidence": float(result.confidence.mean()),
            "seconds": time.perf_counter() - start,
            "files": [str(file) for file in job.files(self.options)],
            "complete": True,
            **more,
        }


@dataclass
class Report:
    """Results of all jobs of a call, and the error that ended it."""

    options: SceneOptions
    jobs: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    error: BaseException | None = None

    def print(self) -> None:
        """Print the results and raise the error, if any."""
        more = f"; and {len(self.skipped) - _LISTED} more" if len(self.skipped) > _LISTED else ""
        skipped = "; ".join(self.skipped[:_LISTED]) + more
        if not self.rows and not self.reused:
            raise self.error or ValueError(skipped if self.jobs == 1 else f"no image could be read: {skipped}")
        if self.skipped:
            self.remarks.append(f"{counted(len(self.skipped), 'image')} skipped: {skipped}")
        if self.reused:
            fields = counted(len(self.reused), "field")
            self.remarks.append(f"{fields} reused from an earlier call (--again disables it)")
        for remark in self.remarks:
            terminal.say(f"disco scene: {remark}")
        document = {
            "source": str(self.options.source),
            "out": str(self.options.out),
            "fields": self.rows,
            "kept": self.reused,
            "left out": self.skipped,
            "stopped": self.error is not None,
            "remarks": self.remarks,
        }
        written = f"{counted(len(self.rows), 'field')} written into {self.options.out}"
        terminal.show(self.options, document, "\n".join([*map(_line, self.rows), written]))
        if self.error:
            raise self.error


def _line(row: dict[str, Any]) -> str:
    """Describe the result of an image or a video in one line."""
    frames = f"{counted(row['frames'], 'frame')} of " if "frames" in row else ""
    shrunk = f", shrunk by {row['shrunk']:.3g}" if row.get("shrunk", 1.0) > 1 else ""
    size = f"{frames}{row['size'][0]} x {row['size'][1]} pixels{shrunk}"
    octaves = f"within {row['octaves']:.2g} octaves of the median, confidence {row['confidence']:.2f}"
    if row["confidence"] < 0.005:
        octaves = "no confidence anywhere: no texture, or fewer than two windows (--window)"
    return f"{row['source']}: {size}; {octaves}; {row['seconds']:.1f} s"
