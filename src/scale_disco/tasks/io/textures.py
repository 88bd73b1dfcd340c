"""Large pictures that synthetic sequences are cut from: photographs of a folder, bundled ones, and made textures."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...files import reason
from .photo import SUFFIXES, open_image
from .samples import photos

if TYPE_CHECKING:
    from PIL.Image import Image

PARTS = ("train", "test")
SHORTEST = 64  # side of a picture that an object can be cut from
_LONGEST = 1024  # larger pictures are shrunk to this
_TEST_SHARE = 0.25
_TEXTURE = 512  # side of a made texture
_NAMED = 3  # unreadable pictures that an error names

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Master:
    """A picture to cut from; those of one group are never divided between train and test.

    `mark` is the checksum of its pixels' source, `read` gives it in RGB.
    """

    name: str
    group: str
    size: tuple[int, int]
    mark: str
    made: bool
    read: Callable[[], Image] = field(compare=False, repr=False)


def split(masters: list[Master], part: str, large: Callable[[Master], bool]) -> list[Master]:
    """The masters of a part: a quarter of the groups is for the test, by the hash of their names.

    Large pictures, small ones and made textures are divided apart, so that both parts have each.

    Args:
        masters: Of both parts.
        part: "train" or "test".
        large: Whether a picture can be a background.
    """
    kinds: dict[tuple[bool, bool], set[str]] = {}
    big = {master.group for master in masters if large(master)}
    for master in masters:
        kinds.setdefault((master.made, master.group in big), set()).add(master.group)
    tested: set[str] = set()
    for groups in kinds.values():
        mixed = sorted(groups, key=lambda group: hashlib.sha256(group.encode()).digest())
        tested.update(mixed[: max(round(_TEST_SHARE * len(mixed)), min(1, len(mixed) - 1))])
    return [master for master in masters if (master.group in tested) == (part == "test")]


def photographs(folder: Path | None = None, progress: Progress | None = None) -> list[Master]:
    """The pictures of a folder and those below it, or the bundled ones.

    Pictures right in the folder are divided between train and test one by one; those of a folder in it, which may show
    the same thing, stay together. Of files with equal bytes one is used. Pictures too small to cut from are left out
    with a warning.
    """
    if folder is None:
        return _bundled()
    if not folder.is_dir():
        raise FileNotFoundError(f"zoom: no folder {folder} of pictures")
    paths = sorted(path for path in _below(folder) if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"zoom: no pictures in {folder} (looked for {', '.join(SUFFIXES)})")
    found: dict[str, Master] = {}
    unreadable, small = [], []
    for done, path in enumerate(paths, 1):
        name = path.relative_to(folder).as_posix()
        try:
            with path.open("rb") as file:
                mark = hashlib.file_digest(file, "sha256").hexdigest()
            size = _read(path).size if mark not in found else found[mark].size
        except (OSError, ValueError) as error:
            unreadable.append(f"{path} ({reason(error)})")
            continue
        if min(size) < SHORTEST:
            small.append(name)
        elif mark not in found:
            found[mark] = Master(name, name.split("/")[0], size, mark, False, partial(_read, path))
        if progress is not None:
            progress(done, len(paths))
    if unreadable:
        raise ValueError(f"zoom: cannot read {_some(unreadable)}; mend or remove them")
    if not found:
        raise ValueError(f"zoom: every picture in {folder} has a side of less than {SHORTEST} pixels; give larger ones")
    if small:
        warnings.warn(
            f"zoom: left out, with a side of less than {SHORTEST} pixels: {_some(small)} in {folder}", stacklevel=2
        )
    return list(found.values())


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _below(folder: Path) -> Iterator[Path]:
    """Files in a folder and below it, unless they are hidden."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            if path.is_dir():
                yield from _below(path)
            elif path.is_file():
                yield path


def _read(path: Path) -> Image:
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on odd metadata
        with open_image(path) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"more than 8 bits a pixel: mode {image.mode}")
            image.draft("RGB", (_LONGEST, _LONGEST))
            picture = ImageOps.exif_transpose(image).convert("RGB")
    picture.thumbnail((_LONGEST, _LONGEST), Image.Resampling.LANCZOS)
    return picture


def _bundled() -> list[Master]:
    masters = []
    for number, photo in enumerate(photos()[:, 0].mul(255).round().byte().numpy()):
        name, mark = f"photo-{number}", hashlib.sha256(photo.tobytes()).hexdigest()
        masters.append(Master(name, name, photo.shape[::-1], mark, False, partial(_grey, photo)))
    return masters


def _grey(photo: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(photo).convert("RGB")


def textures(count: int) -> list[Master]:
    """Made pictures: coloured noise, and leaves that cover each other; the same for a number at all times."""
    masters = []
    for number in range(count):
        kind = ("noise", "leaves")[number % 2]
        name, draw = f"{kind}-{number:04d}", {"noise": _noise, "leaves": _leaves}[kind]
        masters.append(Master(name, name, (_TEXTURE, _TEXTURE), "made", True, partial(_texture, draw, number)))
    return masters


def _texture(draw: Callable[[np.random.Generator], np.ndarray], number: int) -> Image:
    from PIL import Image

    picture = draw(np.random.default_rng([7, number]))
    return Image.fromarray(picture.round().clip(0, 255).astype(np.uint8))


def _noise(generator: np.random.Generator) -> np.ndarray:
    """Noise whose amplitude falls with frequency about as in photographs, float [H, W, 3]."""
    down, across = np.fft.fftfreq(_TEXTURE)[:, None], np.fft.rfftfreq(_TEXTURE)
    frequency = np.hypot(down, across)
    frequency[0, 0] = np.inf
    slopes = generator.uniform(0.8, 1.5)
    spectra = np.fft.rfft2(generator.standard_normal((3, _TEXTURE, _TEXTURE))) / frequency**slopes
    waves = np.fft.irfft2(spectra, (_TEXTURE, _TEXTURE)).transpose(1, 2, 0)
    waves = waves / waves.std((0, 1))
    mixing = np.array([1.0, 0.4, 0.2])[:, None] * generator.standard_normal((3, 3))
    mixing[0] = np.abs(mixing[0]) + 0.5  # brightness varies more than colour
    mixed = waves @ (mixing / np.linalg.norm(mixing, axis=0))
    return np.asarray(generator.uniform(80, 170, 3) + generator.uniform(30, 55) * mixed)


def _leaves(generator: np.random.Generator) -> np.ndarray:
    """Ellipses of all sizes on top of each other, with noise on them, float [H, W, 3]."""
    from PIL import Image, ImageDraw

    side = 2 * _TEXTURE  # shrunk in the end, for smooth edges
    shades = (int(generator.integers(4, 10)), 1)
    palette = generator.uniform(30, 225, shades) + generator.normal(0, 30, (*shades[:1], 3))
    canvas = Image.new("RGB", (side, side), tuple(int(value) for value in palette[0].clip(0, 255)))
    pen = ImageDraw.Draw(canvas)
    count = 700
    radii = np.sort(8 / np.sqrt(generator.uniform(0.006, 1, count)))[::-1]  # many small ones, few large ones
    for radius in radii:
        x, y = generator.uniform(0, side, 2)
        wide, high = radius * generator.uniform(0.6, 1.6, 2)
        colour = generator.choice(palette) + generator.normal(0, 12)
        pen.ellipse((x - wide, y - high, x + wide, y + high), fill=tuple(int(value) for value in colour.clip(0, 255)))
    smooth = np.asarray(canvas.resize((_TEXTURE, _TEXTURE), Image.Resampling.BOX), float)
    fine = _noise(generator)
    return np.asarray(smooth + generator.uniform(0.1, 0.4) * (fine - fine.mean((0, 1))))
