"""Small networks for digits: those of Table 1 at a twentieth of their size, for trials of a minute.

All have three 7x7 convolutions with the kernels of the paper's networks, the same pools and the same classifier on the
largest response, over scales and places, of each of 24 channels: only the kernels differ. Images [B, 1, H, W] may have
any size of at least 28 pixels.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ...basis import Basis, HermiteBasis
from ...nn import ScaleAvgPool2d, ScaleBatchNorm2d, ScaleConv2d, ScaleLift2d, ScaleProject
from .networks import disco_basis, setting

_CHANNELS = (8, 16, 24)


class LargestResponse(nn.Module):
    """The largest value of every channel: [B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((-2, -1))


def cnn(*, augmented: bool = False) -> nn.Module:
    """Ordinary convolutions."""
    layers: list[nn.Module] = []
    channels = 1
    for index, width in enumerate(_CHANNELS):
        layers += [nn.AvgPool2d(2)] if index else []
        layers += [nn.Conv2d(channels, width, 7, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, LargestResponse(), nn.Linear(channels, 10))


def disco(*, augmented: bool = False) -> nn.Module:
    """DISCO: discrete scale convolutions."""
    return _scale_equivariant(disco_basis(augmented=augmented))


def sesn(*, augmented: bool = False) -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on Hermite functions."""
    return _scale_equivariant(HermiteBasis.preset(setting(augmented)))


def _scale_equivariant(basis: Basis) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 1
    for index, width in enumerate(_CHANNELS):
        layers += [ScaleAvgPool2d(2)] if index else []
        layers.append((ScaleConv2d if index else ScaleLift2d)(channels, width, basis, bias=False))
        layers += [ScaleBatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, ScaleProject("max"), LargestResponse(), nn.Linear(channels, 10))


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "digits/cnn": cnn,
    "digits/sesn-hermite": sesn,
    "digits/disco": disco,
}
