"""Readers of fields, copies and windows that scene estimation caches."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import save as save_tensors

from scale_disco.tasks.scene import copies as contrast
from scale_disco.tasks.scene import evaluation
from scale_disco.tasks.scene.commands.outputs import Job
from scale_disco.tasks.scene.field import Field
from tests.reliability.malformed import Files, Reader, files_of
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import Payload, as_file, header_seed, malformed_tensors, npy, npy_header


def field_seeds() -> list[Seed]:
    def write(folder: Path) -> None:
        fields = [Field(torch.zeros(3, 4), torch.ones(3, 4)) for _ in range(2)]
        Job(Path("a.mp4"), folder, "a", True).save_frames(fields, {"every": 1})

    return seeds_of(files_of(write))


def read_fields(folder: Path) -> None:
    job = Job(Path("a.mp4"), folder, "a", True)
    job.note()
    for field in job.load_frames():
        assert field.octaves.ndim == 2
        assert field.octaves.dtype == field.confidence.dtype == torch.float32


def field_cases() -> dict[str, Files]:
    contents = {
        "an absurd shape": npy_header("(1099511627776,)", "<f4"),
        "objects": npy_header("(1,)", "|O") + pickle.dumps(Payload()),
        "a pickle": pickle.dumps(Payload()),
        "empty": b"",
        "text": b"x" * 100,
        "integers": npy(np.zeros((2, 3, 4), np.int64)),
        "strings": npy(np.array(["a"])),
        "other axes": npy(np.zeros(3, np.float32)),
        "a scalar": npy(np.array(1.0)),
        "other frames": npy(np.zeros((2, 5, 5), np.float32)),
    }
    return as_file("a.npy", contents, field_seeds()[0].files)


class ZeroBackbone:
    """Gives zeros for all images."""

    fingerprint = "x"

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(images), 2, 3, 4, 4)


def read_copies(folder: Path) -> None:
    gray = torch.zeros(3, 40, 40, dtype=torch.uint8)
    source = contrast.ImageSource(0, "a", "fingerprint", lambda: gray)
    (copies,) = contrast.read_copies(ZeroBackbone(), [source], contrast.Sizes(copies=2, windows=3), cache=folder)
    assert copies.profiles.shape == (2, 3, 2, 3)
    assert copies.octaves.shape == (2,)


def read_windows(folder: Path) -> None:
    estimator: Any = SimpleNamespace(backbone=ZeroBackbone(), cell=8, window=64)
    assert evaluation.cached_profiles(estimator, torch.zeros(3, 64, 64, dtype=torch.uint8), folder).ndim == 3


def copies_seeds() -> list[Seed]:
    files = files_of(read_copies)
    (name,) = files
    return [*seeds_of(files), header_seed(files, name)]


def windows_seeds() -> list[Seed]:
    zeros = torch.zeros(1, 2, 3)
    with mock.patch.multiple(evaluation, window_profiles=lambda *_: zeros, device_of=lambda _: torch.device("cpu")):
        files = files_of(read_windows)
    (name,) = files
    return [*seeds_of(files), header_seed(files, name)]


def profile_cases(seeds: Callable[[], list[Seed]]) -> dict[str, Files]:
    (name,) = seeds()[0].files
    foreign = {
        "other tensors": save_tensors({"a": np.zeros(2)}),
        "other shapes": save_tensors({"profiles": np.zeros(2), "octaves": np.zeros(3)}),
    }
    return as_file(name, malformed_tensors() | foreign)


READERS = {
    "cached fields": Reader(read_fields, field_seeds, field_cases),
    "cached copies": Reader(read_copies, copies_seeds, lambda: profile_cases(copies_seeds)),
    "cached windows": Reader(read_windows, windows_seeds, lambda: profile_cases(windows_seeds)),
}
