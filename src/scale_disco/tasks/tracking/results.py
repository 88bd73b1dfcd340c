"""Result files of trackers: ours, which toolkits of others read, and those of others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...files import make_folder, plain, read_bytes, read_json, reason, write
from .data.sequences import Sequence

_FORMATS = (".txt", ".json")
_OTHER_KEYS = {"human4": ("human4-2",)}  # the only object of its video, and the second one in the benchmark's files


class Result(NamedTuple):
    """What a tracker found: boxes float64 [N, 4], x, y, w, h in pixels from 0, and seconds [N] if they are known.

    The first box is the given one, and the first time that of seeing it.
    """

    boxes: Tensor
    seconds: Tensor | None


def write_result(folder: Path, name: str, result: Result) -> None:
    """Write NAME.txt, a line x,y,w,h for each frame and counted from 1, and times/NAME_time.txt before it."""
    make_folder(folder / "times")
    if result.seconds is not None:
        lines = "".join(f"{second:.9f}\n" for second in result.seconds.tolist())
        write(_time_file(folder, name), lines.encode())
    lines = "".join(f"{x + 1:.4f},{y + 1:.4f},{w:.4f},{h:.4f}\n" for x, y, w, h in result.boxes.tolist())
    write(folder / f"{name}.txt", lines.encode())


def read_result(folder: Path, sequence: Sequence) -> Result:
    """What `write_result` wrote for a sequence; refused unless both files are whole and belong to it."""
    path, times = folder / f"{sequence.name}.txt", _time_file(folder, sequence.name)
    boxes, seconds = _boxes(path), _seconds(times)
    _check_count(path, boxes, sequence)
    _check_count(times, seconds, sequence)
    boxes[:, :2] -= 1
    if not torch.allclose(boxes[0], sequence.boxes[0], rtol=0, atol=1e-3):
        raise ValueError(f"{path}: the first box is not that of {sequence.name}, got {boxes[0].tolist()}")
    return Result(boxes, seconds)


def read_results(folder: Path, sequences: Iterable[Sequence]) -> dict[str, Result]:
    """Results of another tracker on every sequence, by its name.

    Files are called as one of the toolkits does: `Jogging-1.txt`, `Jogging.1.txt`, `jogging_1.txt` or
    `Jogging-1.json`; times are read from `times/NAME_time.txt` if they are there. Boxes count from 1 as in OTB, or
    from 0 where the first one shows it. The first box counts as the given one, whatever the file says.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} with the results of a tracker")
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _FORMATS and path.is_file():
            files.setdefault(_key(path.stem), []).append(path)
    sequences = list(sequences)
    found = [(sequence, _find(files, sequence.name)) for sequence in sequences]
    missing = [sequence.name for sequence, path in found if path is None]
    if missing:
        raise FileNotFoundError(
            f"{folder}: no results of {len(missing)} of {len(sequences)} sequences, looked for NAME.txt and NAME.json "
            f"of {', '.join(missing)}"
        )
    return {sequence.name: _read(path, sequence) for sequence, path in found if path is not None}


def _key(name: str) -> str:
    """A name as all toolkits mean it: neither case nor what stands before the number of an object matters."""
    return re.sub(r"[-_.](\d+)$", r"-\1", name.lower())


def _find(files: dict[str, list[Path]], name: str) -> Path | None:
    paths = [path for key in (_key(name), *_OTHER_KEYS.get(_key(name), ())) for path in files.get(key, ())]
    exact = [path for path in paths if path.stem == name]
    chosen = exact or paths
    if len(chosen) > 1:
        raise ValueError(f"{chosen[0].parent}: both {chosen[0].name} and {chosen[1].name} are results of {name}")
    return chosen[0] if chosen else None


def _read(path: Path, sequence: Sequence) -> Result:
    boxes = _boxes_of_json(path) if path.suffix == ".json" else _boxes(path)
    _check_count(path, boxes, sequence)
    truth = sequence.boxes[0]
    from_zero = ((boxes[0, :2] - truth[:2] - 0.25).abs() <= 0.5).all()  # pysot writes the given box half a pixel off
    boxes[:, :2] -= 0 if bool(from_zero) else 1
    boxes[0] = truth
    times = _time_file(path.parent, path.stem)
    seconds = _seconds(times) if times.is_file() else None
    if seconds is not None:
        _check_count(times, seconds, sequence)
    return Result(boxes, seconds)


def _check_count(path: Path, values: Tensor, sequence: Sequence) -> None:
    if len(values) != len(sequence.frames):
        raise ValueError(
            f"{path}: expected a line for each of {len(sequence.frames)} frames of {sequence.name}, got {len(values)}"
        )


def _time_file(folder: Path, name: str) -> Path:
    return folder / "times" / f"{name}_time.txt"


def _boxes(path: Path) -> Tensor:
    """Rows of a file, float64 [N, 4]; unlike those of ground truth, they need not have a size."""
    return _checked(path, [re.split(r"\s*[,;]\s*|\s+", line.strip(" \t,;")) for line in _lines(path)])


def _boxes_of_json(path: Path) -> Tensor:
    """Rows of a file of the benchmark's scripts: a list of one run, a dictionary with its boxes in "res"."""
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
        raise ValueError(f'{path}: boxes of the type "rect" can be read, got {plain(repr(kind))}')
    return _checked(path, rows)


def _checked(path: Path, rows: list[list[str]]) -> Tensor:
    boxes = []
    for number, row in enumerate(rows, 1):
        try:
            box = [float(word) for word in row]
        except (TypeError, ValueError, OverflowError):
            box = []
        if len(box) != 4 or any(map(math.isinf, box)):
            shown = ",".join(map(str, row))
            raise ValueError(f"{path}, line {number}: expected four numbers x, y, w, h, got {plain(repr(shown))}")
        boxes.append(box)
    return torch.from_numpy(np.array(boxes, np.float64)).reshape(len(boxes), 4)


def _seconds(path: Path) -> Tensor:
    try:
        seconds = torch.tensor([float(line) for line in _lines(path)], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(f"{path}: expected seconds, a number in every line: {plain(error)}") from error
    if not bool((seconds >= 0).all()):
        raise ValueError(f"{path}: expected seconds of at least 0, got {float(seconds.min())}")
    return seconds


def _lines(path: Path) -> list[str]:
    try:
        return read_bytes(path).decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {reason(error)}") from error
