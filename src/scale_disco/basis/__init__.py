"""Bases: one small stencil per scale."""

from .discrete import DiscreteBasis
from .families import BSplineBasis, FourierBesselBasis, LogRadialBasis
from .hermite import HermiteBasis, hermite_mixing, hermite_mixing_preset
from .stencil import Basis, Stencil

__all__ = ["BSplineBasis", "Basis", "DiscreteBasis", "FourierBesselBasis", "HermiteBasis", "LogRadialBasis", "Stencil"]
__all__ += ["hermite_mixing", "hermite_mixing_preset"]
