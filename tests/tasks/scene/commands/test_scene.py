"""`disco scene`: fields of images, folders and videos, reused between calls, and invalid calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scale_disco.cli import main
from scale_disco.models.packaged import cards
from scale_disco.tasks.io import terminal
from scale_disco.tasks.io.images import read_image, size_of
from scale_disco.tasks.scene.commands import scene as cli_scene
from scale_disco.tasks.scene.commands.scene import open_estimator
from scale_disco.tasks.scene.field import scale_field
from scale_disco.tasks.scene.options import SceneOptions
from tests.conftest import PATIENCE, ROOT
from tests.tasks.scene.estimators import Waves, chirp
from tests.tasks.tracking.video_files import truncate

pytest.importorskip("matplotlib")

SIZE = (72, 96)


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """Use the estimator of waves, which are parallel; the options of every time it was opened."""
    calls = []
    monkeypatch.setattr("scale_disco.tasks.scene.field._DIRECTED", 0.0)
    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: calls.append(options) or Waves())
    return calls


def write_image(path, octaves=1.0, size=SIZE):
    """An image of growing waves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(chirp(*size, octaves)[0].permute(1, 2, 0).numpy()).save(path)
    return path


def write_video(path, count=6, rate=5, size=SIZE):
    """A video of waves that differ in every frame."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            image = chirp(*size, number / 2)[0].permute(1, 2, 0).numpy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
        container.mux(stream.encode())
    return path


def scene(capsys, *words, code=0):
    """Call the command; its document and standard error."""
    capsys.readouterr()
    assert main(["scene", *map(str, words), "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


def refused(capsys, *words, code=1):
    """The error of a call, one line."""
    capsys.readouterr()
    assert main(["scene", *map(str, words)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("disco scene: ")
    return err


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files_of(name):
    return [f"{name}-confidence.npy", f"{name}-overlay.png", f"{name}.json", f"{name}.npy", f"{name}.png"]


def test_an_image_and_its_files(tmp_path, capsys):
    path, out = write_image(tmp_path / "waves.png"), tmp_path / "out"
    assert main(["scene", str(path), "--out", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert printed.startswith("waves.png: 96 x 72 pixels; within ")
    assert printed.endswith(f"1 field written into {out}\n")
    assert names(out) == files_of("waves")
    expected = scale_field(Waves(), read_image(path))
    for name, values in zip(("waves", "waves-confidence"), expected, strict=True):
        written = np.load(out / f"{name}.npy", allow_pickle=False)
        assert written.dtype == np.float32
        assert np.array_equal(written, values.numpy())
    assert size_of(out / "waves-overlay.png") == (96, 72)
    assert size_of(out / "waves.png")[0] > 1000
    note = json.loads((out / "waves.json").read_text())
    assert (note["source"], note["complete"], note["size"]) == ("waves.png", True, [96, 72])


def test_the_network_has_the_weights_that_come_with_the_package(tmp_path):
    """Random ones must be asked for."""
    path = write_image(tmp_path / "waves.png")
    assert open_estimator(SceneOptions(source=path)).backbone.sha256 == cards()["scene/shift"].sha256
    assert open_estimator(SceneOptions(source=path, pretrained="random")).backbone.sha256 is None


def test_options_reach_the_field(tmp_path, capsys):
    path = write_image(tmp_path / "waves.png", size=(150, 300))
    document, _ = scene(capsys, path, "--window", 32, "--step", 16, "--longest", 200, "--no-figure", "--out", tmp_path)
    (row,) = document["fields"]
    assert (row["size"], row["shrunk"]) == ([200, 100], 1.5)
    assert row["files"] == [str(tmp_path / "waves-png.npy"), str(tmp_path / "waves-png-confidence.npy")]
    assert names(tmp_path) == ["waves-png-confidence.npy", "waves-png.json", "waves-png.npy", "waves.png"]
    expected = scale_field(Waves(), read_image(path, 200), window=32, step=16)
    assert np.array_equal(np.load(tmp_path / "waves-png.npy"), expected.octaves.numpy())
    assert main(["scene", str(path), "--longest", "200", "--no-figure", "--out", str(tmp_path)]) == 0
    assert "200 x 100 pixels, shrunk by 1.5; " in capsys.readouterr().out


def test_the_output_folder_has_a_default(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scene(capsys, write_image(tmp_path / "waves.png"), "--no-figure")
    assert names(tmp_path / "scene") == ["waves-confidence.npy", "waves.json", "waves.npy"]


def test_images_of_one_stem_have_separate_files(tmp_path, capsys):
    folder, out = tmp_path / "photos", tmp_path / "out"
    for place, name in enumerate(("a.png", "a.bmp", "A.tif", "a-overlay.bmp", "a.b.png")):
        write_image(folder / name, place / 3)
    document, _ = scene(capsys, folder, "--out", out)
    written = [file for row in document["fields"] for file in row["files"]]
    assert len({file.lower() for file in written}) == len(written) == 5 * 4
    assert {row["source"]: row["name"] for row in document["fields"]} == {
        "A.tif": "A",
        "a-overlay.bmp": "a-overlay-bmp",  # A has an overlay
        "a.b.png": "a.b",
        "a.bmp": "a-bmp",
        "a.png": "a-png",
    }
    for row in document["fields"]:
        expected = scale_field(Waves(), read_image(folder / row["source"]))
        assert np.array_equal(np.load(out / f"{row['name']}.npy"), expected.octaves.numpy())


def test_later_calls_do_not_overwrite_files_of_others(tmp_path, capsys):
    out = tmp_path / "out"
    for name in ("a.png", "a.bmp"):
        scene(capsys, write_image(tmp_path / name), "--out", out, "--no-figure")
    assert names(out) == [f"{name}{end}" for name in ("a-bmp", "a") for end in ("-confidence.npy", ".json", ".npy")]


def test_finished_fields_are_reused(tmp_path, capsys, opened):
    folder, out = tmp_path / "photos", tmp_path / "out"
    for name in ("a.png", "b.png", "c.png"):
        write_image(folder / name)

    def computed(*words):
        document, err = scene(capsys, folder, "--out", out, *words)
        assert len(document["fields"]) + len(document["kept"]) == 3
        reused = len(document["kept"])
        assert (
            f"{reused} field{'s' * (reused > 1)} reused from an earlier call (--again disables it)" in err or not reused
        )
        return [row["source"] for row in document["fields"]]

    everything = ["a.png", "b.png", "c.png"]
    assert computed() == everything
    assert computed() == []
    assert len(opened) == 1  # only if it is needed
    (out / "b-overlay.png").unlink()
    assert computed() == ["b.png"]
    (out / "c.json").write_text("{")
    assert computed() == ["c.png"]
    write_image(folder / "a.png", 0.5)
    assert computed() == ["a.png"]
    os.utime(folder / "b.png", ns=(1, 1))
    assert computed() == ["b.png"]
    assert computed("--window", "32") == everything
    assert computed("--window", "32", "--no-figure") == []
    assert computed("--window", "32", "--again") == everything
    weights = tmp_path / "weights.safetensors"
    for content in (b"first", b"second"):
        weights.write_bytes(content)
        assert computed("--pretrained", weights) == everything
        assert computed("--pretrained", weights) == []


def test_damaged_images_are_skipped_and_listed(tmp_path, capsys):
    folder, out = tmp_path / "photos", tmp_path / "out"
    write_image(folder / "good.png")
    truncate(write_image(folder / "half.png"), 0.5)
    (folder / "empty.jpg").touch()
    write_image(folder / "tiny.png", size=(9, 9))
    document, err = scene(capsys, folder, "--out", out)
    assert [row["source"] for row in document["fields"]] == ["good.png"]
    assert err.count("\n") == 1
    assert err.startswith("disco scene: 3 images skipped: cannot read ")
    assert all(name in err for name in ("half.png", "empty.jpg: the file is empty", "tiny.png is too small: 9 x 9"))
    assert len(document["left out"]) == 3
    assert names(out) == files_of("good")
    for number in range(4):
        (folder / f"z{number}.png").touch()
    document, err = scene(capsys, folder, "--out", out)
    assert document["kept"] == ["good.png"]
    assert "; and 4 more" in err
    (folder / "good.png").unlink()
    assert "no image could be read: cannot read " in refused(capsys, folder, "--out", tmp_path / "other")


def test_a_single_damaged_image_is_an_error(tmp_path, capsys):
    path = truncate(write_image(tmp_path / "half.png"), 0.5)
    assert f"cannot read {path}: " in refused(capsys, path, "--out", tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_constant_image_has_an_empty_field(tmp_path, capsys):
    Image.new("L", (80, 60), 128).save(tmp_path / "gray.png")
    assert main(["scene", str(tmp_path / "gray.png"), "--out", str(tmp_path / "out")]) == 0
    assert "80 x 60 pixels; no confidence anywhere: no texture" in capsys.readouterr().out
    assert not np.load(tmp_path / "out" / "gray.npy").any()
    assert not np.load(tmp_path / "out" / "gray-confidence.npy").any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--longest 31", "--longest must be at least 32, got 31"),
        ("--window 0", "--window must be at least 16, got 0"),
        ("--window 9", "--window must be at least 16, got 9"),
        ("--window 32 --step 40", "--step must be at most --window 32, got 40"),
        ("--step 65", "step must be from 1 to the window, 64 pixels, got 65"),
        ("--step 0", "--step must be at least 1, got 0"),
        ("--frames 3", "--frames is for videos, got "),
        ("--every 3", "--every is for videos, got "),
        ("--every 0", "--every must be at least 1, got 0"),
        ("--run nowhere", "--run: no folder nowhere"),
        ("--device nonsense", "device 'nonsense' is not available; available: cpu"),
    ],
)
def test_invalid_options_are_refused(words, message, tmp_path, capsys):
    path = write_image(tmp_path / "waves.png")
    assert message in refused(capsys, path, "--out", tmp_path / "out", *words.split())
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []


def test_invalid_sources_are_refused(tmp_path, capsys):
    assert f"no file or folder {tmp_path / 'nothing'}" in refused(capsys, tmp_path / "nothing")
    assert f"no images in {tmp_path} (looked for " in refused(capsys, tmp_path)
    (tmp_path / "text.txt").write_text("no video")
    assert "text.txt: Invalid data found" in refused(capsys, tmp_path / "text.txt", "--out", tmp_path / "out")


def test_sources_are_not_overwritten(tmp_path, capsys):
    folder = write_image(tmp_path / "photos" / "a.png").parent
    before = (folder / "a.png").read_bytes()
    (folder / "a.json").write_text('{"made by": "someone else"}')
    document, _ = scene(capsys, folder / "a.png", "--out", folder)
    assert next(Path(file).name for file in document["fields"][0]["files"]) == "a-png.npy"
    assert json.loads((folder / "a.json").read_text()) == {"made by": "someone else"}
    assert "--out must be another folder than that of the images" in refused(capsys, folder, "--out", folder / ".")
    assert (folder / "a.png").read_bytes() == before
    video = write_video(tmp_path / "a.mp4", 1)
    before = video.read_bytes()
    scene(capsys, video, "--out", tmp_path)
    assert video.read_bytes() == before
    assert (tmp_path / "a-mp4.mp4").is_file()
    (tmp_path / "file").touch()
    assert "cannot make the folder" in refused(capsys, folder, "--out", tmp_path / "file")


@pytest.mark.parametrize(("package", "extra"), [("matplotlib", "plot"), ("PIL", "plot"), ("av", "video")])
def test_missing_extras_are_named(package, extra, tmp_path, capsys, monkeypatch, opened):
    source = write_video(tmp_path / "a.mkv", 1) if package == "av" else write_image(tmp_path / "a.png")
    for name in [*sys.modules, package]:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    assert f'pip install "scale-disco[{extra}]"' in refused(capsys, source, "--out", tmp_path / "out")
    assert opened == []


def test_a_video_and_its_files(tmp_path, capsys):
    from scale_disco.tasks.io.video import open_video

    video, out = write_video(tmp_path / "waves.mkv", 6), tmp_path / "out"
    document, err = scene(capsys, video, "--out", out, "--every", 2)
    assert err == ""
    (row,) = document["fields"]
    assert (row["frames"], row["complete"], row["size"]) == (3, True, [96, 72])
    assert names(out) == ["waves-confidence.npy", "waves.json", "waves.mp4", "waves.npy"]
    octaves, confidence = (np.load(out / f"waves{end}.npy") for end in ("", "-confidence"))
    assert octaves.shape == confidence.shape == (3, 9, 12)
    assert octaves.dtype == np.float32
    spread = [np.ptp(frame) for frame in octaves]
    assert spread == sorted(spread)  # frames 0, 2 and 4
    written = open_video(str(out / "waves.mp4"))
    frames = list(written.frames())
    assert [float(frame.time) for frame in frames] == pytest.approx([0, 0.4, 0.8])
    assert frames[-1].image.shape == (3, 72, 96)
    assert frames[-1].image.float().std(0).max() > 40  # in color
    document, _ = scene(capsys, video, "--out", out, "--every", 2)
    assert document["kept"] == ["waves.mkv"]
    document, _ = scene(capsys, video, "--out", out, "--frames", 2, "--longest", 48, "--no-figure")
    assert (document["fields"][0]["frames"], document["fields"][0]["size"]) == (2, [48, 36])
    assert main(["scene", str(video), "--out", str(out), "--again"]) == 0
    assert capsys.readouterr().out.startswith("waves.mkv: 6 frames of 96 x 72 pixels; within ")


def test_an_interrupted_video_resumes(tmp_path, capsys, monkeypatch):
    video, out = write_video(tmp_path / "waves.mkv", 6), tmp_path / "out"
    scene(capsys, video, "--out", tmp_path / "whole")
    real, calls = cli_scene.cell_field, []

    def interrupted(*words, **about):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*words, **about)

    monkeypatch.setattr(cli_scene, "cell_field", interrupted)
    document, err = scene(capsys, video, "--out", out, code=130)
    assert document["stopped"] is True
    assert document["fields"][0]["frames"] == 2
    assert err.endswith("disco scene: stopped\n")
    assert names(out) == ["waves-confidence.npy", "waves.json", "waves.mp4", "waves.npy"]
    assert len(np.load(out / "waves.npy")) == 2
    document, err = scene(capsys, video, "--out", out)
    assert "waves.mkv: resumes after 2 frames" in err
    assert document["fields"][0]["frames"] == 6
    assert len(calls) == 3 + 4
    for name in ("waves.npy", "waves-confidence.npy"):
        assert np.array_equal(np.load(out / name), np.load(tmp_path / "whole" / name))
    assert scene(capsys, video, "--out", out)[0]["kept"] == ["waves.mkv"]


def test_fields_of_a_video_are_written_regularly(tmp_path, capsys, monkeypatch):
    video, out = write_video(tmp_path / "waves.mkv", 4), tmp_path / "out"
    frames = []

    class Watching(Waves):
        def maps(self, images):
            frames.append(len(np.load(out / "waves.npy")) if (out / "waves.npy").exists() else 0)
            return super().maps(images)

    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: Watching())
    monkeypatch.setattr(cli_scene, "_SAVED", 0.0)
    scene(capsys, video, "--out", out)
    assert frames == [0, 1, 2, 3]


def test_a_truncated_video(tmp_path, capsys):
    video = truncate(write_video(tmp_path / "waves.mkv", 60), 0.5)
    document, err = scene(capsys, video, "--out", tmp_path / "out", "--every", 10)
    assert 0 < document["fields"][0]["frames"] < 6
    assert "ends early after frame " in err


def test_an_error_keeps_the_finished_fields(tmp_path, capsys, monkeypatch):
    folder, out = tmp_path / "photos", tmp_path / "out"
    for name in ("a.png", "b.png"):
        write_image(folder / name)
    write_image(folder / "c.png", size=(72, 200))

    class Failing(Waves):
        def maps(self, images):
            if images.shape[3] > 100:
                raise ValueError("the network failed")
            return super().maps(images)

    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: Failing())
    document, err = scene(capsys, folder, "--out", out, code=1)
    assert err == "disco scene: the network failed\n"
    assert [row["source"] for row in document["fields"]] == ["a.png", "b.png"]
    assert names(out) == sorted(files_of("a") + files_of("b"))


def test_progress_includes_parts_of_images(tmp_path, capsys, monkeypatch):
    folder = write_image(tmp_path / "photos" / "a.png").parent
    write_image(folder / "b.png")
    write_image(folder / "c.png", size=(200, 72))
    monkeypatch.setattr("scale_disco.tasks.scene.field._BUDGET", 12000)
    fractions = []

    class Watched(terminal.Progress):
        def __call__(self, done, total):
            fractions.append(done / total)

    monkeypatch.setattr(terminal, "Progress", Watched)
    scene(capsys, folder, "--out", tmp_path / "out", "--no-figure")
    assert fractions[:2] == pytest.approx([1 / 3, 2 / 3])
    assert len(fractions) > 4
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


SLOW = """
import sys, time
from scale_disco import cli
from scale_disco.tasks.scene.commands import scene
from tests.tasks.scene.estimators import Waves
class Slow(Waves):
    def maps(self, images):
        time.sleep(0.3)
        return super().maps(images)
scene.open_estimator = lambda options: Slow()
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_an_interrupted_process_leaves_complete_files(kind, code, tmp_path, capsys):
    folder, out = tmp_path / "photos", tmp_path / "out"
    for number in range(30):
        write_image(folder / f"{number:02}.png")
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "scene", str(folder), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )
    deadline = time.monotonic() + PATIENCE
    while not (out / "01.json").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(getattr(signal, kind))
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err
    done = sorted(path.stem for path in out.glob("*.json") if json.loads(path.read_text())["complete"])
    assert 1 <= len(done) < 30
    for name in done:
        assert np.load(out / f"{name}.npy", allow_pickle=False).shape == SIZE
        for end in (".png", "-overlay.png"):
            read_image(out / f"{name}{end}")
    if kind == "SIGINT":
        assert err.endswith("disco scene: stopped\n")
        assert f"{len(done)} field{'s' * (len(done) != 1)} written into {out}" in printed
        assert not list(out.glob(".*"))
    document, _ = scene(capsys, folder, "--out", out, "--no-figure")
    assert document["kept"] == [f"{name}.png" for name in done]
    assert len(list(out.glob("*.json"))) == 30


def test_tensors_go_to_the_device(tmp_path, monkeypatch, capsys):
    used = []

    class Watching(Waves):
        def maps(self, images):
            used.append(images.device.type)
            return torch.ones(1, 1, 8, *(-(-side // 8) for side in images.shape[2:]))

    monkeypatch.setattr(terminal, "devices", lambda: ["cpu", "meta"])
    monkeypatch.setattr(cli_scene, "open_estimator", lambda options: Watching())
    monkeypatch.setattr("scale_disco.tasks.scene.field._detail", lambda image, cell: torch.zeros(4, 9, 12).double())
    scene(capsys, write_image(tmp_path / "a.png"), "--device", "meta", "--out", tmp_path / "out", "--no-figure")
    assert used == ["meta"]
