"""Textured slanted planes with their exact scale at every pixel, to measure scale fields on.

A pixel i covers the interval from i to i + 1, of a picture and of a texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...resample import resample_matrix
from ..io.textures import SourceImage, source_images, textures

SIDE = 256  # of a texture, in texels
EVEN = 0.5  # least evenness of a texture that planes are made of
STEEPEST = 16.0  # ratio of distances; its plane still covers the margin around the smallest picture
SMALLEST = 32  # side of a picture, in pixels
_LARGEST = 512  # side of a texture: its blurred copies take 300 MB at most
_PARTS = 4  # blocks along an axis of a texture
_MADE_FROM = 10_000  # number of the first made texture; those for training have lower ones
_TILE = 64  # pixels that share their number of samples
_MARGIN = 2  # pixels around a tile that its cubic filter reads
_SAMPLES = (3, 12)  # per pixel and axis
_FINER = 2  # samples per texel of a blurred copy
_SHARPEST = 0.3  # deviation of the least blur, in texels; less of it rings
_BLUR = 0.45  # deviation of the blur before sampling, in steps between samples


def texture_square(picture: np.ndarray, side: int = SIDE) -> np.ndarray:
    """The square of a picture most like a texture, [H, W, 3] -> [side, side, 3].

    Of the squares on a grid of sixteenths of their side it is the one whose weakest part has the largest contrast: the
    least deviation of brightness among four by four blocks is at its maximum. So no block is sky or an empty wall as
    long as that can be had. A smaller picture gives a square of its short side.

    Example:
        >>> picture = np.zeros((64, 128, 3), np.uint8)
        >>> picture[:, 64::2] = 255
        >>> float(texture_square(picture, 64).mean())
        127.5
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or min(picture.shape[:2]) < _PARTS:
        raise ValueError(
            f"texture_square: expected a picture [H, W, 3] of {_PARTS} pixels or more, got shape {picture.shape}"
        )
    if side < _PARTS:
        raise ValueError(f"texture_square: side must be at least {_PARTS} pixels, got {side}")
    side = min(side, *picture.shape[:2])
    tops, lefts = (np.arange(0, length - side + 1, max(side // 16, 1)) for length in picture.shape[:2])
    block = side // _PARTS
    contrasts = _block_contrasts(picture.mean(2), block)
    shifts = product(range(0, _PARTS * block, block), repeat=2)
    weakest = np.min([contrasts[np.ix_(tops + down, lefts + right)] for down, right in shifts], 0)
    row, column = np.unravel_index(weakest.argmax(), weakest.shape)
    return picture[tops[row] : tops[row] + side, lefts[column] : lefts[column] + side]


def evenness(square: np.ndarray) -> float:
    """Contrast of the weakest of a square's four by four blocks as a share of the whole square's: [S, S, 3] -> 0 to 1.

    Where it is small, a part of the square is empty, or its parts differ in brightness more than each varies in itself.
    """
    grey = square.mean(2)
    block = len(grey) // _PARTS
    weakest = _block_contrasts(grey, block)[::block, ::block][:_PARTS, :_PARTS].min()
    return float(weakest / max(float(grey.std()), 1e-9))


def _block_contrasts(grey: np.ndarray, block: int) -> np.ndarray:
    """Deviations of all square blocks of a picture, [H, W] -> [H - block + 1, W - block + 1]."""
    centred = grey - grey.mean()
    mean, square = (_block_sums(values, block) / block**2 for values in (centred, centred**2))
    return np.sqrt(np.maximum(square - mean**2, 0))


def _block_sums(values: np.ndarray, block: int) -> np.ndarray:
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return np.asarray(sums[block:, block:] - sums[:-block, block:] - sums[block:, :-block] + sums[:-block, :-block])


@dataclass(frozen=True)
class Plane:
    """A plane before a camera, and how a texture lies on it.

    The inverse of the distance is linear in the picture, w = 1 on its nearest corner or edge and 1 / ratio on its
    farthest. With q and r for the place in the picture along and across the tilt, from its middle, the texture is seen
    at (q / cos(slant), r) / w, turned, enlarged and shifted.

    Args:
        ratio: Distance of the farthest point in the picture over that of the nearest, from 1 (seen head-on) to 16.
        tilt: Direction in the picture in which the plane comes nearer, in radians; 0 is right, pi / 2 down.
        focal: Focal length, in widths of the picture.
        density: Texels per pixel at the nearest point, as the geometric mean over directions.
        turn: Of the texture in the plane, in radians.
        offset: Place in the texture, in texels, that is seen in the middle of the picture.
    """

    ratio: float
    tilt: float = math.pi / 2
    focal: float = 1.0
    density: float = 1.0
    turn: float = 0.0
    offset: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if not 1 <= self.ratio <= STEEPEST:
            raise ValueError(f"Plane: ratio must be from 1 to {STEEPEST:g}, got {self.ratio}")
        for name in ("focal", "density"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Plane: {name} must be a positive finite number, got {value}")
        angles = (self.tilt, self.turn, *self.offset)
        if not all(map(math.isfinite, angles)):
            raise ValueError(f"Plane: tilt, turn and offset must be finite, got {angles}")

    def homography(self, width: int, height: int) -> Tensor:
        """From a place (x, y, 1) in a picture to (u w, v w, w) of the texture, float64 [3, 3].

        Example:
            >>> plane = Plane(1.0, tilt=0.0, density=0.5, offset=(10, 20))
            >>> plane.homography(640, 480) @ torch.tensor([322.0, 240.0, 1.0], dtype=torch.float64)
            tensor([11., 20.,  1.], dtype=torch.float64)
        """
        right, down = math.cos(self.tilt), math.sin(self.tilt)
        reach = (abs(right) * width + abs(down) * height) / 2
        slope, middle = (1 - 1 / self.ratio) / (2 * reach), (1 + 1 / self.ratio) / 2  # w = slope q + middle
        stretch = math.hypot(1, slope * self.focal * width / middle)  # 1 / cos(slant)
        gain = self.density / math.sqrt(stretch * middle)  # makes the determinant the density's square
        c, s = gain * math.cos(self.turn), gain * math.sin(self.turn)
        u, v = self.offset
        laid = torch.tensor([[c, -s, u], [s, c, v], [0, 0, 1]], dtype=torch.float64)
        seen = torch.tensor([[stretch, 0, 0], [0, 1, 0], [slope, 0, middle]], dtype=torch.float64)
        tilted = torch.tensor([[right, down, 0], [-down, right, 0], [0, 0, 1]], dtype=torch.float64)
        tilted[:, 2] -= tilted[:, 0] * width / 2 + tilted[:, 1] * height / 2
        return laid @ seen @ tilted

    def octaves(self, width: int, height: int) -> Tensor:
        """Magnification of the texture at every pixel's centre, log2 of pixels per texel, float64 [H, W].

        It is the geometric mean over directions, -log2|det J| / 2 for the Jacobian J from picture to texture. That of a
        homography has the determinant det(H) / w^3, here density^2 / w^3.
        """
        x, y, one = self.homography(width, height)[2].tolist()
        nearness: Tensor = x * _centres(range(width)) + y * _centres(range(height))[:, None] + one
        return 1.5 * nearness.log2() - math.log2(self.density)


def draw_plane(generator: np.random.Generator) -> Plane:
    """A random plane: two to four octaves of scale in a picture, the texture enlarged at most twice."""
    uniform = generator.uniform
    return Plane(
        ratio=uniform(2.5, 6),
        tilt=uniform(0, 2 * math.pi),
        focal=uniform(0.8, 1.5),
        density=uniform(0.5, 1),
        turn=uniform(0, 2 * math.pi),
        offset=(uniform(0, 1000), uniform(0, 1000)),
    )


class Rendered(NamedTuple):
    """A picture, uint8 [3, H, W], and the magnification of its texture in octaves, float32 [H, W]."""

    image: Tensor
    octaves: Tensor


def render(texture: Tensor, plane: Plane, width: int = 640, height: int = 480) -> Rendered:
    """What a camera sees of a plane covered with a texture and its mirror images, antialiased.

    Tile by tile the plane is sampled, the more densely in a direction the more it is foreshortened there, from a copy
    of the texture blurred as the samples' distance asks for, and shrunk to pixels by the library's cubic filter.

    Args:
        texture: [3, h, w], from 0 to 255.
        plane: Where it is.
        width: Of the picture, in pixels.
        height: Of the picture.

    Example:
        >>> picture = render(torch.full((3, 64, 64), 200.0), Plane(4.0), 64, 32)
        >>> picture.image.unique(), picture.octaves[[0, -1], 0]
        (tensor([200], dtype=torch.uint8), tensor([-2.9009, -0.0255]))
    """
    _check(texture, width, height)
    matrix = plane.homography(width, height)
    stack = _Blurred(texture.float())
    image = torch.empty(3, height, width)
    for rows, columns in product(_tiles(height), _tiles(width)):
        image[:, rows.start : rows.stop, columns.start : columns.stop] = _tile(stack, matrix, rows, columns)
    return Rendered(image.round().clamp(0, 255).byte(), plane.octaves(width, height).float())


def _check(texture: Tensor, width: int, height: int) -> None:
    if texture.ndim != 3 or len(texture) != 3 or not all(_PARTS <= side <= _LARGEST for side in texture.shape[1:]):
        raise ValueError(
            f"render: expected a texture [3, h, w] of {_PARTS} to {_LARGEST} texels a side, got {tuple(texture.shape)}"
        )
    if min(width, height) < SMALLEST:
        raise ValueError(f"render: a picture needs sides of {SMALLEST} pixels at least, got {width} x {height}")


def _centres(pixels: range, samples: int = 1) -> Tensor:
    """Centres of pixels, or of equal parts of them, float64."""
    return pixels.start + (torch.arange(len(pixels) * samples, dtype=torch.float64) + 0.5) / samples


def _tiles(length: int) -> list[range]:
    return [range(start, min(start + _TILE, length)) for start in range(0, length, _TILE)]


class _Footprints(NamedTuple):
    """Where places of a picture are in a texture, and the lengths in texels of a pixel's step right and down there."""

    u: Tensor
    v: Tensor
    right: Tensor
    down: Tensor

    @classmethod
    def of(cls, matrix: Tensor, x: Tensor, y: Tensor) -> _Footprints:
        """For all places of columns x and rows y, each [Y, X]."""
        (ux, uy, u0), (vx, vy, v0), (wx, wy, w0) = matrix.tolist()
        y = y[:, None]
        inverse = 1 / (wx * x + wy * y + w0)
        u, v = (ux * x + uy * y + u0) * inverse, (vx * x + vy * y + v0) * inverse
        right = torch.hypot(ux - u * wx, vx - v * wx) * inverse
        down = torch.hypot(uy - u * wy, vy - v * wy) * inverse
        return cls(u, v, right, down)


def _tile(stack: _Blurred, matrix: Tensor, rows: range, columns: range) -> Tensor:
    """The pixels of a tile, [3, rows, columns]."""
    ny, nx = _samples(matrix, rows, columns)
    rows, columns = (range(part.start - _MARGIN, part.stop + _MARGIN) for part in (rows, columns))
    places = _Footprints.of(matrix, _centres(columns, nx), _centres(rows, ny))
    fine = stack.sample(places.u, places.v, _BLUR * torch.maximum(places.right / nx, places.down / ny))
    shrink_y, shrink_x = (
        resample_matrix(len(part) * count, 1 / count, antialias=True)[_MARGIN:-_MARGIN].float()
        for part, count in ((rows, ny), (columns, nx))
    )
    return shrink_y @ fine @ shrink_x.T


def _samples(matrix: Tensor, rows: range, columns: range) -> tuple[int, int]:
    """Samples per pixel down and right: half as far apart as the pixel's narrow side is wide, within bounds."""
    _, _, right, down = _Footprints.of(matrix, _centres(columns), _centres(rows))
    w = matrix[2, 0] * _centres(columns) + matrix[2, 1] * _centres(rows)[:, None] + matrix[2, 2]
    area, total = torch.linalg.det(matrix) / w**3, right**2 + down**2
    wide = ((total + (total**2 - 4 * area**2).clamp_min(0).sqrt()) / 2).sqrt()  # larger singular value of J
    narrow = area / wide
    fewest, most = _SAMPLES
    ny, nx = (min(max(math.ceil(2 * float((step / narrow).max())), fewest), most) for step in (down, right))
    return ny, nx


class _Blurred:
    """A texture and its mirror images, more and more blurred, to read at any place and blur.

    Mirrored, a texture is a sum of cosines: a blur multiplies each by a number, and a finer grid only evaluates them.
    Copies have twice the variance of the one before; between them variance is exact, as it is linear in the mixture.
    """

    def __init__(self, texture: Tensor) -> None:
        self.size = texture.shape[1:]
        self._texture = texture
        self._copies = texture.new_empty(3, 0, *(_FINER * side for side in self.size))

    def sample(self, u: Tensor, v: Tensor, deviation: Tensor) -> Tensor:
        """Colours [3, Y, X] at places u, v in texels, blurred by Gaussians of deviations in texels."""
        mantissa, exponent = torch.frexp((deviation.clamp(_SHARPEST, max(self.size)) / _SHARPEST).square())
        level = exponent - 2 + 2 * mantissa
        first, last = int(level.min()), int(level.max()) + 1
        copies = self._up_to(last)[:, first : last + 1]
        height, width = self.size
        deep = (2 * (level - first) + 1) / copies.shape[1] - 1
        places = torch.stack([_mirrored(u, width), _mirrored(v, height), deep], -1).float()[None, None]
        colours = F.grid_sample(copies[None], places, padding_mode="border", align_corners=False)
        return colours[0, :, 0]

    def _up_to(self, last: int) -> Tensor:
        """The copies, [3, L, 2 h, 2 w], with the one of number `last` among them."""
        have = self._copies.shape[1]
        new = [self._copy(number) for number in range(have, last + 1)]
        if new:
            self._copies = torch.cat([self._copies, torch.stack(new, 1)], 1)
        return self._copies

    def _copy(self, number: int) -> Tensor:
        down, across = (_blur_matrix(length, _SHARPEST * 2 ** (number / 2)) for length in self.size)
        return down @ self._texture @ across.T


def _mirrored(place: Tensor, length: int) -> Tensor:
    """Places of endless mirror images in the one texture, from -1 to 1."""
    return 1 - (torch.remainder(place / length, 2) - 1).abs() * 2


def _blur_matrix(length: int, deviation: float) -> Tensor:
    """Blurs and evaluates on the finer grid a mirrored axis, [2 length, length]."""
    waves = math.pi * torch.arange(length, dtype=torch.float64) / length
    analysis = torch.cos(waves[:, None] * _centres(range(length))) * 2 / length
    analysis[0] /= 2
    synthesis = torch.cos(_centres(range(length), _FINER)[:, None] * waves)
    return (synthesis @ (torch.exp(-((deviation * waves) ** 2) / 2)[:, None] * analysis)).float()


def planes(
    folder: Path | None, count: int, seed: int = 0, *, width: int = 640, height: int = 480
) -> Iterator[tuple[str, Rendered]]:
    """Random planes, rendered one by one, each with the name of its texture; photographs and made textures by turns.

    Squares too uneven to be a texture (`evenness` below 1/2) are passed over. Photographs come in random order, and
    again if there are too few. Made textures, noise with the spectrum of photographs and leaves, are others than those
    of `disco data zoom`. A plane depends on its number and the seed only.

    Args:
        folder: Of pictures, also in folders below; None for the bundled ones.
        count: How many planes.
        seed: Of everything random.
        width: Of the pictures, in pixels.
        height: Of the pictures.
    """
    if count < 1:
        raise ValueError(f"planes: count must be at least 1, got {count}")
    pictures = source_images(folder)
    mixed = [pictures[index] for index in np.random.default_rng(seed).permutation(len(pictures))]
    real = _endless(mixed, str(folder or "the bundled photographs"))
    made = _even_squares(textures(_MADE_FROM + count)[_MADE_FROM:])  # nine of ten are even, half of them are needed
    return islice(_rendered(cycle((real, made)), seed, width, height), count)


def _rendered(
    sources: Iterator[Iterator[tuple[str, np.ndarray]]], seed: int, width: int, height: int
) -> Iterator[tuple[str, Rendered]]:
    for number, source in enumerate(sources):
        name, square = next(source)
        plane = draw_plane(np.random.default_rng([seed, number]))
        yield name, render(torch.from_numpy(square).permute(2, 0, 1), plane, width, height)


def _even_squares(masters: list[SourceImage]) -> Iterator[tuple[str, np.ndarray]]:
    """Names and texture squares of the pictures that have one."""
    for master in masters:
        square = texture_square(np.array(master.read()))
        if evenness(square) >= EVEN:
            yield master.name, square


def _endless(masters: list[SourceImage], source: str) -> Iterator[tuple[str, np.ndarray]]:
    """Those squares round and round."""
    while True:
        found = False
        for named in _even_squares(masters):
            found = True
            yield named
        if not found:
            raise ValueError(f"planes: no picture of {source} has an even texture; give others, or more of them")
