"""How large things look by classical means, to compare with: the energy of Laplacians of Gaussians of many widths."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...scales import Scales
from ..io.images import LUMA
from .networks import CELL, ScaleEstimator
from .readout import Absolute

# Deviations in pixels, over two octaves like the scales of the network; the mean of wider ones tells less of planes.
WIDTHS = Scales([0.5 * 2 ** (k / 4) for k in range(9)])
_TAPS = 3.5  # deviations on either side of the middle
_LEAST = 1e-6


class Energy(nn.Module):
    """Squares of Laplacians of Gaussians, normalised for scale, over cells: [B, 3, H, W] -> [B, 1, S, h, w].

    Waves of a length L answer most at the width L / 4.44, equally strongly for every L.

    Attributes:
        mark: Tells it from other networks.
        reach: Pixels around a place that its maps depend on.
    """

    luminance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mark = f"laplacian-{WIDTHS}"
        self.reach = math.ceil(_TAPS * WIDTHS[len(WIDTHS) - 1]) + CELL
        self.register_buffer("luminance", torch.tensor(LUMA)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        grey = (images * self.luminance).sum(1, keepdim=True)
        energies = [F.avg_pool2d(laplacian(grey, width).square(), CELL, ceil_mode=True) for width in WIDTHS]
        return torch.stack(energies, 2)


def laplacian(grey: Tensor, width: float) -> Tensor:
    """An image [B, 1, H, W], continued by its mirror images, through the Laplacian of a Gaussian times its variance."""
    radius = math.ceil(_TAPS * width)
    places = torch.arange(-radius, radius + 1, device=grey.device, dtype=grey.dtype)
    bell = torch.exp(-places.square() / (2 * width**2))
    bell = bell / bell.sum()
    bend = bell * (places.square() / width**2 - 1)
    bend = bend - bell * bend.sum()  # nothing of what is even, also with few taps
    bend = bend * (2 * width**2 / (bend * places.square()).sum())  # and of a parabola what the Gaussian gives
    down, across = (_mirrored(length, radius, grey.device) for length in grey.shape[2:])
    edged = grey[:, :, down][..., across]
    return _along(edged, bend, bell) + _along(edged, bell, bend)


def _along(image: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(image, down[None, None, :, None]), across[None, None, None])


def _mirrored(length: int, more: int, device: torch.device) -> Tensor:
    """Places of an axis that goes on at both ends by its mirror images."""
    places = torch.arange(-more, length + more, device=device) % (2 * length)
    return torch.minimum(places, 2 * length - 1 - places)


class PeakWidth(Absolute):
    """The width of the largest energy, refined by a parabola: the scale selection of Lindeberg."""

    def forward(self, profiles: Tensor) -> Tensor:
        energy = profiles[:, 0]
        best = energy.argmax(1).clamp(1, energy.shape[1] - 2)
        before, at, after = (energy.gather(1, (best + off)[:, None])[:, 0] for off in (-1, 0, 1))
        off = (after - before) / (2 * (2 * at - before - after)).clamp_min(_LEAST)
        return self.octaves[best] + self.step * off.clamp(-1, 1)


class MeanWidth(Absolute):
    """The mean of the widths in octaves, weighted by energy: photographs have no largest one, but less of the small."""

    def forward(self, profiles: Tensor) -> Tensor:
        energy = profiles[:, 0] + _LEAST
        return (energy * self.octaves).sum(1) / energy.sum(1)


READS: dict[str, type[Absolute]] = {"largest": PeakWidth, "mean": MeanWidth}


class Laplacian(ScaleEstimator):
    """How large things look by the energy of Laplacians: an estimator without anything to learn.

    Args:
        read: One of `READS`.

    Example:
        >>> waves = 127 + 100 * torch.sin(2 * torch.pi * torch.arange(96) / 4).expand(1, 3, 96, 96)
        >>> longer = 127 + 100 * torch.sin(2 * torch.pi * torch.arange(96) / 8).expand(1, 3, 96, 96)
        >>> estimator = Laplacian("largest")
        >>> round(estimator(longer).item() - estimator(waves).item())
        1
    """

    def __init__(self, read: str = "mean") -> None:
        super().__init__(Energy(), READS[read](1, WIDTHS))
        self.eval()
