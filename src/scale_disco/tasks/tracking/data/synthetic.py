"""Synthetic zooming sequences in the layout of OTB: a moving object with exact boxes."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....files import locked, make_folder, plain, read_json, write
from ...io.images import Image
from ...io.progress import Progress
from ...io.textures import PARTS, SourceImage, split, textures, to_rgb
from .motion import KINDS, SMALLEST, ObjectMotion, ObjectShape, largest_size, random_motion, random_path

NOTE = "zoom.json"
_FORMAT = "scale-disco zoom 1"
_MARGIN = 1 + 4 / SMALLEST  # texture over box: two pixels of the frame on every side at the smallest size
_PAN = 24  # pixels by which a background may move, on every side
_SYNTHETIC = {"object": 0.25, "background": 0.1}  # fraction of synthetic textures
_COLOR_MATCH = 0.8  # how far the colors of an object are moved towards those of the background
_CROPS = 6  # candidates, of which the one with most detail becomes the object
_QUALITY = 92  # of JPEG
_FORMATS = {".jpg": "JPEG", ".png": "PNG"}
_CACHED = 64  # decoded source images in memory


@dataclass(frozen=True)
class SequenceSettings:
    """Settings of synthetic sequences; together with the source images they determine every byte."""

    part: str = "train"  # or "test", which share no source image
    count: int = 240  # sequences, of alternating kinds
    frames: int = 20  # per sequence
    size: tuple[int, int] = (320, 240)  # width and height of the frames
    seed: int = 0
    suffix: str = ".jpg"  # of quality 92, or ".png"
    light: float = 0.06  # maximum difference of the slowly changing brightness from 1
    noise: float = 2.0  # std per pixel, in 255ths
    textures: int = 100  # synthetic source images, of which a quarter is for testing

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"zoom: part must be train or test, got {self.part!r}")
        if self.suffix not in _FORMATS:
            raise ValueError(f"zoom: suffix must be .jpg or .png, got {self.suffix!r}")
        for name, least in (("count", 1), ("frames", 1), ("textures", 10)):
            if getattr(self, name) < least:
                raise ValueError(f"zoom: {name} must be at least {least}, got {getattr(self, name)}")
        if largest_size(self.size) < 2 * SMALLEST:
            width, height = self.size
            raise ValueError(f"zoom: frames must be at least 119 x 89 pixels, got {width} x {height}")
        if not (0 <= self.light < 0.5 and 0 <= self.noise < 128):
            raise ValueError(f"zoom: light must be below 0.5 and noise below 128, got {self.light} and {self.noise}")


class SequencePlan(NamedTuple):
    """Content of a sequence."""

    name: str
    number: int
    background: SourceImage
    object: SourceImage
    motion: ObjectMotion


def build(out: Path, images: list[SourceImage], settings: SequenceSettings, progress: Progress | None = None) -> int:
    """Render the sequences of a part that are not yet in a folder; return how many those were.

    A sequence, `NAME/img/0001.jpg` ... and `NAME/groundtruth_rect.txt`, appears complete or not at all. The note
    `zoom.json` lists the source images of every sequence; a folder with another note raises a ValueError. `images` are
    those of both parts; `progress` is called with the number of frames rendered and in total.
    """
    plans = planned(images, settings)
    make_folder(out)
    with locked(out):
        _check_note(out, _note(plans, settings))
        missing = [plan for plan in plans if not _exists(out / plan.name, plan, settings)]
        read = lru_cache(_CACHED)(lambda image: image.read())
        for done, plan in enumerate(missing, 1):
            _write_sequence(out / plan.name, plan, settings, read)
            if progress is not None:
                progress(done * settings.frames, len(missing) * settings.frames)
    return len(missing)


def planned(images: list[SourceImage], settings: SequenceSettings) -> list[SequencePlan]:
    """Return the plans of the sequences."""
    images = split([*images, *textures(settings.textures)], settings.part, lambda image: _is_large(image, settings))
    return [_plan(images, settings, number) for number in range(settings.count)]


def _plan(images: list[SourceImage], settings: SequenceSettings, number: int) -> SequencePlan:
    generator = _generator(settings, number, 0)
    kind = KINDS[number % len(KINDS)]
    large = [image for image in images if _is_large(image, settings)]
    if not large:
        width, height = settings.size
        raise ValueError(f"zoom: no image is large enough for frames of {width} x {height} pixels; use larger images")
    background = _choice(generator, large, _SYNTHETIC["background"])
    others = [image for image in images if image.group != background.group]
    foreground = _choice(generator, others, _SYNTHETIC["object"])
    motion = random_motion(kind, generator, settings.frames, settings.size, _largest_box(foreground.size))
    return SequencePlan(f"{kind}-{number + 1:04d}", number, background, foreground, motion)


def _generator(settings: SequenceSettings, number: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, PARTS.index(settings.part), number, purpose])


def _choice(generator: np.random.Generator, images: list[SourceImage], fraction: float) -> SourceImage:
    """Draw a synthetic texture with some probability, else an image, with a preference for large ones."""
    synthetic = bool(generator.uniform() < fraction)
    candidates = [image for image in images if image.synthetic == synthetic] or images
    weights = np.sqrt([image.size[0] * image.size[1] for image in candidates])
    return candidates[int(generator.choice(len(candidates), p=weights / weights.sum()))]


def _is_large(image: SourceImage, settings: SequenceSettings) -> bool:
    """Return whether an image, with its mirror images around it, is large enough for a background."""
    return all(3 * side >= wanted + 2 * _PAN for side, wanted in zip(image.size, settings.size, strict=True))


def _largest_box(size: tuple[int, int]) -> float:
    """Return the longer side of the largest box that can be cut from an image, with a margin."""
    return (min(size) - 2) / _MARGIN


def _note(plans: list[SequencePlan], settings: SequenceSettings) -> dict[str, Any]:
    images = {image.name: image for plan in plans for image in (plan.object, plan.background)}
    return {
        "format": _FORMAT,
        "settings": asdict(settings) | {"size": list(settings.size)},
        "masters": {name: {"group": images[name].group, "sha256": images[name].sha256} for name in sorted(images)},
        "sequences": {plan.name: {"object": plan.object.name, "background": plan.background.name} for plan in plans},
    }


def _check_note(out: Path, note: dict[str, Any]) -> None:
    """Write the note, or raise ValueError if the folder has another one."""
    path = out / NOTE
    if not path.exists():
        write(path, f"{json.dumps(note, indent=1)}\n".encode())
        return
    try:
        existing = read_json(path)
        old = dict(existing["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged or foreign; delete {out} or choose another folder") from error
    if existing != note:
        new = note["settings"]
        changed = [f"{name} {old.get(name)}, not {value}" for name, value in new.items() if old.get(name) != value]
        why = plain(", ".join(changed)) or "cut from other images, or by another version"
        raise ValueError(f"zoom: {out} has other sequences: {why}; delete them or choose another folder")


def _truth(motion: ObjectMotion) -> bytes:
    """Return the ground-truth file, in which pixels are counted from 1."""
    rows = motion.boxes() + np.array([1, 1, 0, 0])
    return "".join(",".join(f"{value:.2f}" for value in row) + "\n" for row in rows).encode()


def _file(number: int, settings: SequenceSettings) -> str:
    return f"{number + 1:04d}{settings.suffix}"


def _exists(folder: Path, plan: SequencePlan, settings: SequenceSettings) -> bool:
    """Return whether a sequence is finished; ValueError if it differs from the plan."""
    if not folder.exists():
        return False
    truth = folder / "groundtruth_rect.txt"
    expected = [_file(number, settings) for number in range(settings.frames)]
    frames = sorted(path.name for path in (folder / "img").glob("*"))
    if not truth.is_file() or truth.read_bytes() != _truth(plan.motion) or frames != expected:
        raise ValueError(f"zoom: {folder} was modified; delete it to render it again")
    return True


def _write_sequence(
    folder: Path, plan: SequencePlan, settings: SequenceSettings, read: Callable[[SourceImage], Image]
) -> None:
    """Render a sequence next to its folder, then rename it."""
    draft = folder.with_name(f".{folder.name}")
    if draft.exists():  # of a process that was killed
        shutil.rmtree(draft)
    make_folder(draft / "img")
    try:
        renderer = SequenceRenderer(plan, settings, read)
        for number in range(settings.frames):
            path, packed = draft / "img" / _file(number, settings), io.BytesIO()
            to_rgb(renderer.frame(number)).save(packed, _FORMATS[settings.suffix], quality=_QUALITY)
            try:
                path.write_bytes(packed.getvalue())  # errors of Pillow would not say why
            except OSError as error:
                raise type(error)(f"cannot write {path}: {error.strerror}") from error
        write(draft / "groundtruth_rect.txt", _truth(plan.motion))
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise


class SequenceRenderer:
    """Renders the frames of a sequence, in order."""

    def __init__(self, plan: SequencePlan, settings: SequenceSettings, read: Callable[[SourceImage], Image]) -> None:
        self.motion, self.settings = plan.motion, settings
        self.generator = _generator(settings, plan.number, 1)
        self.canvas = self._background(read(plan.background))
        self.sprite = Sprite(plan.motion.shape, *self._texture(read(plan.object)))
        speed = 0.8 * bool(self.generator.integers(2))
        self.pan = np.stack([random_path(self.generator, settings.frames, 0, 2 * _PAN, speed) for _ in range(2)], 1)
        self.light = 1 + settings.light * random_path(self.generator, settings.frames, -1, 1, 0.2)

    def frame(self, number: int) -> np.ndarray:
        """Render a frame, uint8 [H, W, 3]."""
        size, pan, motion = self.settings.size, self.pan[number], self.motion
        pixels = np.array(_resized(self.canvas, size, pan, pan + size), np.float32)
        for centers, sizes in (*([motion.distractor] if motion.distractor else []), (motion.centers, motion.sizes)):
            self.sprite.draw(pixels, centers[number], sizes[number])
        pixels *= np.float32(self.light[number])
        if self.settings.noise:
            pixels += np.float32(self.settings.noise) * self.generator.standard_normal(pixels.shape, np.float32)
        return _bytes(pixels)

    def _background(self, image: Image) -> Image:
        """Crop an image, larger than the frame by the pan, and shrink it by up to 2."""
        wanted = np.array(self.settings.size) + 2 * _PAN
        extra = np.maximum(wanted - image.size, 0)
        if extra.any():
            (left, top), (right, bottom) = extra // 2, extra - extra // 2
            image = to_rgb(np.pad(np.asarray(image), ((top, bottom), (left, right), (0, 0)), "symmetric"))
        sides = self.generator.uniform(1, min(2, *(image.size / wanted))) * wanted
        corner = self.generator.uniform(0, 1, 2) * (image.size - sides)
        return _resized(image, tuple(wanted), corner, np.minimum(corner + sides, image.size))

    def _texture(self, image: Image) -> tuple[Image, float]:
        """Return a square of an image in the colors of the background, and the longer side of the box in it."""
        shortest, longest = self.motion.sizes.max(), _largest_box(image.size)
        if self.motion.distractor is not None:
            shortest = max(shortest, self.motion.distractor[1].max())
        side = shortest * min(3, longest / shortest) ** self.generator.uniform()
        square = min(int(np.ceil(side * _MARGIN)), *image.size)
        crops = []
        for _ in range(_CROPS):
            left, top = (int(self.generator.integers(0, length - square + 1)) for length in image.size)
            crops.append(np.asarray(image.crop((left, top, left + square, top + square)), np.float32))
        best = max(crops, key=lambda crop: float(np.abs(np.diff(crop, axis=0)).mean()))
        return to_rgb(_bytes(_match_colors(best, np.asarray(self.canvas, np.float32)))), side


class Sprite(NamedTuple):
    """A shape filled with the center of a texture, where its box has a longer side of `side` pixels."""

    shape: ObjectShape
    texture: Image
    side: float

    def draw(self, pixels: np.ndarray, center: np.ndarray, size: float) -> None:
        """Draw the shape onto pixels [H, W, 3], with this center and longer side of its box."""
        half = np.array(self.shape.box) * size / 2
        (left, top), (right, bottom) = np.floor(center - half - 1).astype(int), np.ceil(center + half + 1).astype(int)
        ends = (np.array([[left, top], [right, bottom]]) - center) * self.side / size + np.array(self.texture.size) / 2
        colors = np.asarray(_resized(self.texture, (right - left, bottom - top), *ends), np.float32)
        x, y = np.arange(left, right) + 0.5 - center[0], np.arange(top, bottom) + 0.5 - center[1]
        opacity = self.shape.opacity(x, y, size)[..., None]
        window = pixels[top:bottom, left:right]
        window += opacity * (colors - window)


def _match_colors(texture: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Move mean and std of every channel of a texture towards those of a background."""
    mean, target = texture.mean((0, 1)), background.mean((0, 1))
    ratio = (background.std((0, 1)) + 1) / (texture.std((0, 1)) + 1)
    return np.asarray((texture - mean) * ratio.clip(0.5, 2) ** _COLOR_MATCH + mean + _COLOR_MATCH * (target - mean))


def _resized(image: Image, size: tuple[int, int], start: np.ndarray, end: np.ndarray) -> Image:
    """Resample the part of an image between two real-valued corners: bicubic, with antialiasing."""
    from PIL import Image

    return image.resize(size, Image.Resampling.BICUBIC, box=(*start.tolist(), *end.tolist()))


def _bytes(pixels: np.ndarray) -> np.ndarray:
    return np.asarray((pixels + 0.5).clip(0, 255.5).astype(np.uint8))
