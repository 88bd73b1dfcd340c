"""Videos with a box around an object in every frame, in the layouts of OTB and GOT-10k."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....files import plain, read_bytes, reason
from ...io.video import Box
from .otb_lists import LISTS, RANGES

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png")
_TRUTH = re.compile(r"groundtruth(?:_rect)?(?:\.(\d+))?\.txt")
_DEPTH = 4  # folders below the root in which sequences are looked for
_START = 1 << 16  # bytes of a file, among which there is a box if there is one
_KNOWN = {name for names in LISTS.values() for name in names}


@dataclass(frozen=True)
class Sequence:
    """The frames of a video, and where the object is: boxes float64 [N, 4], x, y, w, h in pixels counted from 0.

    A row is NaN where the frame has no box; the first frame always has one.
    """

    name: str
    frames: tuple[Path, ...]
    boxes: Tensor


def read_sequences(root: Path, names: Container[str] | None = None) -> list[Sequence]:
    """The sequences in a folder or below it, sorted by name; an object each where a video has several.

    Args:
        root: The folder.
        names: Those that are read; all by default.
    """
    found = find_sequences(root)
    return [_read(*place, name) for name, place in found.items() if names is None or name in names]


def find_sequences(root: Path) -> dict[str, tuple[Path, Path]]:
    """Names of the sequences in a folder or below it, sorted, with the folder and the file of boxes of each."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"otb: no folder {root}")
    found: dict[str, tuple[Path, Path]] = {}
    for folder in _folders(root, _DEPTH):
        for target, truth in _truths(folder).items():
            name = _name(folder, target)
            if name in found:
                raise ValueError(
                    f"otb: two sequences are called {name}: {found[name][0]} and {folder}; "
                    "give the folder of one of them"
                )
            found[name] = folder, truth
    if not found:
        raise ValueError(
            f"otb: no sequences in {root}; expected NAME/img/0001.jpg ... with NAME/groundtruth_rect.txt (OTB), "
            "or NAME/00000001.jpg ... with NAME/groundtruth.txt (GOT-10k)"
        )
    return dict(sorted(found.items()))


def read_sequence(folder: Path, target: int | None = None) -> Sequence:
    """The sequence in a folder.

    Frames are numbered pictures, in the folder or in `img` in it. The boxes are lines of four numbers, counted from 1
    as both benchmarks do, in `groundtruth_rect.txt` or `groundtruth.txt`. Frames after the last line are left out with
    a warning.

    Args:
        folder: Its name is that of the sequence.
        target: Which object, where a video has several (`groundtruth_rect.1.txt`, `groundtruth_rect.2.txt`).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"otb: no folder {folder}")
    truths = _truths(folder)
    if not truths:
        raise FileNotFoundError(f"otb: no groundtruth_rect.txt and no groundtruth.txt in {folder}")
    if target is None and len(truths) > 1:
        raise ValueError(f"otb: {folder} has {len(truths)} objects, say which: target {_either(list(truths))}")
    key = next(iter(truths)) if target is None else target
    if key not in truths:
        raise ValueError(f"otb: {folder} has no object {target}, only {_either(list(truths))}")
    return _read(folder, truths[key], _name(folder, key))


def first_box(folder: Path, frames: list[Path], start: int | None = None, target: int | None = None) -> tuple[int, Box]:
    """The number of a frame, and its box by the ground truth of a folder.

    Args:
        folder: The folder with the ground truth.
        frames: The frames that are counted.
        start: The frame; the first that has a box if it is None.
        target: Which object, where there are several.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of frames after the last box, which need none here
        sequence = read_sequence(folder, target)
    offset = frames.index(sequence.frames[0])
    row = 0 if start is None else start - offset
    if not 0 <= row < len(sequence.boxes) or bool(sequence.boxes[row].isnan().any()):
        raise ValueError(f"video: the ground truth of {folder} has no box for frame {start}")
    x, y, w, h = sequence.boxes[row].tolist()
    return offset + row, (x, y, w, h)


def read_boxes(path: Path) -> Tensor:
    """Boxes of a file as they are written, float64 [N, 4]: a line each, with any separators; NaN rows for no box."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise type(error)(f"otb: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"otb: cannot read {path}: {reason(error)}") from error
    rows = [_box(line, path, number) for number, line in enumerate(text.rstrip().splitlines(), 1)]
    return torch.from_numpy(np.array(rows, np.float64)).reshape(len(rows), 4)


def _box(line: str, path: Path, number: int) -> list[float]:
    words = re.split(r"\s*[,;]\s*|\s+", line.strip().rstrip(",;").rstrip())
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != 4 or any(map(math.isinf, values)):
        shown = plain(repr(line.strip()))
        raise ValueError(f"otb: {path}, line {number}: expected four numbers x, y, w, h, got {shown}")
    boxed = not any(map(math.isnan, values)) and values[2] > 0 and values[3] > 0
    return values if boxed else [math.nan] * 4


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """Folders that have boxes."""
    if _truths(root):
        yield root
    elif depth:
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield from _folders(path, depth - 1)


def _truths(folder: Path) -> dict[int, Path]:
    """The files with boxes by the number of their object, which is 0 where there is only one.

    Numbered files win over one without a number; empty files are left out if another is not (as in Human4).
    """
    matches = [(match, path) for path in folder.iterdir() if (match := _TRUTH.fullmatch(path.name)) and path.is_file()]
    several = {int(match[1]): path for match, path in sorted(matches, key=lambda pair: pair[1]) if match[1]}
    filled = {number: path for number, path in sorted(several.items()) if _is_filled(path)}
    if several and filled:
        return filled if len(filled) > 1 or f"{folder.name}-{min(filled)}" in _KNOWN else {0: min(filled.values())}
    single = sorted(path for match, path in matches if not match[1])
    return {0: single[-1]} if single else several


def _is_filled(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(file.read(_START).strip(b"\xef\xbb\xbf \r\n"))


def _name(folder: Path, target: int) -> str:
    name = (folder if folder.name else folder.resolve()).name
    return f"{name}-{target}" if target else name


def _read(folder: Path, truth: Path, name: str) -> Sequence:
    folder = folder if folder.name else folder.resolve()
    frames, boxes = _frames(folder), read_boxes(truth)
    frames, boxes = _counted(folder, truth, frames, boxes)
    numbers = list(frames)
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise ValueError(
                f"otb: {folder}: after frame {frames[before].name} comes {frames[after].name}; "
                f"{_count(after - before - 1, 'frame')} missing"
            )
    boxes[_absent(folder / "absence.label", len(boxes))] = math.nan
    if boxes[0].isnan().any():
        raise ValueError(f"otb: {truth}: the first frame must have a box of positive size, line 1 has none")
    boxes[:, :2] -= 1
    return Sequence(name, tuple(frames.values()), boxes)


def _frames(folder: Path) -> dict[int, Path]:
    """Pictures by their numbers, in order."""
    place = folder / "img" if (folder / "img").is_dir() else folder
    frames: dict[int, Path] = {}
    for path in sorted(place.iterdir()):
        number = re.search(r"\d+$", path.stem)
        if path.suffix.lower() in SUFFIXES and number and not path.name.startswith("."):
            same = frames.setdefault(int(number[0]), path)
            if same != path:
                raise ValueError(f"otb: {place}: {same.name} and {path.name} have the same number")
    if not frames:
        raise ValueError(f"otb: no numbered frames in {place} (looked for 0001{', 0001'.join(SUFFIXES)})")
    return dict(sorted(frames.items()))


def _counted(folder: Path, truth: Path, frames: dict[int, Path], boxes: Tensor) -> tuple[dict[int, Path], Tensor]:
    """Frames and boxes that belong together, one of each."""
    if not len(boxes):
        raise ValueError(f"otb: {truth} is empty, expected a line x,y,w,h for every frame")
    if len(boxes) == len(frames):
        return frames, boxes
    if folder.name in RANGES:
        first, last = RANGES[folder.name]
        within = {number: path for number, path in frames.items() if first <= number <= last}
        for rows in (boxes, boxes[first - 1 : last]):
            if len(rows) == len(within) == last - first + 1:
                return within, rows
            if len(rows) == len(frames) == last - first + 1:
                return frames, rows
    if len(boxes) > len(frames):
        raise ValueError(
            f"otb: {truth} has {_count(len(boxes), 'line')} for {_count(len(frames), 'frame')}: are all frames there?"
        )
    left_out = len(frames) - len(boxes)
    warnings.warn(
        f"{folder.name}: {_count(len(frames), 'frame')} and boxes for {len(boxes)}; the last {left_out} left out",
        stacklevel=4,
    )
    return dict(list(frames.items())[: len(boxes)]), boxes


def _absent(path: Path, count: int) -> Tensor:
    """Where GOT-10k says that the object is out of sight, bool [N]."""
    if not path.is_file():
        return torch.zeros(count, dtype=torch.bool)
    try:
        marks = read_bytes(path).decode("utf-8-sig", "replace").split()
    except ValueError as error:
        raise ValueError(f"otb: cannot read {path}: {error}") from error
    if len(marks) < count or not set(marks) <= {"0", "1"}:
        raise ValueError(f"otb: {path}: expected 0 or 1 for each of {_count(count, 'frame')}, got {len(marks)} marks")
    return torch.tensor([mark == "1" for mark in marks[:count]])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
