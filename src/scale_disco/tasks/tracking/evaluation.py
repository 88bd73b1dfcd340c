"""One-pass evaluation of trackers, with the metrics of OTB.

A tracker gets the box of the first frame and runs once to the last. Frames without a ground-truth box (NaN) are
ignored; got10k and the scripts of OTB, where they are rare, count them as failures.
"""

import collections.abc
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...files import locked, make_folder, plain, read_json, write
from ..io.images import load_frame
from ..io.progress import Progress, counter
from ..io.video import Frame
from .data.otb_lists import OTB100, SCALE_VARIATION
from .data.sequences import Sequence
from .results import Result, read_result, write_result
from .tracker import Tracker, track

OVERLAPS = torch.from_numpy(np.linspace(0, 1, 21))  # torch's own differ by a last digit
DISTANCES = torch.arange(51, dtype=torch.float64)
_NEAR = 20  # distance in pixels of the quoted precision
_RATIO = 2.0  # minimum ratio of the largest scale to the smallest in a sequence with scale variation
_TRACKER = "tracker.json"


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the intersection over union of boxes x, y, w, h: [N, 4], [N, 4] -> [N].

    Example:
        >>> overlap(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 2, 2]]))
        tensor([0.3333])
    """
    low = torch.maximum(boxes[:, :2], others[:, :2])
    high = torch.minimum(boxes[:, :2] + boxes[:, 2:], others[:, :2] + others[:, 2:])
    intersection = (high - low).clamp(min=0).prod(1)
    union = boxes[:, 2:].prod(1) + others[:, 2:].prod(1) - intersection
    return (intersection / (union + np.finfo(float).eps)).clamp(0, 1)


def center_distance(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the distance between the centers of boxes in pixels: [N, 4], [N, 4] -> [N]."""
    apart = (boxes[:, :2] + (boxes[:, 2:] - 1) / 2) - (others[:, :2] + (others[:, 2:] - 1) / 2)
    return apart.square().sum(1).sqrt()


def scale_error(boxes: Tensor, others: Tensor) -> Tensor:
    """Return abs(log2) of the ratio of scales sqrt(w h), of at least one pixel: [N, 4], [N, 4] -> [N] in octaves.

    Example:
        >>> scale_error(torch.tensor([[0.0, 0, 2, 8]]), torch.tensor([[5.0, 5, 2, 2]]))
        tensor([1.])
    """
    return (_scale(boxes).log2() - _scale(others).log2()).abs()


def _scale(boxes: Tensor) -> Tensor:
    return boxes[:, 2:].nan_to_num(0).clamp(min=0).prod(1).sqrt().clamp(min=1)


def success_curve(overlaps: Tensor) -> Tensor:
    """Return the fraction of frames with overlap above 0, 0.05, ..., 1: [N] -> [21]. A perfect tracker has 0 at 1."""
    return (overlaps[:, None] > OVERLAPS).double().mean(0)


def precision_curve(distances: Tensor) -> Tensor:
    """Return the fraction of frames with centers at most 0, 1, ..., 50 pixels apart: [N] -> [51]."""
    return (distances[:, None] <= DISTANCES).double().mean(0)


@dataclass(frozen=True)
class Score:
    """Metrics of a tracker on a sequence, or their means over sequences.

    `fps` is the number of frames after the first over the total time (as in the paper), `frame_fps` the mean of
    1 / time (as in got10k); both exclude reading images and are None if times are unknown.
    """

    frames: int
    success: Tensor  # [21], see `success_curve`
    precision: Tensor  # [51], see `precision_curve`
    scale_error: float  # mean, see the function of this name
    fps: float | None = None
    frame_fps: float | None = None

    @property
    def auc(self) -> float:
        """Area under the success curve, the mean over its thresholds."""
        return float(self.success.mean())

    @property
    def precision_20(self) -> float:
        """Fraction of frames with a center at most 20 pixels off."""
        return float(self.precision[_NEAR])

    @property
    def success_rate(self) -> float:
        """Fraction of frames with overlap above 0.5."""
        return float(self.success[len(OVERLAPS) // 2])

    def document(self, *, curves: bool = False) -> dict[str, Any]:
        """Return the metrics by name, with the curves on request."""
        metrics = {
            "frames": self.frames,
            "auc": self.auc,
            "precision": self.precision_20,
            "success_rate": self.success_rate,
            "scale_error": self.scale_error,
            "fps": self.fps,
            "frame_fps": self.frame_fps,
        }
        return metrics | ({"success": self.success.tolist(), "precisions": self.precision.tolist()} if curves else {})


def score(result: Result, sequence: Sequence) -> Score:
    """Return the metrics of a result on a sequence, over frames with a ground-truth box.

    Example:
        >>> boxes = torch.tensor([[5.0, 5, 4, 3], [6, 5, 4, 3]], dtype=torch.float64)
        >>> perfect = score(Result(boxes, None), Sequence("Car", (Path("1.png"), Path("2.png")), boxes))
        >>> round(perfect.auc, 3), perfect.precision_20
        (0.952, 1.0)
    """
    counted = ~sequence.boxes.isnan().any(1)
    boxes, truth = result.boxes[counted], sequence.boxes[counted]
    fps = frame_fps = None
    if result.seconds is not None:
        total, measured = float(result.seconds.sum()), result.seconds[result.seconds > 0]
        fps = (len(result.seconds) - 1) / total if total > 0 and len(result.seconds) > 1 else None
        frame_fps = float(measured.reciprocal().mean()) if len(measured) else None
    return Score(
        int(counted.sum()),
        success_curve(overlap(boxes, truth)),
        precision_curve(center_distance(boxes, truth)),
        float(scale_error(boxes, truth).mean()),
        fps,
        frame_fps,
    )


def mean_score(scores: collections.abc.Sequence[Score]) -> Score:
    """Return the mean metrics over sequences, each with the same weight."""
    if not scores:
        raise ValueError("mean_score: expected at least one score, got none")
    return Score(
        sum(score.frames for score in scores),
        torch.stack([score.success for score in scores]).mean(0),
        torch.stack([score.precision for score in scores]).mean(0),
        sum(score.scale_error for score in scores) / len(scores),
        _mean_of_known(score.fps for score in scores),
        _mean_of_known(score.frame_fps for score in scores),
    )


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def varies_in_scale(sequence: Sequence) -> bool:
    """Return whether the scale varies: by OTB's attribute for its sequences, by the boxes for others."""
    if sequence.name in OTB100:
        return sequence.name in SCALE_VARIATION
    scales = _scale(sequence.boxes[~sequence.boxes.isnan().any(1)])
    return bool(scales.max() >= _RATIO * scales.min())


def scale_rule(sequences: Iterable[Sequence]) -> str:
    """Describe how `varies_in_scale` decides for these sequences."""
    known = {sequence.name in OTB100 for sequence in sequences}
    by_boxes = f"where the largest true sqrt(w h) is at least {_RATIO:g} times the smallest"
    rules = {True: "by OTB's attribute SV", False: by_boxes}
    return ", and of other names ".join(rules[kind] for kind in (True, False) if kind in known)


def overall(scores: dict[str, Score], sequences: Iterable[Sequence]) -> dict[str, tuple[int, Score]]:
    """Return the number of sequences and their mean metrics: all, with scale variation, and others; no empty group."""
    groups: dict[str, list[Score]] = {"all": [], "scale variation": [], "other": []}
    for sequence in sequences:
        for group in ("all", "scale variation" if varies_in_scale(sequence) else "other"):
            groups[group].append(scores[sequence.name])
    return {name: (len(group), mean_score(group)) for name, group in groups.items() if group}


def run(
    tracker: Tracker,
    sequences: collections.abc.Sequence[Sequence],
    folder: Path,
    *,
    fingerprint: str,
    progress: Progress | None = None,
) -> dict[str, Result]:
    """Track every sequence once and write the results into a folder; finished sequences are read from it.

    Args:
        folder: Result folder of this tracker alone, created if missing. Results are always read back from its files.
        fingerprint: Identifies this tracker and its weights; ValueError if the folder has results of another one.
        progress: Called with the number of frames tracked and in total.
    """
    folder = Path(folder)
    make_folder(folder)
    with locked(folder):
        _claim(folder, fingerprint)
        unfinished = [sequence for sequence in sequences if not _finished(folder, sequence)]
        count = counter(progress, sum(len(sequence.frames) for sequence in unfinished))
        for sequence in unfinished:
            write_result(folder, sequence.name, _track(tracker, sequence, count))
        return {sequence.name: read_result(folder, sequence) for sequence in sequences}


def _finished(folder: Path, sequence: Sequence) -> bool:
    try:
        read_result(folder, sequence)
    except (FileNotFoundError, ValueError):  # missing, damaged, or of another video of this name
        return False
    return True


def _claim(folder: Path, fingerprint: str) -> None:
    """Assign a result folder to a tracker; ValueError if it belongs to another one."""
    path = folder / _TRACKER
    if path.is_file():
        try:
            document = read_json(path)
        except ValueError:
            document = None
        owner = document.get("fingerprint") if isinstance(document, dict) else None
        if owner != fingerprint:
            trackers = f"another tracker, {plain(owner or 'unknown')}, this one is {fingerprint}"
            raise ValueError(f"{folder} has results of {trackers}: use another result folder, or delete this one")
    elif next(folder.glob("*.txt"), None):
        raise ValueError(f"{folder} has results of an unknown tracker, without {_TRACKER}: use another folder")
    else:
        write(path, f"{json.dumps({'fingerprint': fingerprint})}\n".encode())


def _track(tracker: Tracker, sequence: Sequence, count: Callable[[int], None]) -> Result:
    x, y, w, h = sequence.boxes[0].tolist()
    frames = (Frame(number, load_frame(path), Fraction(number)) for number, path in enumerate(sequence.frames))
    boxes, seconds = [], []
    try:
        for tracked in track(tracker, frames, (x, y, w, h)):
            if len(tracked.box) != 4 or not all(map(math.isfinite, tracked.box)):
                raise ValueError(f"the tracker returned the box {tracked.box}, expected four finite numbers x, y, w, h")
            boxes.append(tracked.box)
            seconds.append(tracked.seconds)
            count(1)
    except ValueError as error:
        raise ValueError(f"{sequence.name}, frame {len(boxes) + 1} of {len(sequence.frames)}: {error}") from error
    return Result(torch.tensor(boxes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64))
