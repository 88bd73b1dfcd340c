"""Relative scale of images: by how much larger the content of one looks than that of the others, without training.

Every image is seen at many scales, a quarter of an octave apart, by an ordinary network: the decimated grid. Its
responses at every scale are its scale profile. Content twice as large has the same profile an octave further along the
axis, so the relative scale of two images is the shift at which their profiles agree.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...convert import with_scales
from ...resampling import resample
from ..io.images import luma
from ..io.progress import Progress
from .networks import ScaleEstimator
from .readout import joint_octaves

SHORTEST = 48  # pixels: a smaller image has too few scales
_OCTAVE = 4  # scales per octave
_ENLARGED = 2  # scales at which an image is enlarged, if it is small
_SMALLEST = 24  # side of an image at its last scale, in pixels
_LARGEST = 320 * 320  # pixels of an image at its first scale
_FEWEST = 7  # scales of an image
_OVERLAP = 4  # minimum number of scales that two images are compared at
_WINDOWS = 2  # along each axis
_PLAIN = 1.0  # standard deviation of the luma, of 255, below which an image has no texture
_REPLICATES = 32  # of the bootstrap
_MISMATCH = 2.0  # octaves of uncertainty per mean square difference that remains; fits half of the KTH-TIPS materials
_EPS = 1e-6


class RelativeScale(NamedTuple):
    """Relative scale of N images, float64.

    `octaves` [N] and their `uncertainty` [N], a standard error, are relative to the first image: one octave more is
    twice as large. The uncertainty is infinite for an image that is beyond the range of all others. `pairs` [N, N] has
    the octaves of each image over each other one as measured, before the joint solution.
    """

    octaves: Tensor
    uncertainty: Tensor
    pairs: Tensor


def relative_scale(
    images: Sequence[Tensor], estimator: ScaleEstimator, *, progress: Progress | None = None
) -> RelativeScale:
    """Measure by how much larger the content of each image looks than that of the first.

    All pairs are compared, and the octaves that agree best with all pairs are returned, so that a chain of small
    differences supports a large one. The images may have different sizes; octaves refer to their pixels. Two images of
    one size may differ by about log2(side / 24) - 1/2 octaves, 2.5 for 200 pixels and 3.2 for 320 and more.

    Args:
        images: RGB from 0 to 255, uint8 or float [3, H, W] each.
        estimator: Such as `create_model("scene/shift")`; only its network is used.
        progress: Called with the number of images done and in total.

    Example:
        >>> from scale_disco.tasks.io.samples import photos
        >>> from scale_disco.tasks.scene.networks import create
        >>> lawn = 255 * photos()[5].expand(3, -1, -1)
        >>> half = resample(lawn[None], 1 / 2, antialias=True)[0]
        >>> round(relative_scale([half, lawn], create("shift")).octaves[1].item(), 1)
        1.0
    """
    if len(images) < 2:
        raise ValueError(f"relative_scale: expected two or more images, got {len(images)}")
    return compare_profiles(image_profiles(images, estimator, progress))


class ImageProfile(NamedTuple):
    """Mean responses of an image in windows, [C, S, W], from its `first` scale on, in quarters of an octave."""

    first: int
    responses: Tensor


@torch.no_grad()
def image_profiles(
    images: Sequence[Tensor], estimator: ScaleEstimator, progress: Progress | None = None
) -> list[ImageProfile]:
    """Return the scale profiles of images, at as many scales as their sizes allow; arguments as in `relative_scale`."""
    network, profiles = with_scales(estimator, [1]), []
    for index, image in enumerate(images):
        check_image(f"relative_scale: image {index}", image)
        height, width = image.shape[1:]
        last = math.floor(_OCTAVE * math.log2(min(height, width) / _SMALLEST))
        first = max(-_ENLARGED, math.ceil(_OCTAVE * math.log2(height * width / _LARGEST) / 2))
        responses = []
        for k in range(min(first, last + 1 - _FEWEST), last + 1):
            maps = network.maps(resample(image[None].float(), 2 ** (-k / _OCTAVE), antialias=True))
            responses.append(F.adaptive_avg_pool2d(maps[0, :, 0], _WINDOWS).flatten(1).cpu())
        profiles.append(ImageProfile(last + 1 - len(responses), torch.stack(responses, 1)))
        if progress is not None:
            progress(index + 1, len(images))
    return profiles


def compare_profiles(profiles: Sequence[ImageProfile]) -> RelativeScale:
    """Compare the scale profiles of two or more images; `relative_scale` of images."""
    windows = _normalized(profiles)
    pairs, residuals, inside = _compared(windows.mean(-1))
    octaves = _joint(pairs, residuals)
    generator = torch.Generator().manual_seed(0)
    replicates = [_joint(*_compared(_resampled(windows, generator))[:2]) for _ in range(_REPLICATES)]
    uncertainty = torch.hypot(torch.stack(replicates).std(0), _MISMATCH * residuals[0])
    known = inside.any(1)
    uncertainty[~(known & known[0])] = math.inf
    uncertainty[0] = 0.0
    return RelativeScale(octaves, uncertainty, pairs)


def check_image(name: str, image: Tensor) -> None:
    """Raise ValueError unless an image is [3, H, W], large enough, and has texture."""
    if image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(f"{name} must be [3, H, W], got shape {tuple(image.shape)}")
    height, width = image.shape[1:]
    if min(height, width) < SHORTEST:
        raise ValueError(f"{name} is too small: {width} x {height} pixels, needs {SHORTEST} each way")
    std = float(luma(image.float()).std())
    if not std >= _PLAIN:
        raise ValueError(f"{name} has no texture to compare: the standard deviation of its luma is {std:.2g} of 255")


def _normalized(profiles: Sequence[ImageProfile]) -> Tensor:
    """Divide channels by their mean over all images and take square roots, [N, C, S, W]; NaN where not seen."""
    start = min(each.first for each in profiles)
    end = max(each.first + each.responses.shape[1] for each in profiles)
    channels, _, windows = profiles[0].responses.shape
    stack = torch.full((len(profiles), channels, end - start, windows), math.nan)
    for index, (first, responses) in enumerate(profiles):
        stack[index, :, first - start : first - start + responses.shape[1]] = responses
    typical = stack.nanmean((0, 2, 3))[:, None, None] + _EPS
    return (stack / typical).clamp_min(0).sqrt() - 1


def _resampled(profiles: Tensor, generator: torch.Generator) -> Tensor:
    """Return a replicate of the bootstrap: channels and windows of each image drawn with replacement, [N, C, S]."""
    count, channels, _, windows = profiles.shape
    drawn = profiles[:, torch.randint(channels, (channels,), generator=generator)]
    each = torch.randint(windows, (count, windows), generator=generator)
    return torch.stack([image[..., index].mean(-1) for image, index in zip(drawn, each, strict=True)])


def _compared(profiles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the octaves of each image over each other one, what differs then, and whether the best shift is inside.

    All are [N, N]. At an end of the range of shifts, the best one may lie beyond.
    """
    costs = _costs(profiles)
    best = costs.argmin(-1, keepdim=True)  # never at an end, where fewer scales overlap than are needed
    before, at, after = (costs.gather(-1, best + off)[..., 0] for off in (-1, 0, 1))
    inside = before.isfinite() & after.isfinite() & ~torch.eye(len(costs), dtype=torch.bool)
    vertex = (before - after) / (2 * (before - 2 * at + after)).clamp_min(_EPS)  # of a parabola
    steps = best[..., 0] - costs.shape[-1] // 2 + vertex.clamp(-0.5, 0.5).where(inside, 0.0)
    return steps / _OCTAVE, at, inside


def _joint(pairs: Tensor, residuals: Tensor) -> Tensor:
    """Return the octaves over the first image that agree best with all pairs; those with small residuals count more."""
    others = ~torch.eye(len(pairs), dtype=torch.bool)
    typical = residuals[others].median() + _EPS
    octaves = joint_octaves(pairs, others * typical / (residuals + typical))
    return octaves - octaves[0]


def _costs(profiles: Tensor) -> Tensor:
    """Return the mean square difference of every two profiles for every shift, float64 [N, N, M]; infinite if unknown.

    Shift j - M // 2 compares scale k of the first with scale k - j + M // 2 of the second.
    """
    count, _, scales = profiles.shape
    seen = ~profiles[:, 0].isnan()
    points = profiles.nan_to_num().double().transpose(1, 2).flatten(0, 1)  # [N * S, C]
    squares = torch.cdist(points, points).square() / points.shape[1]
    squares = squares.reshape(count, scales, count, scales)
    both = seen[:, :, None, None] & seen
    costs = []
    for shift in range(1 - scales, scales):
        overlap = both.diagonal(-shift, 1, 3).sum(-1)
        sums = (squares * both).diagonal(-shift, 1, 3).sum(-1)
        costs.append((sums / overlap.clamp_min(1)).where(overlap >= _OVERLAP, math.inf))
    return torch.stack(costs, -1)
