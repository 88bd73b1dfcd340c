"""How good a tracker is: one-pass evaluation, with the figures of OTB.

A tracker sees the box of the first frame and runs once to the last. Frames whose true box is unknown (NaN) do not
count; got10k and the scripts of OTB, where this hardly occurs, count them as failures.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...files import locked, make_folder, plain, read_json, write
from ..io.images import load_frame
from ..io.video import Box
from .data.otb_lists import LISTS, SCALE_VARIATION
from .data.sequences import Sequence
from .results import Result, read_result, write_result
from .tracker import Tracker

OVERLAPS = torch.from_numpy(np.linspace(0, 1, 21))  # torch's own differ by a last digit
PIXELS = torch.arange(51, dtype=torch.float64)
_NEAR = 20  # pixels of the precision that is quoted
_RATIO = 2.0  # of the largest scale to the smallest one, from which on a sequence varies in scale
_KNOWN = frozenset(name for names in LISTS.values() for name in names)
_TRACKER = "tracker.json"


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of boxes x, y, w, h as rectangles in the plane: [N, 4] twice -> [N], from 0 to 1.

    Example:
        >>> overlap(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[1.0, 0, 2, 2]]))
        tensor([0.3333])
    """
    low = torch.maximum(boxes[:, :2], others[:, :2])
    high = torch.minimum(boxes[:, :2] + boxes[:, 2:], others[:, :2] + others[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    either = boxes[:, 2:].prod(1) + others[:, 2:].prod(1) - both
    return (both / (either + np.finfo(float).eps)).clamp(0, 1)


def centre_distance(boxes: Tensor, others: Tensor) -> Tensor:
    """Pixels between the centres of boxes: [N, 4] twice -> [N]."""
    apart = (boxes[:, :2] + (boxes[:, 2:] - 1) / 2) - (others[:, :2] + (others[:, 2:] - 1) / 2)
    return apart.square().sum(1).sqrt()


def scale_error(boxes: Tensor, others: Tensor) -> Tensor:
    """Octaves between the scales sqrt(w h) of boxes: [N, 4] twice -> [N]. Boxes below a pixel count as one pixel.

    Example:
        >>> scale_error(torch.tensor([[0.0, 0, 2, 8]]), torch.tensor([[5.0, 5, 2, 2]]))
        tensor([1.])
    """
    return (_scale(boxes).log2() - _scale(others).log2()).abs()


def _scale(boxes: Tensor) -> Tensor:
    return boxes[:, 2:].nan_to_num(0).clamp(min=0).prod(1).sqrt().clamp(min=1)


def success_curve(overlaps: Tensor) -> Tensor:
    """The part of frames that overlap by more than 0, 0.05, ..., 1: [N] -> [21]. A perfect tracker has 0 at 1."""
    return (overlaps[:, None] > OVERLAPS).double().mean(0)


def precision_curve(distances: Tensor) -> Tensor:
    """The part of frames whose centres are at most 0, 1, ..., 50 pixels apart: [N] -> [51]."""
    return (distances[:, None] <= PIXELS).double().mean(0)


@dataclass(frozen=True)
class Score:
    """Figures of a tracker on a sequence, or their means over sequences.

    Frames per second are those after the first over the time of all (`fps`, the paper's), and the mean of 1 / time of
    every frame (`frame_fps`, got10k's); both without reading images, and None where times are unknown.
    """

    frames: int
    success: Tensor  # [21], see `success_curve`
    precision: Tensor  # [51], see `precision_curve`
    scale_error: float  # mean |log2| of the ratio of scales
    fps: float | None = None
    frame_fps: float | None = None

    @property
    def auc(self) -> float:
        """Area under the success curve, the mean over its thresholds."""
        return float(self.success.mean())

    @property
    def precision_20(self) -> float:
        """The part of frames whose centre is at most 20 pixels off."""
        return float(self.precision[_NEAR])

    @property
    def success_rate(self) -> float:
        """The part of frames that overlap by more than a half."""
        return float(self.success[len(OVERLAPS) // 2])

    def document(self, *, curves: bool = False) -> dict[str, Any]:
        """The figures by name, with the curves if asked for."""
        figures = {
            "frames": self.frames,
            "auc": self.auc,
            "precision": self.precision_20,
            "success_rate": self.success_rate,
            "scale_error": self.scale_error,
            "fps": self.fps,
            "frame_fps": self.frame_fps,
        }
        return figures | ({"success": self.success.tolist(), "precisions": self.precision.tolist()} if curves else {})


def score(result: Result, sequence: Sequence) -> Score:
    """Figures of a result on a sequence, over the frames that have a box.

    Example:
        >>> boxes = torch.tensor([[5.0, 5, 4, 3], [6, 5, 4, 3]], dtype=torch.float64)
        >>> perfect = score(Result(boxes, None), Sequence("Car", (Path("1.png"), Path("2.png")), boxes))
        >>> round(perfect.auc, 3), perfect.precision_20
        (0.952, 1.0)
    """
    counted = ~sequence.boxes.isnan().any(1)
    found, truth = result.boxes[counted], sequence.boxes[counted]
    return Score(
        int(counted.sum()),
        success_curve(overlap(found, truth)),
        precision_curve(centre_distance(found, truth)),
        float(scale_error(found, truth).mean()),
        *_speeds(result.seconds),
    )


def _speeds(seconds: Tensor | None) -> tuple[float | None, float | None]:
    if seconds is None:
        return None, None
    total, measured = float(seconds.sum()), seconds[seconds > 0]
    fps = (len(seconds) - 1) / total if total > 0 and len(seconds) > 1 else None
    return fps, float(measured.reciprocal().mean()) if len(measured) else None


def mean_score(scores: Several[Score]) -> Score:
    """Figures over sequences, of which each counts alike, however long it is."""
    if not scores:
        raise ValueError("mean_score: expected at least one score, got none")
    return Score(
        sum(one.frames for one in scores),
        torch.stack([one.success for one in scores]).mean(0),
        torch.stack([one.precision for one in scores]).mean(0),
        sum(one.scale_error for one in scores) / len(scores),
        _mean_of_known([one.fps for one in scores]),
        _mean_of_known([one.frame_fps for one in scores]),
    )


def _mean_of_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def varies_in_scale(sequence: Sequence) -> bool:
    """Whether the object changes its scale: by OTB's attribute for its sequences, by the boxes for others."""
    if sequence.name in _KNOWN:
        return sequence.name in SCALE_VARIATION
    scales = _scale(sequence.boxes[~sequence.boxes.isnan().any(1)])
    return bool(scales.max() >= _RATIO * scales.min())


def scale_rule(sequences: Iterable[Sequence]) -> str:
    """How it was decided which of these sequences vary in scale, in words."""
    known = {sequence.name in _KNOWN for sequence in sequences}
    rules = {
        True: "by OTB's attribute SV",
        False: f"where the largest true sqrt(w h) is at least {_RATIO:g} times the smallest",
    }
    return ", and of other names ".join(rules[kind] for kind in (True, False) if kind in known)


def overall(scores: dict[str, Score], sequences: Iterable[Sequence]) -> dict[str, tuple[int, Score]]:
    """How many sequences, and figures over them: of all, of those that vary in scale, and of others if there are."""
    parts: dict[str, list[Score]] = {"all": [], "scale variation": [], "other": []}
    for sequence in sequences:
        one = scores[sequence.name]
        parts["all"].append(one)
        parts["scale variation" if varies_in_scale(sequence) else "other"].append(one)
    return {name: (len(part), mean_score(part)) for name, part in parts.items() if part}


def run(
    tracker: Tracker,
    sequences: Several[Sequence],
    folder: Path,
    *,
    fingerprint: str,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Result]:
    """Track every sequence once, and write what is found into a folder; sequences finished before are read from it.

    Args:
        tracker: Starts anew with each sequence.
        sequences: Their names are those of the files.
        folder: Of this tracker alone, made if it is missing. Figures come from its files, in a first run as in a later.
        fingerprint: What tells this tracker and its weights from others; a folder with results of another is refused.
        progress: Called with frames tracked so far and in all.
    """
    folder = Path(folder)
    make_folder(folder)
    with locked(folder):
        _claim(folder, fingerprint)
        waiting = [sequence for sequence in sequences if not _finished(folder, sequence)]
        total, done = sum(len(sequence.frames) for sequence in waiting), 0

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total)

        for sequence in waiting:
            write_result(folder, sequence.name, _track(tracker, sequence, tick))
        return {sequence.name: read_result(folder, sequence) for sequence in sequences}


def _finished(folder: Path, sequence: Sequence) -> bool:
    try:
        read_result(folder, sequence)
    except (FileNotFoundError, ValueError):  # not there yet, damaged, or of another video of this name
        return False
    return True


def _claim(folder: Path, fingerprint: str) -> None:
    """Make the folder that of a tracker, unless it is another's."""
    path = folder / _TRACKER
    if path.is_file():
        try:
            document = read_json(path)
        except ValueError:
            document = None
        owner = document.get("fingerprint") if isinstance(document, dict) else None
        if owner != fingerprint:
            raise ValueError(
                f"{folder} has results of another tracker, {plain(owner or 'unknown')}, this one is {fingerprint}: "
                "give another folder of results, or delete it"
            )
    elif next(folder.glob("*.txt"), None):
        raise ValueError(f"{folder} has results of an unknown tracker, without {_TRACKER}: give another folder")
    else:
        write(path, f"{json.dumps({'fingerprint': fingerprint})}\n".encode())


def _track(tracker: Tracker, sequence: Sequence, tick: Callable[[], None]) -> Result:
    x, y, w, h = sequence.boxes[0].tolist()
    box: Box = (x, y, w, h)
    boxes, seconds = [], []
    for number, path in enumerate(sequence.frames):
        try:
            image = load_frame(path)
            start = time.perf_counter()
            if number:
                box = tracker.update(image).box
            else:
                tracker.init(image, box)
            seconds.append(time.perf_counter() - start)
            if len(box) != 4 or not all(map(math.isfinite, box)):
                raise ValueError(f"the tracker gave the box {box}, expected four finite numbers x, y, w, h")
        except ValueError as error:
            what = str(error).removeprefix("otb: ")
            raise ValueError(f"{sequence.name}, frame {number + 1} of {len(sequence.frames)}: {what}") from error
        boxes.append(box)
        tick()
    return Result(torch.tensor(boxes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64))
