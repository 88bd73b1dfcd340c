"""Kill commands at random times and run them again until they finish."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from scale_disco.tasks.io.video import open_video
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXIT_SECONDS = 30  # for processes to end after their parent; less than a training takes that goes on without it
# Keys that differ between two runs of the same computation: times, dates, speeds and paths.
_VARYING = {"seconds", "started", "finished", "date", "speed", "basis", "command", "reused", "files", "data"}


class Command(NamedTuple):
    """A command: `call` gives program and arguments for an output folder, which may hold part of its output."""

    name: str
    call: Callable[[Path], list[str]]


@dataclass
class KillCounts:
    """Outcomes of kills."""

    killed: int = 0
    finished: int = 0  # commands that were killed and resumed, and wrote the same files as an uninterrupted one
    seconds: float = 0.0


def disco(*arguments: object) -> list[str]:
    """Return the command line of `disco`."""
    return [sys.executable, "-m", "scale_disco", *map(str, arguments)]


def offline_environment() -> dict[str, str]:
    """Return the environment of single-threaded processes without network access."""
    path = os.pathsep.join([str(ROOT / "tests" / "reliability" / "offline"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path.rstrip(os.pathsep)}


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a process in its own session, by which its children can be listed."""
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=offline_environment(),
        start_new_session=True,
        preexec_fn=_reset_signals,
    )


def _reset_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # shells and nohup ignore them in the background
        signal.signal(number, signal.SIG_DFL)


def run_uninterrupted(command: Command, out: Path) -> float:
    """Run a command to its end; return its seconds."""
    start_time, process = time.monotonic(), start(command.call(out))
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    return time.monotonic() - start_time


def kill_repeatedly(command: Command, folder: Path, *, kills: int, seed: int) -> KillCounts:
    """Kill a command several times, and check that it always ends with the same files.

    After every kill no process is left and every file is complete. Whenever the command finishes, its files are
    compared with those of an uninterrupted call, and it starts again in an empty folder.

    Args:
        command: The command.
        folder: For all files.
        kills: Number of kills.
        seed: Of signals and delays.
    """
    generator, begin, counts = random.Random(seed), time.monotonic(), KillCounts()
    duration = run_uninterrupted(command, folder / "whole")
    expected, kills_of_round, rounds = contents(folder / "whole"), 0, 0
    while counts.killed < kills or kills_of_round:
        out = folder / str(rounds)
        process, start_time = start(command.call(out)), time.monotonic()
        delay, kind = generator.uniform(0.25, 1) * duration, generator.choice(SIGNALS)
        try:
            # After the last kill, it may finish.
            _, stderr = process.communicate(timeout=delay if counts.killed < kills else PATIENCE)
        except subprocess.TimeoutExpired:
            assert counts.killed < kills, f"{command.name} hangs after {kills_of_round} kills"
            while kind == signal.SIGINT and process.poll() is None and not _handles_signals(process.pid):
                time.sleep(0.02)  # Python handles Ctrl-C while libraries are imported
            process.send_signal(kind)
            _, stderr = process.communicate(timeout=PATIENCE)
            print(f"{command.name}: {kind.name} after {delay:.2f} s: exit code {process.returncode}")
            counts.killed, kills_of_round = counts.killed + 1, kills_of_round + 1
            if process.returncode == 0:  # it was just about to end
                continue
            assert process.returncode in (-kind, 128 + kind), stderr
            if process.returncode > 0:
                assert stderr.rstrip().endswith(": stopped"), stderr
                assert "Traceback" not in stderr, stderr
        else:
            assert process.returncode == 0, stderr
            if kills_of_round:
                assert contents(out) == expected, differences(contents(out), expected)
                assert not drafts(out), drafts(out)
                counts.finished += 1
            else:
                duration = time.monotonic() - start_time  # the machine was busier before
            kills_of_round, rounds = 0, rounds + 1
        assert not remaining_processes(process.pid), remaining_processes(process.pid)
        if out.exists():
            contents(out)
    counts.seconds = time.monotonic() - begin
    return counts


def _handles_signals(process: int) -> bool:
    """Return whether a process has installed the signal handlers of its command."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def remaining_processes(session: int) -> list[str]:
    """Return the processes of a session that do not end within some seconds."""
    end = time.monotonic() + _EXIT_SECONDS
    while (processes := processes_of(session)) and time.monotonic() < end:
        time.sleep(0.05)
    return processes


def processes_of(session: int) -> list[str]:
    """Return the command lines of the running processes of a session."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                processes.append((folder / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return processes


def drafts(folder: Path) -> list[str]:
    """Return hidden files, which should be gone when a command ends."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


def contents(folder: Path) -> dict[str, Any]:
    """Return the contents of all files by name, without times; raise an error for an incomplete file.

    TensorBoard's events are skipped: every call adds a file of its own.
    """
    return {
        path.relative_to(folder).as_posix(): _READERS[path.suffix](path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.parent.name not in ("tensorboard", "times")
    }


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the names of files that differ, are missing or are unexpected."""
    return ", ".join(sorted(name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name)))


def _json(path: Path) -> Any:
    return _timeless(json.loads(path.read_text()))


def _timeless(value: Any) -> Any:
    """Remove times, and turn tensors into bytes."""
    if isinstance(value, dict):
        return {str(key): _timeless(item) for key, item in value.items() if key not in _VARYING}
    if isinstance(value, (list, tuple)):
        return [_timeless(item) for item in value]
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.flatten().view(torch.uint8).numpy().tobytes()
    return value


def _table(path: Path) -> Any:
    text = path.read_text()
    assert text.endswith("\n")
    return [_timeless(row) for row in csv.DictReader(io.StringIO(text, newline=""))]


def _arrays(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: (archive[name].shape, archive[name].tobytes()) for name in archive.files}
    if path.name.startswith("answers"):
        del arrays["weights"]  # the checksum of a checkpoint, which contains times
    return arrays


def _array(path: Path) -> Any:
    array = np.load(path, allow_pickle=False)
    return array.shape, array.tobytes()


def _image(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
    return path.read_bytes()


def _video(path: Path) -> Any:
    video = open_video(str(path))
    shapes = [frame.image.shape for frame in video.frames() if frame.image is not None]
    assert not video.remarks()
    return shapes  # encoders may compress the same frames differently


def _page(path: Path) -> Any:
    assert path.read_text().endswith("</html>\n")
    return "complete"  # it shows times


_READERS: dict[str, Callable[[Path], Any]] = {
    ".ckpt": lambda path: _timeless(torch.load(path, weights_only=True)),
    ".csv": _table,
    ".html": _page,
    ".jpg": _image,
    ".json": _json,
    ".mp4": _video,
    ".npy": _array,
    ".npz": _arrays,
    ".png": _image,
    ".safetensors": lambda path: _timeless(load_file(path)),
    ".txt": lambda path: path.read_text(),
}
