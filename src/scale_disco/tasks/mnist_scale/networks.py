"""The networks of Table 1: three 7x7 convolutions and two linear layers, about 495,000 parameters each.

All take images [B, 1, 28, 28] and upsample them by 2 before the first convolution. Pools come before norms. Larger
images work in multiples of 28 pixels: the windows of the last pool grow with them, so that its output is always 2x2.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import nn as snn
from ...basis import Basis
from ...convert import to_scale_equivariant
from ...fold import fold, unfold
from ...models.checkpoints import load_weights, read_checkpoint
from ...nn.conv import ScaleConvolution
from ...scales import Scales
from ..baselines.dss import DilatedScaleConv2d, ScaleSpace
from ..baselines.sevf import Magnitude, VectorBatchNorm2d, VectorConv2d, VectorLift2d, VectorMaxPool2d, longest
from ..baselines.si_convnet import RescalingConv2d
from ..baselines.sicnn import ColumnBatchNorm2d, ColumnConv2d, ColumnLift2d
from ..baselines.ss_cnn import SteerableConv2d
from ..equivariance.bases import SAMPLED, SETTINGS, disco_basis

_SIDE = 14  # of the feature maps before the last pool, for images of 28 pixels
_COLUMNS = Scales([0.3, 0.45, 0.67, 1, 1.49, 2.23, 3.33])  # of SiCNN and SI-ConvNet


class CornerMaxPool(nn.Module):
    """Max pooling to 2x2: [B, C, (S,) H, W] -> [B, C, (S,) 2, 2].

    H and W are 14 or a multiple of it. For 14, windows have 8 pixels and the padding is 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 5:
            return unfold(self.forward(fold(x)), x.shape[2])
        unit = _unit(self, x)
        return F.max_pool2d(x, 8 * unit, 8 * unit, 2 * unit)


class CornerMixedPool(nn.Module):
    """Average of overlapping max pools: [B, C, H, W] -> [B, C, 2, 2]. The last pool of DISCO.

    For H = W = 14, windows have 7 pixels; four neighboring windows are averaged in every corner.
    """

    def forward(self, x: Tensor) -> Tensor:
        unit = _unit(self, x)
        return F.avg_pool2d(F.max_pool2d(x, 7 * unit, unit), 2, 4)


class CornerVectorPool(nn.Module):
    """Longest vector in the windows of `CornerMaxPool`: [B, C, 2, H, W] -> [B, C, 2, 2, 2]."""

    def forward(self, x: Tensor) -> Tensor:
        unit = _unit(self, x)
        return longest(x, 8 * unit, 2 * unit)


class MultipleOfSide(nn.Module):
    """Bilinear interpolation of maps [B, C, S, H, W] to the nearest multiple of 14 pixels a side, if they have another.

    Enlarged images on the decimated grid have: 70, 88 and 110 pixels for 56.
    """

    def forward(self, x: Tensor) -> Tensor:
        side = _SIDE * max(1, round(x.shape[-1] / _SIDE))
        if x.shape[-2:] == (side, side):
            return x
        return unfold(F.interpolate(fold(x), (side, side), mode="bilinear"), x.shape[2])


class ClassifierAtEveryScale(nn.Module):
    """A classifier of maps that decides at every scale, and its decisions combined: [B, C, S, H, W] -> [B, K].

    Args:
        layers: Layers of the classifier of the maps of one scale, [B, C, H, W] -> [B, K].
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.classifier = nn.Sequential(*layers)
        self.decide = snn.ScaleDecision()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.decide(unfold(self.classifier(fold(x)), x.shape[2]))
        return logits


class UnusedNorm(nn.Module):
    """Parameters of a norm that the authors' network creates and never calls; the paper's table counts them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.unused = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _unit(pool: nn.Module, x: Tensor) -> int:
    height, width = x.shape[-2:]
    if height != width or height % _SIDE or not height:
        rule = f"square maps of a multiple of {_SIDE} pixels (images of a multiple of {2 * _SIDE})"
        raise ValueError(f"{type(pool).__name__}: expected {rule}, got {height}x{width}")
    return height // _SIDE


Conv = Callable[[int, int], nn.Module]
Layer = Callable[[int], nn.Module]


def _blocks(
    lift: Conv, conv: Conv, pool: Layer, norm: Layer, widths: Sequence[int] = (32, 63, 95)
) -> Iterator[nn.Module]:
    """Three blocks of convolution, ReLU, pool and norm."""
    for index, (before, after) in enumerate(pairwise((1, *widths))):
        yield from ((conv if index else lift)(before, after), nn.ReLU())
        yield from (CornerMaxPool() if index == 2 else pool(2), norm(after))


def _network(*features: nn.Module, channels: int = 95, bias: bool = False) -> nn.Sequential:
    """Features between the common upsampling and the common classifier."""
    return nn.Sequential(nn.Upsample(scale_factor=2), *features, *_classifier(channels, bias))


def _classifier(channels: int = 95, bias: bool = False) -> Iterator[nn.Module]:
    yield from (nn.Flatten(), nn.Linear(4 * channels, 256, bias=bias), nn.BatchNorm1d(256), nn.ReLU())
    yield from (nn.Dropout(0.7), nn.Linear(256, 10))


File = str | os.PathLike[str]  # of weights


def cnn(*, augmented: bool = False, pretrained: File | None = None, sha256: str | None = None) -> nn.Module:
    """Ordinary convolutions. `pretrained` is a file of weights of this network, `sha256` its checksum."""
    conv = partial(nn.Conv2d, kernel_size=7, padding=3)
    net = _network(*_blocks(conv, conv, nn.MaxPool2d, nn.BatchNorm2d))
    return _with_weights(net, "mnist/cnn", pretrained, sha256)


def disco(*, augmented: bool = False, pretrained: File | None = None, sha256: str | None = None) -> nn.Module:
    """DISCO: discrete scale convolutions, average pools instead of max pools. `pretrained`, `sha256`: as for `cnn`."""
    return _with_weights(_disco(augmented), "mnist/disco", pretrained, sha256)


def disco_decide(*, augmented: bool = False) -> nn.Module:
    """DISCO that classifies at every scale and combines the decisions, instead of projecting features."""
    return _disco(augmented, decide=True)


def _disco(augmented: bool, decide: bool = False) -> nn.Module:
    return _scale_equivariant(disco_basis(setting(augmented)), snn.ScaleAvgPool2d, CornerMixedPool, decide)


def _with_weights(net: nn.Module, who: str, pretrained: File | None, sha256: str | None) -> nn.Module:
    if pretrained is not None:
        load_weights(net, read_checkpoint(pretrained, sha256), who)
    elif sha256 is not None:
        raise ValueError(f"{who}: sha256 requires pretrained")
    return net


def decimated(*, augmented: bool = False, decide: bool = False) -> nn.Module:
    """Ordinary convolutions on the decimated grid, with the pools of DISCO; `decide` is as in `disco_decide`."""
    conv = partial(nn.Conv2d, kernel_size=7, padding=3)
    features = nn.Sequential(
        *(conv(1, 32), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(32)),
        *(conv(32, 63), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(63)),
        conv(63, 95),
    )
    scales, example = SETTINGS[setting(augmented)], torch.zeros(1, 1, 4 * _SIDE, 4 * _SIDE)
    maps = to_scale_equivariant(features, scales, grid="decimated", project=None, example=example)
    return nn.Sequential(nn.Upsample(scale_factor=2), maps, MultipleOfSide(), *_head(CornerMixedPool, decide))


def sesn(preset: Callable[[str], Basis], *, augmented: bool = False) -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on a sampled basis."""
    return _scale_equivariant(preset(setting(augmented)), snn.ScaleMaxPool2d, CornerMaxPool)


def sicnn(*, augmented: bool = False) -> nn.Module:
    """SiCNN (Xu et al. 2014): seven columns, each with the kernel and norms of its scale."""
    lift, conv = (partial(layer, kernel_size=7, scales=_COLUMNS) for layer in (ColumnLift2d, ColumnConv2d))
    norm = partial(ColumnBatchNorm2d, scales=len(_COLUMNS))
    return _network(*_blocks(lift, conv, snn.ScaleMaxPool2d, norm), snn.ScaleProject("max"))


def si_convnet(*, augmented: bool = False) -> nn.Module:
    """SI-ConvNet (Kanazawa et al. 2014): ordinary convolutions of the input at seven scales."""
    conv = partial(RescalingConv2d, kernel_size=7, scales=_COLUMNS, padding=3)
    return _network(*_blocks(conv, conv, nn.MaxPool2d, nn.BatchNorm2d))


def sevf(*, augmented: bool = False) -> nn.Module:
    """SEVF (Marcos et al. 2018): vector fields between the layers."""
    return _network(
        *(VectorLift2d(1, 23, 7), VectorMaxPool2d(2), VectorBatchNorm2d(23)),
        *(VectorConv2d(23, 45, 7), VectorMaxPool2d(2), VectorBatchNorm2d(45)),
        *(VectorConv2d(45, 68, 7), CornerVectorPool(), Magnitude()),
        channels=68,
        bias=True,
    )


def dss(*, augmented: bool = False) -> nn.Module:
    """DSS (Worrall and Welling 2019): a scale space of two scales, dilated convolutions."""
    conv = partial(DilatedScaleConv2d, kernel_size=7, scales=2)
    space = ScaleSpace(2, sigma=0.25)
    return _network(space, *_blocks(conv, conv, snn.ScaleMaxPool2d, snn.ScaleBatchNorm2d), snn.ScaleProject("max"))


def ss_cnn(*, augmented: bool = False) -> nn.Module:
    """SS-CNN (Ghosh and Gupta 2019): steerable kernels of six sizes."""
    conv = partial(SteerableConv2d, sizes=range(7, 18, 2), reference=11, orders=(0.5, 1, 2))
    blocks = _blocks(conv, conv, nn.MaxPool2d, nn.BatchNorm2d, (30, 60, 90))
    return _network(*blocks, UnusedNorm(90), channels=90, bias=True)


def setting(augmented: bool) -> str:
    """Return the preset of bases for training with or without scale augmentation."""
    return "mnist+" if augmented else "mnist"


def _scale_equivariant(
    basis: Basis, pool: type[snn.ScaleAvgPool2d | snn.ScaleMaxPool2d], last_pool: type[nn.Module], decide: bool = False
) -> nn.Module:
    net = nn.Sequential(
        nn.Upsample(scale_factor=2),
        *(snn.ScaleLift2d(1, 32, basis), nn.ReLU(), pool(2), snn.ScaleBatchNorm2d(32)),
        *(snn.ScaleConv2d(32, 63, basis), nn.ReLU(), pool(2), snn.ScaleBatchNorm2d(63)),
        *(snn.ScaleConv2d(63, 95, basis), *_head(last_pool, decide)),
    )
    for layer in net.modules():
        if isinstance(layer, ScaleConvolution):  # the authors initialize as torch does for convolutions
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.weight, -bound, bound)
    return net


def _head(last_pool: type[nn.Module], decide: bool) -> list[nn.Module]:
    """Layers behind the last convolution of networks with a scale axis: projection and classifier, or decisions."""
    layers = [nn.ReLU(), last_pool(), nn.BatchNorm2d(95), *_classifier()]
    return [ClassifierAtEveryScale(*layers)] if decide else [snn.ScaleProject("max"), *layers]


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mnist/cnn": cnn,
    "mnist/sicnn": sicnn,
    "mnist/si-convnet": si_convnet,
    "mnist/sevf": sevf,
    "mnist/dss": dss,
    "mnist/ss-cnn": ss_cnn,
    "mnist/sesn-hermite": partial(sesn, SAMPLED["Hermite"]),
    "mnist/sesn-bspline": partial(sesn, SAMPLED["B-spline"]),
    "mnist/sesn-fourier": partial(sesn, SAMPLED["Fourier-Bessel"]),
    "mnist/sesn-radial": partial(sesn, SAMPLED["log-radial"]),
    "mnist/disco": disco,
    "mnist/disco-decide": disco_decide,
    "mnist/decimated": decimated,
    "mnist/decimated-decide": partial(decimated, decide=True),
}
