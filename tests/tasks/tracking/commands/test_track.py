"""`disco track`: output files, which are complete however it ends, and errors."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

from scale_disco.cli import main
from scale_disco.tasks.io import terminal
from scale_disco.tasks.io.video import Frame, VideoSource, open_video
from scale_disco.tasks.tracking.commands import track as cli_track
from scale_disco.tasks.tracking.commands import window as cli_window
from scale_disco.tasks.tracking.options import box_in_pixels
from scale_disco.tasks.tracking.tracker import TrackedBox
from tests.conftest import PATIENCE, ROOT
from tests.tasks.tracking.sequences import moving, write_otb
from tests.tasks.tracking.video_files import SIDE, place, truncate, write_images, write_video

pytest.importorskip("av")

BOX = ["--box", "4,12,8,8"]
STATIC = ["--tracker", "static-box"]


class Bright:
    """Tracks the white square, with a growing scale; lost in frame 5."""

    scale, lost = 1.0, False

    def init(self, image, box):
        self.updates = 0

    def update(self, image):
        self.updates += 1
        self.scale, self.lost = 1 + self.updates / 100, self.updates == 5
        return TrackedBox((*place(image), SIDE, SIDE), 0.9 - self.updates / 1000)


@pytest.fixture
def bright(monkeypatch):
    """Use the tracker of the white square."""
    monkeypatch.setattr(cli_track, "open_tracker", lambda options: Bright())


def rows(folder):
    """Return the lines of track.csv as numbers."""
    with (folder / "track.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert ",".join(lines[0]) == "frame,x,y,w,h,score,scale,lost,ms"
    return [[float(word) for word in line] for line in lines[1:]]


def track(*words, code=0):
    """Run the command."""
    assert main(["track", *map(str, words)]) == code


def refused(capsys, *words, code=1):
    """Return the one-line error of a call."""
    capsys.readouterr()
    assert main(["track", *map(str, words)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("disco track: ")
    return err


@pytest.mark.usefixtures("bright")
def test_csv_and_video_of_a_moving_square(tmp_path, capsys):
    clip = write_video(tmp_path / "clip.mp4", 20)
    track(clip, *BOX, "--out", tmp_path / "out")
    table = rows(tmp_path / "out")
    assert [row[:5] for row in table] == [[number, 4 + 2 * number, 12, 8, 8] for number in range(20)]
    assert [row[5] for row in table] == pytest.approx([1.0, *(0.9 - number / 1000 for number in range(1, 20))])
    assert [row[6] for row in table] == pytest.approx([1 + number / 100 for number in range(20)])
    assert [row[7] for row in table] == [number == 5 for number in range(20)]
    assert all(row[8] >= 0 for row in table)
    video = open_video(str(tmp_path / "out" / "track.mp4"))
    frames = list(video.frames())
    assert (len(frames), video.rate) == (20, 25)
    for frame in frames:
        x = 4 + 2 * frame.number
        line = frame.image[:, 12:20, x].float().mean(1)
        assert (line[0] > 2 * line[1]) if frame.number == 5 else (line[1] > 2 * line[0]), frame.number
        assert frame.image[:, 16, x + 4].float().min() > 150  # the square inside of the box
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("clip: 20 frames, 1 lost; final scale 1.19; ")
    assert out.splitlines()[1:] == [f"wrote {tmp_path / 'out' / name}" for name in ("track.csv", "track.mp4")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["track.csv", "track.mp4"]


@pytest.mark.usefixtures("bright")
def test_start_and_frames_choose_a_part(tmp_path, capsys):
    clip = write_video(tmp_path / "clip.mkv", 20)
    track(clip, "--box", "14,12,8,8", "--start", 5, "--frames", 4, "--out", tmp_path, "--json", "--no-video")
    assert [row[:2] for row in rows(tmp_path)] == [[number, 4 + 2 * number] for number in (5, 6, 7, 8)]
    document = json.loads(capsys.readouterr().out)
    assert document.pop("fps") > 0
    assert document.pop("ms") > 0
    assert document == {
        "source": str(clip),
        "tracker": "disco",
        "frames": 4,
        "lost": 0,
        "last": {"frame": 8, "box": [20, 12, 8, 8], "scale": 1.03},
        "stopped": False,
        "remarks": [],
        "files": [str(tmp_path / "track.csv")],
    }
    track(clip, *BOX, "--frames", 1, "--out", tmp_path)
    assert len(rows(tmp_path)) == len(list(open_video(str(tmp_path / "track.mp4")).frames())) == 1


def test_default_tracker_and_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    clip = write_video(tmp_path / "clip.mp4", 3)
    track(clip, "--box=-2.5,12,8,1e3", *STATIC)
    assert [row[1:5] for row in rows(tmp_path / "track" / "clip")] == [[-2.5, 12, 8, 1000]] * 3
    assert Path("track/clip/track.mp4").is_file()
    remark = "static-box: a baseline, which returns the first box in every frame"
    assert capsys.readouterr().out.endswith(f"{remark}\n")
    track(clip, *BOX, *STATIC, "--json")
    assert json.loads(capsys.readouterr().out)["remarks"] == [remark]
    track(clip, *BOX, "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["tracker"], document["remarks"]) == ("disco", [])
    assert document["last"]["box"] != [4, 12, 8, 8]  # it follows


@pytest.mark.parametrize(
    ("words", "box"),
    [
        ("4 12 8 8", [4, 12, 8, 8]),
        ("-4 12.5 8 .9e1", [-4, 12.5, 8, 9]),
        ("4,12,8,8", [4, 12, 8, 8]),
        ("0.25 0.5 0.125 0.25", [16, 24, 8, 12]),
        ("-.125,0,1,1", [-8, 0, 64, 48]),
        ("0 0 2 1", [0, 0, 2, 1]),
    ],
)
def test_forms_of_boxes(words, box, tmp_path):
    """Four words or one with commas; fractions of the frame of 64 x 48 pixels, if none is above 1."""
    clip = write_video(tmp_path / "clip.mp4", 2)
    for call in (["--box", *words.split(), clip], [clip, "--box", *words.split(), "--quiet"]):
        track(*call, *STATIC, "--out", tmp_path)
        assert rows(tmp_path)[0][1:5] == box


@pytest.mark.usefixtures("bright")
def test_frame_times_are_preserved_unless_fps_is_given(tmp_path):
    times = [0, 0.04, 0.08, 0.5, 0.54, 1.0]
    clip = write_video(tmp_path / "clip.mkv", 6, times=times)

    def times_written():
        return [round(float(frame.time), 3) for frame in open_video(str(tmp_path / "track.mp4")).frames()]

    track(clip, *BOX, "--out", tmp_path)
    assert times_written() == times
    track(clip, *BOX, "--out", tmp_path, "--start", 2)
    assert times_written() == [0, 0.42, 0.46, 0.92]
    track(clip, *BOX, "--out", tmp_path, "--fps", 10)
    assert times_written() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.usefixtures("bright")
def test_folders_with_gaps_and_damaged_images(tmp_path, capsys):
    folder = write_images(tmp_path / "shots", [1, 2, 3, 4, 7], mode="L", size=(63, 47))
    truncate(folder / "3.png", 0.5)
    Image.new("L", (20, 20)).save(folder / "4.png")
    track(folder, *BOX, "--out", tmp_path)
    table = rows(tmp_path)
    assert [row[:2] for row in table] == [[0, 4], [1, 8], [2, 8], [3, 8], [4, 18]]
    assert [row[7] for row in table] == [0, 0, 1, 1, 0]
    assert [math.isnan(row[5]) for row in table] == [False, False, True, True, False]
    frames = list(open_video(str(tmp_path / "track.mp4")).frames())
    assert [frame.time for frame in frames] == [Fraction(number, 25) for number in range(5)]
    assert frames[0].image.shape == (3, 48, 64)
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("disco track: 2 images skipped: 3.png: ")
    assert err[0].endswith("; 4.png: 20 x 20 pixels, the first has 63 x 47")
    assert err[1:] == ["disco track: images are missing: after 4.png comes 7.png"]


@pytest.mark.usefixtures("bright")
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_truncated_videos_are_tracked_to_their_end(tmp_path, name, capsys):
    clip = truncate(write_video(tmp_path / name, 100, noise=True, movflags="faststart"), 0.5)
    track(clip, *BOX, "--out", tmp_path, "--json")
    out, err = capsys.readouterr()
    count = json.loads(out)["frames"]
    assert 20 < count < 80
    assert len(rows(tmp_path)) == len(list(open_video(str(tmp_path / "track.mp4")).frames())) == count
    assert f"{clip}: ends early after frame {count - 1}, at " in err
    assert json.loads(out)["remarks"] == [line.removeprefix("disco track: ") for line in err.splitlines()]
    track(clip, *BOX, "--out", tmp_path, "--quiet")
    assert capsys.readouterr().err == ""


def test_the_box_comes_from_the_ground_truth(tmp_path, capsys):
    folder = write_otb(tmp_path, "Car", moving(5))
    track(folder, *STATIC, "--out", tmp_path)
    assert [row[1:5] for row in rows(tmp_path)] == [[2, 1, 4, 5]] * 5
    track(folder, *STATIC, "--out", tmp_path, "--start", 2)
    assert [row[:5] for row in rows(tmp_path)] == [[number, 4, 1, 4, 5] for number in (2, 3, 4)]
    track(folder, *STATIC, "--out", tmp_path, "--box", "1,2,3,4")
    assert rows(tmp_path)[0][1:5] == [1, 2, 3, 4]
    shutil.copy(folder / "groundtruth_rect.txt", folder / "groundtruth_rect.1.txt")
    (folder / "groundtruth_rect.2.txt").write_text("5,6,3,3\n" * 5)
    assert "has 2 objects, choose one: target 1 or 2" in refused(capsys, folder, *STATIC, "--out", tmp_path)
    track(folder, *STATIC, "--out", tmp_path, "--target", 2)
    assert rows(tmp_path)[0][1:5] == [4, 5, 3, 3]


def test_a_real_sequence_is_tracked(tmp_path, shared, capsys):
    track(shared / "data" / "otb" / "Deer", "--frames", 5, "--out", tmp_path)
    assert len(rows(tmp_path)) == len(list(open_video(str(tmp_path / "track.mp4")).frames())) == 5


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ("1,2,3", "expected four numbers X Y W H, got '1,2,3'"),
        ("1,2,3,4,5", "expected four numbers"),
        ("a,2,3,4", "expected four numbers"),
        ("", "expected four numbers"),
        ("nan,2,3,4", "expected finite numbers X Y W H, got 'nan,2,3,4'"),
        ("1,2,inf,4", "expected finite numbers"),
        ("1,2,0,4", "width and height must be positive, got '1,2,0,4'"),
        ("1,2,3,-4", "width and height must be positive"),
    ],
)
def test_malformed_boxes_are_usage_errors(box, message, capsys):
    assert message in refused(capsys, "clip.mp4", f"--box={box}", code=2)


@pytest.mark.parametrize("box", ["64,12,8,8", "4,48,8,8", "-8,12,8,8", "4,-8,8,8"])
def test_boxes_outside_of_the_frame_raise(box, tmp_path, capsys):
    clip = write_video(tmp_path / "clip.mp4", 2)
    line = refused(capsys, clip, f"--box={box}", "--out", tmp_path / "out")
    numbers = tuple(float(number) for number in box.split(","))
    assert line == f"disco track: clip: the box {numbers} is outside of the frame of 64 x 48 pixels\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--start -1", "--start must be at least 0, got -1"),
        ("--frames 0", "--frames must be at least 1, got 0"),
        ("--start 5", "--start 5: clip has fewer frames"),
        ("--target 1", "--target is for a folder with boxes of several objects"),
        ("--tracker nowhere", "nowhere"),
    ],
)
def test_invalid_options_raise(words, message, tmp_path, capsys):
    clip = write_video(tmp_path / "clip.mp4", 5)
    assert message in refused(capsys, clip, *BOX, *words.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", ["0", "-3", "many", "1/0", "1e9"])
def test_invalid_rates_are_usage_errors(rate, capsys):
    assert "expected frames per second from 0.001 to 1000" in refused(capsys, "clip.mp4", f"--fps={rate}", code=2)


def test_without_a_box_and_a_screen_an_error_says_how_to_give_one(tmp_path, capsys, monkeypatch):
    tkinter = pytest.importorskip("tkinter")

    def no_screen():
        raise tkinter.TclError("no display")

    monkeypatch.setattr(tkinter, "Tk", no_screen)
    hint = "give --box X Y W H instead of drawing it, in pixels or in fractions of the frame"
    message = f"disco track: a window needs a screen (no display); {hint}\n"
    assert refused(capsys, write_video(tmp_path / "clip.mp4", 2)) == message
    assert refused(capsys, write_images(tmp_path / "shots", [1])) == message


def test_an_unreadable_first_image_raises(tmp_path, capsys):
    folder = write_images(tmp_path / "shots", range(3))
    (folder / "0.png").write_text("no image")
    line = refused(capsys, folder, *BOX, "--out", tmp_path)
    assert line.startswith("disco track: shots: no first frame: 1 image skipped: 0.png: not an image")
    assert line.endswith("(--start N begins later)\n")
    track(folder, *BOX, "--out", tmp_path, "--start", 1)
    assert len(rows(tmp_path)) == 2


def test_a_video_without_frames_raises(tmp_path, capsys):
    clip = truncate(write_video(tmp_path / "clip.mkv", 50, noise=True), 0.04)
    assert "no first frame" in refused(capsys, clip, *BOX, "--out", tmp_path)


def test_the_source_is_not_overwritten(tmp_path, capsys):
    clip = write_video(tmp_path / "track.mp4", 3)
    before = clip.read_bytes()
    assert "would be replaced by the result" in refused(capsys, clip, *BOX, "--out", tmp_path)
    assert clip.read_bytes() == before


def hide(monkeypatch, package):
    for name in [*sys.modules, package]:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)


def test_missing_extras_are_named(tmp_path, capsys, monkeypatch):
    clip, folder = write_video(tmp_path / "clip.mp4", 2), write_images(tmp_path / "shots", [1, 2])
    hide(monkeypatch, "av")
    for source in (clip, folder, "0"):
        line = refused(capsys, source, *BOX, "--out", tmp_path)
        assert line.endswith('av is required: pip install "scale-disco[video]"\n')
    assert not list(tmp_path.glob("*track*"))
    track(folder, *BOX, "--out", tmp_path, "--no-video")
    hide(monkeypatch, "PIL")
    assert refused(capsys, folder, *BOX, "--out", tmp_path).endswith('needs pillow: pip install "scale-disco[plot]"\n')


def test_progress_shows_the_time_left(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.1)

    shown = []

    class Waiting(Bright):
        def update(self, image):
            end = time.monotonic() + PATIENCE
            while self.updates == 10 and " s left" not in "".join(shown) and time.monotonic() < end:
                shown.append(capsys.readouterr().err)
                time.sleep(0.01)
            return super().update(image)

    monkeypatch.setattr(cli_track, "open_tracker", lambda options: Waiting())
    track(write_video(tmp_path / "clip.mp4", 20), *BOX, "--out", tmp_path)
    assert " s left" in "".join(shown)


def test_an_error_keeps_the_frames_so_far(tmp_path, capsys, monkeypatch):
    class Failing(Bright):
        def update(self, image):
            if self.updates == 6:
                raise ValueError("the tracker failed")
            return super().update(image)

    monkeypatch.setattr(cli_track, "open_tracker", lambda options: Failing())
    track(write_video(tmp_path / "clip.mp4", 20), *BOX, "--out", tmp_path, "--json", code=1)
    out, err = capsys.readouterr()
    assert err == "disco track: the tracker failed\n"
    assert json.loads(out)["stopped"] is True
    assert len(rows(tmp_path)) == len(list(open_video(str(tmp_path / "track.mp4")).frames())) == 7


@pytest.mark.usefixtures("bright")
@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits")
def test_a_full_disk_loses_the_video_only(tmp_path, capsys):
    import resource

    clip = write_video(tmp_path / "clip.mkv", 60, size=(320, 240), noise=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        track(clip, *BOX, "--out", tmp_path / "out", "--json", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "File too large" in err
    assert json.loads(out)["files"] == [str(tmp_path / "out" / "track.csv")]
    assert 1 < len(rows(tmp_path / "out")) <= 60
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["track.csv"]


def test_an_error_at_the_first_frame_leaves_no_files(tmp_path, capsys, monkeypatch):
    class Failing(Bright):
        def init(self, image, box):
            raise ValueError("the tracker failed")

    monkeypatch.setattr(cli_track, "open_tracker", lambda options: Failing())
    refused(capsys, write_video(tmp_path / "clip.mp4", 20), *BOX, "--out", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_ctrl_c_ends_a_camera_normally(tmp_path, capsys, monkeypatch):
    class Camera(VideoSource):
        name, rate, live = "camera-0", Fraction(30), True

        def frames(self, start=0):
            image = torch.zeros(3, 48, 64, dtype=torch.uint8)
            image[:, 12:20, 4:12] = 255
            for number in range(1000):
                if number == 6:
                    signal.raise_signal(signal.SIGINT)
                yield Frame(number, image, Fraction(number, 30))

        def remarks(self):
            return []

    monkeypatch.setattr(cli_track, "open_video", lambda source: Camera())
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of shells
    try:
        track("0", *BOX, "--out", tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outside)
    assert len(rows(tmp_path)) == len(list(open_video(str(tmp_path / "track.mp4")).frames())) == 7
    assert capsys.readouterr().out.startswith("camera-0: 7 frames")


SLOW = """
import sys, time
from pathlib import Path
from scale_disco.cli import main
from scale_disco.tasks.tracking.tracker import StaticBoxTracker
from scale_disco.tasks.tracking.commands import track
class Slow(StaticBoxTracker):
    def update(self, image):
        Path({busy!r}).touch()
        time.sleep({pause})
        return super().update(image)
track.open_tracker = lambda options: Slow()
sys.exit(main(sys.argv[1:]))
"""


def started(tmp_path, pause=0.02):
    """Start a long tracking process; return it after a few frames, with the lines written so far."""
    clip, program = (
        write_video(tmp_path / "clip.mkv", 1000),
        SLOW.format(pause=pause, busy=str(tmp_path / "busy")),
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "track", str(clip), *BOX, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in background jobs of shells
    )
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        for draft in (tmp_path / "out").glob(".track-*.csv"):
            lines = draft.read_text().splitlines()
            if len(lines) > (5 if pause < 1 else 1) and (tmp_path / "busy").exists():
                return process, lines
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_stopped_processes_leave_complete_files(tmp_path, kind):
    process, _ = started(tmp_path)
    process.send_signal(getattr(signal, kind))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + getattr(signal, kind), err
    assert err.endswith("disco track: stopped\n")
    table = rows(tmp_path / "out")
    assert 5 <= len(table) < 1000
    assert len(list(open_video(str(tmp_path / "out" / "track.mp4")).frames())) == len(table)
    assert out.startswith(f"clip: {len(table)} frames")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["track.csv", "track.mp4"]


@pytest.mark.thorough
def test_a_second_ctrl_c_interrupts_the_frame(tmp_path):
    process, _ = started(tmp_path, pause=2 * PATIENCE)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert len(rows(tmp_path / "out")) == 1


@pytest.mark.thorough
def test_killed_processes_leave_their_lines(tmp_path):
    process, lines = started(tmp_path)
    assert len(lines) < 100  # they are not buffered
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert not (tmp_path / "out" / "track.csv").exists()
    (draft,) = (tmp_path / "out").glob(".track-*.csv")
    assert draft.read_text().splitlines()[: len(lines)] == lines


def test_a_missing_screen_is_a_one_line_error(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tkinter")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform != "linux":
        pytest.skip("always has a screen")
    line = refused(capsys, write_video(tmp_path / "clip.mp4", 2), "--show", "--out", tmp_path / "out")
    assert line.startswith("disco track: a window needs a screen (")
    assert not (tmp_path / "out").exists()


def test_missing_tkinter_is_a_one_line_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tkinter", None)
    line = refused(capsys, write_video(tmp_path / "clip.mp4", 2), "--show", "--out", tmp_path / "out")
    assert line.startswith("disco track: a window needs tkinter, which this Python was built without; give --box X Y")


class FakeWindow:
    """A window whose user draws a box and closes it at frame 3."""

    box = (4.0, 12.0, 8.0, 8.0)

    def __init__(self, title, image):
        self.shown = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def drawn_box(self, image):
        return self.box

    def show(self, image):
        self.shown += 1
        return self.shown < 4


@pytest.mark.usefixtures("bright")
def test_closing_the_window_ends_normally(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli_track, "Window", FakeWindow)
    clip = write_video(tmp_path / "clip.mp4", 20)
    track(clip, "--show", "--out", tmp_path)
    assert [row[1] for row in rows(tmp_path)] == [4, 6, 8, 10]
    monkeypatch.setattr(FakeWindow, "box", None)
    assert "no box was drawn" in refused(capsys, clip, "--show", "--out", tmp_path)


@pytest.fixture
def screen(monkeypatch):
    """A virtual screen, if its programs are installed."""
    pytest.importorskip("tkinter")
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "800x600x24", "-nolisten", "tcp"],
        pass_fds=[write],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        number = pipe.readline().strip()
    if not number:
        server.wait()
        pytest.skip("Xvfb does not start here")
    monkeypatch.setenv("DISPLAY", f":{number}")
    yield f":{number}"
    server.terminate()
    server.wait()


def xdotool(*words):
    return subprocess.run(["xdotool", *words], capture_output=True, text=True, timeout=PATIENCE)


def test_the_box_is_drawn_with_the_mouse(screen, tmp_path):
    clip = write_video(tmp_path / "clip.mp4", 6, size=(320, 240))
    process = subprocess.Popen(
        [sys.executable, "-m", "scale_disco", "track", str(clip), "--show", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE
    window = ""
    while not window and process.poll() is None and time.monotonic() < deadline:
        window = xdotool("search", "--name", "draw a box around the object").stdout.strip()
        time.sleep(0.1)
    for x, y, button in (("100", "80", "mousedown"), ("60", "50", ""), ("40", "20", "mouseup")):
        xdotool("mousemove", "--window", window, x, y, *([button, "1"] if button else []))
    time.sleep(0.3)
    while process.poll() is None and time.monotonic() < deadline:  # keys need the focus
        xdotool("windowfocus", window, "key", "--window", window, "Return")
        time.sleep(0.3)
    if process.poll() is None:
        process.kill()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert [row[1:5] for row in rows(tmp_path / "out")] == [[40, 20, 60, 60]] * 6


def test_windows_fit_on_the_screen(screen):
    image = torch.zeros(3, 1200, 1600, dtype=torch.uint8)
    with cli_window.Window("large", image) as window:
        assert window.zoom == pytest.approx(0.85 * 600 / 1200)
        assert window.show(image)
        assert (window.photo.width(), window.photo.height()) == (680, 510)

        def user():
            for event, x, y in (("<Button-1>", 34, 17), ("<B1-Motion>", 60, 30), ("<B1-Motion>", 85, 51)):
                window.canvas.event_generate(event, x=x, y=y)
            window.root.focus_force()
            window.root.event_generate("<Return>")
            window.root.after(200, user)  # again, if the window had no focus yet

        window.root.after(100, user)
        window.root.after(1000 * PATIENCE, window.close)
        assert window.drawn_box(image) == pytest.approx((80, 40, 120, 80))
        window.close()
        assert not window.show(image)
        assert window.drawn_box(image) is None


@pytest.mark.parametrize("box", [(0.5, 0.5, 0.2, 1.2), (0.1, 0.1, 0.001, 0.5)])
def test_boxes_below_a_pixel_are_refused(box):
    """Fractions that reach beyond the frame would be parts of a pixel."""
    with pytest.raises(ValueError, match=r"^--box must have at least one pixel each way .*, got 0"):
        box_in_pixels(box, 160, 120)
