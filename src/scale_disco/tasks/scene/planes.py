"""Rendered textured planes with the exact scale of every pixel, to evaluate scale fields.

Pixel i of an image or a texture covers the interval from i to i + 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import check_positive
from ...resampling import resample_matrix
from ..io.textures import SourceImage, source_images, textures

SIDE = 256  # of a texture, in texels
EVEN = 0.5  # minimum evenness of a texture
STEEPEST = 16.0  # ratio of distances; such a plane still covers the margin around the smallest image
SMALLEST = 32  # side of an image, in pixels
_LARGEST = 512  # side of a texture: its blurred copies take 300 MB at most
_BLOCKS = 4  # blocks along an axis of a texture
_FIRST_SYNTHETIC = 10_000  # number of the first synthetic texture; those for training have lower ones
_TILE = 64  # side of a tile of pixels with the same number of samples
_MARGIN = 2  # pixels around a tile that the cubic filter reads
_SAMPLES = (3, 12)  # per pixel and axis
_FINER = 2  # samples per texel of a blurred copy
_SHARPEST = 0.3  # minimum std of the blur, in texels; less of it rings
_BLUR = 0.45  # std of the blur before sampling, in steps between samples


def texture_square(image: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Return the square of an image that is most like a texture, [H, W, 3] -> [side, side, 3].

    It maximizes the contrast of its weakest block: the minimum std of brightness over 4 x 4 blocks, among squares on a
    grid of sixteenths of their side. So no block is sky or an empty wall if that can be avoided. A smaller image gives
    a square of its shorter side.

    Example:
        >>> image = np.zeros((64, 128, 3), np.uint8)
        >>> image[:, 64::2] = 255
        >>> float(texture_square(image, 64).mean())
        127.5
    """
    if image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < _BLOCKS:
        raise ValueError(f"texture_square: expected an image [H, W, 3] of {_BLOCKS} pixels or more, got {image.shape}")
    if side < _BLOCKS:
        raise ValueError(f"texture_square: side must be at least {_BLOCKS} pixels, got {side}")
    side = min(side, *image.shape[:2])
    tops, lefts = (np.arange(0, length - side + 1, max(side // 16, 1)) for length in image.shape[:2])
    block = side // _BLOCKS
    contrasts = _block_contrasts(image.mean(2), block)
    shifts = product(range(0, _BLOCKS * block, block), repeat=2)
    weakest = np.min([contrasts[np.ix_(tops + down, lefts + right)] for down, right in shifts], 0)
    row, column = np.unravel_index(weakest.argmax(), weakest.shape)
    return image[tops[row] : tops[row] + side, lefts[column] : lefts[column] + side]


def evenness(square: np.ndarray) -> float:
    """Return the contrast of the weakest of 4 x 4 blocks over that of the whole square, [S, S, 3] -> 0 to 1.

    It is small if a block is empty, or if brightness differs more between blocks than within them.
    """
    gray = square.mean(2)
    block = len(gray) // _BLOCKS
    weakest = _block_contrasts(gray, block)[::block, ::block][:_BLOCKS, :_BLOCKS].min()
    return float(weakest / max(float(gray.std()), 1e-9))


def _block_contrasts(gray: np.ndarray, block: int) -> np.ndarray:
    """Return the std of all square blocks of an image, [H, W] -> [H - block + 1, W - block + 1]."""
    centered = gray - gray.mean()
    mean, square = (_block_sums(values, block) / block**2 for values in (centered, centered**2))
    return np.sqrt(np.maximum(square - mean**2, 0))


def _block_sums(values: np.ndarray, block: int) -> np.ndarray:
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return np.asarray(sums[block:, block:] - sums[:-block, block:] - sums[block:, :-block] + sums[:-block, :-block])


@dataclass(frozen=True)
class Plane:
    """A slanted plane in front of a camera, and the placement of a texture on it.

    The inverse distance w is linear in the image, 1 at the nearest corner or edge and 1 / ratio at the farthest. With q
    and r for the position along and across the tilt, from the center, a pixel shows the texture at (q / cos(slant), r)
    / w, rotated, scaled and shifted.
    """

    ratio: float  # distance of the farthest over that of the nearest point in the image; 1 is fronto-parallel
    tilt: float = math.pi / 2  # direction in the image in which the plane comes nearer; 0 is right, pi / 2 down
    focal: float = 1.0  # focal length, in widths of the image
    density: float = 1.0  # texels per pixel at the nearest point, geometric mean over directions
    turn: float = 0.0  # rotation of the texture in the plane, in radians
    offset: tuple[float, float] = (0.0, 0.0)  # position in the texture, in texels, at the center of the image

    def __post_init__(self) -> None:
        if not 1 <= self.ratio <= STEEPEST:
            raise ValueError(f"Plane: ratio must be from 1 to {STEEPEST:g}, got {self.ratio}")
        for name in ("focal", "density"):
            check_positive("Plane", name, getattr(self, name))
        angles = (self.tilt, self.turn, *self.offset)
        if not all(map(math.isfinite, angles)):
            raise ValueError(f"Plane: tilt, turn and offset must be finite, got {angles}")

    def homography(self, width: int, height: int) -> Tensor:
        """Return the map from (x, y, 1) in the image to (u w, v w, w) in the texture, float64 [3, 3].

        Example:
            >>> plane = Plane(1.0, tilt=0.0, density=0.5, offset=(10, 20))
            >>> plane.homography(640, 480) @ torch.tensor([322.0, 240.0, 1.0], dtype=torch.float64)
            tensor([11., 20.,  1.], dtype=torch.float64)
        """
        right, down = math.cos(self.tilt), math.sin(self.tilt)
        reach = (abs(right) * width + abs(down) * height) / 2
        rate, middle = (1 - 1 / self.ratio) / (2 * reach), (1 + 1 / self.ratio) / 2  # w = rate q + middle
        stretch = math.hypot(1, rate * self.focal * width / middle)  # 1 / cos(slant)
        gain = self.density / math.sqrt(stretch * middle)  # makes the determinant the density's square
        c, s = gain * math.cos(self.turn), gain * math.sin(self.turn)
        u, v = self.offset
        laid = torch.tensor([[c, -s, u], [s, c, v], [0, 0, 1]], dtype=torch.float64)
        seen = torch.tensor([[stretch, 0, 0], [0, 1, 0], [rate, 0, middle]], dtype=torch.float64)
        tilted = torch.tensor([[right, down, 0], [-down, right, 0], [0, 0, 1]], dtype=torch.float64)
        tilted[:, 2] -= tilted[:, 0] * width / 2 + tilted[:, 1] * height / 2
        return laid @ seen @ tilted

    def octaves(self, width: int, height: int) -> Tensor:
        """Return the magnification of the texture at every pixel, log2 of pixels per texel, float64 [H, W].

        It is the geometric mean over directions, -log2|det J| / 2 for the Jacobian J from image to texture. That of a
        homography has the determinant det(H) / w^3, here density^2 / w^3.
        """
        x, y, constant = self.homography(width, height)[2].tolist()
        nearness: Tensor = x * _centers(range(width)) + y * _centers(range(height))[:, None] + constant
        return 1.5 * nearness.log2() - math.log2(self.density)


def draw_plane(generator: np.random.Generator) -> Plane:
    """Draw a random plane with two to four octaves of scale, its texture magnified at most twice."""
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
    """An image, uint8 [3, H, W], and the magnification of its texture in octaves, float32 [H, W]."""

    image: Tensor
    octaves: Tensor


def render(texture: Tensor, plane: Plane, width: int = 640, height: int = 480) -> Rendered:
    """Render a plane covered with a texture [3, h, w] from 0 to 255 and its mirror images, antialiased.

    Every tile is supersampled, more densely in directions of more foreshortening, from a copy of the texture blurred
    according to the distance of samples, and downsampled with the library's cubic filter.

    Example:
        >>> rendered = render(torch.full((3, 64, 64), 200.0), Plane(4.0), 64, 32)
        >>> rendered.image.unique(), rendered.octaves[[0, -1], 0]
        (tensor([200], dtype=torch.uint8), tensor([-2.9009, -0.0255]))
    """
    if texture.ndim != 3 or len(texture) != 3 or not all(_BLOCKS <= side <= _LARGEST for side in texture.shape[1:]):
        rule = f"expected a texture [3, h, w] of {_BLOCKS} to {_LARGEST} texels a side"
        raise ValueError(f"render: {rule}, got {tuple(texture.shape)}")
    if min(width, height) < SMALLEST:
        raise ValueError(f"render: the sides of an image must be at least {SMALLEST} pixels, got {width} x {height}")
    matrix = plane.homography(width, height)
    stack = _Blurred(texture.float())
    image = torch.empty(3, height, width)
    for rows, columns in product(_tiles(height), _tiles(width)):
        image[:, rows.start : rows.stop, columns.start : columns.stop] = _tile(stack, matrix, rows, columns)
    return Rendered(image.round().clamp(0, 255).byte(), plane.octaves(width, height).float())


def _centers(pixels: range, samples: int = 1) -> Tensor:
    """Return the centers of pixels, or of equal fractions of them, float64."""
    return pixels.start + (torch.arange(len(pixels) * samples, dtype=torch.float64) + 0.5) / samples


def _tiles(length: int) -> list[range]:
    return [range(start, min(start + _TILE, length)) for start in range(0, length, _TILE)]


def _footprints(matrix: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return positions in the texture for all columns x and rows y, [Y, X] each: u and v.

    Then follow the lengths in texels of a step by one pixel right and down.
    """
    (ux, uy, u0), (vx, vy, v0), (wx, wy, w0) = matrix.tolist()
    y = y[:, None]
    inverse = 1 / (wx * x + wy * y + w0)
    u, v = (ux * x + uy * y + u0) * inverse, (vx * x + vy * y + v0) * inverse
    right = torch.hypot(ux - u * wx, vx - v * wx) * inverse
    down = torch.hypot(uy - u * wy, vy - v * wy) * inverse
    return u, v, right, down


def _tile(stack: "_Blurred", matrix: Tensor, rows: range, columns: range) -> Tensor:
    """Render a tile, [3, rows, columns]."""
    ny, nx = _samples(matrix, rows, columns)
    rows, columns = (range(pixels.start - _MARGIN, pixels.stop + _MARGIN) for pixels in (rows, columns))
    u, v, right, down = _footprints(matrix, _centers(columns, nx), _centers(rows, ny))
    fine = stack.sample(u, v, _BLUR * torch.maximum(right / nx, down / ny))
    shrink_y, shrink_x = (
        resample_matrix(len(pixels) * count, 1 / count, antialias=True)[_MARGIN:-_MARGIN].float()
        for pixels, count in ((rows, ny), (columns, nx))
    )
    return shrink_y @ fine @ shrink_x.T


def _samples(matrix: Tensor, rows: range, columns: range) -> tuple[int, int]:
    """Return the samples per pixel down and right: two per narrow width of the pixel's footprint, within bounds."""
    _, _, right, down = _footprints(matrix, _centers(columns), _centers(rows))
    w = matrix[2, 0] * _centers(columns) + matrix[2, 1] * _centers(rows)[:, None] + matrix[2, 2]
    area, total = torch.linalg.det(matrix) / w**3, right**2 + down**2
    wide = ((total + (total**2 - 4 * area**2).clamp_min(0).sqrt()) / 2).sqrt()  # larger singular value of J
    narrow = area / wide
    fewest, most = _SAMPLES
    ny, nx = (min(max(math.ceil(2 * float((step / narrow).max())), fewest), most) for step in (down, right))
    return ny, nx


class _Blurred:
    """A mirrored texture at several levels of blur, to sample at any position and blur.

    A mirrored texture is a sum of cosines: a blur scales each, and a finer grid only evaluates them. Each level has
    twice the variance of the one before; between levels the variance is exact, as it is linear in the mixture.
    """

    def __init__(self, texture: Tensor) -> None:
        self.texture, self.size = texture, texture.shape[1:]
        self.levels = texture.new_empty(3, 0, *(_FINER * side for side in self.size))  # [3, L, 2 h, 2 w]

    def sample(self, u: Tensor, v: Tensor, std: Tensor) -> Tensor:
        """Return colors [3, Y, X] at positions u, v, blurred by Gaussians, all in texels."""
        mantissa, exponent = torch.frexp((std.clamp(_SHARPEST, max(self.size)) / _SHARPEST).square())
        level = exponent - 2 + 2 * mantissa
        first, last = int(level.min()), int(level.max()) + 1
        for number in range(self.levels.shape[1], last + 1):
            down, across = (_blur_matrix(length, _SHARPEST * 2 ** (number / 2)) for length in self.size)
            self.levels = torch.cat([self.levels, (down @ self.texture @ across.T)[:, None]], 1)
        stack = self.levels[:, first : last + 1]
        height, width = self.size
        deep = (2 * (level - first) + 1) / stack.shape[1] - 1
        places = torch.stack([_mirrored(u, width), _mirrored(v, height), deep], -1).float()[None, None]
        return F.grid_sample(stack[None], places, padding_mode="border", align_corners=False)[0, :, 0]


def _mirrored(place: Tensor, length: int) -> Tensor:
    """Map positions in a mirrored texture to the texture, from -1 to 1."""
    return 1 - (torch.remainder(place / length, 2) - 1).abs() * 2


def _blur_matrix(length: int, std: float) -> Tensor:
    """Return the matrix that blurs a mirrored axis and evaluates it on the finer grid, [2 length, length]."""
    waves = math.pi * torch.arange(length, dtype=torch.float64) / length
    analysis = torch.cos(waves[:, None] * _centers(range(length))) * 2 / length
    analysis[0] /= 2
    synthesis = torch.cos(_centers(range(length), _FINER)[:, None] * waves)
    return (synthesis @ (torch.exp(-((std * waves) ** 2) / 2)[:, None] * analysis)).float()


def planes(
    folder: Path | None, count: int, seed: int = 0, *, width: int = 640, height: int = 480
) -> Iterator[tuple[str, Rendered]]:
    """Render random planes, each with the name of its texture, alternately from photos and synthetic textures.

    Uneven squares (`evenness` below 1/2) are skipped. Photos come in random order, repeatedly if there are too few.
    Synthetic textures, noise and leaves, differ from those of `disco data zoom`. A plane depends only on its number and
    the seed. Photos are those of a folder and its subfolders, or the bundled ones.
    """
    if count < 1:
        raise ValueError(f"planes: count must be at least 1, got {count}")
    photos = source_images(folder)
    shuffled = [photos[index] for index in np.random.default_rng(seed).permutation(len(photos))]
    repeated = _repeated_squares(shuffled, str(folder or "the bundled photos"))
    # nine of ten synthetic textures are even, half of them are needed
    synthetic = _even_squares(textures(_FIRST_SYNTHETIC + count)[_FIRST_SYNTHETIC:])

    def rendered() -> Iterator[tuple[str, Rendered]]:
        for number in range(count):
            name, square = next(synthetic if number % 2 else repeated)
            plane = draw_plane(np.random.default_rng([seed, number]))
            yield name, render(torch.from_numpy(square).permute(2, 0, 1), plane, width, height)

    return rendered()


def _even_squares(images: list[SourceImage]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and texture squares of the images that have an even one."""
    for image in images:
        square = texture_square(np.array(image.read()))
        if evenness(square) >= EVEN:
            yield image.name, square


def _repeated_squares(images: list[SourceImage], source: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield even squares repeatedly; raise ValueError if there are none."""
    while square := next(squares := _even_squares(images), None):
        yield square
        yield from squares
    raise ValueError(f"planes: no image of {source} has an even texture; use other or more images")
