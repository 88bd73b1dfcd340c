"""Readers of sequences, tracking results and videos."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from scale_disco.tasks.io.video import open_video
from scale_disco.tasks.tracking.data import synthetic
from scale_disco.tasks.tracking.data.sequences import Sequence, read_sequences
from scale_disco.tasks.tracking.evaluation import run as track
from scale_disco.tasks.tracking.results import Result, read_result, read_results, write_result
from scale_disco.tasks.tracking.tracker import StaticBoxTracker
from tests.reliability.malformed import Files, Reader, files_of
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import (
    GENERATOR,
    HUGE,
    as_file,
    malformed_boxes,
    malformed_json,
    only_file,
    relabeled,
)
from tests.reliability.readers.images import without_warnings
from tests.tasks.tracking.video_files import write_video


def sequence_files() -> dict[str, bytes]:
    boxes = b"1,2,3,4\n2\t2\t3\t4\n3 2 3 4\n"
    frames = {f"Car/img/000{n}.png": b"" for n in (1, 2, 3)}
    return {**frames, "Car/groundtruth_rect.txt": boxes, "Car/absence.label": b"0\n1\n0\n"}


def sequence_seeds() -> list[Seed]:
    files = sequence_files()
    two_objects = {
        **{name: b"" for name in files if "img" in name},
        "Car/groundtruth_rect.1.txt": b"1,2,3,4\n" * 3,
        "Car/groundtruth_rect.2.txt": b"1;2;3;4\n" * 3,
    }
    return [
        *seeds_of(files, "Car/groundtruth_rect.txt", "Car/absence.label"),
        *seeds_of(two_objects, "Car/groundtruth_rect.1.txt"),
    ]


def sequence_cases() -> dict[str, Files]:
    files = sequence_files()
    without_boxes = {name: content for name, content in files.items() if "truth" not in name}
    labels = {"empty": b"", "letters": b"abc", "larger than memory": HUGE, "binary": bytes(range(256))}
    return {
        **as_file("Car/groundtruth_rect.txt", malformed_boxes() | {"a folder": None}, files),
        **relabeled("absence", as_file("Car/absence.label", labels, files)),
        "larger than memory, numbered": {**without_boxes, "Car/groundtruth_rect.1.txt": HUGE},
        "no frames": {"Car/groundtruth_rect.txt": b"1,2,3,4\n"},
    }


def sequence(length: int = 3) -> Sequence:
    boxes = torch.tensor([[0.0, 1, 3, 4]]).double().repeat(length, 1)
    return Sequence("Car", tuple(Path(f"{n}.png") for n in range(length)), boxes)


def result_files() -> dict[str, bytes]:
    result = Result(sequence().boxes, torch.ones(3, dtype=torch.float64))
    return files_of(lambda folder: write_result(folder, "Car", result))


def result_seeds() -> list[Seed]:
    rows = {"res": [[1, 2, 3, 4], [1, 2, 3, 4.5], [1, 2, 3, 4]], "type": "rect", "len": 3}
    of_others = [
        {"Car.json": json.dumps([rows]).encode()},
        {"car.json": json.dumps(rows).encode()},
        {"Car.txt": b"1\t2\t3\t4\n" * 3},
        {"CAR.txt": b"1;2;3;4\r\n" * 3},
    ]
    return [*seeds_of(result_files()), *(seed for files in of_others for seed in seeds_of(files))]


def read_tracking_results(folder: Path) -> None:
    (result,) = read_results(folder, [sequence()]).values()
    assert result.boxes.shape == (3, 4)
    if "Car.txt" in os.listdir(folder) and (folder / "times").is_dir():
        read_result(folder, sequence())


def result_cases() -> dict[str, Files]:
    files = result_files()
    return {
        **as_file("Car.txt", malformed_boxes(), files),
        **relabeled("times", as_file("times/Car_time.txt", malformed_boxes(), files)),
        **relabeled("json", as_file("Car.json", malformed_json())),
        "boxes of other types": {"Car.json": b'{"res": [[{}, [], null, "x"], 5]}'},
        "numbers of 500 digits": {"Car.json": b'{"res": [[1, 2, 3, ' + b"9" * 500 + b"]]}"},
        "an escape sequence as a number": {"Car.json": b'{"res": [["\\u001b[2J", "\\n", "\\ud800", 1]]}'},
        "an escape sequence as the type": {"Car.json": b'{"res": [], "type": "\\u001b[2J\\n"}'},
    }


def tracker_seeds() -> list[Seed]:
    files = {**result_files(), "tracker.json": json.dumps({"fingerprint": "x"}).encode()}
    return seeds_of(files, "tracker.json")


def read_tracker(folder: Path) -> None:
    track(StaticBoxTracker(), [sequence()], folder, fingerprint="x")


def zoom_note() -> dict[str, Any]:
    settings = {"part": "train", "count": 2, "size": [320, 240]}
    return {"format": "scale-disco zoom 1", "settings": settings, "masters": {}, "sequences": {}}


def read_video(folder: Path) -> None:
    video = open_video(str(only_file(folder)))
    for frame in islice(video.frames(), 40):
        assert frame.image is None or frame.image.ndim == 3
    video.remarks()


@cache
def video_files() -> dict[str, bytes]:
    codecs = {"mp4": "libx264", "avi": "mpeg4", "mkv": "libx264", "webm": "libvpx", "ts": "mpeg2video",
              "mpg": "mpeg1video"}  # fmt: skip

    def write(folder: Path) -> None:
        for suffix, codec in codecs.items():
            write_video(folder / f"video.{suffix}", 6, size=(64, 48), codec=codec)
        frames = [Image.fromarray(np.full((16, 16, 3), 50 * n, np.uint8)) for n in range(4)]
        frames[0].save(folder / "video.gif", save_all=True, append_images=frames[1:])
        _write_mjpeg(folder / "video.mov")

    return files_of(write)


def _write_mjpeg(path: Path) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode())


def video_cases() -> dict[str, Files]:
    concat = "ffconcat version 1.0\nfile video.mp4\nfile video.mp4\n"
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
    huge = b"YUV4MPEG2 W60000 H60000 F25:1 Ip A1:1 C420\nFRAME\n"
    return {
        "empty": {"video.mp4": b""},
        "noise": {"video.mp4": GENERATOR.bytes(2000)},
        "text": {"video.mp4": b"not a video\n" * 100},
        "zeros, larger than memory": {"video.mp4": HUGE},
        "a playlist of files": {"video.m3u8": playlist.format("/etc/passwd").encode()},
        "a playlist of addresses": {"video.m3u8": playlist.format("http://127.0.0.1:9/a.ts").encode()},
        "a list of files": {"video.ffconcat": concat.encode()},
        "frames of 60000 x 60000": {"video.y4m": huge},
        "frames of 30000 x 30000": {"video.y4m": huge.replace(b"60000", b"30000") + bytes(100)},
    }


READERS = {
    "OTB sequences": Reader(without_warnings(read_sequences), sequence_seeds, sequence_cases),
    "tracking results": Reader(read_tracking_results, result_seeds, result_cases),
    "tracker.json": Reader(
        read_tracker, tracker_seeds, lambda: as_file("tracker.json", malformed_json(), result_files()), writes=True
    ),
    "zoom.json": Reader(
        lambda folder: synthetic._check_note(folder, zoom_note()),
        lambda: seeds_of({"zoom.json": json.dumps(zoom_note()).encode()}),
        lambda: as_file("zoom.json", malformed_json() | {"a folder": None}),
    ),
    "videos": Reader(
        read_video, lambda: [seed for name, content in video_files().items() for seed in seeds_of({name: content})],
        video_cases,
    ),
}  # fmt: skip
