"""Classical estimate of apparent scale, as a baseline: the energy of Laplacians of Gaussians of many widths."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...scales import Scales
from ..io.images import luma, mirrored
from .networks import ScaleEstimator
from .options import CELL
from .readout import Absolute

# Standard deviations in pixels, over two octaves like the scales of the network; wider ones correlate less with planes.
WIDTHS = Scales([0.5 * 2 ** (k / 4) for k in range(9)])
_TAPS = 3.5  # radius of a filter, in standard deviations
_EPS = 1e-6


class Energy(nn.Module):
    """Mean squares of scale-normalized Laplacians of Gaussians over cells: [B, 3, H, W] -> [B, 1, S, h, w].

    A wave of length L has its largest response at width L / 4.44, of the same strength for every L.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = f"laplacian-{WIDTHS}"
        self.reach = math.ceil(_TAPS * WIDTHS[len(WIDTHS) - 1]) + CELL

    def forward(self, images: Tensor) -> Tensor:
        gray = luma(images)
        energies = [F.avg_pool2d(laplacian(gray, width).square(), CELL, ceil_mode=True) for width in WIDTHS]
        return torch.stack(energies, 2)


def laplacian(gray: Tensor, width: float) -> Tensor:
    """Filter images [B, 1, H, W], mirrored at the edges, by the Laplacian of a Gaussian times its variance."""
    radius = math.ceil(_TAPS * width)
    places = torch.arange(-radius, radius + 1, device=gray.device, dtype=gray.dtype)
    bell = torch.exp(-places.square() / (2 * width**2))
    bell = bell / bell.sum()
    bend = bell * (places.square() / width**2 - 1)
    bend = bend - bell * bend.sum()  # no response to a constant, even with few taps
    bend = bend * (2 * width**2 / (bend * places.square()).sum())  # and that of the Gaussian to a parabola
    down, across = (mirrored(length, radius, radius, gray.device) for length in gray.shape[2:])
    padded = gray[:, :, down][..., across]
    return _along(padded, bend, bell) + _along(padded, bell, bend)


def _along(image: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(image, down[None, None, :, None]), across[None, None, None])


class PeakWidth(Absolute):
    """The width of the largest energy, refined by a parabola: Lindeberg's scale selection."""

    def forward(self, profiles: Tensor) -> Tensor:
        energy = profiles[:, 0]
        best = energy.argmax(1).clamp(1, energy.shape[1] - 2)
        before, at, after = (energy.gather(1, (best + off)[:, None])[:, 0] for off in (-1, 0, 1))
        off = (after - before) / (2 * (2 * at - before - after)).clamp_min(_EPS)
        return self.octaves[best] + self.step * off.clamp(-1, 1)


class MeanWidth(Absolute):
    """The mean of widths in octaves, weighted by energy: the energy of photos often has no peak."""

    def forward(self, profiles: Tensor) -> Tensor:
        energy = profiles[:, 0] + _EPS
        return (energy * self.octaves).sum(1) / energy.sum(1)


READS: dict[str, type[Absolute]] = {"largest": PeakWidth, "mean": MeanWidth}


class Laplacian(ScaleEstimator):
    """Estimator of apparent scale by the energy of Laplacians, read by one of `READS`; without training.

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
