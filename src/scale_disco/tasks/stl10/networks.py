"""The networks of Table 2: wide residual networks (Zagoruyko and Komodakis 2016), 11 million parameters each.

All share one skeleton of pre-activation blocks and differ in its layers. They take images [B, 3, H, W] of any size,
96x96 in STL-10, and end in global average pooling. Those of the paper have depth 16 and width 8.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from ... import nn as snn
from ...basis import Basis, DiscreteBasis, HermiteBasis
from ...checks import check_choice, check_count
from ...nn.conv import ScaleConvolution
from ..baselines.dss import DilatedScaleConv2d, ScaleSpace
from ..baselines.si_convnet import RescalingConv2d
from ..baselines.sicnn import ColumnBatchNorm2d, ColumnConv2d, ColumnLift2d
from ..baselines.ss_cnn import SteerableConv2d, SteerableLift2d
from ..equivariance import bases

_LAYOUTS = {"plain": "stl10", "projected": "stl10", "interscale": "stl10-c"}  # with the preset of the Hermite basis
_MAX_SIZE = 1000  # of depth and width; more is a mistake
_POOLS = ("stride", "max", "mean", "blur")


class BlockPosition(NamedTuple):
    """Position of a block: its group, 1 to 3, and whether it is the first of the group."""

    group: int
    first: bool

    @property
    def stride(self) -> int:
        return 2 if self.first and self.group > 1 else 1


class WideResNetLayers:
    """Factory of the layers in the skeleton: ordinary convolutions; subclasses have those of the other networks."""

    channels = (16, 16, 32, 64)  # of the stem and of the groups at width 1

    def stem(self, channels: int) -> nn.Module:
        return self.conv(3, channels)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)

    def pointwise(self, before: int, after: int, stride: int) -> nn.Module:
        return nn.Conv2d(before, after, 1, stride, bias=False)

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)

    def conv1(self, before: int, after: int, position: BlockPosition) -> nn.Module:
        return self.conv(before, after, position.stride)

    def conv2(self, channels: int, position: BlockPosition) -> nn.Module:
        return self.conv(channels, channels)

    def shortcut(self, before: int, after: int, position: BlockPosition) -> nn.Module:
        return nn.Identity() if before == after else self.pointwise(before, after, position.stride)

    def head(self, channels: int) -> list[nn.Module]:
        """Layers from the last block to a vector [B, C]."""
        return [self.norm(channels), nn.ReLU(), GlobalMean()]


class PreActBlock(nn.Module):
    """Pre-activation residual block: two convolutions, each after a norm and ReLU, and a shortcut.

    The shortcut starts after the first norm and ReLU where the number of channels changes, before them elsewhere.
    """

    def __init__(
        self, layers: WideResNetLayers, before: int, after: int, position: BlockPosition, dropout: float
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = layers.norm(before), layers.conv1(before, after, position)
        self.norm2, self.conv2 = layers.norm(after), layers.conv2(after, position)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(dropout)
        self.shortcut = layers.shortcut(before, after, position)
        self.widens = before != after

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.norm1(x))
        y = self.conv2(self.dropout(self.relu(self.norm2(self.conv1(active)))))
        out: Tensor = y + self.shortcut(active if self.widens else x)
        return out


class WideResNet(nn.Module):
    """The skeleton: stem, three groups of blocks, head and classifier, [B, 3, H, W] -> [B, classes].

    Args:
        layers: Factory of the layers.
        depth: Number of convolutions on the longest path, 6n + 4 for n blocks per group.
        width: Multiplier of the channels in the groups.
        classes: Number of classes.
        dropout: Dropout probability before the second convolution of a block.

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
        if max(depth, width) > _MAX_SIZE:
            raise ValueError(f"stl10: depth and width must be at most {_MAX_SIZE:,}, got {depth} and {width}")
        channels = [layers.channels[0], *(width * base for base in layers.channels[1:])]

        def group(index: int) -> nn.Sequential:
            before, after = channels[index - 1 : index + 1]
            blocks = (
                PreActBlock(layers, after if number else before, after, BlockPosition(index, not number), dropout)
                for number in range(depth // 6)
            )
            return nn.Sequential(*blocks)

        self.stem = layers.stem(channels[0])
        self.group1, self.group2, self.group3 = map(group, (1, 2, 3))
        self.head = nn.Sequential(*layers.head(channels[-1]))
        self.classifier = nn.Linear(channels[-1], check_count("stl10", "classes", classes, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the authors' random weights: He normal with fan-out."""
        own = (DilatedScaleConv2d, SteerableLift2d)  # initialized as their authors do
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, ScaleConvolution)) and not isinstance(layer, own):
                nn.init.normal_(layer.weight, 0, math.sqrt(2 * layer.in_channels / layer.weight.numel()))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group3(self.group2(self.group1(self.stem(x))))
        y: Tensor = self.classifier(self.head(x))
        return y


class GlobalMean(nn.Module):
    """Global average pooling: [B, C, ..., H, W] -> [B, C, ...]."""

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

    def pointwise(self, before: int, after: int, stride: int) -> nn.Module:
        return ColumnConv2d(before, after, 1, self.scales, stride)

    def norm(self, channels: int) -> nn.Module:
        return ColumnBatchNorm2d(channels, len(self.scales))

    def head(self, channels: int) -> list[nn.Module]:
        return [*super().head(channels), snn.ScaleProject("max")]


class Rescaling(WideResNetLayers):
    """SI-ConvNet (Kanazawa et al. 2014): ordinary convolutions of the input at three scales."""

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return RescalingConv2d(before, after, 3, (0.5, 1, 2), stride, padding=1, bias=False)


class Steerable(WideResNetLayers):
    """SS-CNN (Ghosh and Gupta 2019): steerable kernels, of three sizes in the stem and one size elsewhere."""

    channels = (11, 11, 22, 44)

    def stem(self, channels: int) -> nn.Module:
        return SteerableConv2d(3, channels, (3, 5, 7), reference=3)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return SteerableConv2d(before, after, (3,), reference=3, stride=stride)


class ScaleSpaces(WideResNetLayers):
    """DSS (Worrall and Welling 2019): a scale space of four scales, of which the first two groups remove one each.

    Their first convolution has scale extent 2; fewer channels in the second group make up for its parameters.
    """

    channels = (16, 16, 30, 64)
    scales = (4, 3, 2, 2)  # after the stem and the groups

    def stem(self, channels: int) -> nn.Module:
        return nn.Sequential(ScaleSpace(self.scales[0]), self._conv(3, channels, self.scales[0]))

    def norm(self, channels: int) -> nn.Module:
        return snn.ScaleBatchNorm2d(channels)

    def conv1(self, before: int, after: int, position: BlockPosition) -> nn.Module:
        scales = self.scales[position.group - position.first]
        return self._conv(before, after, scales, position.stride, 1 + scales - self.scales[position.group])

    def conv2(self, channels: int, position: BlockPosition) -> nn.Module:
        scales = self.scales[position.group]
        return nn.Sequential(FirstScales(scales), self._conv(channels, channels, scales))

    def shortcut(self, before: int, after: int, position: BlockPosition) -> nn.Module:
        scales = self.scales[position.group]
        if before == after:
            return FirstScales(scales)
        pointwise = DilatedScaleConv2d(before, after, 1, scales, position.stride, init="delta")
        return nn.Sequential(FirstScales(scales), pointwise)

    def head(self, channels: int) -> list[nn.Module]:
        return [self.norm(channels), nn.ReLU(), snn.ScaleProject("max"), GlobalMean()]

    def _conv(self, before: int, after: int, scales: int, stride: int = 1, extent: int = 1) -> nn.Module:
        return DilatedScaleConv2d(before, after, 3, scales, stride, extent, init="delta")


class ScaleMaps(WideResNetLayers):
    """SESN and DISCO: scale convolutions on a basis.

    Args:
        basis: Stencils and scales.
        layout: Where scales interact. "plain": only in the head. "projected": also before the second and third group,
            by a maximum over scales that is lifted again. "interscale": in the first convolution of the first group,
            of scale extent 2.
        pools: Downsampling with "stride" in convolutions, or with "max", "mean" or "blur" pools after them.
    """

    def __init__(self, basis: Basis, layout: str, pools: str) -> None:
        self.basis = basis
        self.layout = check_choice("stl10", "layout", layout, _LAYOUTS)
        self.pools = check_choice("stl10", "pools", pools, _POOLS)
        self.pixel = DiscreteBasis(1, basis.scales)

    def stem(self, channels: int) -> nn.Module:
        return snn.ScaleLift2d(3, channels, self.basis, bias=False)

    def conv(self, before: int, after: int, stride: int = 1) -> nn.Module:
        return snn.ScaleConv2d(before, after, self.basis, stride, bias=False)

    def pointwise(self, before: int, after: int, stride: int) -> nn.Module:
        conv = snn.ScaleConv2d(before, after, self.pixel, self._stride(stride), bias=False)
        pools = self._pools(stride)
        # Averages commute with pointwise convolutions, and fewer pixels are left to convolve after them.
        return nn.Sequential(conv, *pools) if self.pools == "max" else nn.Sequential(*pools, conv)

    def norm(self, channels: int) -> nn.Module:
        return snn.ScaleBatchNorm2d(channels)

    def conv1(self, before: int, after: int, position: BlockPosition) -> nn.Module:
        stride, pools = self._stride(position.stride), self._pools(position.stride)
        if self.layout == "projected" and position.stride > 1:
            lift = snn.ScaleLift2d(before, after, self.basis, stride, bias=False)
            return nn.Sequential(snn.ScaleProject("max"), lift, *pools)
        extent = 2 if self.layout == "interscale" and position == BlockPosition(1, True) else 1
        conv = snn.ScaleConv2d(before, after, self.basis, stride, bias=False, scale_extent=extent)
        return nn.Sequential(conv, *pools)

    def head(self, channels: int) -> list[nn.Module]:
        return [snn.ScaleProject("max"), nn.BatchNorm2d(channels), nn.ReLU(), GlobalMean()]

    def _stride(self, stride: int) -> int:
        return stride if self.pools == "stride" else 1

    def _pools(self, stride: int) -> list[nn.Module]:
        if stride == 1 or self.pools == "stride":
            return []
        if self.pools == "blur":
            return [snn.ScaleBlurPool2d(self.basis.scales, stride)]
        return [snn.ScaleMaxPool2d(stride) if self.pools == "max" else snn.ScaleAvgPool2d(stride)]


def sesn(
    *, depth: int = 16, width: int = 8, classes: int = 10, dropout: float = 0.3, layout: str = "projected"
) -> nn.Module:
    """SESN (Sosnovik et al. 2020): scale convolutions on Hermite functions, with strides.

    `WideResNet` has the first four arguments, `ScaleMaps` the layout. The layouts "plain", "projected" and
    "interscale" are the authors' SESN-A, -B and -C.
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
    """DISCO: discrete scale convolutions at scales 1, sqrt 2 and 2, with pools instead of strides.

    `WideResNet` has the first four arguments, `ScaleMaps` layout and pools, `disco_basis` the others. The authors use
    the layout "projected" and "max" pools; "mean" and "blur" pools keep more of the equivariance.
    """
    basis = disco_basis(support=support, prior=prior, basis_steps=basis_steps)
    return WideResNet(ScaleMaps(basis, layout, pools), depth, width, classes, dropout)


def disco_basis(*, support: int | None = 5, prior: str | float = "image", basis_steps: int | None = None) -> Basis:
    """Return the basis of DISCO: Hermite functions on 3x3 pixels, mapped to the other scales by the discrete basis.

    Args:
        support: Size of the stencils at scale sqrt 2: the authors' 5, or None for the default of the basis.
        prior: Image prior of `DiscreteBasis`: "image", "white" (the paper's) or a correlation.
        basis_steps: Stop the paper's gradient descent after this many steps (Table 3); None for the optimum.
    """
    solver = "exact" if basis_steps is None else "gradient"
    return bases.disco_basis("stl10", prior=prior, support=support, solver=solver, steps=basis_steps)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "stl10/wrn": partial(WideResNet, WideResNetLayers()),
    "stl10/sicnn": partial(WideResNet, Columns()),
    "stl10/si-convnet": partial(WideResNet, Rescaling()),
    "stl10/dss": partial(WideResNet, ScaleSpaces()),
    "stl10/ss-cnn": partial(WideResNet, Steerable()),
    "stl10/sesn-hermite": sesn,
    "stl10/disco": disco,
}
