"""Accurate scale-equivariant convolution for PyTorch (DISCO)."""

from .basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis, Stencil
from .basis.hermite import hermite_mixing, hermite_mixing_preset
from .convert import to_scale_equivariant
from .equivariance import assert_equivariant, equivariance_error
from .export import bake
from .resample import resample
from .scales import Scales

__version__ = "0.1.0"

__all__ = ["BSplineBasis", "Basis", "DiscreteBasis", "FourierBesselBasis", "HermiteBasis", "LogRadialBasis", "Scales"]
__all__ += ["Stencil", "assert_equivariant", "bake", "equivariance_error", "hermite_mixing", "hermite_mixing_preset"]
__all__ += ["resample", "to_scale_equivariant"]
