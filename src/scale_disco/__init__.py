"""Accurate scale-equivariant convolution for PyTorch (DISCO)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis, Stencil
    from .basis.hermite import hermite_mixing, hermite_mixing_preset
    from .convert import to_scale_equivariant, with_scales
    from .equivariance import assert_equivariant, equivariance_error
    from .export import bake
    from .resampling import resample
    from .scales import Scales

__version__ = "0.2.0"

__all__ = ["BSplineBasis", "Basis", "DiscreteBasis", "FourierBesselBasis", "HermiteBasis", "LogRadialBasis", "Scales"]
__all__ += ["Stencil", "assert_equivariant", "bake", "equivariance_error", "hermite_mixing", "hermite_mixing_preset"]
__all__ += ["resample", "to_scale_equivariant", "with_scales"]

# Imported when asked for, so that `disco --help` does not wait for torch.
_MODULES = {
    "basis": (*__all__[:6], "Stencil", "hermite_mixing", "hermite_mixing_preset"),
    "convert": ("to_scale_equivariant", "with_scales"),
    "equivariance": ("assert_equivariant", "equivariance_error"),
    "export": ("bake",),
    "resampling": ("resample",),
    "scales": ("Scales",),
    **dict.fromkeys(("functional", "nn", "models", "hub", "fold", "tasks"), ()),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
