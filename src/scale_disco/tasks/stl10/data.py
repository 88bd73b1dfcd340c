"""STL-10: its binary files of train and test, read from a folder or downloaded. Unlabeled images are ignored.

An image is 3 x 96 x 96 bytes without a header: red, green, blue, in column-major order. Files in the same format with
another number of images are read as well, but not called STL-10.
"""

import hashlib
import http.client
import json
import re
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from ...checks import check_choice
from ...files import locked, make_folder, parse_json, plain, read_bytes, reason, write, written_atomically
from ..io.progress import Progress, counter
from .images import ImageSet
from .options import SIDE

PARTS = ("train", "test")
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
MEAN, STD = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)  # those of the authors of the paper
FOLDER, ARCHIVE = "stl10_binary", "stl10_binary.tar.gz"
MIRRORS = ("https://ai.stanford.edu/~acoates/stl10/", "http://ai.stanford.edu/~acoates/stl10/")

# Bytes and md5.
_FILES = {
    "train_X.bin": (138_240_000, "918c2871b30a85fa023e0c44e0bee87f"),
    "train_y.bin": (5_000, "5a34089d4802c674881badbb80307741"),
    "test_X.bin": (221_184_000, "7f263ba9f9e0b06b93213547f721ac82"),
    "test_y.bin": (8_000, "36f9794fa4beb8a2c72628de14fa638e"),
}
_PACKED = (2_640_397_119, "91f7769df0f17e558f3565bffb0c7dfb")
_CLASS_NAMES, _FOLDS = "class_names.txt", "fold_indices.txt"
_NEEDED = (*_FILES, _CLASS_NAMES)
_CHECKED = "checked.json"  # lists verified files, so that they are not hashed again
_IMAGE = 3 * SIDE * SIDE
_TEXT = 1 << 20  # maximum bytes of a text file
_CHUNK = 1 << 20
_TIMEOUT = 30  # seconds
_AGAIN = "delete it and download it again: disco data stl10 --download --out DIR"


def read_stl10(
    root: Path,
    part: str = "train",
    *,
    fold: int | None = None,
    check: bool | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Read the images of train or test, memory-mapped.

    Args:
        root: Folder with the files, or its parent.
        part: "train" or "test".
        fold: One of the ten folds of 1,000 training images, 0 to 9, instead of all.
        check: Verify that the files are STL-10's. By default only files of the same size are verified, and others are
            called "stl10-format". Checksums are computed once.
        progress: Called with bytes done and in total while checksums are computed.
    """
    check_choice("stl10", "part", part, PARTS)
    folder = find(root)
    path = _existing(folder, f"{part}_X.bin")
    count, left = divmod(path.stat().st_size, _IMAGE)
    if left or not count:
        raise _damaged(path, f"{path.stat().st_size:,} bytes, not a multiple of {_IMAGE:,}")
    labels = _labels(_existing(folder, f"{part}_y.bin"), count)
    classes = _classes(_existing(folder, _CLASS_NAMES))
    real = check is not False and (check is True or path.stat().st_size == _FILES[path.name][0])
    if real:
        check_stl10(folder, [part], progress=progress)
    # The file is column-major.
    images = np.memmap(path, np.uint8, "r", shape=(count, 3, SIDE, SIDE)).swapaxes(2, 3).view(np.ndarray)
    data = ImageSet(images, labels, classes, "stl10" if real else "stl10-format", MEAN, STD)
    if fold is None:
        return data
    if part != "train":
        raise ValueError(f"stl10: only training images have folds, got fold {fold} of {part}")
    rows = read_folds(folder, count)
    if fold not in range(len(rows)):
        raise ValueError(f"stl10: fold must be from 0 to {len(rows) - 1}, got {fold}")
    return data.take(rows[fold])


def read_folds(root: Path, count: int = 5_000) -> list[np.ndarray]:
    """Return the indices of every fold, int64, out of `count` training images."""
    path = _existing(find(root), _FOLDS)
    folds = []
    for number, line in enumerate(_text(path).splitlines()):
        words = line.split()
        if not words or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
            raise _damaged(path, f"line {number + 1} is not a list of indices")
        rows = np.array([int(word) for word in words], np.int64)
        if rows.max() >= count or len(np.unique(rows)) != len(rows):
            raise _damaged(path, f"line {number + 1} has a duplicate, or an index beyond the {count:,} images")
        folds.append(rows)
    if not folds:
        raise _damaged(path, "it is empty")
    return folds


def check_stl10(
    root: Path, parts: Iterable[str] = PARTS, *, again: bool = False, progress: Progress | None = None
) -> None:
    """Raise ValueError if files are not STL-10's, by their checksums and the names of classes.

    Files that were verified and have not changed since are not hashed, unless `again` is set. Arguments are otherwise
    those of `read_stl10`.
    """
    folder = find(root)
    names = [f"{part}_{kind}.bin" for part in parts for kind in "Xy"]
    _check_files([_existing(folder, name) for name in (_CLASS_NAMES, *names)], again=again, progress=progress)


def find(root: Path) -> Path:
    """Return the folder with the files: this one, or `stl10_binary` in it."""
    root = Path(root)
    for folder in (root, root / FOLDER):
        if any((folder / name).exists() for name in _NEEDED):
            return folder
    hint = f"pass the folder with STL-10's files, or download them: disco data stl10 --download --out {root}"
    raise FileNotFoundError(f"stl10: no {_NEEDED[0]} in {root} or {root / FOLDER}; {hint}")


def download(out: Path, progress: Progress | None = None) -> Path:
    """Download the archive of 2.6 GB, unpack the missing files of train and test, and return their folder.

    An interrupted download resumes. Existing files are verified.
    """
    make_folder(out)
    folder, archive = out / FOLDER, out / ARCHIVE
    with locked(out):
        wanted = (*_NEEDED, _FOLDS)
        missing = [name for name in wanted if not (folder / name).is_file()]
        _check_files([folder / name for name in wanted if name not in missing], progress=progress)
        if missing:
            if archive.is_file():
                _check_archive(archive, "delete it, and run the command again")
            else:
                _fetch(archive, progress)
            make_folder(folder)
            _unpack(archive, folder, missing, progress)
        check_stl10(folder, progress=progress)
    return folder


def _check_files(paths: list[Path], *, again: bool = False, progress: Progress | None = None) -> None:
    """Raise ValueError if files in a folder are not STL-10's; remember those that are."""
    known = {} if again or not paths else _read_checked(paths[0].parent)
    left = [path for path in paths if path.name in _FILES and known.get(path.name) != _stamp(path)]
    count = counter(progress, sum(path.stat().st_size for path in left))
    for path in paths:
        if path.name == _CLASS_NAMES and (classes := _classes(path)) != CLASSES:
            raise ValueError(f"{path}: not STL-10's classes, got {plain(', '.join(classes))}; {_AGAIN}")
    for path in left:
        size, checksum = _FILES[path.name]
        if path.stat().st_size != size:
            raise ValueError(f"{path}: not STL-10's: {path.stat().st_size:,} bytes instead of {size:,}; {_AGAIN}")
        stamp = _stamp(path)  # before it is read, so that later changes are detected
        if _md5(path, count) != checksum:
            raise ValueError(f"{path}: damaged or not STL-10's: its checksum differs; {_AGAIN}")
        known[path.name] = stamp
    if left:
        with suppress(OSError):  # in a read-only folder, files are hashed again
            write(left[0].parent / _CHECKED, json.dumps(known, indent=1).encode())


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path}: damaged or foreign: {what}; {_AGAIN}")


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; create it: disco data stl10 --download --out DIR")
    return path


def _labels(path: Path, count: int) -> np.ndarray:
    """Read labels; those of the file start at 1."""
    if (size := path.stat().st_size) != count:
        raise _damaged(path, f"{size:,} labels for {count:,} images")
    labels = np.fromfile(path, np.uint8)
    if labels.min() < 1 or labels.max() > len(CLASSES):
        raise _damaged(path, f"labels must be 1 to 10, got {labels.min()} to {labels.max()}")
    return labels - np.uint8(1)


def _classes(path: Path) -> tuple[str, ...]:
    names = tuple(line.strip() for line in _text(path).splitlines() if line.strip())
    if len(set(names)) != len(CLASSES) or len(names) != len(CLASSES):
        raise _damaged(path, f"expected ten names of classes, got {len(names)}")
    return names


def _text(path: Path) -> str:
    try:
        return read_bytes(path, _TEXT).decode()
    except ValueError as error:
        raise _damaged(path, reason(error)) from error


def _stamp(path: Path) -> list[int | str]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, _FILES[path.name][1]]


def _read_checked(folder: Path) -> dict[str, list[int | str]]:
    """Return the stamps of verified files; none if the list is unreadable."""
    try:
        known = parse_json(_text(folder / _CHECKED))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _md5(path: Path, count: Callable[[int], None]) -> str:
    with path.open("rb") as file:
        return _copy_md5(file, lambda chunk: count(len(chunk)))


def _copy_md5(file: IO[bytes], use: Callable[[bytes], object]) -> str:
    """Pass the chunks of a file to a function and return its checksum."""
    state = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(_CHUNK):
        state.update(chunk)
        use(chunk)
    return state.hexdigest()


def _check_archive(path: Path, advice: str) -> None:
    size, checksum = _PACKED
    if path.stat().st_size != size or _md5(path, lambda _: None) != checksum:
        raise ValueError(f"{path}: damaged, or not STL-10's archive: its size or checksum differs; {advice}")


def _fetch(archive: Path, progress: Progress | None) -> None:
    """Download the archive from the first mirror that works, and verify it; a partial file is kept for the next try."""
    draft = archive.with_name(f"{archive.name}.part")
    failures = []
    for mirror in MIRRORS:
        url = f"{mirror}{ARCHIVE}"
        try:
            _resume(url, draft, progress)
            try:
                _check_archive(draft, "the download is deleted")
            except ValueError:
                draft.unlink()
                raise
            draft.replace(archive)
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            if getattr(error, "code", None) == 416:  # range not satisfiable: the partial file is of something else
                draft.unlink(missing_ok=True)
            failures.append(f"{url} ({reason(getattr(error, 'reason', None) or error)})")
    hint = f"run the command again to resume, or download the archive another way and put it at {archive}"
    raise OSError(f"stl10: no mirror works: {', '.join(failures)}; {hint}")


def _resume(url: str, draft: Path, progress: Progress | None) -> None:
    """Append the rest of the archive to a file, or start again if the server does not support ranges."""
    total = _PACKED[0]
    done = draft.stat().st_size if draft.is_file() else 0
    if done == total:
        return
    headers = {"Range": f"bytes={done}-"} if 0 < done < total else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
        rest = response.status == 206 and (response.headers["Content-Range"] or "").startswith(f"bytes {done}-")
        if response.status != 200 and not rest:
            raise ValueError(f"HTTP status {response.status} instead of the file")
        done = done if rest else 0
        with draft.open("ab" if rest else "wb") as file:
            while done <= total and (chunk := response.read(_CHUNK)):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(min(done, total), total)
    if done < total:
        raise ValueError(f"cut short after {done:,} of {total:,} bytes")


def _unpack(archive: Path, folder: Path, missing: list[str], progress: Progress | None) -> None:
    """Write the missing files atomically, and nothing else of the archive."""
    left = list(missing)
    try:
        with archive.open("rb") as packed, tarfile.open(fileobj=packed, mode="r|gz") as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.parent == PurePosixPath(FOLDER) and path.name in left:
                    content = members.extractfile(member) if member.isreg() else None
                    if content is None or member.size > _FILES.get(path.name, (_TEXT, ""))[0]:
                        raise ValueError(f"{path} is too large, or not a file")
                    with content:
                        _write_member(content, folder / path.name)
                    left.remove(path.name)
                if progress is not None:
                    progress(packed.tell(), _PACKED[0])
                if not left:
                    break
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{archive}: not STL-10's archive: {reason(error)}; delete it, and try again") from error
    if lacking := [name for name in left if name in _NEEDED]:
        raise ValueError(f"{archive}: not STL-10's archive: it has no {', '.join(lacking)}; delete it, and try again")


def _write_member(content: IO[bytes], path: Path) -> None:
    with written_atomically(path) as draft:
        with draft.open("wb") as file:
            checksum = _copy_md5(content, file.write)
        if path.name in _FILES and checksum != _FILES[path.name][1]:
            raise ValueError(f"the checksum of {path.name} differs")
