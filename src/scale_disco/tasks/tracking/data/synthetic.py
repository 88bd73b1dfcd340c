"""Synthetic videos of an object that moves and zooms, in the layout of OTB, whose boxes are exact."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....files import locked, make_folder, plain, read_json, write
from ...io.textures import PARTS, SourceImage, split, textures
from .motion import KINDS, SMALLEST, ObjectMotion, ObjectShape, largest_size, random_motion, wander

if TYPE_CHECKING:
    from PIL.Image import Image

NOTE = "zoom.json"
_FORMAT = "scale-disco zoom 1"
_MARGIN = 1 + 4 / SMALLEST  # of a texture around an object's box: two pixels of the frame at the smallest size
_PAN = 24  # pixels that a background may move, on every side
_MADE = {"object": 0.25, "background": 0.1}  # share of made textures
_LIKENESS = 0.8  # how far the colours of an object are moved towards those of the background
_CROPS = 6  # of which the one with most detail becomes the object
_QUALITY = 92  # of JPEG
_KINDS = {".jpg": "JPEG", ".png": "PNG"}
_KEPT = 64  # decoded masters in memory

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SequenceSettings:
    """What sequences are like; with the pictures, it fixes every byte of them.

    Args:
        part: "train" or "test", which share no picture.
        count: How many sequences; their kinds take turns.
        frames: Of each sequence.
        size: Width and height of the frames.
        seed: Of what is random.
        suffix: Of the frames: ".jpg" (of quality 92) or ".png".
        light: By how much brightness, which changes slowly, may differ from 1.
        noise: Deviation of the noise on every pixel, in 255ths.
        textures: Made pictures, of which a quarter is for the test.
    """

    part: str = "train"
    count: int = 240
    frames: int = 20
    size: tuple[int, int] = (320, 240)
    seed: int = 0
    suffix: str = ".jpg"
    light: float = 0.06
    noise: float = 2.0
    textures: int = 100

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"zoom: part must be train or test, got {self.part!r}")
        if self.suffix not in {".jpg", ".png"}:
            raise ValueError(f"zoom: suffix must be .jpg or .png, got {self.suffix!r}")
        for name in ("count", "frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"zoom: {name} must be at least 1, got {getattr(self, name)}")
        if largest_size(self.size) < 2 * SMALLEST:
            width, height = self.size
            raise ValueError(f"zoom: frames must be 119 x 89 pixels at least, got {width} x {height}")
        if self.textures < 10:
            raise ValueError(f"zoom: textures must be at least 10, got {self.textures}")
        if not (0 <= self.light < 0.5 and 0 <= self.noise < 128):
            raise ValueError(f"zoom: light must be below 0.5 and noise below 128, got {self.light} and {self.noise}")


class SequencePlan(NamedTuple):
    """What a sequence will show."""

    name: str
    number: int
    background: SourceImage
    object: SourceImage
    motion: ObjectMotion


def build(out: Path, pictures: list[SourceImage], settings: SequenceSettings, progress: Progress | None = None) -> int:
    """Make the sequences of a part that are not yet in a folder, and say how many that were.

    A sequence appears whole or not at all. The note `zoom.json` tells what every sequence was cut from; sequences with
    another note are refused.

    Args:
        out: Folder of the part, for `NAME/img/0001.jpg` and `NAME/groundtruth_rect.txt`.
        pictures: What to cut from, as `photographs` gives it: those of both parts.
        settings: What the sequences are like.
        progress: Called with frames done and frames in all.
    """
    plans = planned(pictures, settings)
    make_folder(out)
    with locked(out):
        _check_note(out, _note(plans, settings))
        missing = [plan for plan in plans if not _is_there(out / plan.name, plan, settings)]
        read = lru_cache(_KEPT)(lambda master: master.read())
        total = len(missing) * settings.frames
        for done, plan in enumerate(missing):
            _make(out / plan.name, plan, settings, read)
            if progress is not None:
                progress((done + 1) * settings.frames, total)
    return len(missing)


def planned(pictures: list[SourceImage], settings: SequenceSettings) -> list[SequencePlan]:
    """The sequences that settings ask for."""
    masters = split([*pictures, *textures(settings.textures)], settings.part, lambda master: _is_wide(master, settings))
    return [_plan(masters, settings, number) for number in range(settings.count)]


def _plan(masters: list[SourceImage], settings: SequenceSettings, number: int) -> SequencePlan:
    generator = _generator(settings, number, 0)
    kind = KINDS[number % len(KINDS)]
    wide = [master for master in masters if _is_wide(master, settings)]
    if not wide:
        width, height = settings.size
        raise ValueError(
            f"zoom: no picture is large enough for frames of {width} x {height} pixels; give larger pictures"
        )
    background = _choice(generator, wide, _MADE["background"])
    others = [master for master in masters if master.group != background.group]
    thing = _choice(generator, others, _MADE["object"])
    motion = random_motion(kind, generator, settings.frames, settings.size, _longest(thing.size))
    return SequencePlan(f"{kind}-{number + 1:04d}", number, background, thing, motion)


def _generator(settings: SequenceSettings, number: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, PARTS.index(settings.part), number, purpose])


def _choice(generator: np.random.Generator, masters: list[SourceImage], share: float) -> SourceImage:
    """A made texture, for a share of the calls, or a picture; large pictures more often than small ones."""
    made = bool(generator.uniform() < share)
    chosen = [master for master in masters if master.synthetic == made] or masters
    weights = np.sqrt([master.size[0] * master.size[1] for master in chosen])
    return chosen[int(generator.choice(len(chosen), p=weights / weights.sum()))]


def _is_wide(master: SourceImage, settings: SequenceSettings) -> bool:
    """Whether a picture can be a background, if need be with its mirror images around it."""
    return all(3 * have >= want + 2 * _PAN for have, want in zip(master.size, settings.size, strict=True))


def _longest(size: tuple[int, int]) -> float:
    """Longer side of the largest box that can be cut from a picture of a size, with a margin."""
    return (min(size) - 2) / _MARGIN


def _note(plans: list[SequencePlan], settings: SequenceSettings) -> dict[str, Any]:
    masters = {master.name: master for plan in plans for master in (plan.object, plan.background)}
    return {
        "format": _FORMAT,
        "settings": asdict(settings) | {"size": list(settings.size)},
        "masters": {name: {"group": masters[name].group, "sha256": masters[name].sha256} for name in sorted(masters)},
        "sequences": {plan.name: {"object": plan.object.name, "background": plan.background.name} for plan in plans},
    }


def _check_note(out: Path, note: dict[str, Any]) -> None:
    """Write the note, or refuse a folder that has another one."""
    path = out / NOTE
    if not path.exists():
        write(path, f"{json.dumps(note, indent=1)}\n".encode())
        return
    try:
        found = read_json(path)
        old = dict(found["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged or foreign; delete {out} or choose another folder") from error
    if found != note:
        new = note["settings"]
        changed = [f"{name} {old.get(name)}, not {value}" for name, value in new.items() if old.get(name) != value]
        why = plain(", ".join(changed)) or "cut from other pictures, or made by another version"
        raise ValueError(f"zoom: the sequences in {out} are others: {why}; delete them or choose another folder")


def _truth(motion: ObjectMotion) -> bytes:
    """The file of boxes: pixels are counted from 1."""
    rows = motion.boxes() + np.array([1, 1, 0, 0])
    return "".join(",".join(f"{value:.2f}" for value in row) + "\n" for row in rows).encode()


def _file(number: int, settings: SequenceSettings) -> str:
    return f"{number + 1:04d}{settings.suffix}"


def _is_there(folder: Path, plan: SequencePlan, settings: SequenceSettings) -> bool:
    """Whether a sequence is finished; one that is another than planned is refused."""
    if not folder.exists():
        return False
    truth = folder / "groundtruth_rect.txt"
    wanted = [_file(number, settings) for number in range(settings.frames)]
    frames = sorted(path.name for path in (folder / "img").glob("*"))
    if not truth.is_file() or truth.read_bytes() != _truth(plan.motion) or frames != wanted:
        raise ValueError(f"zoom: {folder} is not as it was made; delete it, it is made anew")
    return True


def _make(folder: Path, plan: SequencePlan, settings: SequenceSettings, read: Callable[[SourceImage], Image]) -> None:
    """Write a sequence beside its place, then move it there."""
    draft = folder.with_name(f".{folder.name}")
    if draft.exists():  # of a process that was ended
        shutil.rmtree(draft)
    make_folder(draft / "img")
    try:
        scene = SequenceRenderer(plan, settings, read)
        for number in range(settings.frames):
            path, packed = draft / "img" / _file(number, settings), io.BytesIO()
            _picture(scene.frame(number)).save(packed, _KINDS[settings.suffix], quality=_QUALITY)
            try:
                path.write_bytes(packed.getvalue())  # Pillow would not say why it cannot
            except OSError as error:
                raise type(error)(f"cannot write {path}: {error.strerror}") from error
        write(draft / "groundtruth_rect.txt", _truth(plan.motion))
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise


class SequenceRenderer:
    """The frames of a sequence, drawn in order."""

    def __init__(self, plan: SequencePlan, settings: SequenceSettings, read: Callable[[SourceImage], Image]) -> None:
        self.motion, self.settings = plan.motion, settings
        self.generator = _generator(settings, plan.number, 1)
        self.canvas = self._background(read(plan.background))
        self.sprite = Sprite(plan.motion.shape, *self._texture(read(plan.object)))
        moving = bool(self.generator.integers(2))
        self.pan = np.stack([wander(self.generator, settings.frames, 0, 2 * _PAN, 0.8 * moving) for _ in range(2)], 1)
        self.light = 1 + settings.light * wander(self.generator, settings.frames, -1, 1, 0.2)

    def frame(self, number: int) -> np.ndarray:
        """A frame, uint8 [H, W, 3]."""
        size, pan, motion = self.settings.size, self.pan[number], self.motion
        pixels = np.array(_resized(self.canvas, size, pan, pan + size), np.float32)
        if motion.decoy is not None:
            self.sprite.draw(pixels, motion.decoy[0][number], motion.decoy[1][number])
        self.sprite.draw(pixels, motion.centres[number], motion.sizes[number])
        pixels *= np.float32(self.light[number])
        if self.settings.noise:
            pixels += np.float32(self.settings.noise) * self.generator.standard_normal(pixels.shape, np.float32)
        return _bytes(pixels)

    def _background(self, picture: Image) -> Image:
        """A part of a picture, larger than the frame by as much as it may move, and shrunk by up to 2."""
        wanted = np.array(self.settings.size) + 2 * _PAN
        extra = np.maximum(wanted - picture.size, 0)
        if extra.any():
            (left, top), (right, bottom) = extra // 2, extra - extra // 2
            picture = _picture(np.pad(np.asarray(picture), ((top, bottom), (left, right), (0, 0)), "symmetric"))
        shrink = self.generator.uniform(1, min(2, *(picture.size / wanted)))
        sides = shrink * wanted
        corner = self.generator.uniform(0, 1, 2) * (picture.size - sides)
        return _resized(picture, tuple(wanted), corner, np.minimum(corner + sides, picture.size))

    def _texture(self, picture: Image) -> tuple[Image, float]:
        """A square of a picture in the colours of the background, and the side in it of the object's box."""
        shortest, longest = self.motion.sizes.max(), _longest(picture.size)
        if self.motion.decoy is not None:
            shortest = max(shortest, self.motion.decoy[1].max())
        side = shortest * min(3, longest / shortest) ** self.generator.uniform()
        square = min(int(np.ceil(side * _MARGIN)), *picture.size)
        crops = []
        for _ in range(_CROPS):
            left, top = (int(self.generator.integers(0, length - square + 1)) for length in picture.size)
            crops.append(np.asarray(picture.crop((left, top, left + square, top + square)), np.float32))
        chosen = max(crops, key=lambda crop: float(np.abs(np.diff(crop, axis=0)).mean()))
        return _picture(_bytes(_likened(chosen, np.asarray(self.canvas, np.float32)))), side


class Sprite(NamedTuple):
    """A shape filled with a texture, in whose middle `side` pixels are the longer side of the shape's box."""

    shape: ObjectShape
    texture: Image
    side: float

    def draw(self, pixels: np.ndarray, centre: np.ndarray, size: float) -> None:
        """Draw it onto pixels [H, W, 3], with the centre of its box at a place and its longer side of a size."""
        half = np.array(self.shape.box) * size / 2
        (left, top), (right, bottom) = np.floor(centre - half - 1).astype(int), np.ceil(centre + half + 1).astype(int)
        ends = (np.array([[left, top], [right, bottom]]) - centre) * self.side / size + np.array(self.texture.size) / 2
        colours = np.asarray(_resized(self.texture, (right - left, bottom - top), *ends), np.float32)
        x, y = np.arange(left, right) + 0.5 - centre[0], np.arange(top, bottom) + 0.5 - centre[1]
        opacity = self.shape.opacity(x, y, size)[..., None]
        window = pixels[top:bottom, left:right]
        window += opacity * (colours - window)


def _likened(texture: np.ndarray, background: np.ndarray) -> np.ndarray:
    """A texture with mean and deviation of every channel moved towards those of a background."""
    mean, other = texture.mean((0, 1)), background.mean((0, 1))
    ratio = (background.std((0, 1)) + 1) / (texture.std((0, 1)) + 1)
    return np.asarray((texture - mean) * ratio.clip(0.5, 2) ** _LIKENESS + mean + _LIKENESS * (other - mean))


def _resized(picture: Image, size: tuple[int, int], start: np.ndarray, end: np.ndarray) -> Image:
    """The part of a picture between two corners, which are real numbers: cubic, with antialiasing."""
    from PIL import Image

    return picture.resize(size, Image.Resampling.BICUBIC, box=(*start.tolist(), *end.tolist()))


def _bytes(pixels: np.ndarray) -> np.ndarray:
    return np.asarray((pixels + 0.5).clip(0, 255.5).astype(np.uint8))


def _picture(pixels: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(pixels)
