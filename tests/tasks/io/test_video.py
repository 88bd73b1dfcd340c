"""Frames of videos, folders and cameras; drawn boxes; written videos."""

from __future__ import annotations

import itertools
import shutil
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scale_disco.tasks.io import video
from scale_disco.tasks.io.video import FrameFolder, VideoWriter, draw, open_video
from scale_disco.tasks.tracking.data.sequences import first_box
from tests.tasks.tracking.sequences import moving, write_otb
from tests.tasks.tracking.video_files import pixels, place, truncate, write_audio, write_images, write_video

av = pytest.importorskip("av")


def places(source, start=0):
    return {frame.number: place(frame.image) for frame in source.frames(start)}


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4"), ("a.mov", "mpeg4")]
)
def test_video_frames_are_decoded(tmp_path, name, codec):
    source = open_video(str(write_video(tmp_path / name, 12, codec=codec)))
    assert (source.name, source.rate, source.count, source.live) == ("a", 25, 12, False)
    frames = list(source.frames())
    assert [frame.number for frame in frames] == list(range(12))
    assert [frame.time for frame in frames] == [Fraction(number, 25) for number in range(12)]
    assert {(frame.image.dtype, frame.image.shape, frame.image.is_contiguous()) for frame in frames} == {
        (torch.uint8, (3, 48, 64), True)
    }
    assert [place(frame.image) for frame in frames] == [(4 + 2 * number, 12) for number in range(12)]
    assert source.remarks() == []


def test_frames_start_at_a_number(tmp_path):
    path = write_video(tmp_path / "a.mp4", 12)
    assert places(open_video(str(path)), 9) == {9: (22, 12), 10: (24, 12), 11: (26, 12)}
    assert places(open_video(str(path)), 12) == {}
    folder = write_images(tmp_path / "a", range(12))
    assert places(open_video(str(folder)), 9) == {9: (22, 12), 10: (24, 12), 11: (26, 12)}


def test_file_names_may_contain_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "a.mp4", 2).rename("http:a.mp4")
    assert len(list(open_video("http:a.mp4").frames())) == 2


def test_frames_are_read_lazily(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(video, "load_frame", lambda path: read.append(path.name) or torch.zeros(3, 4, 4))
    frames = open_video(str(write_images(tmp_path, range(5)))).frames()
    assert len(list(itertools.islice(frames, 2))) == len(read) == 2


def test_channels_are_rgb(tmp_path):
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0], image[1] = 200, 100
    with VideoWriter(tmp_path / "a.mp4", Fraction(25), image) as writer:
        writer.add(image, Fraction(0))
    (frame,) = open_video(str(tmp_path / "a.mp4")).frames()
    assert (frame.image.float().mean((1, 2)) - torch.tensor([200, 100, 0])).abs().max() < 4


@pytest.mark.parametrize("turn", [90, -90, 180])
def test_videos_are_rotated_by_their_metadata(tmp_path, turn):
    if not hasattr(av.VideoStream, "set_display_rotation"):
        pytest.skip("this PyAV cannot write a rotation")
    source = open_video(str(write_video(tmp_path / "a.mp4", 2, turn=turn)))
    frame = next(source.frames())
    upright = np.rot90(pixels(0), {90: 1, -90: -1, 180: 2}[turn])
    assert frame.image.shape == (3, *upright.shape[:2])
    assert (frame.image.permute(1, 2, 0).numpy().astype(float) - upright).__abs__().mean() < 3


def test_variable_frame_rates_keep_their_times(tmp_path):
    times = [0, 0.04, 0.08, 0.5, 0.54, 1.0]
    source = open_video(str(write_video(tmp_path / "a.mkv", 6, times=times)))
    frames = list(source.frames())
    assert [float(frame.time) for frame in frames] == times
    with VideoWriter(tmp_path / "b.mp4", source.rate, frames[0].image) as writer:
        for frame in frames:
            writer.add(frame.image, frame.time)
    assert [float(frame.time) for frame in open_video(str(tmp_path / "b.mp4")).frames()] == times


def test_frames_of_another_size_are_resized_to_the_first(tmp_path):
    """Stream recorders write such files."""
    parts = [
        write_video(tmp_path / f"{size[0]}.ts", 3, size=size, codec="mpeg2video") for size in ((64, 48), (128, 96))
    ]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    frames = list(open_video(str(both)).frames())
    assert {frame.image.shape for frame in frames} == {(3, 48, 64)}
    assert len(frames) > 3


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_truncated_videos_are_reported(tmp_path, name):
    codec = "mpeg4" if name == "a.avi" else "libx264"
    movflags = {"movflags": "faststart"} if name == "a.mp4" else {}
    whole = write_video(tmp_path / name, 100, noise=True, codec=codec, **movflags)
    assert len(list(open_video(str(whole)).frames())) == 100
    source = open_video(str(truncate(whole, 0.5)))
    seen = places(source)
    assert 20 < len(seen) < 80
    assert list(seen) == list(range(len(seen)))
    assert f"ends early after frame {len(seen) - 1}, at " in source.remarks()[-1]
    assert str(whole) in source.remarks()[-1]


def test_damaged_packets_are_skipped(tmp_path):
    path = write_video(tmp_path / "a.mp4", 100, noise=True)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1500] = bytes(1500)
    path.write_bytes(content)
    source = open_video(str(path))
    seen = places(source)
    assert 90 < len(seen) < 100
    assert list(seen) == list(range(len(seen)))
    (remark,) = source.remarks()
    assert " skipped, the first near frame " in remark


def test_audio_may_be_longer_than_the_video(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream, sound = container.add_stream("libx264", rate=25), container.add_stream("aac", rate=8000)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(10):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels(number), format="rgb24")))
        container.mux(stream.encode())
        for start in range(0, 8000, 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, start
            container.mux(sound.encode(frame))
        container.mux(sound.encode())
    source = open_video(str(tmp_path / "a.mkv"))
    assert len(list(source.frames())) == 10
    assert source.remarks() == []


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("no video, " * 100)


def without_index(path):
    truncate(write_video(path, 100, noise=True), 0.6)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.mp4", empty, "cannot read .*a.mp4: Invalid data"),
        ("a.mp4", text, "cannot read .*a.mp4: Invalid data"),
        ("a.txt", text, "a.txt has no video stream"),
        ("a.mp4", without_index, "cannot read .*a.mp4: Invalid data"),
        ("a.m4a", write_audio, "a.m4a has no video stream"),
        ("a.mp4", lambda path: None, "no file and no folder .*a.mp4; a camera is a number"),
        ("a", lambda path: path.mkdir(), r"no images in .*a \(looked for .bmp, "),
    ],
)
def test_files_without_video_raise(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        open_video(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_images_are_sorted_by_number(tmp_path):
    write_images(tmp_path, range(12))
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "12.png").mkdir()
    source = open_video(str(tmp_path))
    assert [path.name for path in source.paths] == [f"{number}.png" for number in range(12)]
    assert places(source) == {number: (4 + 2 * number, 12) for number in range(12)}
    assert (source.rate, source.count, source.remarks()) == (25, 12, [])


@pytest.mark.parametrize(("suffix", "mode"), [(".jpg", "L"), (".PNG", "P"), (".bmp", "RGB"), (".png", "RGBA")])
def test_images_of_all_formats_are_read(tmp_path, suffix, mode):
    source = open_video(str(write_images(tmp_path, range(3), suffix=suffix, mode=mode)))
    for frame in source.frames():
        assert frame.image.shape == (3, 48, 64)
        assert place(frame.image) == (4 + 2 * frame.number, 12)


def test_missing_images_are_reported(tmp_path):
    source = open_video(str(write_images(tmp_path, [1, 2, 5, 6, 9])))
    assert list(places(source)) == [0, 1, 2, 3, 4]
    assert source.remarks() == ["images are missing: after 2.png comes 5.png, and 1 more gap"]


def test_unusable_images_are_none(tmp_path):
    write_images(tmp_path, range(8))
    Image.new("RGB", (10, 20)).save(tmp_path / "2.png")
    truncate(tmp_path / "4.png", 0.5)
    (tmp_path / "5.png").write_text("no image")
    (tmp_path / "6.png").write_text("no image")
    source = open_video(str(tmp_path))
    assert [frame.image is None for frame in source.frames()] == [False, False, True, False, True, True, True, False]
    (remark,) = source.remarks()
    assert remark.startswith("4 images skipped: 2.png: 10 x 20 pixels, the first has 64 x 48; 4.png: ")
    assert "; 5.png: not an image in a supported format" in remark
    assert remark.endswith("; and 1 more")


def first_box_of(source, *args, **kwargs):
    return first_box(source.folder, source.paths, *args, **kwargs)


def test_first_boxes_come_from_the_ground_truth(tmp_path):
    folder = write_otb(tmp_path, "Car", moving(5))
    for path in (folder, folder / "img"):
        source = open_video(str(path))
        assert source.name == "Car"
        assert source.has_boxes()
        assert first_box_of(source) == (0, (2, 1, 4, 5))
        assert first_box_of(source, 3) == (3, (5, 1, 4, 5))
        with pytest.raises(ValueError, match="has no box for frame 5"):
            first_box_of(source, 5)


def test_frames_after_the_last_box_are_read(tmp_path):
    source = FrameFolder(write_otb(tmp_path, "Car", moving(2), frames=6))
    assert first_box_of(source) == (0, (2, 1, 4, 5))
    assert len(list(source.frames())) == 6


def test_a_target_chooses_among_several_objects(tmp_path):
    folder = write_otb(tmp_path, "Two", moving(3))
    shutil.copy(folder / "groundtruth_rect.txt", folder / "groundtruth_rect.1.txt")
    (folder / "groundtruth_rect.txt").rename(folder / "groundtruth_rect.2.txt")
    with pytest.raises(ValueError, match="has 2 objects, choose one: target 1 or 2"):
        first_box_of(FrameFolder(folder))
    assert first_box_of(FrameFolder(folder), target=2) == (0, (2, 1, 4, 5))
    assert not FrameFolder(write_images(tmp_path / "plain", [1])).has_boxes()


CAMERAS = {
    "Linux": ("/dev/video1", "v4l2", {}),
    "Darwin": ("1:none", "avfoundation", {"framerate": "30"}),
    "Windows": ("video=Second", "dshow", {}),
}


@pytest.mark.parametrize("system", CAMERAS)
def test_cameras_of_all_systems(system, tmp_path, monkeypatch):
    """A file replaces the camera; once it has no new frame."""
    file = av.open(str(write_video(tmp_path / "a.mkv", 5)))
    opened = []

    class Camera(SimpleNamespace):
        streams, format, duration = file.streams, file.format, None
        waited = False

        def demux(self, stream):
            for packet in file.demux(stream):
                yield packet
                if not self.waited:
                    self.waited = True
                    raise av.error.BlockingIOError(11, "Resource temporarily unavailable")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            file.close()

    def devices(form):
        assert form == "dshow"
        kinds = {"First": "video", "Microphone": "audio", "Second": "video"}
        return [SimpleNamespace(name=name, media_types=[kind]) for name, kind in kinds.items()]

    def fake(url, format, options):
        opened.append((url, format, options))
        return Camera()

    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr(av, "enumerate_input_devices", devices, raising=False)
    monkeypatch.setattr(av, "open", fake)
    source = open_video("1")
    assert opened == [CAMERAS[system]]
    assert (source.name, source.live, source.count) == ("camera-1", True, None)
    assert len(places(source)) == 5
    assert source.remarks() == []
    if system == "Windows":
        with pytest.raises(ValueError, match="no camera 7, only 2 cameras here"):
            open_video("7")


def test_a_missing_camera_raises(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    with pytest.raises(ValueError, match="cannot read camera 97: No such file or directory"):
        open_video("97")


@pytest.mark.parametrize("size", [(64, 48), (63, 47), (64, 47), (5, 3), (1, 1)])
@pytest.mark.parametrize("codecs", [av.codecs_available, set()], ids=["h264", "mpeg4"])
def test_videos_of_any_size_are_written(tmp_path, size, codecs, monkeypatch):
    monkeypatch.setattr(av, "codecs_available", codecs)
    width, height = size
    images = [torch.full((3, height, width), 60 * number, dtype=torch.uint8) for number in range(4)]
    with VideoWriter(tmp_path / "a.mp4", Fraction(30000, 1001), images[0]) as writer:
        for number, image in enumerate(images):
            writer.add(image, number / Fraction(30000, 1001))
    source = open_video(str(tmp_path / "a.mp4"))
    assert source.rate == Fraction(30000, 1001)
    assert source.stream.codec_context.name.endswith("mpeg4" if not codecs else "h264")
    frames = list(source.frames())
    assert len(frames) == 4
    for frame, image in zip(frames, images, strict=True):
        assert frame.image.shape == (3, height + height % 2, width + width % 2)
        assert (frame.image.float().mean() - image.float().mean()).abs() < 6


def test_equal_times_are_written(tmp_path):
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    with VideoWriter(tmp_path / "a.mp4", Fraction(25), image) as writer:
        for seconds in (0, 0, Fraction(1, 25), Fraction(1, 50), 1):
            writer.add(image, Fraction(seconds))
    frames = list(open_video(str(tmp_path / "a.mp4")).frames())
    assert len(frames) == 5
    assert all(frame.time < following.time for frame, following in itertools.pairwise(frames))


GREEN, RED = [0, 220, 0], [255, 0, 0]


def has_color(drawn, color):
    return (drawn == torch.tensor(color)[:, None, None]).all(0)


def test_lines_are_inside_of_the_box():
    image = torch.full((3, 60, 80), 7, dtype=torch.uint8)
    drawn = draw(image, (10, 20, 30, 25))
    expected = torch.zeros(60, 80, dtype=torch.bool)
    expected[20:45, 10:40] = True
    expected[22:43, 12:38] = False
    assert torch.equal(has_color(drawn, GREEN), expected)
    assert (drawn[:, ~expected] == 7).all()
    assert (image == 7).all()


def test_lines_of_a_lost_object_are_red_and_dashed():
    image = torch.full((3, 60, 80), 7, dtype=torch.uint8)
    full, dashed = draw(image, (10, 20, 30, 25)), draw(image, (10, 20, 30, 25), lost=True)
    line, dashes = has_color(full, GREEN), has_color(dashed, RED)
    assert not (dashes & ~line).any()
    assert 0.3 < dashes.sum() / line.sum() < 0.7


def test_lines_are_thicker_in_larger_frames():
    drawn = draw(torch.zeros(3, 1080, 1920, dtype=torch.uint8), (100, 100, 500, 500))
    assert has_color(drawn, GREEN)[300].sum() == 10


@pytest.mark.parametrize(
    "box", [(-10, -10, 30, 30), (70, 50, 30, 30), (0, 0, 80, 60), (-5, 20, 1e9, 5), (3, 3, 0.2, 9)]
)
def test_boxes_are_clipped_to_the_frame(box):
    drawn = draw(torch.zeros(3, 60, 80, dtype=torch.uint8), box)
    line = has_color(drawn, GREEN)
    assert line.any()
    x, y = max(0, round(box[0])), max(0, round(box[1]))
    assert not line[:, :x].any()
    assert not line[:y].any()


numbers = st.floats(-1e12, 1e12) | st.sampled_from([float("nan"), float("inf"), 0.0, -1.0]) | st.floats(-50, 50)


@given(st.tuples(*[numbers] * 4), st.tuples(st.integers(1, 40), st.integers(1, 40)), st.booleans())
def test_any_box_is_drawn(box, size, lost):
    drawn = draw(torch.zeros(3, *size, dtype=torch.uint8), box, "0.93", lost=lost)
    assert drawn.shape == (3, *size)
    if any(number != number for number in box):
        assert not drawn.any()


@pytest.mark.parametrize(
    "box", [(10, 40, 30, 25), (10, 2, 30, 25), (0, 0, 120, 90), (115, 85, 30, 30), (-50, -50, 60, 60)]
)
def test_labels_are_inside_of_the_frame(box):
    image = torch.zeros(3, 90, 120, dtype=torch.uint8)
    changed = (draw(image, box, "0.93  x1.21") != draw(image, box)).any(0)
    assert changed.sum() > 300  # the whole label
    rows = changed.any(1).nonzero().flatten()
    assert 5 < rows[-1] - rows[0] < 25


def test_labels_are_above_their_box():
    image = torch.zeros(3, 90, 120, dtype=torch.uint8)
    rows = (draw(image, (10, 40, 30, 25), "0.93") != draw(image, (10, 40, 30, 25))).any(0).any(1).nonzero().flatten()
    assert rows[-1] == 39
