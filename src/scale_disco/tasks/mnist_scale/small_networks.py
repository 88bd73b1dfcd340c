"""Small networks for digits: those of Table 1 with a twentieth of the parameters, for experiments of a minute.

All have three 7x7 convolutions on the bases of the paper's networks, the same pools, and a linear classifier on the
largest response of each of 24 channels over scales and positions; only the kernels differ. Images [B, 1, H, W] may have
any size from 28 pixels.
"""

from collections.abc import Callable, Collection, Sequence
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


def conv_layers(
    widths: Sequence[int], kernel_size: int, pooled: Collection[int], basis: Basis | None
) -> list[nn.Module]:
    """Return convolutions with norms and ReLUs, some pooled, and a projection; ordinary layers without a basis."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        if basis is None:
            conv: nn.Module = nn.Conv2d(before, after, kernel_size, padding=kernel_size // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        else:
            conv = (ScaleConv2d if index else ScaleLift2d)(before, after, basis, bias=False)
            layers += [conv, ScaleBatchNorm2d(after), nn.ReLU()]
        if index in pooled:
            layers.append(nn.AvgPool2d(2) if basis is None else ScaleAvgPool2d(2))
    return layers if basis is None else [*layers, ScaleProject("max")]


def _network(basis: Basis | None) -> nn.Module:
    return nn.Sequential(*conv_layers((1, 8, 16, 24), 7, (0, 1), basis), LargestResponse(), nn.Linear(24, 10))


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
