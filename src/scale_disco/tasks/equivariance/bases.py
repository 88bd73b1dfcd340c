"""The bases that the paper compares, by experiment."""

from __future__ import annotations

from typing import Any

from ...basis import (
    Basis,
    BSplineBasis,
    DiscreteBasis,
    FourierBesselBasis,
    HermiteBasis,
    LogRadialBasis,
    hermite_mixing_preset,
)
from ...scales import Scales

# Scales of MNIST-scale without and with scale augmentation, and of STL-10.
SETTINGS = {
    "mnist": Scales.geometric(2 ** (1 / 3), 4),
    "mnist+": Scales.geometric(2 ** (1 / 3), 4),
    "stl10": Scales.geometric(2**0.5, 3),
}


def compared_bases(setting: str, **operator: Any) -> dict[str, Basis]:
    """Return the bases of a setting by name, the discrete ones mixed as in the authors' networks.

    Args:
        setting: One of `SETTINGS`.
        operator: `mode` and `antialias` of the rescaling operator that discrete bases are solved for.

    Example:
        >>> list(compared_bases("stl10"))
        ['DISCO', 'DISCO, white-noise prior', 'Hermite']
    """
    if setting not in SETTINGS:
        raise ValueError(f"compared_bases: expected one of {', '.join(SETTINGS)}, got {setting!r}")

    def disco(prior: str) -> Basis:
        basis = DiscreteBasis(3 if setting == "stl10" else 7, SETTINGS[setting], prior=prior, **operator)
        return basis.mix(hermite_mixing_preset(setting)).normalized()

    bases = {
        "DISCO": disco("image"),
        "DISCO, white-noise prior": disco("white"),
        "Hermite": HermiteBasis.preset(setting),
    }
    if setting != "stl10":
        bases["Fourier-Bessel"] = FourierBesselBasis.preset(setting)
        bases["B-spline"] = BSplineBasis.preset(setting)
        bases["log-radial"] = LogRadialBasis.preset(setting)
    return bases
