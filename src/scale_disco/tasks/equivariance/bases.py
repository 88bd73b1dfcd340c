"""The bases that the paper compares, by experiment."""

from collections.abc import Callable
from typing import Any

from ...basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis
from ...basis.hermite import hermite_mixing_preset
from ...scales import Scales

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
