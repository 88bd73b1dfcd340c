from __future__ import annotations

import json
import os
import tarfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.cli import main
from scale_disco.tasks.stl10 import data as stl10
from scale_disco.tasks.stl10.data import check_stl10, download, find, read_folds, read_stl10
from scale_disco.tasks.stl10.load import load_images
from tests.tasks.stl10 import binary


@pytest.fixture(scope="module")
def made():
    return binary.files()


@pytest.fixture
def folder(tmp_path, made):
    return binary.write(tmp_path / "stl10_binary", made)


def as_real(monkeypatch, made):
    """Take some files for STL-10's own."""
    known = {name: (len(made[name]), binary.md5(made[name])) for name in stl10._FILES}
    monkeypatch.setattr(stl10, "_FILES", known)


@pytest.fixture
def real(folder, made, monkeypatch):
    as_real(monkeypatch, made)
    return folder


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that are hashed."""
    names = []
    plain = stl10._md5
    monkeypatch.setattr(stl10, "_md5", lambda path, count: names.append(path.name) or plain(path, count))
    return names


def one_line(caught):
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_images_are_upright_and_labels_count_from_0(folder):
    for part, count in (("train", 4), ("test", 3)):
        data = read_stl10(folder, part)
        assert np.array_equal(data.images, binary.pixels(count, seed=part == "test").transpose(0, 3, 1, 2))
        assert data.images.dtype == data.labels.dtype == np.uint8
        assert data.labels.tolist() == list(range(count))
        assert data.classes == tuple(binary.NAMES) == stl10.CLASSES
        assert data.name == "stl10-format"
        assert (data.mean, data.std) == ((0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713))


def test_a_picture_of_known_orientation(folder):
    """Bytes 9216 + 96 * 5 + 7 of an image are green, column 5, row 7."""
    content = bytearray((folder / "train_X.bin").read_bytes())
    content[:27_648] = bytes(27_648)
    content[9_216 + 96 * 5 + 7] = 200
    (folder / "train_X.bin").write_bytes(content)
    image = read_stl10(folder).images[0]
    assert np.argwhere(image).tolist() == [[1, 7, 5]]
    assert image[1, 7, 5] == 200


def test_the_folder_above_will_do(folder):
    assert find(folder) == find(folder.parent) == folder
    assert np.array_equal(read_stl10(folder.parent).images, read_stl10(str(folder)).images)
    parts = load_images(folder.parent)
    assert {name: len(part.labels) for name, part in parts.items()} == {"train": 4, "test": 3}


def test_images_are_a_view_of_the_file(folder):
    images = read_stl10(folder).images
    assert not images.flags.owndata
    assert not images.flags.writeable


def test_folds_are_rows_beyond_255(tmp_path, made):
    train = 300
    labels = bytes(k % 10 + 1 for k in range(train))
    images = np.repeat(np.arange(train) % 251, 27_648).astype(np.uint8).tobytes()
    lines = "".join(f"{k} {290 + k} 256 \n" for k in range(10))
    folder = binary.write(
        tmp_path, {**made, "train_X.bin": images, "train_y.bin": labels, "fold_indices.txt": lines.encode()}
    )
    assert read_folds(folder, train)[3].tolist() == [3, 293, 256]
    data = read_stl10(folder, fold=9)
    assert data.images[:, 0, 0, 0].tolist() == [9, 299 % 251, 5]
    assert data.labels.tolist() == [9, 9, 6]
    assert load_images(folder, fold=9)["train"].labels.tolist() == [9, 9, 6]
    with pytest.raises(ValueError, match="fold must be from 0 to 9, got 10"):
        read_stl10(folder, fold=10)
    with pytest.raises(ValueError, match="only training images have folds, got fold 0 of test"):
        read_stl10(folder, "test", fold=0)


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", "it is empty"),
        (b"0 1\n\n", "line 2 is not a list of indices"),
        (b"0 -1\n", "line 1 is not a list of indices"),
        (b"0 1.0\n", "line 1 is not a list of indices"),
        (b"0 " + b"9" * 10_000, "line 1 is not a list of indices"),
        (b"0 4\n", "line 1 has a duplicate, or an index beyond the 4 images"),
        (b"0 1\n2 2\n", "line 2 has a duplicate"),
        (b"\xff\xfe", "damaged or foreign: 'utf-8' codec"),
        (b"0 " * (1 << 20), "it has more than 1,048,576 bytes"),
    ],
)
def test_damaged_folds_are_refused(folder, content, trouble):
    (folder / "fold_indices.txt").write_bytes(content)
    read_stl10(folder)  # who asks for no fold needs no folds
    with pytest.raises(ValueError, match=trouble) as caught:
        read_stl10(folder, fold=0)
    assert one_line(caught).startswith(f"{folder / 'fold_indices.txt'}: damaged or foreign: ")


@pytest.mark.parametrize(
    ("name", "change", "trouble"),
    [
        ("train_X.bin", lambda old: old[:-1], "110,591 bytes, not a multiple of 27,648"),
        ("train_X.bin", lambda old: b"", "0 bytes"),
        ("train_X.bin", lambda old: old[27_648:], "4 labels for 3 images"),
        ("train_y.bin", lambda old: old[:-1], "3 labels for 4 images"),
        ("train_y.bin", lambda old: b"\0" + old[1:], "labels must be 1 to 10, got 0 to 4"),
        ("train_y.bin", lambda old: b"\x0b" + old[1:], "labels must be 1 to 10, got 2 to 11"),
        ("class_names.txt", lambda old: old.replace(b"truck\n", b""), "expected ten names of classes, got 9"),
        ("class_names.txt", lambda old: old.replace(b"truck", b"ship"), "expected ten names of classes"),
        ("class_names.txt", lambda old: b"\xff" + old, "damaged or foreign"),
    ],
)
def test_damaged_files_are_refused_with_what_to_do(folder, made, name, change, trouble):
    (folder / name).write_bytes(change(made[name]))
    with pytest.raises(ValueError, match=trouble) as caught:
        read_stl10(folder)
    assert "; delete it and download it again: disco data stl10 --download --out DIR" in one_line(caught)


@pytest.mark.parametrize("name", ["train_X.bin", "train_y.bin", "class_names.txt"])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{name}: no such file; create it: disco data stl10 --download"
    ) as caught:
        read_stl10(folder)
    one_line(caught)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no train_X.bin in .* or .*stl10_binary; .*--download --out"
    ) as caught:
        read_stl10(tmp_path / "nowhere")
    one_line(caught)
    with pytest.raises(ValueError, match="part must be one of train, test, got 'unlabeled'"):
        read_stl10(tmp_path, "unlabeled")


@given(st.binary(max_size=400))
def test_any_text_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fold_indices.txt"
    path.write_bytes(content)
    (path.parent / "class_names.txt").write_text("")
    with suppress(ValueError):
        assert all(0 <= rows.min() <= rows.max() < 9 for rows in read_folds(path.parent, 9))


def test_real_files_are_hashed_once(real, hashed):
    reports = []
    assert read_stl10(real, progress=lambda done, total: reports.append((done, total))).name == "stl10"
    assert hashed == ["train_X.bin", "train_y.bin"]
    assert reports[-1] == (4 * 27_648 + 4,) * 2
    hashed.clear()
    assert read_stl10(real, check=True).name == "stl10"
    assert hashed == []
    assert read_stl10(real, "test").name == "stl10"
    assert hashed == ["test_X.bin", "test_y.bin"]
    hashed.clear()
    check_stl10(real)
    assert hashed == []
    check_stl10(real, again=True)
    assert len(hashed) == 4
    os.utime(real / "test_y.bin", ns=(1, 1))
    hashed.clear()
    check_stl10(real)
    assert hashed == ["test_y.bin"]


def test_changed_pixels_are_refused_in_files_of_the_real_size(real):
    read_stl10(real)
    path = real / "train_X.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    for check in (None, True):
        with pytest.raises(ValueError, match="its checksum differs; delete it") as caught:
            read_stl10(real, check=check)
        assert one_line(caught).startswith(str(path))
    assert read_stl10(real, check=False).name == "stl10-format"


@pytest.mark.parametrize("note", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"train_X.bin": "yes", "train_y.bin": null}'])
def test_a_note_that_says_nothing_is_no_proof(real, hashed, note):
    (real / "checked.json").write_bytes(note)
    assert read_stl10(real).name == "stl10"
    assert hashed == ["train_X.bin", "train_y.bin"]
    assert set(json.loads((real / "checked.json").read_text())) == {"train_X.bin", "train_y.bin"}


def test_data_that_nobody_may_write_beside_is_read(real, monkeypatch):
    def refuse(*_):
        raise PermissionError("no")

    monkeypatch.setattr(stl10, "write", refuse)
    assert read_stl10(real).name == "stl10"
    assert not (real / "checked.json").exists()


def test_check_refuses_other_files(folder, made, monkeypatch):
    with pytest.raises(ValueError, match="not STL-10's: 110,592 bytes instead of 138,240,000"):
        read_stl10(folder, check=True)
    as_real(monkeypatch, made)
    (folder / "class_names.txt").write_bytes(made["class_names.txt"].replace(b"truck", b"lorry"))
    with pytest.raises(ValueError, match=r"not STL-10's classes, got airplane, .*, lorry; delete it"):
        check_stl10(folder)


class Server(ThreadingHTTPServer):
    """Serves one content; may know nothing of ranges, or hang up after some bytes."""

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.asked = content, []
        self.ranges, self.most, self.shift = True, None, 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.asked.append((self.path, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(server.content) > 0:
            self.send_error(416)
            return
        rest = server.content[start:]
        with suppress(ConnectionError):
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start + server.shift}-{len(server.content) - 1}/{len(server.content)}"
                )
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: server.most])

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(monkeypatch):
    """Starts servers of an archive, which become the mirrors; the first archive counts as the real one."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(*contents):
        for content in contents:
            servers.append(Server(content))
            threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(stl10, "MIRRORS", tuple(f"http://127.0.0.1:{server.server_port}/" for server in servers))
        monkeypatch.setattr(stl10, "_PACKED", (len(contents[0]), binary.md5(contents[0])))
        monkeypatch.setattr(stl10, "_CHUNK", 1 << 12)
        return servers

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def archive(made):
    """As the real one: a folder, with an unlabelled part that nobody asked for."""
    others = {"unlabeled_X.bin": bytes(10**5)}
    members = [binary.member(f"stl10_binary/{name}", content) for name, content in {**others, **made}.items()]
    return binary.packed([binary.member("stl10_binary", type=tarfile.DIRTYPE), *members])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "checked.json"}


def test_download_unpacks_what_is_needed(tmp_path, made, archive, serve, monkeypatch):
    as_real(monkeypatch, made)
    (server,) = serve(archive)
    reports = []
    out = tmp_path / "new" / "data"
    assert download(out, lambda done, total: reports.append(done / total)) == out / "stl10_binary"
    assert contents(out / "stl10_binary") == made
    assert sorted(os.listdir(out)) == ["stl10_binary", "stl10_binary.tar.gz"]
    assert max(reports) == 1
    assert read_stl10(out, check=True).name == "stl10"
    (out / "stl10_binary" / "test_y.bin").unlink()
    download(out)  # from the archive that is there
    assert contents(out / "stl10_binary") == made
    (out / "stl10_binary.tar.gz").unlink()
    download(out)
    assert server.asked == [("/stl10_binary.tar.gz", None)]


def test_interrupted_downloads_resume(tmp_path, made, archive, serve, monkeypatch):
    as_real(monkeypatch, made)
    (server,) = serve(archive)
    server.most = 50_000
    with pytest.raises(OSError, match=r"cut short after 50,000 of|IncompleteRead") as caught:
        download(tmp_path)
    assert "run the command again to resume" in one_line(caught)
    assert os.listdir(tmp_path) == ["stl10_binary.tar.gz.part"]
    server.most = None
    download(tmp_path)
    assert server.asked[-1] == ("/stl10_binary.tar.gz", "bytes=50000-")
    assert contents(tmp_path / "stl10_binary") == made


@pytest.mark.parametrize("before", [b"something else", bytes(10**7)], ids=["shorter", "longer"])
def test_servers_without_ranges_start_again(tmp_path, made, archive, serve, monkeypatch, before):
    as_real(monkeypatch, made)
    (server,) = serve(archive)
    server.ranges = False
    (tmp_path / "stl10_binary.tar.gz.part").write_bytes(before)
    download(tmp_path)
    assert contents(tmp_path / "stl10_binary") == made


def test_what_came_wrong_is_deleted_and_the_next_mirror_asked(tmp_path, made, archive, serve, monkeypatch):
    as_real(monkeypatch, made)
    wrong = bytes(len(archive))
    first, second = serve(archive, archive)
    first.content = wrong
    download(tmp_path)
    assert second.asked == [("/stl10_binary.tar.gz", None)]
    assert contents(tmp_path / "stl10_binary") == made


def test_wrong_and_endless_answers_are_refused(tmp_path, archive, serve):
    (server,) = serve(archive)
    reports = []
    for content in (bytes(len(archive)), archive + bytes(10**6)):
        server.content = content
        reports.clear()
        with pytest.raises(OSError, match="its size or checksum differs") as caught:
            download(tmp_path, lambda done, total: reports.append(done))
        assert len(reports) <= len(archive) // stl10._CHUNK + 2
        assert str(tmp_path / "stl10_binary.tar.gz") in one_line(caught)
        assert not list(tmp_path.iterdir())


def test_a_rest_that_begins_elsewhere_is_not_added(tmp_path, archive, serve):
    (server,) = serve(archive)
    server.shift = 1
    (tmp_path / "stl10_binary.tar.gz.part").write_bytes(archive[:200])
    with pytest.raises(OSError, match="HTTP status 206 instead of the file"):
        download(tmp_path)
    assert (tmp_path / "stl10_binary.tar.gz.part").read_bytes() == archive[:200]


def test_a_part_that_the_server_knows_nothing_of_is_dropped(tmp_path, archive, serve):
    (server,) = serve(archive)
    server.content = archive[:100]
    (tmp_path / "stl10_binary.tar.gz.part").write_bytes(archive[:200])
    with pytest.raises(OSError, match="Range Not Satisfiable"):
        download(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_that_are_there_are_not_fetched_over(tmp_path, made, archive, serve, monkeypatch):
    as_real(monkeypatch, made)
    (server,) = serve(archive)
    mine = binary.write(tmp_path / "stl10_binary", {"train_y.bin": b"my labels"}) / "train_y.bin"
    with pytest.raises(ValueError, match=r"train_y.bin: not STL-10's: 9 bytes instead of 4"):
        download(tmp_path)
    assert mine.read_bytes() == b"my labels"
    assert server.asked == []
    mine.unlink()
    (tmp_path / "stl10_binary.tar.gz").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"stl10_binary.tar.gz: damaged, or not STL-10's archive: .* delete it, and"):
        download(tmp_path)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        (
            lambda m: binary.member("stl10_binary/train_X.bin", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            "not a file",
        ),
        (lambda m: binary.member("stl10_binary/train_X.bin", type=tarfile.LNKTYPE, linkname="x"), "not a file"),
        (lambda m: binary.member("stl10_binary/train_X.bin", type=tarfile.FIFOTYPE), "not a file"),
        (lambda m: binary.member("stl10_binary/../train_X.bin", m), "it has no train_X.bin"),
        (lambda m: binary.member("/stl10_binary/train_X.bin", m), "it has no train_X.bin"),
        (lambda m: binary.member("../stl10_binary/train_X.bin", m), "it has no train_X.bin"),
        (lambda m: binary.member("stl10_binary/train_X.bin", m + b"x"), "train_X.bin is too large"),
        (lambda m: binary.member("stl10_binary/train_X.bin", m[:-1]), "the checksum of train_X.bin differs"),
    ],
    ids=["symlink", "hard link", "fifo", "up", "absolute", "up first", "larger", "shorter"],
)
def test_archives_cannot_do_harm(tmp_path, made, serve, monkeypatch, change, trouble):
    as_real(monkeypatch, made)
    members = [
        change(content) if name == "train_X.bin" else binary.member(f"stl10_binary/{name}", content)
        for name, content in made.items()
    ]
    serve(binary.packed(members))
    out = tmp_path / "deep" / "data"
    with pytest.raises(ValueError, match=trouble) as caught:
        download(out)
    assert "not STL-10's archive" in one_line(caught)
    assert not (out / "stl10_binary" / "train_X.bin").exists()
    assert not [path for path in out.rglob(".*")]
    assert {path.name for path in tmp_path.rglob("*")} <= {"deep", "data", "stl10_binary", "stl10_binary.tar.gz", *made}


def test_archives_cut_short_are_refused(tmp_path, made, archive, serve, monkeypatch):
    as_real(monkeypatch, made)
    serve(archive[: len(archive) // 2])
    with pytest.raises(ValueError, match="not STL-10's archive") as caught:
        download(tmp_path)
    one_line(caught)
    assert not [path for path in tmp_path.rglob(".*")]


def refused(capsys, *arguments):
    assert main(["data", "stl10", *map(str, arguments)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_the_command_says_what_is_there(folder, made, capsys, monkeypatch):
    assert main(["data", "stl10", "--data", str(folder)]) == 0
    assert capsys.readouterr().out == "".join(
        f"{folder / part}_X.bin: {count} images, in its format, not STL-10\n"
        for part, count in (("train", 4), ("test", 3))
    )
    assert "not STL-10's: " in refused(capsys, "--data", folder, "--check")
    as_real(monkeypatch, made)
    assert main(["data", "stl10", "--out", str(folder.parent), "--check", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["part"], row["images"], row["stl10"]) for row in rows] == [("train", 4, True), ("test", 3, True)]
    assert rows[0]["classes"] == binary.NAMES


def test_the_command_downloads_only_if_asked(tmp_path, made, archive, serve, capsys, monkeypatch):
    as_real(monkeypatch, made)
    (server,) = serve(archive)
    assert f"--download --out {tmp_path}" in refused(capsys, "--out", tmp_path)
    assert server.asked == []
    assert main(["data", "stl10", "--download", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.count("STL-10's, by its checksum") == 2
    assert err == f"{tmp_path / 'stl10_binary.tar.gz'} is no longer needed\n"


@pytest.mark.parametrize(
    "call",
    ["stl10 --split 0", "stl10 --mnist x", "mnist-scale --data x", "mnist-scale --check"],
)
def test_options_of_the_other_data_set_are_wrong_calls(call, capsys):
    assert main(["data", *call.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
