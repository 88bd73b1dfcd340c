"""Objects of synthetic sequences: a smooth shape, and its position and size in every frame."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KINDS = ("walk", "step", "static", "distractor")
SMALLEST = 20.0  # longer side of a box, in pixels
OCTAVES = 2.0  # maximum between the smallest and the largest size in a sequence
FASTEST = 0.1  # octaves per frame, without steps
JUMP = (0.25, 0.5)  # octaves of a step
APART = (0.5, 1.0)  # octaves between an object and its distractor
_PAUSE = (5, 12)  # frames between steps
_LARGEST = 0.45  # longer side of a box, as a fraction of the frame's height
_SPEED = 2.0  # std of the velocity along an axis, in pixels per frame
_EDGE = 2.0  # pixels between a box and the border of the frame
_INERTIA = {"position": 0.9, "size": 0.96}  # correlation of velocities of subsequent frames
_DIRECTIONS = 4096  # in which a shape is measured


class ObjectShape:
    """A curve of radius 1 + Re(sum_k waves[k - 1] e^(ik angle)), k = 1, 2, ..., scaled to a box of longer side 1.

    Example:
        >>> circle = ObjectShape([])
        >>> circle.box
        (1.0, 1.0)
        >>> circle.opacity(np.array([0.0, 5.0, 9.0]), np.array([0.0]), 10)
        array([[1. , 0.5, 0. ]], dtype=float32)
    """

    def __init__(self, waves: Sequence[complex]) -> None:
        self.waves = tuple(waves)
        if not sum(map(abs, self.waves)) < 1:
            raise ValueError(f"ObjectShape: waves must have moduli that sum to less than 1, got {self.waves}")
        turn = np.exp(2j * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS)
        points = self._radius(turn)[0] * turn
        left, top = float(points.real.min()), float(points.imag.min())
        right, bottom = float(points.real.max()), float(points.imag.max())
        self.unit = 1 / max(right - left, bottom - top)
        self.box = ((right - left) * self.unit, (bottom - top) * self.unit)  # width and height
        self.origin = -complex(left + right, top + bottom) / 2 * self.unit  # relative to the center of the box

    def opacity(self, x: np.ndarray, y: np.ndarray, size: float) -> np.ndarray:
        """Return the coverage of pixels by the shape, float32 [Y, X]: a ramp of one pixel across the curve, 1/2 on it.

        Pixel centers x and y are relative to the center of the box, whose longer side has `size` pixels.
        """
        points = (x + 1j * y[:, None]) / size - self.origin
        distance = np.abs(points)
        radius, derivative = self._radius(points / np.maximum(distance, 1e-12))
        depth = (radius * self.unit - distance) / np.hypot(1, derivative / radius)
        return np.asarray((depth * size + 0.5).clip(0, 1), np.float32)

    def _radius(self, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the radius before scaling in the directions e^(i angle), and its derivative by the angle."""
        power, radius, derivative = np.ones_like(turn), np.ones(turn.shape), np.zeros(turn.shape)
        for crests, amplitude in enumerate(self.waves, 1):
            power = power * turn
            wave = amplitude * power
            radius += wave.real
            derivative -= crests * wave.imag
        return radius, derivative


def random_shape(generator: np.random.Generator) -> ObjectShape:
    """Return a shape with up to six crests, at most about twice as long as wide."""
    crests = np.arange(1, 7)
    amplitudes = generator.uniform(0, 1, len(crests)) / crests
    amplitudes *= generator.uniform(0.15, 0.5) / amplitudes.sum()
    return ObjectShape(amplitudes * np.exp(2j * np.pi * generator.uniform(0, 1, len(crests))))


class ObjectMotion(NamedTuple):
    """A shape, centers [N, 2] and longer sides [N] of its boxes in pixels, and those of a distractor."""

    shape: ObjectShape
    centers: np.ndarray
    sizes: np.ndarray
    distractor: tuple[np.ndarray, np.ndarray] | None

    def boxes(self) -> np.ndarray:
        """Return the boxes of the object x, y, w, h, [N, 4], where the first pixel of the frame is from 0 to 1."""
        sides = self.sizes[:, None] * self.shape.box
        return np.concatenate([self.centers - sides / 2, sides], 1)


def largest_size(frame: tuple[int, int]) -> float:
    """Return the maximum longer side of a box in a frame of this width and height."""
    width, height = frame
    return _LARGEST * min(height, 0.75 * width)


def random_motion(
    kind: str, generator: np.random.Generator, frames: int, frame: tuple[int, int], largest: float
) -> ObjectMotion:
    """Return a random motion over some frames of a width and height.

    Args:
        kind: "walk" (the size drifts, by up to two octaves in total), "step" (it jumps now and then), "static", or
            "distractor": walk or static, with a second object that is larger or smaller by a constant factor and stays
            in the other half of the frame.
        largest: Maximum longer side of a box, as the texture has no more pixels; at least twice the smallest.
    """
    width, height = frame
    shape = random_shape(generator)
    room = math.log2(min(largest, largest_size(frame)) / SMALLEST)  # octaves
    if room < 1:
        raise ValueError(f"zoom: an object needs {2 * SMALLEST:g} pixels, got {largest:g} in a frame of {frame}")
    if kind != "distractor":
        sizes = _sizes(kind, generator, frames, room)
        return ObjectMotion(shape, _centers(generator, shape, sizes, (0, width), height), sizes, None)
    apart = float(generator.uniform(APART[0], min(APART[1], room)))
    small = _sizes(str(generator.choice(["walk", "static"])), generator, frames, room - apart)
    large = small * 2**apart
    halves = [(0, width / 2), (width / 2, width)]
    half = int(generator.integers(2))
    sizes, others = (small, large) if generator.integers(2) else (large, small)
    centers = _centers(generator, shape, sizes, halves[half], height)
    distractor = (_centers(generator, shape, others, halves[1 - half], height), others)
    return ObjectMotion(shape, centers, sizes, distractor)


def _sizes(kind: str, generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """Return sizes in pixels, [N], within some octaves above the smallest."""
    octaves = np.zeros(frames)
    if kind != "static":
        octaves = (_walk if kind == "walk" else _steps)(generator, frames, min(room, OCTAVES))
        octaves = octaves - octaves.min()
    return np.asarray(SMALLEST * 2 ** (octaves + generator.uniform(0, room - octaves.max())))


def _walk(generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """Return a smooth walk over at least half of the room, unless that were too fast."""
    path = np.cumsum(_velocities(generator, frames, _INERTIA["size"]))
    span, fastest = np.ptp(path), np.abs(np.diff(path, prepend=path[:1])).max()
    wanted = generator.uniform(0.5, 1) * room
    return np.asarray(path * min(wanted / max(span, 1e-12), FASTEST / max(fastest, 1e-12)))


def _steps(generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """Return levels between 0 and the room (at least an octave) with random jumps up or down."""
    levels = np.full(frames, generator.uniform(0, room))
    start = int(generator.integers(*_PAUSE))
    while start < frames:
        level, jump = levels[start], generator.uniform(*JUMP)
        jumps = [change for change in (jump, -jump) if 0 <= level + change <= room]
        levels[start:] = level + generator.choice(jumps)
        start += int(generator.integers(*_PAUSE))
    return levels


def _centers(
    generator: np.random.Generator, shape: ObjectShape, sizes: np.ndarray, columns: tuple[float, float], height: float
) -> np.ndarray:
    """Return centers of boxes that stay inside a range of columns, [N, 2]."""
    paths = []
    for (low, high), side in zip((columns, (0, height)), shape.box, strict=True):
        margin = _EDGE + sizes.max() * side / 2
        paths.append(random_path(generator, len(sizes), low + margin, high - margin, _SPEED))
    return np.stack(paths, 1)


def random_path(generator: np.random.Generator, frames: int, low: float, high: float, speed: float) -> np.ndarray:
    """Return a smooth random walk reflected at two walls, [N]; `speed` is the std of the velocity per frame."""
    path = generator.uniform(0, high - low) + speed * np.cumsum(_velocities(generator, frames, _INERTIA["position"]))
    return np.asarray(low + np.abs((path + high - low) % (2 * (high - low)) - (high - low)))


def _velocities(generator: np.random.Generator, frames: int, inertia: float) -> np.ndarray:
    """Return slowly changing velocities of unit std, [N]."""
    velocities = generator.standard_normal(frames)
    for number in range(1, frames):
        velocities[number] = inertia * velocities[number - 1] + math.sqrt(1 - inertia**2) * velocities[number]
    return velocities
