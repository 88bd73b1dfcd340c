"""What moves in a synthetic sequence: a smooth shape, and its place and size in every frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KINDS = ("walk", "step", "static", "distractor")
SMALLEST = 20.0  # longer side of an object's box, in pixels
OCTAVES = 2.0  # at most, between the smallest and the largest size in a sequence
FASTEST = 0.1  # octaves from a frame to the next, where there is no step
JUMP = (0.25, 0.5)  # octaves of a step
APART = (0.5, 1.0)  # octaves between an object and its distractor
_PAUSE = (5, 12)  # frames between steps
_LARGEST = 0.45  # longer side of the largest box, as a share of the frame's height
_SPEED = 2.0  # pixels from a frame to the next along an axis, as a deviation
_EDGE = 2.0  # pixels between a box and the border of the frame
_INERTIA = {"place": 0.9, "size": 0.96}  # how much of its velocity a thing keeps from a frame to the next
_DIRECTIONS = 4096  # in which a shape is measured


class ObjectShape:
    """A curve around a point, of radius 1 + Re(sum_k waves[k] e^(ik angle)), scaled until its box's longer side is 1.

    Args:
        waves: Complex amplitudes of the waves with 1, 2, 3, ... crests around the curve.

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
        self.origin = -complex(left + right, top + bottom) / 2 * self.unit  # seen from the centre of the box

    def opacity(self, x: np.ndarray, y: np.ndarray, size: float) -> np.ndarray:
        """How much of the shape covers pixels, float32 [Y, X]: a ramp of one pixel across the curve, 1/2 on it.

        Args:
            x: Centres of the pixels of a row, seen from the centre of the box.
            y: Those of a column.
            size: Longer side of the box, in pixels.
        """
        places = (x + 1j * y[:, None]) / size - self.origin
        distance = np.abs(places)
        radius, slope = self._radius(places / np.maximum(distance, 1e-12))
        depth = (radius * self.unit - distance) / np.hypot(1, slope / radius)
        return np.asarray((depth * size + 0.5).clip(0, 1), np.float32)

    def _radius(self, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Radius before scaling in the directions e^(i angle), and its derivative by the angle."""
        power, radius, slope = np.ones_like(turn), np.ones(turn.shape), np.zeros(turn.shape)
        for crests, amplitude in enumerate(self.waves, 1):
            power = power * turn
            wave = amplitude * power
            radius += wave.real
            slope -= crests * wave.imag
        return radius, slope


def random_shape(generator: np.random.Generator) -> ObjectShape:
    """A shape with up to six crests, at most about twice as long as wide."""
    crests = np.arange(1, 7)
    strengths = generator.uniform(0, 1, len(crests)) / crests
    strengths *= generator.uniform(0.15, 0.5) / strengths.sum()
    return ObjectShape(strengths * np.exp(2j * np.pi * generator.uniform(0, 1, len(crests))))


class ObjectMotion(NamedTuple):
    """A shape, the centres [N, 2] of its boxes and their longer sides [N] in pixels; and those of a distractor."""

    shape: ObjectShape
    centres: np.ndarray
    sizes: np.ndarray
    decoy: tuple[np.ndarray, np.ndarray] | None

    def boxes(self) -> np.ndarray:
        """Boxes of the object, [N, 4]: x, y, w, h, where the frame's first pixel is from 0 to 1."""
        sides = self.sizes[:, None] * self.shape.box
        return np.concatenate([self.centres - sides / 2, sides], 1)


def largest_size(frame: tuple[int, int]) -> float:
    """The longer side that the box of an object may have in a frame of some width and height."""
    width, height = frame
    return _LARGEST * min(height, 0.75 * width)


def random_motion(
    kind: str, generator: np.random.Generator, frames: int, frame: tuple[int, int], largest: float
) -> ObjectMotion:
    """A motion of a kind.

    Args:
        kind: "walk" (the size drifts, by up to two octaves in all), "step" (now and then it jumps), "static", or
            "distractor": a walk or static, with a second object that is larger or smaller by the same factor throughout
            and keeps to the other half of the frame.
        generator: Of what is random.
        frames: How many.
        frame: Width and height.
        largest: Longer side that a box may have, for want of pixels of its texture; twice the smallest at least.
    """
    width, height = frame
    shape = random_shape(generator)
    room = math.log2(min(largest, largest_size(frame)) / SMALLEST)  # octaves
    if room < 1:
        raise ValueError(f"zoom: an object needs {2 * SMALLEST:g} pixels, got {largest:g} in a frame of {frame}")
    if kind != "distractor":
        sizes = _fitted(generator, _octaves(kind, generator, frames, min(room, OCTAVES)), room)
        return ObjectMotion(shape, _places(generator, shape, sizes, (0, width), height), sizes, None)
    apart = float(generator.uniform(APART[0], min(APART[1], room)))
    path = _octaves(str(generator.choice(["walk", "static"])), generator, frames, min(room - apart, OCTAVES))
    small = _fitted(generator, path, room - apart)
    large = small * 2**apart
    halves = [(0, width / 2), (width / 2, width)]
    ours = int(generator.integers(2))
    sizes, others = (small, large) if generator.integers(2) else (large, small)
    centres = _places(generator, shape, sizes, halves[ours], height)
    decoy = (_places(generator, shape, others, halves[1 - ours], height), others)
    return ObjectMotion(shape, centres, sizes, decoy)


def _octaves(kind: str, generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """Sizes of a motion in octaves above the smallest, [N]."""
    if kind == "static":
        return np.zeros(frames)
    path = _walk(generator, frames, room) if kind == "walk" else _steps(generator, frames, room)
    return np.asarray(path - path.min())


def _fitted(generator: np.random.Generator, octaves: np.ndarray, room: float) -> np.ndarray:
    """Sizes in pixels from those in octaves, somewhere in the room that there is."""
    return np.asarray(SMALLEST * 2 ** (octaves + generator.uniform(0, room - octaves.max())))


def _walk(generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """A smooth walk that covers half the room at least, unless it were too fast."""
    path = np.cumsum(_velocities(generator, frames, _INERTIA["size"]))
    span, fastest = np.ptp(path), np.abs(np.diff(path, prepend=path[:1])).max()
    wanted = generator.uniform(0.5, 1) * room
    return np.asarray(path * min(wanted / max(span, 1e-12), FASTEST / max(fastest, 1e-12)))


def _steps(generator: np.random.Generator, frames: int, room: float) -> np.ndarray:
    """Levels between 0 and the room of an octave or more, with jumps up or down wherever there is room for them."""
    levels = np.full(frames, generator.uniform(0, room))
    start = int(generator.integers(*_PAUSE))
    while start < frames:
        level, jump = levels[start], generator.uniform(*JUMP)
        ways = [way for way in (jump, -jump) if 0 <= level + way <= room]
        levels[start:] = level + generator.choice(ways)
        start += int(generator.integers(*_PAUSE))
    return levels


def _places(
    generator: np.random.Generator, shape: ObjectShape, sizes: np.ndarray, across: tuple[float, float], height: float
) -> np.ndarray:
    """Centres of boxes that stay inside a part of the frame, [N, 2]."""
    ways = []
    for (low, high), side in zip((across, (0, height)), shape.box, strict=True):
        margin = _EDGE + sizes.max() * side / 2
        ways.append(wander(generator, len(sizes), low + margin, high - margin, _SPEED))
    return np.stack(ways, 1)


def wander(generator: np.random.Generator, frames: int, low: float, high: float, speed: float) -> np.ndarray:
    """A smooth random walk between two walls that it bounces off, [N]; speed is a deviation per frame."""
    path = generator.uniform(0, high - low) + speed * np.cumsum(_velocities(generator, frames, _INERTIA["place"]))
    return np.asarray(low + np.abs((path + high - low) % (2 * (high - low)) - (high - low)))


def _velocities(generator: np.random.Generator, frames: int, inertia: float) -> np.ndarray:
    """Velocities of deviation 1 that change slowly, [N]."""
    kicks = generator.standard_normal(frames)
    for number in range(1, frames):
        kicks[number] = inertia * kicks[number - 1] + math.sqrt(1 - inertia**2) * kicks[number]
    return kicks
