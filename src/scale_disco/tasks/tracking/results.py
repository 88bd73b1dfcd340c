"""Result files of trackers: ours, in a format that other toolkits read, and those of other toolkits."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...files import make_folder, plain, read_json, reason, write
from .data.sequences import Sequence, parse_rows, read_lines, read_rows

_FORMATS = (".txt", ".json")
_OTHER_KEYS = {"human4": ("human4-2",)}  # the only object of its video, but number 2 in the benchmark's files


class Result(NamedTuple):
    """Boxes float64 [N, 4], x, y, w, h in pixels counted from 0, and seconds per frame [N] if known.

    The first box is the ground truth, and the first time that of `Tracker.init`.
    """

    boxes: Tensor
    seconds: Tensor | None


def write_result(folder: Path, name: str, result: Result) -> None:
    """Write times/NAME_time.txt, then NAME.txt with a line x,y,w,h per frame, counted from 1."""
    make_folder(folder / "times")
    if result.seconds is not None:
        lines = "".join(f"{second:.9f}\n" for second in result.seconds.tolist())
        write(_time_file(folder, name), lines.encode())
    lines = "".join(f"{x + 1:.4f},{y + 1:.4f},{w:.4f},{h:.4f}\n" for x, y, w, h in result.boxes.tolist())
    write(folder / f"{name}.txt", lines.encode())


def read_result(folder: Path, sequence: Sequence) -> Result:
    """Return what `write_result` wrote for a sequence; ValueError unless both files are complete and belong to it."""
    path, times = folder / f"{sequence.name}.txt", _time_file(folder, sequence.name)
    boxes, seconds = _checked(path, read_rows(path), sequence), _checked(times, _seconds(times), sequence)
    boxes[:, :2] -= 1
    if not torch.allclose(boxes[0], sequence.boxes[0], rtol=0, atol=1e-3):
        raise ValueError(f"{path}: the first box is not that of {sequence.name}, got {boxes[0].tolist()}")
    return Result(boxes, seconds)


def read_results(folder: Path, sequences: Iterable[Sequence]) -> dict[str, Result]:
    """Return the results of another tracker on every sequence, by name.

    Files have the names of any toolkit: `Jogging-1.txt`, `Jogging.1.txt`, `jogging_1.txt` or `Jogging-1.json`; times
    are read from `times/NAME_time.txt` if it exists. Boxes are counted from 1 as in OTB, or from 0 if the first one
    says so. The first box is replaced by the ground truth.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} with the results of a tracker")
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _FORMATS and path.is_file():
            files.setdefault(_key(path.stem), []).append(path)
    sequences = list(sequences)
    paths = [(sequence, _find(files, sequence.name)) for sequence in sequences]
    missing = [sequence.name for sequence, path in paths if path is None]
    if missing:
        count, names = f"{len(missing)} of {len(sequences)} sequences", ", ".join(missing)
        raise FileNotFoundError(f"{folder}: no results for {count}, looked for NAME.txt and NAME.json of {names}")
    return {sequence.name: _read(path, sequence) for sequence, path in paths if path is not None}


def _key(name: str) -> str:
    """Normalize a name: toolkits differ in case and in the separator before the number of an object."""
    return re.sub(r"[-_.](\d+)$", r"-\1", name.lower())


def _find(files: dict[str, list[Path]], name: str) -> Path | None:
    paths = [path for key in (_key(name), *_OTHER_KEYS.get(_key(name), ())) for path in files.get(key, ())]
    chosen = [path for path in paths if path.stem == name] or paths
    if len(chosen) > 1:
        raise ValueError(f"{chosen[0].parent}: both {chosen[0].name} and {chosen[1].name} are results of {name}")
    return chosen[0] if chosen else None


def _read(path: Path, sequence: Sequence) -> Result:
    boxes = _checked(path, _json_boxes(path) if path.suffix == ".json" else read_rows(path), sequence)
    truth = sequence.boxes[0]
    from_zero = ((boxes[0, :2] - truth[:2] - 0.25).abs() <= 0.5).all()  # pysot's first box is half a pixel off
    boxes[:, :2] -= 0 if bool(from_zero) else 1
    boxes[0] = truth
    times = _time_file(path.parent, path.stem)
    return Result(boxes, _checked(times, _seconds(times), sequence) if times.is_file() else None)


def _checked(path: Path, values: Tensor, sequence: Sequence) -> Tensor:
    count = len(sequence.frames)
    if len(values) != count:
        raise ValueError(f"{path}: expected a line for each of {count} frames of {sequence.name}, got {len(values)}")
    return values


def _time_file(folder: Path, name: str) -> Path:
    return folder / "times" / f"{name}_time.txt"


def _json_boxes(path: Path) -> Tensor:
    """Return the boxes of a file of the benchmark's scripts: a list of one run, a dictionary with boxes in "res"."""
    try:
        document = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {reason(error)}") from error
    run = document[0] if isinstance(document, list) and document else document
    rows = run.get("res") if isinstance(run, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError(f'{path}: expected the boxes [[x, y, w, h], ...] of a run in "res"')
    kind = run.get("resType", run.get("type", "rect"))
    if kind != "rect":
        raise ValueError(f'{path}: only boxes of the type "rect" are supported, got {plain(repr(kind))}')
    return parse_rows(path, rows)


def _seconds(path: Path) -> Tensor:
    try:
        seconds = torch.tensor([float(line) for line in read_lines(path)], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"{path}: expected seconds, a number per line: {plain(error)}") from error
    if not bool((seconds >= 0).all()):
        raise ValueError(f"{path}: expected seconds of at least 0, got {float(seconds.min())}")
    return seconds
