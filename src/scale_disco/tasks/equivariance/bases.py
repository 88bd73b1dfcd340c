"""The bases that the paper compares, by experiment, and the equivariance error of that of a network."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis
from ...basis.hermite import hermite_mixing_preset
from ...equivariance import basis_error
from ...nn import ScaleLift2d
from ...nn.conv import ScaleConvolution
from ...scales import Scales
from ..baselines.dss import DilatedScaleConv2d

# Scales of MNIST-scale without and with scale augmentation, and of STL-10.
SETTINGS = {
    "mnist": Scales.geometric(2 ** (1 / 3), 4),
    "mnist+": Scales.geometric(2 ** (1 / 3), 4),
    "stl10": Scales.geometric(2**0.5, 3),
}
SAMPLED: dict[str, Callable[[str], Basis]] = {
    "Hermite": HermiteBasis.preset,
    "Fourier-Bessel": FourierBesselBasis.preset,
    "B-spline": BSplineBasis.preset,
    "log-radial": LogRadialBasis.preset,
}


def disco_basis(setting: str, **options: Any) -> Basis:
    """Return the basis of DISCO: Hermite functions on one kernel, mapped to the other scales by `DiscreteBasis`."""
    basis = DiscreteBasis(3 if setting == "stl10" else 7, SETTINGS[setting], **options)
    return basis.mix(hermite_mixing_preset(setting)).normalized()


def compared_bases(setting: str, **operator: Any) -> dict[str, Basis]:
    """Return the bases of a setting by name, the discrete ones mixed as in the authors' networks.

    `operator` is `mode` and `antialias` of the rescaling operator that discrete bases are solved for.

    Example:
        >>> list(compared_bases("stl10"))
        ['DISCO', 'DISCO, white-noise prior', 'Hermite']
    """
    if setting not in SETTINGS:
        raise ValueError(f"compared_bases: expected one of {', '.join(SETTINGS)}, got {setting!r}")
    priors = {"DISCO": "image", "DISCO, white-noise prior": "white"}
    bases = {name: disco_basis(setting, prior=prior, **operator) for name, prior in priors.items()}
    return bases | {name: SAMPLED[name](setting) for name in (["Hermite"] if setting == "stl10" else SAMPLED)}


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
