"""Small networks for digits: those of Table 1 with a twentieth of the parameters, for experiments of a minute.

All have three 7x7 convolutions on the bases of the paper's networks, the same pools, and a linear classifier on the
largest response of each of 24 channels over scales and positions; only the kernels differ. Images [B, 1, H, W] may have
any size from 28 pixels.
"""

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from ...basis import Basis, HermiteBasis
from ...nn import ScaleAvgPool2d, ScaleBatchNorm2d, ScaleConv2d, ScaleLift2d, ScaleProject
from ..equivariance.bases import disco_basis
from .networks import setting


class LargestResponse(nn.Module):
    """Maximum of every channel: [B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((-2, -1))


def _network(basis: Basis | None) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise((1, 8, 16, 24)):
        conv = ScaleConv2d if layers else ScaleLift2d
        if layers:
            layers.append(nn.AvgPool2d(2) if basis is None else ScaleAvgPool2d(2))
        if basis is None:
            layers += [nn.Conv2d(before, after, 7, padding=3, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        else:
            layers += [conv(before, after, basis, bias=False), ScaleBatchNorm2d(after), nn.ReLU()]
    project = [] if basis is None else [ScaleProject("max")]
    return nn.Sequential(*layers, *project, LargestResponse(), nn.Linear(24, 10))


def cnn(*, augmented: bool = False) -> nn.Module:
    """Ordinary convolutions."""
    return _network(None)


def disco(*, augmented: bool = False) -> nn.Module:
    """DISCO: discrete scale convolutions."""
    return _network(disco_basis(setting(augmented)))


def sesn(*, augmented: bool = False) -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on Hermite functions."""
    return _network(HermiteBasis.preset(setting(augmented)))


BUILDERS: dict[str, Callable[..., nn.Module]] = {"digits/cnn": cnn, "digits/sesn-hermite": sesn, "digits/disco": disco}
