"""Options of commands that track, of `disco train tracker` and `disco data zoom`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, NamedTuple

from ...models import list_models
from ..options import (
    FOLDER,
    NON_NEGATIVE,
    WEIGHTS,
    CommandOptions,
    argument,
    at_least,
    between,
    device_option,
    option,
    plot_option,
    report_option,
    seed_option,
)
from ..runs.options import NetworkOptions
from ..runs.recipe import Recipe
from .data.otb_lists import LISTS

Box = tuple[float, float, float, float]  # x, y, w, h
MODES = ("pyramid", "axis", "fixed")
STATIC_BOX = "static-box"
_MAX_SHIFT = 64  # pixels from the center to the last cell of a score map
_MODELS = list_models("track")


@dataclass(frozen=True)
class MotionParameters:
    """Motion hyper-parameters. `MOTIONS` has published values for other networks and benchmarks.

    Args:
        step: Scale step: ratio between neighboring search crops of a pyramid.
        rate: Scale learning rate: fraction of a scale change applied per frame; in mode "axis" at a cosine of 1.
        penalty: Scale penalty: factor on scores of a scale change by one step.
        window: Window influence: weight of the cosine window around the last position.
    """

    step: float = 1.0375
    rate: float = 0.59
    penalty: float = 0.9745
    window: float = 0.35

    def __post_init__(self) -> None:
        for name, low, high in (("step", 1, 2), ("rate", 0, 1), ("penalty", 0, 1), ("window", 0, 1)):
            if not low <= (value := getattr(self, name)) <= high:
                raise ValueError(f"MotionParameters: {name} must be from {low} to {high}, got {value}")


MOTIONS = {
    "default": MotionParameters(),
    "axis": MotionParameters(rate=1.0, penalty=0.98, window=0.3),
    "siamfc+-otb2013": MotionParameters(1.0482, 0.3629, 0.9997, 0.3896),
    "siamfc+-otb2015": MotionParameters(1.1897, 0.2226, 0.9370, 0.2897),
    "se-siamfc+-otb2013": MotionParameters(1.145, 0.08, 1.0, 0.3),
    "se-siamfc+-otb2015": MotionParameters(1.1633, 0.171, 0.9995, 0.251),
}


class UnfreezingSchedule(NamedTuple):
    """What a recipe has for trackers alone: pairs, their augmentation, and when stages of the network are trained."""

    pairs: int
    shift: float
    zoom: float
    trained_stages: tuple[tuple[float, int], ...]  # after which fraction of the epochs, how many of the last stages
    norms: bool  # whether batch norms of these update their statistics
    calibrate: bool  # whether scores are scaled to logits before the first step


RECIPES = {
    "small": Recipe(6, 8, 3e-4, "cosine", weights="last", clip=10.0),
    "paper": Recipe(50, 24, 1e-2, "logarithmic", "momentum", weight_decay=1e-4, weights="last", clip=10.0),
}
_STAGES = ((0.0, 1), (0.1, 2), (0.2, 3), (0.3, 4), (0.5, 5), (0.6, 6), (0.7, 8))
_UNFREEZING = {
    "small": UnfreezingSchedule(160, 32.0, 0.6, ((0.0, 4),), norms=False, calibrate=True),
    "paper": UnfreezingSchedule(450_000, 4.0, 0.07, _STAGES, norms=True, calibrate=False),
}


@dataclass(frozen=True)
class TrackerOptions(NetworkOptions):
    """Options of a run on pairs of crops from videos."""

    experiment = "tracker"
    recipes = RECIPES
    named = ("model", "recipe", "seed")
    summary = "Train a tracker of Table 4 on videos."
    examples = """\
  disco train tracker --data my/videos --out runs/tracker
  disco train tracker --model track/siamfc+ --data data/zoom/train --limit 40 --out runs/siamfc
  disco train tracker --data my/videos --pretrained resnet50.safetensors --out runs/other
"""

    model: str = option("track/disco", "network", choices=_MODELS)
    recipe: str = option("small", "small (6 epochs, last stages) or paper (50, stage after stage)", choices=RECIPES)
    pretrained: str | None = option(
        None,
        "weights to start from: a file of a ResNet-50 or of a tracker, torchvision, timm, or random (default: "
        "ImageNet's, which come with the package, for track/siamfc+ and track/disco; random for others)",
        exists=WEIGHTS,
    )
    stages: int | None = option(None, "last stages that are trained (default: 4; paper: 1 to all)", rule=at_least(1))
    pairs: int | None = option(None, "pairs of crops per epoch (default: 160; paper: 450,000)", rule=at_least(2))
    shift: float | None = option(
        None, "maximum shift of the object in a crop, in pixels (default: 32; paper: 4)", rule=between(0, _MAX_SHIFT)
    )
    zoom: float | None = option(None, "maximum zoom in octaves (default: 0.6; paper: 0.07)", rule=between(0, 2))
    scale_weight: float = option(0.5, "weight of the scale loss, for networks with scales", rule=NON_NEGATIVE)

    @property
    def unfreezing(self) -> UnfreezingSchedule:
        """The unfreezing schedule of the recipe, with the values that other options override."""
        overrides = {name: value for name in ("pairs", "shift", "zoom") if (value := getattr(self, name)) is not None}
        if self.stages is not None:
            overrides["trained_stages"] = ((0.0, self.stages),)
        return _UNFREEZING[self.recipe]._replace(**overrides)

    def trained_stages(self, epoch: int) -> int:
        """Return how many of the last stages are trained in an epoch, counted from 0."""
        progress = (epoch + 1) / self.full_recipe.epochs + 1e-9
        return max(count for start, count in self.unfreezing.trained_stages if start <= progress)


@dataclass(frozen=True, kw_only=True)
class TrackerChoice(CommandOptions):
    """Options that choose a tracker."""

    former: ClassVar[Mapping[str, str]] = {"--weights": "--pretrained"}

    tracker: str = option(
        "track/disco",
        f"network by name: {', '.join(_MODELS)}; run folder of `disco train tracker`; or {STATIC_BOX}: a baseline with "
        "the same box in every frame (default: track/disco, which needs no training)",
    )
    pretrained: str | None = option(
        None,
        "weights for a network by name: a file (ResNet-50, SiamDW, SE-SiamFC, last.ckpt), torchvision or timm "
        "(default: ImageNet's, which come with the package, for track/siamfc+ and track/disco)",
        exists=WEIGHTS,
    )
    mode: str | None = option(
        None,
        "how the scale is estimated: axis (one crop, default of networks with a scale axis), pyramid (three crops, "
        "default of others) or fixed (not at all)",
        choices=MODES,
    )
    motion: str | None = option(None, "motion hyper-parameters (default: those of the mode)", choices=MOTIONS)
    device: str = device_option()


def parse_box(text: str) -> Box:
    """Parse four numbers, of which the last two are positive."""
    try:
        x, y, w, h = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected four numbers X Y W H, got {text!r}") from None
    if not all(map(math.isfinite, (x, y, w, h))):
        raise ValueError(f"expected finite numbers X Y W H, got {text!r}")
    if w <= 0 or h <= 0:
        raise ValueError(f"width and height must be positive, got {text!r}")
    return x, y, w, h


def box_in_pixels(box: Box, width: int, height: int) -> Box:
    """Return a box in pixels of a frame; numbers of at most 1 are all fractions of the frame.

    Example:
        >>> box_in_pixels((0.25, 0.5, 0.25, 0.125), 640, 480)
        (160.0, 240.0, 160.0, 60.0)
        >>> box_in_pixels((0, 0, 2, 1), 640, 480)
        (0, 0, 2, 1)
    """
    x, y, w, h = box
    pixels = box if max(box) > 1 else (x * width, y * height, w * width, h * height)
    if min(pixels[2:]) < 1:
        rule = "at least one pixel each way (four numbers are fractions of the frame if none is above 1)"
        raise ValueError(f"--box must have {rule}, got {x:g},{y:g},{w:g},{h:g}")
    return pixels


def parse_rate(text: str) -> Fraction:
    """Parse frames per second, such as 25, 29.97 or 30000/1001."""
    try:
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise ValueError(f"expected frames per second from 0.001 to 1000, got {text!r}")
    return rate


@dataclass(frozen=True, kw_only=True)
class TrackOptions(TrackerChoice):
    """Track an object through a video, images or a camera."""

    entry = "tasks.tracking.commands.track:run"
    examples = """\
  disco track holiday.mp4 --box 320 180 64 48
  disco track holiday.mp4 --box 0.4 0.3 0.2 0.2 --tracker runs/tracker
  disco track OTB/Deer --out deer
  disco track 0 --show --frames 500
  disco track holiday.mp4 --box=-12,40,80,60 --start 100 --no-video --json

Nothing needs to be trained or downloaded. A box is X Y W H, the upper left corner counted from 0, width and height: in
pixels; or in fractions of the frame, if none of the four is above 1. It may extend beyond the frame. Without --box you
draw it in a window. A folder with groundtruth_rect.txt (OTB) or groundtruth.txt (GOT-10k) needs no --box.
OUT gets track.csv (frame from 0, box, score, scale relative to the first frame, lost 0 or 1, milliseconds) and
track.mp4 with the box in every frame, red and dashed while lost. After Ctrl-C or an error both have the frames tracked
so far. A damaged image keeps its line, with the previous box and marked as lost.
"""

    source: str = argument("video file, image folder, or number of a camera")
    box: Box | None = option(
        None, "object in the first frame, X Y W H in pixels or in fractions of the frame (see below)", parse=parse_box
    )
    target: int | None = option(None, "number of the object, if the ground truth has several")
    start: int | None = option(None, "number of the first frame (default: 0)", rule=at_least(0))
    frames: int | None = option(None, "maximum number of frames (default: all)", rule=at_least(1))
    show: bool = option(False, "show a window, where you can draw the box")
    no_video: bool = option(False, "write track.csv only")
    fps: Fraction | None = option(None, "frame rate of track.mp4 (default: as the video, or 25)", parse=parse_rate)
    out: Path | None = option(None, "write track.csv and track.mp4 into this folder (default: track/NAME)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.source.isdecimal() and not Path(self.source).exists():
            raise FileNotFoundError(f"track: no file and no folder {self.source}")


@dataclass(frozen=True, kw_only=True)
class OtbOptions(TrackerChoice):
    """Evaluate a tracker on OTB, or on videos in its layout."""

    entry = "tasks.tracking.commands.otb:run"
    examples = """\
  disco otb data/otb
  disco otb data/otb --tracker static-box
  disco otb data/otb --list OTB2013 --tracker runs/tracker-disco --out otb.md
  disco otb data/otb --sequences CarScale Singer1 --tracker runs/tracker-disco
  disco otb data/otb --list OTB100 --compare others/SiamFC others/KCF --plot success.png

Results of finished sequences are in RESULTS/TRACKER, and not computed again; other toolkits can read these files.
"""

    root: Path = argument("folder of videos: NAME/img and NAME/groundtruth_rect.txt", exists=FOLDER)
    list: str | None = option(None, "all targets of a benchmark (default: all sequences in ROOT)", choices=LISTS)
    sequences: tuple[str, ...] | None = option(None, "names of sequences")
    allow_missing: bool = option(False, "with --list: evaluate the targets that are there")
    tiger1_late: bool = option(
        False, "skip the first five frames of Tiger1, like SiamDW and pytracking (got10k and OTB evaluate them)"
    )
    results: Path = option(Path("runs/otb"), "folder for result files, with a subfolder per tracker")
    compare: tuple[Path, ...] = option((), "results of other trackers", exists=FOLDER)
    out: Path | None = report_option()
    plot: Path | None = plot_option("success and precision")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.list and self.sequences:
            raise ValueError("--list and --sequences cannot be combined")
        if self.allow_missing and not self.list:
            raise ValueError("--allow-missing needs --list")


def parse_size(text: str) -> tuple[int, int]:
    """Parse width x height."""
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError(f"expected width x height such as 320x240, got {text!r}")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, kw_only=True)
class ZoomOptions(CommandOptions):
    """Render synthetic videos of objects that move and change in size, in the layout of OTB."""

    entry = "tasks.tracking.commands.zoom:run"
    examples = """\
  disco data zoom --images my/photos --out data/zoom
  disco data zoom --count 40 --test-count 8 --out data/zoom

OUT/train and OUT/test are cut from different images. Images directly in --images are split between the two
individually; those in a subfolder may show the same object and stay together. After Ctrl-C, the same command continues
where it stopped.
"""
    former: ClassVar[Mapping[str, str]] = {"--pictures": "--images"}

    images: Path | None = option(None, "photos to cut from (default: six small bundled ones)", exists=FOLDER)
    count: int = option(240, "number of training sequences")
    frames: int = option(20, "frames per training sequence")
    test_count: int = option(24, "number of test sequences")
    test_frames: int = option(60, "frames per test sequence")
    size: tuple[int, int] = option((320, 240), "frame size (default: 320x240)", parse=parse_size)
    png: bool = option(False, "write lossless frames instead of JPEG of quality 92")
    seed: int = seed_option("the sequences")
    out: Path = option(Path("data"), "write the data to this folder")
