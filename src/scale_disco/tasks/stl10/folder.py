"""Image folders with a subfolder for each class, as data sets: the user's own data."""

import hashlib
import json
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save

from ...files import listed, parse_json, plain, reason, write
from ..io.images import find_images, load_rgb
from ..io.progress import Progress, counter
from .images import ImageSet, statistics

PARTS = ("train", "test")
_FORMAT = "scale-disco pictures 1"


class ImageFile(NamedTuple):
    """An image file and the index of its class."""

    part: str
    label: int
    path: Path


class Listing(NamedTuple):
    """The images of a folder, those for training first."""

    classes: tuple[str, ...]
    files: list[ImageFile]


def read_folder(
    root: Path,
    side: int = 96,
    *,
    test_share: float | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, ImageSet]:
    """Read train and test images from `root/train/CLASS/*.jpg` and `root/test/CLASS/*.jpg`; classes are sorted.

    `val` is used if there is no `test`. Images are converted to RGB; those of another size are center-cropped to a
    square and resized with antialiasing. Mean and std are those of the training images.

    Args:
        root: Folder with `train` and `test`, or with classes.
        side: Side of the images, in pixels.
        test_share: Fraction of every class to test on, if `root` has classes only. The split depends on file names.
        cache: File that stores the decoded images; it is replaced if an image has changed.
        progress: Called with the number of images done and in total.
    """
    if side < 1:
        raise ValueError(f"folder: side must be at least 1, got {side}")
    root = Path(root)
    listing = list_images(root, test_share)
    key = fingerprint(listing, root, side)
    images = _read_cache(cache, key) if cache is not None else None
    if images is None:
        images = _decoded(listing, side, progress)
        if cache is not None:
            note = {"format": _FORMAT, "key": key, "checksum": _checksum(images)}
            write(cache, save(images, {"note": json.dumps(note)}))
    mean, std = statistics(images["train"])
    dtype = np.min_scalar_type(len(listing.classes) - 1)
    name = f"folder/{root.resolve().name}"  # never that of a data set
    labels = {part: np.array([file.label for file in listing.files if file.part == part], dtype) for part in PARTS}
    return {part: ImageSet(images[part], labels[part], listing.classes, name, mean, std) for part in PARTS}


def list_images(root: Path, test_share: float | None = None) -> Listing:
    """List the files that `read_folder` reads."""
    if not root.is_dir():
        raise FileNotFoundError(f"folder: no folder {root}")
    if not (root / "train").is_dir():
        return _split(root, test_share)
    if test_share is not None:
        raise ValueError(f"folder: {root} has train and test already, a fraction to test on makes no sense")
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if test is None:
        raise FileNotFoundError(f"folder: {root} has a folder train, but neither test nor val")
    parts = {"train": _classes(root / "train"), "test": _classes(test)}
    classes = tuple(parts["train"])
    if classes != tuple(parts["test"]):
        odd = sorted(set(classes) ^ set(parts["test"]))
        raise ValueError(f"folder: train and {test.name} of {root} must have the same classes, one lacks {odd[0]!r}")
    files = [
        ImageFile(part, label, path)
        for part, paths_of_classes in parts.items()
        for label, paths in enumerate(paths_of_classes.values())
        for path in paths
    ]
    return Listing(classes, files)


def _split(root: Path, test_share: float | None) -> Listing:
    """Split classes by the hash of file names, so that a new image changes the part of hardly any other."""
    classes = _classes(root)
    if test_share is None:
        hint = "if it has classes only, pass the fraction of their images to test on, such as 0.2"
        raise ValueError(f"folder: expected train/CLASS and test/CLASS in {root}; {hint}")
    if not 0 < test_share < 1:
        raise ValueError(f"folder: the fraction to test on must be between 0 and 1, got {test_share}")
    files: dict[str, list[ImageFile]] = {part: [] for part in PARTS}
    for label, (name, paths) in enumerate(classes.items()):
        if len(paths) < 2:
            raise ValueError(f"folder: {root / name} needs at least two images, for train and test")
        shuffled = sorted(paths, key=lambda path: hashlib.sha256(f"{name}/{path.name}".encode()).digest())
        tested = set(shuffled[: min(max(round(test_share * len(paths)), 1), len(paths) - 1)])
        for path in paths:
            part = "test" if path in tested else "train"
            files[part].append(ImageFile(part, label, path))
    return Listing(tuple(classes), [file for part in PARTS for file in files[part]])


def _classes(folder: Path) -> dict[str, list[Path]]:
    """Return the images of every class, both sorted."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise ValueError(f"folder: expected a folder for each of at least two classes in {folder}, got {len(names)}")
    return {name: find_images(folder / name) for name in names}


def fingerprint(listing: Listing, root: Path, side: int) -> str:
    """Return the cache key of the decoded images: a hash of names, sizes and times of the files."""
    state = hashlib.sha256(repr((_FORMAT, side)).encode())
    for part, label, path in listing.files:
        status = path.stat()
        name = path.relative_to(root).as_posix()
        state.update(repr((part, label, name, status.st_size, status.st_mtime_ns)).encode())
    return state.hexdigest()


def contents(files: Iterable[ImageFile]) -> str:
    """Return a hash of the names, labels and contents of files, wherever they are."""
    state = hashlib.sha256()
    for _, label, path in files:
        state.update(repr((label, path.name)).encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


def _decoded(listing: Listing, side: int, progress: Progress | None) -> dict[str, np.ndarray]:
    total = len(listing.files)
    images = np.empty((total, 3, side, side), np.uint8)
    unreadable, advance = [], counter(progress, total)

    def fill(index: int) -> str | None:
        try:
            images[index] = decode(listing.files[index].path, side)
        except ValueError as error:
            return str(error).removeprefix("cannot read ")
        return None

    # Warning filters are shared by all threads, so that those of `open_image` must be set before any starts.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(torch.get_num_threads()) as workers:
        try:
            for error in workers.map(fill, range(total)):
                unreadable += [error] if error else []
                advance(1)
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise
    if unreadable:
        count = f"{len(unreadable)} of {total} images"
        raise ValueError(f"folder: {count} cannot be read: {listed(unreadable)}; fix or remove them")
    trained = sum(file.part == "train" for file in listing.files)  # they come first
    return {"train": images[:trained], "test": images[trained:]}


def decode(path: Path, side: int) -> np.ndarray:
    """Decode an image, uint8 [3, side, side]."""
    image = load_rgb(path)
    from PIL import Image, ImageOps  # after its absence has been explained

    if image.size != (side, side):
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    return np.asarray(image).transpose(2, 0, 1)


def _read_cache(path: Path, key: str) -> dict[str, np.ndarray] | None:
    """Return the decoded images, or None if the cache is of other images; raise ValueError if it is damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            note: Any = parse_json((file.metadata() or {}).get("note", "null"))
            if not isinstance(note, dict) or note.get("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            if note.get("key") != key:
                return None
            images = {part: file.get_tensor(part) for part in PARTS}
        if note.get("checksum") != _checksum(images):
            raise ValueError("its checksum does not match")
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror or reason(error)}") from error
    except Exception as error:  # whatever foreign content makes safetensors and json raise
        raise ValueError(f"{path}: damaged or foreign: {plain(reason(error))}; delete it to decode again") from error
    return images


def _checksum(images: dict[str, np.ndarray]) -> str:
    state = hashlib.sha256()
    for part in PARTS:
        state.update(repr((part, images[part].shape, images[part].dtype.str)).encode())
        state.update(np.ascontiguousarray(images[part]).data)
    return state.hexdigest()
