"""The equivariance error of the kernels of a trained network."""

from __future__ import annotations

from torch import Tensor, nn

from ...equivariance import basis_error
from ...nn import ScaleLift2d
from ...nn.conv import ScaleConvolution
from ...scales import Scales
from ..baselines.dss import DilatedScaleConv2d


def error_of_layers(network: nn.Module, *, images: Tensor, scales: Scales, border: float) -> float | None:
    """Eq. 14 of a scale convolution with random weights on the network's basis.

    None for networks whose layers are not of that kind, as in the paper's tables.

    Args:
        network: Of any kind.
        images: That it is measured on, [B, C, H, W].
        scales: For which a basis of as many scales stands: some hold rounded ones.
        border: Left out on each side, as in `equivariance_error`.
    """
    layers = [part for part in network.modules() if isinstance(part, ScaleConvolution)]
    if not layers or type(layers[0]) not in (ScaleLift2d, DilatedScaleConv2d):
        return None
    basis = layers[0].basis
    chosen = scales if len(basis.scales) == len(scales) else basis.scales
    return basis_error(basis, images, scales=chosen, border=border)
