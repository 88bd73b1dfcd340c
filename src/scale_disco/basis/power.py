"""How much stencils amplify what runs through a deep network, for the scale of random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LAYERS = 10  # after which the correlation of features, and so the power, has settled
_PERIOD = {1: 256, 2: 64, 3: 32}  # pixels of the periodic grid that correlations live on, by spatial axes


def settled_power(stencils: Sequence[tuple[Tensor, int]]) -> float:
    """Power of a response to ReLU features of unit power, per unit of weight variance; the geometric mean over scales.

    With many channels and random weights, responses are Gaussian with a correlation over space; after a ReLU it is
    `R = (sqrt(1 - r^2) + r (pi - arccos r)) / pi` (Cho and Saul, 2009), and the next layer's correlation is R filtered
    by the spectrum of the stencils. Starting from white noise, this settles within a few layers. For pixels it is
    their number at once, He's rule; smooth functions amplify smooth features, so that theirs is larger.
    """
    return math.exp(sum(math.log(_scale_power(*stencil)) for stencil in stencils) / len(stencils))


def _scale_power(functions: Tensor, dilation: int) -> float:
    dims, side = functions.ndim - 1, functions.shape[-1]
    period = _PERIOD[dims]
    taps = torch.meshgrid(*[torch.arange(side) * dilation % period] * dims, indexing="ij")
    spectrum = torch.zeros([period] * dims, dtype=torch.float64)
    for function in functions:
        image = torch.zeros([period] * dims, dtype=torch.float64).index_put_(taps, function, accumulate=True)
        spectrum += torch.fft.fftn(image).abs().square()
    correlation = torch.zeros([period] * dims, dtype=torch.float64)
    correlation.view(-1)[0] = 1
    power = 0.0
    for _ in range(_LAYERS):
        response = torch.fft.ifftn(spectrum * torch.fft.fftn(correlation)).real
        power = float(response.view(-1)[0])
        if power == 0:
            raise ValueError("a basis whose functions vanish at a scale has no power to keep")
        r = (response / power).clamp(-1, 1)
        correlation = ((1 - r.square()).sqrt() + r * (math.pi - r.acos())) / math.pi
    return power
