"""Commands that are killed at random moments and called again, until they are done."""

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

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PATIENCE = 120  # seconds, for a machine that is busy
_MOMENT = 10.0  # seconds that processes have to end after the one that started them
# What differs between two runs that compute the same: times, dates, what is measured in time, and where it is.
_VARYING = {"seconds", "started", "finished", "date", "speed", "basis", "command", "reused", "files", "data"}


class Work(NamedTuple):
    """A command: program and arguments as a user would call it, from what is in the folder that it writes into."""

    name: str
    call: Callable[[Path], list[str]]


@dataclass
class Tally:
    """What came of kills."""

    killed: int = 0
    finished: int = 0  # works that were killed, went on, and ended with the same files as an undisturbed one
    seconds: float = 0.0


def disco(*words: object) -> list[str]:
    """The command `disco` with arguments."""
    return [sys.executable, "-m", "scale_disco", *map(str, words)]


def watched() -> dict[str, str]:
    """The environment of processes of one thread that may not use the network."""
    path = os.pathsep.join([str(ROOT / "tests" / "reliability" / "watched"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path.rstrip(os.pathsep)}


def start(command: list[str]) -> subprocess.Popen[str]:
    """A process in a session of its own, in which all that it starts can be found."""
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=watched(),
        start_new_session=True,
        preexec_fn=_mind_signals,
    )


def _mind_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # which shells and nohup ignore in the background
        signal.signal(number, signal.SIG_DFL)


def undisturbed(work: Work, out: Path) -> float:
    """Let it come to its end; the seconds that it took."""
    began, process = time.monotonic(), start(work.call(out))
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return time.monotonic() - began


def killed_again_and_again(work: Work, folder: Path, *, kills: int, seed: int) -> Tally:
    """Kill a command so many times, and see that it always comes to the same end.

    After every kill there is no process left and no file that is not whole. Whenever the command has come to its end,
    its files are compared with those of a call that nothing disturbed, and it begins anew.

    Args:
        work: The command.
        folder: For all files.
        kills: How often.
        seed: Of signals and moments.
    """
    chance, began, tally = random.Random(seed), time.monotonic(), Tally()
    usual = undisturbed(work, folder / "whole")
    expected, killed_here, rounds = contents(folder / "whole"), 0, 0
    while tally.killed < kills or killed_here:
        out = folder / str(rounds)
        process, started = start(work.call(out)), time.monotonic()
        moment, kind = chance.uniform(0.25, 1) * usual, chance.choice(SIGNALS)
        try:
            # After the last kill, it is left alone.
            _, said = process.communicate(timeout=moment if tally.killed < kills else PATIENCE)
        except subprocess.TimeoutExpired:
            assert tally.killed < kills, f"{work.name} hangs after {killed_here} kills"
            while kind == signal.SIGINT and process.poll() is None and not _listens(process.pid):
                time.sleep(0.02)  # while it loads libraries, it answers in Python's words
            process.send_signal(kind)
            _, said = process.communicate(timeout=PATIENCE)
            print(f"{work.name}: {kind.name} after {moment:.2f} s: exit code {process.returncode}")
            tally.killed, killed_here = tally.killed + 1, killed_here + 1
            if process.returncode == 0:  # it was just about to end
                continue
            assert process.returncode in (-kind, 128 + kind), said
            if process.returncode > 0:
                assert said.rstrip().endswith(": stopped"), said
                assert "Traceback" not in said, said
        else:
            assert process.returncode == 0, said
            if killed_here:
                assert contents(out) == expected, differences(contents(out), expected)
                assert not drafts(out), drafts(out)
                tally.finished += 1
            else:
                usual = time.monotonic() - started  # the machine was busier before
            killed_here, rounds = 0, rounds + 1
        assert not left_over(process.pid), left_over(process.pid)
        if out.exists():
            contents(out)
    tally.seconds = time.monotonic() - began
    return tally


def _listens(process: int) -> bool:
    """Whether a process is at the work of its command, which is to end well by signals."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def left_over(session: int) -> list[str]:
    """Processes of a session that are still there after a moment."""
    end = time.monotonic() + _MOMENT
    while (found := _processes(session)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _processes(session: int) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return found


def drafts(folder: Path) -> list[str]:
    """What should be gone when all is done."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


def contents(folder: Path) -> dict[str, Any]:
    """What all files under their final names hold, without times; one that is not whole is an error.

    TensorBoard's events are left out: every call adds a file of its own.
    """
    return {
        path.relative_to(folder).as_posix(): _READERS[path.suffix](path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.parent.name not in ("tensorboard", "times")
    }


def differences(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Names of files that are not as they should be, and of such that should not be or are not."""
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))


def _json(path: Path) -> Any:
    return _timeless(json.loads(path.read_text()))


def _timeless(value: Any) -> Any:
    """The same without times, and tensors as bytes."""
    if isinstance(value, dict):
        return {str(key): _timeless(one) for key, one in value.items() if key not in _VARYING}
    if isinstance(value, (list, tuple)):
        return [_timeless(one) for one in value]
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
        del arrays["weights"]  # the checksum of a checkpoint, which holds times
    return arrays


def _array(path: Path) -> Any:
    array = np.load(path, allow_pickle=False)
    return array.shape, array.tobytes()


def _picture(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
    return path.read_bytes()


def _film(path: Path) -> Any:
    footage = open_video(str(path))
    sizes = [frame.image.shape for frame in footage.frames() if frame.image is not None]
    assert not footage.remarks()
    return sizes  # encoders may pack the same frames in another way


def _page(path: Path) -> Any:
    assert path.read_text().endswith("</html>\n")
    return "whole"  # it shows times


_READERS: dict[str, Callable[[Path], Any]] = {
    ".ckpt": lambda path: _timeless(torch.load(path, weights_only=True)),
    ".csv": _table,
    ".html": _page,
    ".jpg": _picture,
    ".json": _json,
    ".mp4": _film,
    ".npy": _array,
    ".npz": _arrays,
    ".png": _picture,
    ".safetensors": lambda path: _timeless(load_file(path)),
    ".txt": lambda path: path.read_text(),
}
