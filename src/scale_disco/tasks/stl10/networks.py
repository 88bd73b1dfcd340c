"""The networks of Table 2: wide residual networks (Zagoruyko and Komodakis 2016), 11 million parameters each.

All are one skeleton of pre-activation blocks with other layers in it. They take images [B, 3, H, W] of any size, 96x96
in STL-10; the classifier sees means over all places. The paper's have a depth of 16 and a width of 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from ...basis import Basis, DiscreteBasis, HermiteBasis, hermite_mixing_preset
from ...checks import check_count
from ...nn import (
    ScaleAvgPool2d,
    ScaleBatchNorm2d,
    ScaleBlurPool2d,
    ScaleConv2d,
    ScaleLift2d,
    ScaleMaxPool2d,
    ScaleProject,
)
from ...nn.conv import ScaleConvolution
from ..baselines.dss import DilatedScaleConv2d, ScaleSpace
from ..baselines.si_convnet import RescalingConv2d
from ..baselines.sicnn import ColumnBatchNorm2d, ColumnConv2d, ColumnLift2d
from ..baselines.ss_cnn import SteerableConv2d, SteerableLift2d
from ..equivariance.bases import SETTINGS

_LAYOUTS = {"plain": "stl10", "projected": "stl10", "interscale": "stl10-c"}  # and the authors' Hermite functions
_MOST = 1000  # convolutions on a way, and times of the thinnest network; more is a mistake
_POOLS = ("stride", "max", "mean", "blur")


class BlockPosition(NamedTuple):
    """Where a block stands: in group 1, 2 or 3, and whether it is the first there."""

    group: int
    first: bool

    @property
    def stride(self) -> int:
        return 2 if self.first and self.group > 1 else 1


class WideResNetLayers:
    """What the skeleton is filled with; here ordinary convolutions, in subclasses those of the other networks."""

    channels = (16, 16, 32, 64)  # of the stem, and of the groups of a network of width 1

    def stem(self, channels: int) -> nn.Module:
        return self.conv(3, channels)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)

    def point(self, before: int, after: int, stride: int) -> nn.Module:
        return nn.Conv2d(before, after, 1, stride, bias=False)

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)

    def first(self, before: int, after: int, place: BlockPosition) -> nn.Module:
        """The first convolution of a block."""
        return self.conv(before, after, place.stride)

    def second(self, channels: int, place: BlockPosition) -> nn.Module:
        """The second one."""
        return self.conv(channels, channels)

    def shortcut(self, before: int, after: int, place: BlockPosition) -> nn.Module:
        """What a block adds to them."""
        return nn.Identity() if before == after else self.point(before, after, place.stride)

    def head(self, channels: int) -> list[nn.Module]:
        """From the last block to a number per channel."""
        return [self.norm(channels), nn.ReLU(), GlobalMean()]


class PreActBlock(nn.Module):
    """Two convolutions, each after a norm and ReLU, and a shortcut: the feature map of a place to that of the next.

    Where channels change, the shortcut starts behind the first norm and ReLU, elsewhere before them.
    """

    def __init__(self, layers: WideResNetLayers, before: int, after: int, place: BlockPosition, dropout: float) -> None:
        super().__init__()
        self.norm1, self.conv1 = layers.norm(before), layers.first(before, after, place)
        self.norm2, self.conv2 = layers.norm(after), layers.second(after, place)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(dropout)
        self.shortcut = layers.shortcut(before, after, place)
        self.widens = before != after

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.norm1(x))
        y = self.conv2(self.dropout(self.relu(self.norm2(self.conv1(active)))))
        out: Tensor = y + self.shortcut(active if self.widens else x)
        return out


class WideResNet(nn.Module):
    """The skeleton: stem, three groups of blocks, head and classifier, [B, 3, H, W] -> [B, classes].

    Args:
        layers: What it is filled with.
        depth: Convolutions on the longest way, 6n + 4: n blocks in each group.
        width: How many times the channels of the thinnest network.
        classes: Outputs.
        dropout: Part of the numbers that are dropped before the second convolution of a block.

    Example:
        >>> import torch
        >>> WideResNet(WideResNetLayers(), depth=10, width=1)(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, layers: WideResNetLayers, depth: int = 16, width: int = 8, classes: int = 10, dropout: float = 0.3
    ) -> None:
        super().__init__()
        if check_count("stl10", "depth", depth, 1) % 6 != 4 or depth < 10:
            raise ValueError(f"stl10: depth must be 6n + 4 such as 10, 16 or 22, got {depth}")
        if not 0 <= dropout < 1:
            raise ValueError(f"stl10: dropout must be from 0 to below 1, got {dropout!r}")
        check_count("stl10", "width", width, 1)
        if max(depth, width) > _MOST:
            raise ValueError(f"stl10: depth and width must be at most {_MOST:,}, got {depth} and {width}")
        thin, *groups = layers.channels
        channels = [thin, *(width * number for number in groups)]

        def group(index: int) -> nn.Sequential:
            before, after = channels[index - 1 : index + 1]
            blocks = [PreActBlock(layers, before, after, BlockPosition(index, True), dropout)]
            while len(blocks) < depth // 6:
                blocks.append(PreActBlock(layers, after, after, BlockPosition(index, False), dropout))
            return nn.Sequential(*blocks)

        self.stem = layers.stem(thin)
        self.group1, self.group2, self.group3 = map(group, (1, 2, 3))
        self.head = nn.Sequential(*layers.head(channels[-1]))
        self.classifier = nn.Linear(channels[-1], check_count("stl10", "classes", classes, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The authors' random weights: normal, of variance 2 over the weights per input channel (He, fan out)."""
        for part in self.modules():
            if isinstance(part, (nn.Conv2d, ScaleConvolution)):
                if isinstance(part, (DilatedScaleConv2d, SteerableLift2d)):
                    continue  # those have their own
                nn.init.normal_(part.weight, 0, math.sqrt(2 * part.in_channels / part.weight.numel()))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group3(self.group2(self.group1(self.stem(x))))
        y: Tensor = self.classifier(self.head(x))
        return y


class GlobalMean(nn.Module):
    """Means over all places: [B, C, ..., H, W] -> [B, C, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


class FirstScales(nn.Module):
    """The first `count` scales of a feature map [B, C, S, H, W]."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.count]

    def extra_repr(self) -> str:
        return str(self.count)


class Columns(WideResNetLayers):
    """SiCNN (Xu et al. 2014): three columns, each with the kernel and norms of its scale."""

    scales = (0.67, 1, 1.5)

    def stem(self, channels: int) -> nn.Module:
        return ColumnLift2d(3, channels, 3, self.scales)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return ColumnConv2d(before, after, 3, self.scales, stride)

    def point(self, before: int, after: int, stride: int) -> nn.Module:
        return ColumnConv2d(before, after, 1, self.scales, stride)

    def norm(self, channels: int) -> nn.Module:
        return ColumnBatchNorm2d(channels, len(self.scales))

    def head(self, channels: int) -> list[nn.Module]:
        return [*super().head(channels), ScaleProject("max")]


class Rescaling(WideResNetLayers):
    """SI-ConvNet (Kanazawa et al. 2014): ordinary convolutions of three rescaled inputs."""

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return RescalingConv2d(before, after, 3, (0.5, 1, 2), stride, padding=1, bias=False)


class Steerable(WideResNetLayers):
    """SS-CNN (Ghosh and Gupta 2019): steerable kernels, of three sizes in the stem and, as the authors', one behind."""

    channels = (11, 11, 22, 44)

    def stem(self, channels: int) -> nn.Module:
        return SteerableConv2d(3, channels, (3, 5, 7), reference=3)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return SteerableConv2d(before, after, (3,), reference=3, stride=stride)


class ScaleSpaces(WideResNetLayers):
    """DSS (Worrall and Welling 2019): four blurred images; the first two groups end with one scale less each.

    There the first convolution sees two neighbouring scales, for which channels are fewer in the second group.
    """

    channels = (16, 16, 30, 64)
    scales = (4, 3, 2, 2)  # behind the stem and the groups

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(ScaleSpace(self.scales[0]), self._conv(3, channels, self.scales[0]))

    def norm(self, channels: int) -> nn.Module:
        return ScaleBatchNorm2d(channels)

    def first(self, before: int, after: int, place: BlockPosition) -> nn.Module:
        scales = self.scales[place.group - place.first]
        return self._conv(before, after, scales, place.stride, 1 + scales - self.scales[place.group])

    def second(self, channels: int, place: BlockPosition) -> nn.Module:
        scales = self.scales[place.group]
        return nn.Sequential(FirstScales(scales), self._conv(channels, channels, scales))

    def shortcut(self, before: int, after: int, place: BlockPosition) -> nn.Module:
        scales = self.scales[place.group]
        if before == after:
            return FirstScales(scales)
        point = DilatedScaleConv2d(before, after, 1, scales, place.stride, init="delta")
        return nn.Sequential(FirstScales(scales), point)

    def head(self, channels: int) -> list[nn.Module]:
        return [self.norm(channels), nn.ReLU(), ScaleProject("max"), GlobalMean()]

    def _conv(self, before: int, after: int, scales: int, stride: int = 1, extent: int = 1) -> nn.Module:
        return DilatedScaleConv2d(before, after, 3, scales, stride, extent, init="delta")


class ScaleMaps(WideResNetLayers):
    """SESN and DISCO: scale convolutions on a basis.

    Args:
        basis: Stencils and scales.
        layout: Where scales meet. "plain": only at the end. "projected": also before the second and third group, by
            their maximum, which is lifted again. "interscale": in the first convolution of the first group, which
            sees two neighbouring scales.
        pools: How maps get smaller: by "stride" convolutions, or by the "max", "mean" or "blur" pools behind ones
            without stride.
    """

    def __init__(self, basis: Basis, layout: str, pools: str) -> None:
        for option, value, known in (("layout", layout, _LAYOUTS), ("pools", pools, _POOLS)):
            if value not in known:
                raise ValueError(f"stl10: {option} must be one of {', '.join(known)}, got {value!r}")
        self.basis, self.layout, self.pools = basis, layout, pools
        self.pixel = DiscreteBasis(1, basis.scales)

    def stem(self, channels: int) -> nn.Module:
        return ScaleLift2d(3, channels, self.basis, bias=False)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return ScaleConv2d(before, after, self.basis, stride, bias=False)

    def point(self, before: int, after: int, stride: int) -> nn.Module:
        conv = ScaleConv2d(before, after, self.pixel, self._stride(stride), bias=False)
        pools = self._pools(stride)
        # Means of maps commute with mixtures of channels: first the means, and there are fewer pixels to mix.
        return nn.Sequential(conv, *pools) if self.pools == "max" else nn.Sequential(*pools, conv)

    def norm(self, channels: int) -> nn.Module:
        return ScaleBatchNorm2d(channels)

    def first(self, before: int, after: int, place: BlockPosition) -> nn.Module:
        stride, pools = self._stride(place.stride), self._pools(place.stride)
        if self.layout == "projected" and place.stride > 1:
            lift = ScaleLift2d(before, after, self.basis, stride, bias=False)
            return nn.Sequential(ScaleProject("max"), lift, *pools)
        extent = 2 if self.layout == "interscale" and place == BlockPosition(1, True) else 1
        conv = ScaleConv2d(before, after, self.basis, stride, bias=False, scale_extent=extent)
        return nn.Sequential(conv, *pools)

    def head(self, channels: int) -> list[nn.Module]:
        return [ScaleProject("max"), nn.BatchNorm2d(channels), nn.ReLU(), GlobalMean()]

    def _stride(self, stride: int) -> int:
        return stride if self.pools == "stride" else 1

    def _pools(self, stride: int) -> list[nn.Module]:
        if stride == 1 or self.pools == "stride":
            return []
        if self.pools == "blur":
            return [ScaleBlurPool2d(self.basis.scales, stride)]
        return [ScaleMaxPool2d(stride) if self.pools == "max" else ScaleAvgPool2d(stride)]


def filled(
    layers: Callable[[], WideResNetLayers], *, depth: int = 16, width: int = 8, classes: int = 10, dropout: float = 0.3
) -> nn.Module:
    """The skeleton filled with layers that have no options."""
    return WideResNet(layers(), depth, width, classes, dropout)


def sesn(
    *, depth: int = 16, width: int = 8, classes: int = 10, dropout: float = 0.3, layout: str = "projected"
) -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on Hermite functions, with strides.

    Args:
        depth: As all up to `dropout` in `WideResNet`.
        width: Of the network.
        classes: Outputs.
        dropout: In the blocks.
        layout: As in `ScaleMaps`. "plain", "projected" and "interscale" are the authors' SESN-A, -B and -C.
    """
    basis = HermiteBasis.preset(_LAYOUTS.get(layout, "stl10"))
    return WideResNet(ScaleMaps(basis, layout, "stride"), depth, width, classes, dropout)


def disco(
    *,
    depth: int = 16,
    width: int = 8,
    classes: int = 10,
    dropout: float = 0.3,
    layout: str = "projected",
    pools: str = "max",
    support: int | None = 5,
    prior: str | float = "image",
    basis_steps: int | None = None,
) -> nn.Module:
    """DISCO: discrete scale convolutions at scales 1, sqrt 2 and 2, pools instead of strides.

    Args:
        depth: As all up to `dropout` in `WideResNet`.
        width: Of the network.
        classes: Outputs.
        dropout: In the blocks.
        layout: As in `ScaleMaps`; the authors' is "projected".
        pools: As in `ScaleMaps`. The authors take maxima; "mean" and "blur" keep more of the equivariance.
        support: As all below in `disco_basis`.
        prior: Images that the basis is optimal for.
        basis_steps: Steps of its descent.
    """
    basis = disco_basis(support=support, prior=prior, basis_steps=basis_steps)
    return WideResNet(ScaleMaps(basis, layout, pools), depth, width, classes, dropout)


def disco_basis(*, support: int | None = 5, prior: str | float = "image", basis_steps: int | None = None) -> Basis:
    """The kernels of DISCO: Hermite functions on 3x3 pixels, carried to the other scales by the discrete basis.

    Args:
        support: Side of the stencils at scale sqrt 2; the authors' is 5, and None lets the basis choose.
        prior: The images to be optimal for, as in `DiscreteBasis`: "image", "white" (the paper's) or a correlation.
        basis_steps: Stop the paper's gradient descent after so many steps (Table 3); by default the optimum.
    """
    solver = "exact" if basis_steps is None else "gradient"
    basis = DiscreteBasis(3, SETTINGS["stl10"], prior=prior, support=support, solver=solver, steps=basis_steps)
    return basis.mix(hermite_mixing_preset("stl10")).normalized()


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "stl10/wrn": partial(filled, WideResNetLayers),
    "stl10/sicnn": partial(filled, Columns),
    "stl10/si-convnet": partial(filled, Rescaling),
    "stl10/dss": partial(filled, ScaleSpaces),
    "stl10/ss-cnn": partial(filled, Steerable),
    "stl10/sesn-hermite": sesn,
    "stl10/disco": disco,
}
