"""`disco scene`: how large things look, place by place of photographs and videos."""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from ....files import make_folder, write, written_atomically
from ...io.figures import check_figure, save_figure
from ...io.images import SHORTEST, find_images, is_image, read_image, shrink, size_of
from ...io.terminal import Progress, add_command, add_device, add_out, chosen_device, say, show, suggest
from ...io.video import VideoSource, VideoWriter, open_video
from ..field import Estimator, Field, cell_field, enlarged, extent, scale_field
from ..networks import CELL
from ..plots import overlay, plot_field
from .outputs import Job, jobs_of

_EXAMPLES = """\
  disco scene street.jpg
  disco scene photographs --out fields --run runs/scene
  disco scene photographs --pretrained resnet50.safetensors --window 96 --no-figure
  disco scene drive.mp4 --every 10 --frames 50 --out drive

Per picture, OUT gets NAME.npy (float32 [H, W]: octaves by which things look larger than at the median place, so that
an octave more is twice as large), NAME-confidence.npy (float32 [H, W], 0 to 1), NAME.png (photograph and field side by
side), NAME-overlay.png and NAME.json (what was done). Of a video: NAME.npy and NAME-confidence.npy (float32 [T, h, w],
a value for every 8 x 8 pixels), NAME.mp4 and NAME.json. Pictures of one name, as a.jpg and a.png, become a and a-png.
Larger pictures are shrunk to --longest first, and so are their fields.

Files are complete whenever they are there. What a call before has finished, with the same picture and options, is kept;
so after Ctrl-C the same call goes on where it was, also within a video, whose files then have the frames until there.
Pictures of a folder that cannot be read are left out and named at the end; the exit code is 0 if there are others.

Things look large because they are near or because they are large: the scale of textures is not depth.
"""

_LONGEST = 1024
_SETTINGS = ("window", "step", "longest", "frames", "every")  # that a field depends on
_NAMED = 3  # pictures left out that are named
_SAVED = 60.0  # seconds after which the fields of a video so far are written
_WEIGHTS = (".safetensors", ".ckpt")  # of a run

Step = Callable[[int, int], None]


def add(commands: Any) -> None:
    """Add the command to the parser."""
    scene = add_command(commands, "scene", run, "how large things look, place by place of photographs", _EXAMPLES)
    scene.add_argument("source", type=Path, metavar="PICTURE", help="picture, folder of pictures, or video")
    scene.add_argument(
        "--run", dest="run_folder", type=Path, metavar="RUN", help="run of `disco train scene` (default: no training)"
    )
    pretrained = scene.add_argument(
        "--pretrained",
        metavar="FILE",
        help="weights of the ResNet-50 below: a file, or torchvision or timm, which download them",
    )
    suggest(pretrained, ["torchvision", "timm"])
    scene.add_argument("--window", type=int, metavar="N", help="pixels of a window's side (default: as trained, 64)")
    scene.add_argument("--step", type=int, metavar="N", help="pixels from window to window (default: a quarter)")
    scene.add_argument(
        "--longest", type=int, default=_LONGEST, metavar="N", help=f"shrink longer sides to this (default {_LONGEST})"
    )
    scene.add_argument("--frames", type=int, metavar="N", help="of a video: fields at most (default: all)")
    scene.add_argument("--every", type=int, metavar="N", help="of a video: the field of every N-th frame (default 1)")
    scene.add_argument("--no-figure", action="store_true", help="write the numbers only: no .png and no .mp4")
    scene.add_argument("--again", action="store_true", help="make anew what an earlier call has finished")
    add_device(scene)
    add_out(scene, "the files into this folder (default scene)", folder=True, default=Path("scene"))


def open_estimator(options: argparse.Namespace) -> Estimator:
    """The estimator that was chosen, on its device."""
    estimator: Any
    if options.run_folder is not None:
        from ..training import scene_estimator

        estimator = scene_estimator(options.run_folder, options.pretrained)
    else:
        from ..networks import create

        if options.pretrained is None:
            say("disco scene: the network has random weights; --pretrained gives it those of a ResNet-50")
        estimator = create("shift", pretrained=options.pretrained)
    opened: Estimator = estimator.to(chosen_device(options)).eval()
    return opened


def fingerprint(options: argparse.Namespace) -> dict[str, Any]:
    """What tells an estimator from others: the checksums of its weights."""
    folder, weights = options.run_folder, options.pretrained
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f"--run must be the folder of a run of `disco train scene`, got {folder}")
    files = [] if folder is None else sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    files += [Path(weights)] if weights and Path(weights).is_file() else []
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return {"run": folder is not None, "pretrained": None if sums else weights, "weights": sums}


def run(options: argparse.Namespace) -> None:
    """Make the fields, write and print."""
    source: Path = options.source
    if not source.exists():
        raise FileNotFoundError(f"scene: no file and no folder {source}")
    film = source.is_file() and not is_image(source)
    _check(options, film)
    paths = find_images(source) if source.is_dir() else [source]
    work = Work(options, fingerprint(options))
    _spare(options)
    make_folder(options.out)
    jobs = list(jobs_of(paths, options.out, film))
    _need(jobs[0], options)
    try:
        with Progress(source.resolve().name) as progress:
            for number, job in enumerate(jobs):
                work.do(job, _within(progress, number, len(jobs)))
    except (Exception, KeyboardInterrupt) as error:
        work.error = error
    work.tell(len(jobs))


def _check(options: argparse.Namespace, film: bool) -> None:
    """Refuse options that make no sense before any work is done."""
    for name, least in (("longest", SHORTEST), ("window", 2 * CELL), ("step", 1), ("frames", 1), ("every", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
        if value is not None and name in ("frames", "every") and not film:
            raise ValueError(f"--{name} is of a video, got {options.source}")
    if options.window is not None and options.step is not None and options.step > options.window:
        raise ValueError(f"--step must be at most --window {options.window}, got {options.step}")
    chosen_device(options)


def _need(job: Job, options: argparse.Namespace) -> None:
    """Import what is needed in the end, before the network is read."""
    if job.film:
        import av  # noqa: F401
    else:
        import PIL  # noqa: F401
    if not options.no_figure:
        check_figure(job.file(".png"))


def _spare(options: argparse.Namespace) -> None:
    """Refuse to write results where the next call would take them for pictures."""
    if options.out.resolve() == options.source.resolve():
        raise ValueError(f"--out must be another folder than that of the pictures, {options.source}")


def _within(progress: Step, number: int, total: int) -> Step:
    """Progress in one of several pieces of work, as progress in all of them."""
    return lambda done, whole: progress(number * whole + done, total * whole)


@dataclass
class Work:
    """Fields one after the other, and what came of them."""

    options: argparse.Namespace
    estimator_mark: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    error: BaseException | None = None

    @cached_property
    def estimator(self) -> Estimator:
        """Opened when it is needed."""
        return open_estimator(self.options)

    def do(self, job: Job, progress: Step) -> None:
        """Make the field of a picture or a video, unless a call before has made it."""
        status, options = job.path.stat(), self.options
        mark = {"bytes": status.st_size, "modified": status.st_mtime_ns, **self.estimator_mark}
        mark |= {name: getattr(options, name) for name in _SETTINGS}
        note = {} if options.again else job.note()
        known = note.get("mark") == mark
        if known and note.get("complete") is True and all(file.is_file() for file in job.files(options)):
            self.kept.append(job.path.name)
        elif job.film:
            self._film(job, mark, job.kept() if known else [], progress)
        else:
            try:
                image = read_image(job.path, options.longest)
            except (ValueError, FileNotFoundError) as error:
                self.left_out.append(str(error))
            else:
                self._picture(job, image, mark, progress)

    def _picture(self, job: Job, image: Tensor, mark: dict[str, Any], progress: Step) -> None:
        began = time.perf_counter()
        made = scale_field(self.estimator, self._there(image), **self._windows(), progress=progress)
        job.save(made, mark)
        if not self.options.no_figure:
            save_figure(plot_field(image, *made, extent(made)), job.file(".png"))
            _save_picture(overlay(image, *made, extent(made)), job.file("-overlay.png"))
        self.rows.append(self._row(job, image, made, began) | {"shrunk": max(size_of(job.path)) / max(image.shape)})
        job.conclude(self.rows[-1], mark)

    def _film(self, job: Job, mark: dict[str, Any], fields: list[Field], progress: Step) -> None:
        """The fields of a video, after those of a call before; then its frames with them, in one range of colours.

        Whatever stops it, the files have the frames until then.
        """
        began, saved, stopped = time.perf_counter(), time.monotonic(), None
        footage, limit = open_video(str(job.path.absolute())), self.options.frames
        if fields:
            say(f"{job.path.name}: goes on after {len(fields)} frames")
        known = [limit, footage.count and math.ceil(footage.count / (self.options.every or 1))]
        total = min((number for number in known if number), default=0)
        try:
            for image, _ in islice(self._frames(footage, len(fields)), limit and limit - len(fields)):
                within = _within(progress, len(fields), max(total, len(fields) + 1)) if total else None
                fields.append(cell_field(self.estimator, self._there(image), **self._windows(), progress=within))
                if time.monotonic() - saved > _SAVED:
                    job.keep(fields, mark)
                    saved = time.monotonic()
        except (Exception, KeyboardInterrupt) as error:
            stopped = error
        self.remarks += footage.remarks()
        if not fields:
            raise stopped or ValueError(f"{job.path}: no frame of it can be decoded")
        made = job.keep(fields, mark)
        image = self._overlaid(job, made)
        self.rows.append(self._row(job, image, made, began) | {"frames": len(fields), "complete": stopped is None})
        job.conclude(self.rows[-1], mark)
        if stopped:
            raise stopped

    def _overlaid(self, job: Job, made: Field) -> Tensor:
        """Write the video with the fields of its frames over them, if it is wanted; the first frame."""
        footage, limit = open_video(str(job.path.absolute())), extent(made)
        frames = islice(self._frames(footage), len(made.octaves))
        first, began = next(frames)
        if self.options.no_figure:
            return first
        rate = footage.rate / (self.options.every or 1)
        with written_atomically(job.file(".mp4")) as draft, VideoWriter(draft, rate, first) as film:
            for (image, seconds), *cells in zip(chain([(first, began)], frames), *made, strict=True):
                pixels = enlarged(Field(*cells), self.estimator.cell, (image.shape[1], image.shape[2]))
                film.add(overlay(image, *pixels, limit), seconds)
        return first

    def _frames(self, footage: VideoSource, skipped: int = 0) -> Iterator[tuple[Tensor, Fraction]]:
        """Every N-th frame of a video and its time, without the first so many of these."""
        every = self.options.every or 1
        with closing(footage.frames(skipped * every)) as frames:
            for frame in frames:
                if frame.image is not None and frame.number % every == 0:
                    yield shrink(frame.image, self.options.longest), frame.time

    def _there(self, image: Tensor) -> Tensor:
        return image.to(chosen_device(self.options))

    def _windows(self) -> dict[str, int | None]:
        return {"window": self.options.window, "step": self.options.step}

    def _row(self, job: Job, image: Tensor, made: Field, began: float) -> dict[str, Any]:
        return {
            "source": job.path.name,
            "name": job.name,
            "size": [image.shape[2], image.shape[1]],
            "octaves": extent(made),
            "confidence": float(made.confidence.mean()),
            "seconds": time.perf_counter() - began,
            "files": [str(file) for file in job.files(self.options)],
            "complete": True,
        }

    def tell(self, count: int) -> None:
        """Print what came of it; the error that ended it goes on."""
        more = f"; and {len(self.left_out) - _NAMED} more" if len(self.left_out) > _NAMED else ""
        left_out = "; ".join(self.left_out[:_NAMED]) + more
        if not self.rows and not self.kept:
            raise self.error or ValueError(left_out if count == 1 else f"no picture could be read: {left_out}")
        if self.left_out:
            self.remarks.append(f"{_some(len(self.left_out), 'picture')} left out: {left_out}")
        if self.kept:
            self.remarks.append(f"{_some(len(self.kept), 'field')} kept from before (--again makes them anew)")
        for remark in self.remarks:
            say(f"disco scene: {remark}")
        document = {
            "source": str(self.options.source),
            "out": str(self.options.out),
            "fields": self.rows,
            "kept": self.kept,
            "left out": self.left_out,
            "stopped": self.error is not None,
            "remarks": self.remarks,
        }
        show(
            self.options,
            document,
            "\n".join([*map(_line, self.rows), f"{_some(len(self.rows), 'field')} written into {self.options.out}"]),
        )
        if self.error:
            raise self.error


def _line(row: dict[str, Any]) -> str:
    """What came of a picture or a video, in words."""
    frames = f"{_some(row['frames'], 'frame')} of " if "frames" in row else ""
    shrunk = f", shrunk by {row['shrunk']:.3g}" if row.get("shrunk", 1.0) > 1 else ""
    size = f"{frames}{row['size'][0]} x {row['size'][1]} pixels{shrunk}"
    found = f"within {row['octaves']:.2g} octaves of the median, confidence {row['confidence']:.2f}"
    return f"{row['source']}: {size}; {found}; {row['seconds']:.1f} s"


def _save_picture(image: Tensor, path: Path) -> None:
    from PIL import Image

    packed = io.BytesIO()  # Pillow does not say why it cannot write to a disk
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(packed, "PNG")
    write(path, packed.getvalue())


def _some(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
