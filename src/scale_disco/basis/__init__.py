"""Bases: one small stencil per scale."""

from .bspline import BSplineBasis
from .discrete import DiscreteBasis
from .fourier_bessel import FourierBesselBasis
from .hermite import HermiteBasis, hermite_mixing, hermite_mixing_preset
from .log_radial import LogRadialBasis
from .stencil import Basis, Stencil

__all__ = [
    "BSplineBasis",
    "Basis",
    "DiscreteBasis",
    "FourierBesselBasis",
    "HermiteBasis",
    "LogRadialBasis",
    "Stencil",
    "hermite_mixing",
    "hermite_mixing_preset",
]
