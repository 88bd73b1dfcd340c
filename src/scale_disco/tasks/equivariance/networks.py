"""The equivariance error of the basis of a network."""

from torch import Tensor, nn

from ...equivariance import basis_error
from ...nn import ScaleLift2d
from ...nn.conv import ScaleConvolution
from ...scales import Scales
from ..baselines.dss import DilatedScaleConv2d


def error_of_layers(network: nn.Module, *, images: Tensor, scales: Scales, border: float) -> float | None:
    """Return Eq. 14 of a scale convolution with random weights on the network's basis.

    None for networks without such a basis, as in the paper's tables. `scales` replace those of a basis with as many,
    which may be rounded; `border` is that of `equivariance_error`.
    """
    layer = next((module for module in network.modules() if isinstance(module, ScaleConvolution)), None)
    if layer is None or type(layer) not in (ScaleLift2d, DilatedScaleConv2d):
        return None
    own = layer.basis.scales
    return basis_error(layer.basis, images, scales=scales if len(own) == len(scales) else own, border=border)
