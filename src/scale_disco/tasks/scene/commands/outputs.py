"""Output files of `disco scene`: their names, and a note in JSON that says what they are."""

import io
import json
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....files import plain, read_json, reason, write
from ...io.arrays import parse_npy
from ..field import Field
from ..options import SceneOptions

ARRAYS, _NOTE = (".npy", "-confidence.npy"), ".json"
_FIGURES = {False: (".png", "-overlay.png"), True: (".mp4",)}  # of images, of videos
KEY = "mark"  # of the note, for what its files were computed from


class Job(NamedTuple):
    """An image or a video, and the name of its files in the output folder."""

    path: Path
    out: Path
    name: str
    video: bool

    def file(self, end: str) -> Path:
        """Return the path of a file by the end of its name."""
        return self.out / f"{self.name}{end}"

    def files(self, options: SceneOptions) -> list[Path]:
        """Return the files that are requested."""
        return [self.file(end) for end in (*ARRAYS, *(() if options.no_figure else _FIGURES[self.video]))]

    def all_files(self) -> list[Path]:
        """Return all files that may exist."""
        return [self.file(end) for end in (*ARRAYS, *_FIGURES[self.video], _NOTE)]

    def note(self) -> dict[str, Any]:
        """Return the note of an earlier call; empty if there is none or it is damaged."""
        try:
            note = read_json(self.file(_NOTE))
        except (FileNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def write_note(self, row: dict[str, Any], key: dict[str, Any]) -> None:
        """Write the note, after all other files: the result, and what it depends on."""
        write(self.file(_NOTE), f"{json.dumps({**row, KEY: key}, indent=1)}\n".encode())

    def save(self, field: Field, key: dict[str, Any]) -> None:
        """Write the arrays, after a note that they are incomplete; `write_note` completes them."""
        if self.note().get(KEY) != key:  # files of another input or other options
            for end in ARRAYS:
                self.file(end).unlink(missing_ok=True)
        self.write_note({"source": self.path.name, "complete": False}, key)
        for end, values in zip(ARRAYS, field, strict=True):
            packed = io.BytesIO()  # numpy hides why it cannot write to a disk
            np.save(packed, values.numpy(), allow_pickle=False)
            write(self.file(end), packed.getvalue())

    def save_frames(self, fields: list[Field], key: dict[str, Any]) -> Field:
        """Write the fields of frames, from which a later call resumes, and return them as one, [T, h, w]."""
        stacked = Field(*map(torch.stack, zip(*fields, strict=True)))
        self.save(stacked, key)
        return stacked

    def load_frames(self) -> list[Field]:
        """Return the fields that `save_frames` wrote; as many as both files have, none if one is missing."""
        if not all(self.file(end).is_file() for end in ARRAYS):
            return []
        octaves, confidence = (_read_frames(self.file(end)) for end in ARRAYS)
        if octaves.shape[1:] != confidence.shape[1:]:
            raise ValueError(f"{self.file(ARRAYS[0])} and {self.file(ARRAYS[1])} have different shapes: delete both")
        return [Field(*pair) for pair in zip(octaves, confidence, strict=False)]


def _read_frames(path: Path) -> Tensor:
    """Read an array of frames, float32 [T, h, w]."""
    try:
        values = parse_npy(path.read_bytes())
        if values.dtype != np.float32 or values.ndim != 3:
            raise ValueError(f"expected float32 [T, h, w], got {values.dtype} {values.shape}")
    except ValueError as error:
        raise ValueError(f"{path}: damaged; delete it to start the video again ({plain(reason(error))})") from error
    return torch.from_numpy(values)


def jobs_of(paths: list[Path], out: Path, video: bool) -> Iterator[Job]:
    """Yield a job for every path, under a name that no other file of this or an earlier call has: the stem, if free.

    A name is free if none of its files exists, or if the note says that they belong to the same source.
    """
    taken: set[str] = set()
    for path in paths:
        longer = f"{path.stem}-{path.suffix[1:]}"
        for name in chain([path.stem, longer], (f"{longer}-{number}" for number in count(2))):
            job = Job(path, out, name, video)
            files = {file.name.casefold() for file in job.all_files()}
            exists = any(file.exists() for file in job.all_files())  # before the note is read: it is written first
            note = job.note()
            own = KEY in note and note.get("source") == path.name
            if not files & taken and (own or not exists):
                taken |= files
                yield job
                break
