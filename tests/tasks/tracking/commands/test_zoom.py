from __future__ import annotations

import json

import pytest

from scale_disco.cli import main
from scale_disco.tasks.tracking.data.sequences import read_sequences

pytest.importorskip("PIL")

ZOOM = ["data", "zoom", "--count", "4", "--frames", "2", "--test-count", "2", "--test-frames", "3", "--size", "128x96"]


def test_both_parts_are_rendered_once(tmp_path, capsys):
    out = tmp_path / "new" / "zoom"
    assert main([*ZOOM, "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out / 'train'}: 4 sequences of 2 frames, 4 rendered, 0 already there\n"
        f"{out / 'test'}: 2 sequences of 3 frames, 2 rendered, 0 already there\n"
    )
    assert {part: len(read_sequences(out / part)) for part in ("train", "test")} == {"train": 4, "test": 2}
    used = []
    for part in ("train", "test"):
        note = json.loads((out / part / "zoom.json").read_text())
        used.append({master["group"] for master in note["masters"].values()})
    assert not used[0] & used[1]
    assert main([*ZOOM, "--out", str(out), "--seed", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"folder": str(out / "train"), "sequences": 4, "frames": 2, "made": 0},
        {"folder": str(out / "test"), "sequences": 2, "frames": 3, "made": 0},
    ]
    assert main([*ZOOM, "--out", str(out), "--seed", "1", "--png"]) == 1
    error = capsys.readouterr().err
    assert "has other sequences: seed 0, not 1, suffix .jpg, not .png; delete them or choose another folder" in error
    assert error.count("\n") == 1


@pytest.mark.filterwarnings("default")  # images that are too small are reported
def test_sequences_are_cut_from_the_users_images(tmp_path, capsys):
    from PIL import Image

    call = [*ZOOM, "--out", str(tmp_path / "out"), "--images", str(tmp_path / "own"), "--png"]
    assert main(call) == 1
    assert "no folder " in capsys.readouterr().err
    (tmp_path / "own").mkdir()
    assert main(call) == 1
    assert "no images in " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    for number in range(4):
        Image.effect_noise((200, 150), 20 + number).save(tmp_path / "own" / f"{number}.png")
    Image.new("L", (200, 63)).save(tmp_path / "own" / "tiny.png")
    capsys.readouterr()
    assert main(call) == 0
    assert capsys.readouterr().err == (
        f"zoom: skipped, with a side of less than 64 pixels: tiny.png in {tmp_path / 'own'}\n"
    )
    assert {path.suffix for path in (tmp_path / "out").glob("*/*/img/*")} == {".png"}
    notes = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/zoom.json")]
    assert {name for note in notes for name in note["masters"]} & {f"{number}.png" for number in range(4)}


def test_nothing_is_written_if_a_setting_is_invalid(tmp_path, capsys):
    assert main([*ZOOM, "--test-frames", "0", "--out", str(tmp_path)]) == 1
    assert "frames must be at least 1, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--images", "--pictures"])
def test_the_folder_of_images_has_two_names(option, tmp_path, capsys):
    assert main([*ZOOM, option, str(tmp_path / "missing"), "--out", str(tmp_path)]) == 1
    assert f"no folder {tmp_path / 'missing'}" in capsys.readouterr().err


def test_sizes_are_width_x_height(capsys):
    assert main([*ZOOM, "--size", "128"]) == 2
    assert "expected width x height such as 320x240, got '128'" in capsys.readouterr().err
