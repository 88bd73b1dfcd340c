"""Videos with a ground-truth box per frame, in the layouts of OTB and GOT-10k."""

import math
import re
import warnings
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....files import plain, read_bytes, reason
from ...io.images import SUFFIXES, list_images
from ...io.video import Box, counted
from .otb_lists import OTB100, RANGES

_TRUTH = re.compile(r"groundtruth(?:_rect)?(?:\.(\d+))?\.txt")
_DEPTH = 4  # of subfolders that are searched for sequences
_START = 1 << 16  # bytes; a file with boxes has one in them


@dataclass(frozen=True)
class Sequence:
    """Frames of a video and boxes of an object: float64 [N, 4], x, y, w, h in pixels counted from 0.

    Rows of frames without a box are NaN; the first frame always has one.
    """

    name: str
    frames: tuple[Path, ...]
    boxes: Tensor


def read_sequences(root: Path, names: Container[str] | None = None) -> list[Sequence]:
    """Return the sequences in a folder and its subfolders, sorted by name, all or those in `names`; one per object."""
    return [_read(*paths, name) for name, paths in find_sequences(root).items() if names is None or name in names]


def find_sequences(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folder and the ground-truth file of every sequence in a folder and its subfolders, sorted by name."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"otb: no folder {root}")
    sequences: dict[str, tuple[Path, Path]] = {}
    for folder in _folders(root, _DEPTH):
        for target, truth in _truths(folder).items():
            name = _name(folder, target)
            if name in sequences:
                same = f"{sequences[name][0]} and {folder}"
                raise ValueError(f"otb: two sequences are called {name}: {same}; pass the folder of one of them")
            sequences[name] = folder, truth
    if not sequences:
        layouts = "NAME/img/0001.jpg ... with NAME/groundtruth_rect.txt (OTB), "
        layouts += "or NAME/00000001.jpg ... with NAME/groundtruth.txt (GOT-10k)"
        raise ValueError(f"otb: no sequences in {root}; expected {layouts}")
    return dict(sorted(sequences.items()))


def read_sequence(folder: Path, target: int | None = None) -> Sequence:
    """Return the sequence in a folder.

    Frames are numbered images, in the folder or in `img` in it. Boxes are lines of four numbers, counted from 1 as in
    both benchmarks, in `groundtruth_rect.txt` or `groundtruth.txt`; `target` is the number of an object in a video with
    several (`groundtruth_rect.1.txt`). Frames after the last line are skipped with a warning.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"otb: no folder {folder}")
    truths = _truths(folder)
    if not truths:
        raise FileNotFoundError(f"otb: no groundtruth_rect.txt and no groundtruth.txt in {folder}")
    targets = " or ".join(map(str, truths))
    if target is None and len(truths) > 1:
        raise ValueError(f"otb: {folder} has {len(truths)} objects, choose one: target {targets}")
    key = next(iter(truths)) if target is None else target
    if key not in truths:
        raise ValueError(f"otb: {folder} has no object {target}, only {targets}")
    return _read(folder, truths[key], _name(folder, key))


def first_box(folder: Path, frames: list[Path], start: int | None = None, target: int | None = None) -> tuple[int, Box]:
    """Return the number of a frame (default: the first with a box) and its ground-truth box in the folder."""
    with warnings.catch_warnings(action="ignore"):  # about frames after the last box
        sequence = read_sequence(folder, target)
    offset = frames.index(sequence.frames[0])
    row = 0 if start is None else start - offset
    if not 0 <= row < len(sequence.boxes) or bool(sequence.boxes[row].isnan().any()):
        raise ValueError(f"video: the ground truth of {folder} has no box for frame {start}")
    x, y, w, h = sequence.boxes[row].tolist()
    return offset + row, (x, y, w, h)


def read_boxes(path: Path) -> Tensor:
    """Return the boxes of a ground-truth file as written, float64 [N, 4]; rows without a positive size are NaN."""
    boxes = read_rows(path)
    boxes[~(boxes[:, 2:] > 0).all(1) | boxes.isnan().any(1)] = math.nan
    return boxes


def read_rows(path: Path) -> Tensor:
    """Return the lines x, y, w, h of a file, float64 [N, 4], with any separators."""
    return parse_rows(path, (re.split(r"\s*[,;]\s*|\s+", line.strip().strip(" \t,;")) for line in read_lines(path)))


def parse_rows(path: Path, rows: Iterable[list[str]]) -> Tensor:
    """Convert rows of four numbers to float64 [N, 4]; NaN is a number, infinity is not."""
    boxes = []
    for number, row in enumerate(rows, 1):
        try:
            box = [float(word) for word in row]
        except (TypeError, ValueError, OverflowError):
            box = []
        if len(box) != 4 or any(map(math.isinf, box)):
            shown = plain(repr(",".join(map(str, row))))
            raise ValueError(f"{path}, line {number}: expected four numbers x, y, w, h, got {shown}")
        boxes.append(box)
    return torch.from_numpy(np.array(boxes, np.float64)).reshape(len(boxes), 4)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; errors name it."""
    try:
        return read_bytes(path).decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {reason(error)}") from error


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """Yield the folders with ground truth."""
    if _truths(root):
        yield root
    elif depth:
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield from _folders(path, depth - 1)


def _truths(folder: Path) -> dict[int, Path]:
    """Return the ground-truth files by the number of their object, 0 for a single one.

    Numbered files take precedence; empty ones are skipped if another is not empty (as in Human4).
    """
    matches = [(match, path) for path in folder.iterdir() if (match := _TRUTH.fullmatch(path.name)) and path.is_file()]
    numbered = {int(match[1]): path for match, path in sorted(matches, key=lambda pair: pair[1]) if match[1]}
    filled = {number: path for number, path in sorted(numbered.items()) if _is_filled(path)}
    if filled:
        return filled if len(filled) > 1 or f"{folder.name}-{min(filled)}" in OTB100 else {0: min(filled.values())}
    single = sorted(path for match, path in matches if not match[1])
    return {0: single[-1]} if single else numbered


def _is_filled(path: Path) -> bool:
    with path.open("rb") as file:
        return bool(file.read(_START).strip(b"\xef\xbb\xbf \r\n"))


def _name(folder: Path, target: int) -> str:
    name = (folder if folder.name else folder.resolve()).name
    return f"{name}-{target}" if target else name


def _read(folder: Path, truth: Path, name: str) -> Sequence:
    folder = folder if folder.name else folder.resolve()
    frames, boxes = _matched(folder, truth, _frames(folder), read_boxes(truth))
    for before, after in pairwise(frames):
        if after != before + 1:
            gap = f"after frame {frames[before].name} comes {frames[after].name}"
            raise ValueError(f"otb: {folder}: {gap}; {counted(after - before - 1, 'frame')} missing")
    boxes[_absent(folder / "absence.label", len(boxes))] = math.nan
    if boxes[0].isnan().any():
        raise ValueError(f"otb: {truth}: the first frame must have a box of positive size, line 1 has none")
    boxes[:, :2] -= 1
    return Sequence(name, tuple(frames.values()), boxes)


def _frames(folder: Path) -> dict[int, Path]:
    """Return the frames by number, in order."""
    parent = folder / "img" if (folder / "img").is_dir() else folder
    frames: dict[int, Path] = {}
    for path in list_images(parent):
        if number := re.search(r"\d+$", path.stem):
            same = frames.setdefault(int(number[0]), path)
            if same != path:
                raise ValueError(f"otb: {parent}: {same.name} and {path.name} have the same number")
    if not frames:
        raise ValueError(f"otb: no numbered frames in {parent} (looked for 0001{', 0001'.join(SUFFIXES)})")
    return dict(sorted(frames.items()))


def _matched(folder: Path, truth: Path, frames: dict[int, Path], boxes: Tensor) -> tuple[dict[int, Path], Tensor]:
    """Return frames and boxes of the same number."""
    if not len(boxes):
        raise ValueError(f"otb: {truth} is empty, expected a line x,y,w,h for every frame")
    if len(boxes) == len(frames):
        return frames, boxes
    if folder.name in RANGES:
        first, last = RANGES[folder.name]
        within = {number: path for number, path in frames.items() if first <= number <= last}
        for rows in (boxes, boxes[first - 1 : last]):
            for chosen in (within, frames):
                if len(rows) == len(chosen) == last - first + 1:
                    return chosen, rows
    count, skipped = counted(len(frames), "frame"), len(frames) - len(boxes)
    if skipped < 0:
        raise ValueError(f"otb: {truth} has {counted(len(boxes), 'line')} for {count}: are frames missing?")
    warnings.warn(f"{folder.name}: {count} and boxes for {len(boxes)}; the last {skipped} skipped", stacklevel=4)
    return dict(list(frames.items())[: len(boxes)]), boxes


def _absent(path: Path, count: int) -> Tensor:
    """Return where GOT-10k labels the object as out of view, bool [N]."""
    if not path.is_file():
        return torch.zeros(count, dtype=torch.bool)
    try:
        labels = read_bytes(path).decode("utf-8-sig", "replace").split()
    except ValueError as error:
        raise ValueError(f"otb: cannot read {path}: {error}") from error
    if len(labels) < count or not set(labels) <= {"0", "1"}:
        rule = f"expected 0 or 1 for each of {counted(count, 'frame')}"
        raise ValueError(f"otb: {path}: {rule}, got {len(labels)} labels")
    return torch.tensor([label == "1" for label in labels[:count]])
