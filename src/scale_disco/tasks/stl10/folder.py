"""Pictures in a folder for each class, as one set of images: the user's own data."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

from ...files import parse_json, plain, reason, write
from ..io.images import find_images, load_rgb
from .images import ImageSet, statistics

PARTS = ("train", "test")
_FORMAT = "scale-disco pictures 1"
_NAMED = 3  # unreadable pictures that an error names

Progress = Callable[[int, int], None]


class ImageFile(NamedTuple):
    """A picture of a class, which it has by its number."""

    part: str
    label: int
    path: Path


class Listing(NamedTuple):
    """The pictures of a folder, those for training first."""

    classes: tuple[str, ...]
    pictures: list[ImageFile]


def read_folder(
    root: Path,
    side: int = 96,
    *,
    test_share: float | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, ImageSet]:
    """Train and test from `root/train/CLASS/*.jpg` and `root/test/CLASS/*.jpg`; classes in alphabetical order.

    `val` stands in for a missing `test`. Pictures become RGB; those of another size are cut to a square about their
    centre and resized with antialiasing. Mean and deviation are those of the training part.

    Args:
        root: Folder of the parts.
        side: Of the images, in pixels.
        test_share: Where `root` has classes and no parts: this share of every class is the test part. Which pictures
            depends on their names alone.
        cache: A file that keeps the decoded images; it is made anew when a picture has changed.
        progress: Called with pictures done and pictures in all.
    """
    if side < 1:
        raise ValueError(f"folder: side must be at least 1, got {side}")
    root = Path(root)
    listing = list_images(root, test_share)
    key = fingerprint(listing, root, side)
    kept = _read_cache(cache, key) if cache is not None else None
    if kept is None:
        kept = _decoded(listing, side, progress)
        if cache is not None:
            _write_cache(cache, key, kept)
    mean, deviation = statistics(kept["train"])
    dtype = np.min_scalar_type(len(listing.classes) - 1)
    sets = {}
    for part in PARTS:
        labels = np.array([picture.label for picture in listing.pictures if picture.part == part], dtype)
        sets[part] = ImageSet(kept[part], labels, listing.classes, name_of(root), mean, deviation)
    return sets


def name_of(root: Path) -> str:
    """What the images of a folder may be called in a table: never a data set, whatever the folder is called."""
    return f"folder/{root.resolve().name}"


def list_images(root: Path, test_share: float | None = None) -> Listing:
    """What `read_folder` reads from a folder."""
    if not root.is_dir():
        raise FileNotFoundError(f"folder: no folder {root}")
    if not (root / "train").is_dir():
        return _split(root, test_share)
    if test_share is not None:
        raise ValueError(f"folder: {root} has its parts already, a share for the test part makes no sense")
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if test is None:
        raise FileNotFoundError(f"folder: {root} has a folder train, and neither test nor val beside it")
    parts = {"train": _classes(root / "train"), "test": _classes(test)}
    classes = tuple(parts["train"])
    if classes != tuple(parts["test"]):
        odd = sorted(set(classes) ^ set(parts["test"]))
        raise ValueError(f"folder: train and {test.name} of {root} must have the same classes, one lacks {odd[0]!r}")
    return Listing(
        classes,
        [
            ImageFile(part, label, path)
            for part, found in parts.items()
            for label, paths in enumerate(found.values())
            for path in paths
        ],
    )


def _split(root: Path, test_share: float | None) -> Listing:
    """Parts by the hash of the names, so that a new picture moves hardly any other."""
    found = _classes(root)
    if test_share is None:
        raise ValueError(
            f"folder: expected train/CLASS and test/CLASS in {root}; where it has classes only, "
            "give the share of their pictures that is for the test, such as 0.2"
        )
    if not 0 < test_share < 1:
        raise ValueError(f"folder: the share for the test must be between 0 and 1, got {test_share}")
    pictures: dict[str, list[ImageFile]] = {part: [] for part in PARTS}
    for label, (name, paths) in enumerate(found.items()):
        if len(paths) < 2:
            raise ValueError(f"folder: {root / name} needs two pictures at least, for train and test")
        mixed = sorted(paths, key=lambda path: hashlib.sha256(f"{name}/{path.name}".encode()).digest())
        tested = set(mixed[: min(max(round(test_share * len(paths)), 1), len(paths) - 1)])
        for path in paths:
            part = "test" if path in tested else "train"
            pictures[part].append(ImageFile(part, label, path))
    return Listing(tuple(found), [picture for part in PARTS for picture in pictures[part]])


def _classes(folder: Path) -> dict[str, list[Path]]:
    """The pictures of every class, both in alphabetical order."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise ValueError(f"folder: expected a folder for each of at least two classes in {folder}, got {len(names)}")
    return {name: find_images(folder / name) for name in names}


def fingerprint(listing: Listing, root: Path, side: int) -> str:
    """Changes whenever other images may come out."""
    state = hashlib.sha256(repr((_FORMAT, side)).encode())
    for part, label, path in listing.pictures:
        status = path.stat()
        name = path.relative_to(root).as_posix()
        state.update(repr((part, label, name, status.st_size, status.st_mtime_ns)).encode())
    return state.hexdigest()


def contents(pictures: Iterable[ImageFile]) -> str:
    """The same for the same files of the same classes, wherever they are."""
    state = hashlib.sha256()
    for _, label, path in pictures:
        state.update(repr((label, path.name)).encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


def _decoded(listing: Listing, side: int, progress: Progress | None) -> dict[str, np.ndarray]:
    total = len(listing.pictures)
    images = np.empty((total, 3, side, side), np.uint8)
    unreadable = []

    def fill(place: int) -> str | None:
        try:
            images[place] = decode(listing.pictures[place].path, side)
        except ValueError as error:
            return str(error)
        return None

    # Filters of warnings are shared by all threads, so that those of `open_image` must be set before any starts.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(torch.get_num_threads()) as workers:
        try:
            for done, trouble in enumerate(workers.map(fill, range(total)), 1):
                if trouble is not None:
                    unreadable.append(trouble.removeprefix("cannot read "))
                if progress is not None:
                    progress(done, total)
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise
    if unreadable:
        more = f" and {len(unreadable) - _NAMED} more" if len(unreadable) > _NAMED else ""
        raise ValueError(
            f"folder: {len(unreadable)} of {total} pictures cannot be read: {', '.join(unreadable[:_NAMED])}{more}; "
            "mend or remove them"
        )
    trained = sum(picture.part == "train" for picture in listing.pictures)  # they come first
    return {"train": images[:trained], "test": images[trained:]}


def decode(path: Path, side: int) -> np.ndarray:
    """One picture, uint8 [3, side, side]."""
    image = load_rgb(path)
    from PIL import Image, ImageOps  # after its absence has been explained

    if image.size != (side, side):
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    return np.asarray(image).transpose(2, 0, 1)


def _write_cache(path: Path, key: str, images: dict[str, np.ndarray]) -> None:
    note = {"format": _FORMAT, "key": key, "checksum": _checksum(images)}
    write(path, save(images, {"note": json.dumps(note)}))


def _read_cache(path: Path, key: str) -> dict[str, np.ndarray] | None:
    """The decoded images, or none if they are of other pictures; a damaged file is refused."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            note: Any = parse_json((file.metadata() or {}).get("note", "null"))
            if not isinstance(note, dict) or note.get("format") != _FORMAT:
                raise ValueError(f"its note does not say {_FORMAT!r}")
            if note.get("key") != key:
                return None
            images = {part: file.get_tensor(part) for part in PARTS}
        if note.get("checksum") != _checksum(images):
            raise ValueError("its checksum is another")
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror or reason(error)}") from error
    except Exception as error:  # whatever foreign content makes safetensors and json raise
        raise ValueError(f"{path}: damaged or foreign: {plain(reason(error))}; delete it, it is made anew") from error
    return images


def _checksum(images: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for part in PARTS:
        state.update(repr((part, images[part].shape, images[part].dtype.str)).encode())
        state.update(np.ascontiguousarray(images[part]).data)
    return state.hexdigest()
