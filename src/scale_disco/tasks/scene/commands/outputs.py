"""What `disco scene` writes of a picture or a video: names, files, and a note that says what they are."""

from __future__ import annotations

import argparse
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

NUMBERS, _NOTE = (".npy", "-confidence.npy"), ".json"
_FIGURES = {False: (".png", "-overlay.png"), True: (".mp4",)}  # of pictures, of videos


class Job(NamedTuple):
    """A picture or a video, and the name under which its files go into a folder."""

    path: Path
    out: Path
    name: str
    film: bool

    def file(self, end: str) -> Path:
        """One of its files."""
        return self.out / f"{self.name}{end}"

    def files(self, options: argparse.Namespace) -> list[Path]:
        """Those that are wanted."""
        return [self.file(end) for end in (*NUMBERS, *(() if options.no_figure else _FIGURES[self.film]))]

    def all_files(self) -> list[Path]:
        """Those that there may be."""
        return [self.file(end) for end in (*NUMBERS, *_FIGURES[self.film], _NOTE)]

    def note(self) -> dict[str, Any]:
        """What an earlier call has written of its work, nothing if there was none or if it did not come that far."""
        try:
            note = read_json(self.file(_NOTE))
        except (FileNotFoundError, ValueError):  # a damaged one is as good as none
            return {}
        return note if isinstance(note, dict) else {}

    def save(self, numbers: Field, mark: dict[str, Any]) -> None:
        """The numbers; from now on until they are complete a note says whose they are, and that they are not."""
        if self.note().get("mark") != mark:  # what is there is of other work
            for end in NUMBERS:
                self.file(end).unlink(missing_ok=True)
        self.conclude({"source": self.path.name, "complete": False}, mark)
        for end, values in zip(NUMBERS, numbers, strict=True):
            packed = io.BytesIO()  # numpy does not say why it cannot write to a disk
            np.save(packed, values.numpy(), allow_pickle=False)
            write(self.file(end), packed.getvalue())

    def conclude(self, row: dict[str, Any], mark: dict[str, Any]) -> None:
        """The note, which comes last: what was done, and what that depends on."""
        write(self.file(_NOTE), f"{json.dumps({**row, 'mark': mark}, indent=1)}\n".encode())

    def keep(self, fields: list[Field], mark: dict[str, Any]) -> Field:
        """Write the fields of frames so far, for a call that goes on after them; all in one, [T, h, w]."""
        octaves, confidence = (torch.stack(part) for part in zip(*fields, strict=True))
        self.save(Field(octaves, confidence), mark)
        return Field(octaves, confidence)

    def kept(self) -> list[Field]:
        """What `keep` wrote, frame by frame; nothing if it is gone, the shorter if it was stopped between two files."""
        if not all(self.file(end).is_file() for end in NUMBERS):
            return []
        octaves, confidence = (_numbers(self.file(end)) for end in NUMBERS)
        if octaves.shape[1:] != confidence.shape[1:]:
            raise ValueError(f"{self.file(NUMBERS[0])} and {self.file(NUMBERS[1])} are of two films: delete both")
        return [Field(*pair) for pair in zip(octaves, confidence, strict=False)]


def _numbers(path: Path) -> Tensor:
    """What was kept of the frames of a film, float32 [T, h, w]."""
    try:
        values = parse_npy(path.read_bytes())
        if values.dtype != np.float32 or values.ndim != 3:
            raise ValueError(f"expected float32 [T, h, w], got {values.dtype} {values.shape}")
    except ValueError as error:
        raise ValueError(f"{path}: damaged; delete it to see the film anew ({plain(reason(error))})") from error
    return torch.from_numpy(values)


def jobs_of(paths: list[Path], out: Path, film: bool) -> Iterator[Job]:
    """Pictures or videos by names whose files no other has, of this call or of one before: the stem, if free.

    A name is free if none of its files is there, or if a note says that they are of the same picture.
    """
    taken: set[str] = set()
    for path in paths:
        longer = f"{path.stem}-{path.suffix[1:]}"
        for name in chain([path.stem, longer], (f"{longer}-{number}" for number in count(2))):
            job = Job(path, out, name, film)
            files = {file.name.casefold() for file in job.all_files()}
            there = any(file.exists() for file in job.all_files())  # asked first: a note comes before other files
            note = job.note()
            own = "mark" in note and note.get("source") == path.name
            if not files & taken and (own or not there):
                taken |= files
                yield job
                break
