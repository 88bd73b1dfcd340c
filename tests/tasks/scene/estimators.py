"""A small estimator of scale, and images whose scale fields are known."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIGMAS = [2 ** (k / 2) for k in range(8)]


class Waves(nn.Module):
    """Reads wavelengths: the scale at which the energy of a Laplacian of Gaussian is largest."""

    cell, window = 8, 64

    def __init__(self) -> None:
        super().__init__()
        self.reach = 4 * math.ceil(SIGMAS[-1]) + self.cell
        self.seen: list[tuple[int, ...]] = []

    def maps(self, images: Tensor) -> Tensor:
        self.seen.append(tuple(images.shape))
        gray, energies = images.mean(1, keepdim=True) / 255, []
        for sigma in SIGMAS:
            radius = math.ceil(4 * sigma)
            places = torch.arange(-radius, radius + 1, dtype=torch.float32)
            bell = torch.exp(-places.square() / (2 * sigma**2))
            bell = bell / bell.sum()
            bent = bell * (places.square() / sigma**2 - 1)
            bent = bent - bent.mean()
            edges = F.pad(gray, [radius] * 4, mode="replicate")
            parts = [self._along(edges, a, b) for a, b in ((bell, bent), (bent, bell))]
            energies.append(F.avg_pool2d(sum(parts).square(), self.cell, ceil_mode=True))
        return torch.stack(energies, 2)  # [B, 1, S, h, w]

    @staticmethod
    def _along(x: Tensor, down: Tensor, across: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, down[None, None, :, None]), across[None, None, None])

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        energy = profiles.mean(1)  # [N, S]
        shares = (energy / energy.sum(1, keepdim=True)) ** 4  # 0 / 0 for a constant image
        shares = shares / shares.sum(1, keepdim=True)
        octaves = (shares * torch.tensor(SIGMAS).log2()).sum(1)
        return octaves, shares.amax(1)


def chirp(height: int, width: int, octaves: float = 2.0) -> tuple[Tensor, Tensor]:
    """Waves that grow by some octaves from left to right, uint8 [3, H, W], and the octaves of every column, [W]."""
    truth = torch.linspace(0, octaves, width, dtype=torch.float64)
    phase = (2 * math.pi / (6 * 2**truth)).cumsum(0)
    down = torch.arange(height, dtype=torch.float64)[:, None]
    image = 127.5 + 100 * torch.sin(phase) * torch.cos(0.02 * down)
    return image.round().to(torch.uint8).expand(3, height, width).contiguous(), truth.float()
