"""The networks of STIR (Altstidl et al. 2022), which differ in what they do with scales.

All have two padded 7x7 convolutions of 16 and 32 channels, take the largest response of each channel over positions,
and classify it with a linear layer: 26,250 parameters. Scales are combined by a head: "project", the largest response
over positions and scales before the classifier, as in the paper; or "decide", the classifier at every scale and
`ScaleDecision` behind it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...basis import Basis, DiscreteBasis, HermiteBasis
from ...basis.hermite import hermite_mixing_preset
from ...checks import check_choice
from ...convert import to_scale_equivariant
from ...nn import ScaleConv2d, ScaleDecision, ScaleLift2d
from ...scales import Scales, as_scales
from ..mnist_scale.small_networks import LargestResponse
from .options import CUBE_ROOT, HEADS, SQUARE_ROOT

FULL, DECIMATED = Scales.geometric(CUBE_ROOT, 4), Scales.geometric(SQUARE_ROOT, 3)  # in training, one octave each
_KERNEL, _WIDTHS, _CLASSES, _SIDE = 7, (16, 32), 10, 64
_HERMITE: dict[str, Any] = {"base_scale": 1.5, "max_order": 4, "mult": 1.4}  # the authors' for MNIST-scale
_OCTAVES = (1, 2, 4, 8)


class ScaleHead(nn.Module):
    """Classify maps of several scales, [B, C, S, H, W] -> [B, K], by one of `HEADS`."""

    def __init__(self, head: str, channels: int = _WIDTHS[1], classes: int = _CLASSES) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)
        self.decide = ScaleDecision() if check_choice("generalization", "head", head, HEADS) == "decide" else None

    def forward(self, x: Tensor) -> Tensor:
        largest = x.amax((-2, -1))  # [B, C, S]
        if self.decide is None:
            logits: Tensor = self.linear(largest.amax(2))
            return logits
        decisions: Tensor = self.decide(self.linear(largest.transpose(1, 2)).transpose(1, 2))
        return decisions


def cnn() -> nn.Module:
    """Ordinary convolutions: "standard" in STIR."""
    first, second = _WIDTHS
    return nn.Sequential(
        *(nn.Conv2d(1, first, _KERNEL, padding=_KERNEL // 2), nn.ReLU()),
        *(nn.Conv2d(first, second, _KERNEL, padding=_KERNEL // 2), nn.ReLU()),
        *(LargestResponse(), nn.Linear(second, _CLASSES)),
    )


def ensemble() -> nn.Module:
    """The mean of the logits over an octave pyramid of four levels: "ensemble" in STIR."""
    return to_scale_equivariant(cnn(), _OCTAVES, grid="decimated", project="decision", reduce="mean")


def decimated(*, scales: Scales | Sequence[float] = DECIMATED, head: str = "decide") -> nn.Module:
    """Ordinary convolutions of the image shrunk by each scale."""
    decide, example = check_choice("generalization", "head", head, HEADS) == "decide", torch.zeros(1, 1, _SIDE, _SIDE)
    project, reduce = ("decision", "logsumexp") if decide else ("auto", "max")
    return to_scale_equivariant(cnn(), scales, grid="decimated", project=project, reduce=reduce, example=example)


def disco(*, scales: Scales | Sequence[float] = FULL, head: str = "decide") -> nn.Module:
    """DISCO: discrete scale convolutions on the full grid."""
    basis = DiscreteBasis(_KERNEL, as_scales(scales))
    return _scale_equivariant(basis.mix(hermite_mixing_preset("mnist")).normalized(), head)


def sesn(*, scales: Scales | Sequence[float] = FULL, head: str = "decide") -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on Hermite functions."""
    return _scale_equivariant(HermiteBasis(_KERNEL, as_scales(scales), **_HERMITE), head)


def _scale_equivariant(basis: Basis, head: str) -> nn.Module:
    first, second = _WIDTHS
    return nn.Sequential(
        *(ScaleLift2d(1, first, basis), nn.ReLU()),
        *(ScaleConv2d(first, second, basis), nn.ReLU()),
        ScaleHead(head),
    )


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "generalization/cnn": cnn,
    "generalization/ensemble": ensemble,
    "generalization/sesn-hermite": sesn,
    "generalization/disco": disco,
    "generalization/decimated": decimated,
}
