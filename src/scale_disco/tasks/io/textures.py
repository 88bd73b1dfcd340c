"""Large images that synthetic sequences are cut from: photos of a folder, bundled photos and synthetic textures."""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ...files import listed, reason
from .images import Image, find_images, load_rgb
from .progress import Progress, counter
from .samples import photos
from .weights import file_sha256

PARTS = ("train", "test")
SHORTEST = 64  # minimum side of an image, in pixels
_LONGEST = 1024  # larger images are shrunk to this
_TEST_FRACTION = 0.25
_TEXTURE = 512  # side of a synthetic texture
_ELLIPSES = 700  # in a texture of leaves


@dataclass(frozen=True)
class SourceImage:
    """An image to cut from. Images of one group are never split between train and test.

    `sha256` is the checksum of the pixels' source; `read` returns the image in RGB.
    """

    name: str
    group: str
    size: tuple[int, int]
    sha256: str
    synthetic: bool
    read: Callable[[], Image] = field(compare=False, repr=False)


def split(images: list[SourceImage], part: str, large: Callable[[SourceImage], bool]) -> list[SourceImage]:
    """Return the images of a part; a quarter of the groups, by the hash of their names, is for testing.

    Images large enough for a background, small ones and synthetic textures are split separately, so that both parts
    have some of each.
    """
    kinds: dict[tuple[bool, bool], set[str]] = {}
    large_groups = {image.group for image in images if large(image)}
    for image in images:
        kinds.setdefault((image.synthetic, image.group in large_groups), set()).add(image.group)
    tested: set[str] = set()
    for groups in kinds.values():
        shuffled = sorted(groups, key=lambda group: hashlib.sha256(group.encode()).digest())
        tested.update(shuffled[: max(round(_TEST_FRACTION * len(shuffled)), min(1, len(shuffled) - 1))])
    return [image for image in images if (image.group in tested) == (part == "test")]


def source_images(folder: Path | None = None, progress: Progress | None = None) -> list[SourceImage]:
    """Return the images in a folder and its subfolders, or the bundled photos.

    Every image directly in the folder is a group of its own; a subfolder, whose images may show the same thing, is one
    group. Duplicate files are used once. Images that are too small are skipped with a warning.
    """
    if folder is None:
        return _bundled()
    paths = find_images(folder, recursive=True)
    images: dict[str, SourceImage] = {}
    unreadable, small, count = [], [], counter(progress, len(paths))
    for path in paths:
        name = path.relative_to(folder).as_posix()
        try:
            sha256 = file_sha256(path)
            size = images[sha256].size if sha256 in images else _read(path).size
        except (OSError, ValueError) as error:
            unreadable.append(reason(error).removeprefix("cannot read "))
            continue
        count(1)
        if min(size) < SHORTEST:
            small.append(name)
        elif sha256 not in images:
            images[sha256] = SourceImage(name, name.split("/")[0], size, sha256, False, partial(_read, path))
    if unreadable:
        raise ValueError(f"zoom: cannot read {listed(unreadable)}; fix or remove them")
    if not images:
        raise ValueError(f"zoom: every image in {folder} has a side of less than {SHORTEST} pixels; use larger images")
    if small:
        skipped = f"{listed(small)} in {folder}"
        warnings.warn(f"zoom: skipped, with a side of less than {SHORTEST} pixels: {skipped}", stacklevel=2)
    return list(images.values())


def _read(path: Path) -> Image:
    from PIL import Image

    image = load_rgb(path, longest=_LONGEST)
    image.thumbnail((_LONGEST, _LONGEST), Image.Resampling.LANCZOS)
    return image


def _bundled() -> list[SourceImage]:
    images = []
    for number, photo in enumerate(photos()[:, 0].mul(255).round().byte().numpy()):
        name, sha256 = f"photo-{number}", hashlib.sha256(photo.tobytes()).hexdigest()
        images.append(SourceImage(name, name, photo.shape[::-1], sha256, False, partial(to_rgb, photo)))
    return images


def textures(count: int) -> list[SourceImage]:
    """Return synthetic images, alternately colored noise and overlapping leaves; the same ones for the same number."""
    images = []
    for number in range(count):
        kind, draw = (("noise", _noise), ("leaves", _leaves))[number % 2]
        name, read = f"{kind}-{number:04d}", partial(_texture, draw, number)
        images.append(SourceImage(name, name, (_TEXTURE, _TEXTURE), "made", True, read))
    return images


def _texture(draw: Callable[[np.random.Generator], np.ndarray], number: int) -> Image:
    return to_rgb(draw(np.random.default_rng([7, number])).round().clip(0, 255).astype(np.uint8))


def to_rgb(pixels: np.ndarray) -> Image:
    """Convert uint8 [H, W] or [H, W, 3] to a Pillow image in RGB."""
    from PIL import Image

    return Image.fromarray(pixels).convert("RGB")


def _noise(generator: np.random.Generator) -> np.ndarray:
    """Noise whose amplitude falls with frequency about as in photos, float [H, W, 3]."""
    frequency = np.hypot(np.fft.fftfreq(_TEXTURE)[:, None], np.fft.rfftfreq(_TEXTURE))
    frequency[0, 0] = np.inf
    exponent = generator.uniform(0.8, 1.5)
    spectra = np.fft.rfft2(generator.standard_normal((3, _TEXTURE, _TEXTURE))) / frequency**exponent
    waves = np.fft.irfft2(spectra, (_TEXTURE, _TEXTURE)).transpose(1, 2, 0)
    waves = waves / waves.std((0, 1))
    mixing = np.array([1.0, 0.4, 0.2])[:, None] * generator.standard_normal((3, 3))
    mixing[0] = np.abs(mixing[0]) + 0.5  # brightness varies more than color
    mixed = waves @ (mixing / np.linalg.norm(mixing, axis=0))
    return np.asarray(generator.uniform(80, 170, 3) + generator.uniform(30, 55) * mixed)


def _leaves(generator: np.random.Generator) -> np.ndarray:
    """Overlapping ellipses of all sizes with noise on them, float [H, W, 3]."""
    from PIL import Image, ImageDraw

    side = 2 * _TEXTURE  # shrunk at the end, for smooth edges
    shades = (int(generator.integers(4, 10)), 1)
    palette = generator.uniform(30, 225, shades) + generator.normal(0, 30, (*shades[:1], 3))
    canvas = Image.new("RGB", (side, side), _fill(palette[0]))
    pen = ImageDraw.Draw(canvas)
    radii = np.sort(8 / np.sqrt(generator.uniform(0.006, 1, _ELLIPSES)))[::-1]  # many small, few large
    for radius in radii:
        x, y = generator.uniform(0, side, 2)
        wide, high = radius * generator.uniform(0.6, 1.6, 2)
        color = generator.choice(palette) + generator.normal(0, 12)
        pen.ellipse((x - wide, y - high, x + wide, y + high), fill=_fill(color))
    smooth = np.asarray(canvas.resize((_TEXTURE, _TEXTURE), Image.Resampling.BOX), float)
    fine = _noise(generator)
    return np.asarray(smooth + generator.uniform(0.1, 0.4) * (fine - fine.mean((0, 1))))


def _fill(color: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in color.clip(0, 255))
