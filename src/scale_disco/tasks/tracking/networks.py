"""Networks that find an object again: features of a template, slid over features of a view (Bertinetto et al. 2016).

SiamFC and TriSiam have AlexNet's features, SiamFC+ those of CIResNet-22 (Zhang and Peng 2019): residual blocks that cut
off what padding has touched, so that a template looks the same wherever it is. SE-SiamFC+ (Sosnovik et al. 2021) and
the paper's DISCO tracker have them at several scales. Views are RGB from 0 to 255; networks normalise them by
themselves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...basis import DiscreteBasis, HermiteBasis
from ...convert import ScaleEquivariant, to_scale_equivariant
from ...fold import fold, unfold
from ...models.checkpoints import read_checkpoint
from ...nn import ScaleBatchNorm2d, ScaleConv2d, ScaleLift2d, ScaleMaxPool2d, ScaleProject
from ...scales import Scales, as_scales
from ..io.weights import PIXELS
from .transfer import transfer

EXEMPLAR, INSTANCE, STRIDE = 127, 255, 8  # pixels of a template, of a view, and from a cell of a map to the next
_GAIN = 0.1  # of the correlation of SiamFC+; a map of AlexNet's features has larger numbers
_GAIN_ALEXNET = 0.001
_BLOCKS = (3, 4)  # of the two stages of CIResNet-22
_EXPANSION = 4
_MOVES = (-1, 0, 1)  # steps of the scales by which a template is made larger
_LEAST = 1e-12  # of a squared norm


class Scores(NamedTuple):
    """How much every place of a view is like the template.

    `place` [B, 17, 17] compares the strongest features of all scales, as logits. `shifts` [B, J, 17, 17] compares every
    scale of the template with the scale of the view that is j steps away, j = -1, 0, 1: how much a place is like the
    template made larger by so many steps, as the cosine of the angle between features. None without scales.
    """

    place: Tensor
    shifts: Tensor | None


class Template(NamedTuple):
    """What is kept of an object: features to be slid over those of a view, for `place` and for `shifts`."""

    place: Tensor  # [B, 1, C, 1, side, side]
    shifts: Tensor | None  # [B, J, C, S, side, side], of norm 1 for every shift


class Siamese(nn.Module):
    """A network that compares views with templates.

    Args:
        features: Of views, [B, 3, H, W] -> [B, C, H', W'], or [B, C, S, H', W'].
        side: Cells of the features of a template of 127 pixels.
        gain: Of the correlation. Like an offset, it is kept with the weights.
        scales: Of the features; must grow by the same factor.
        pixels: What `features` takes: "imagenet" for mean 0 and deviation 1 on ImageNet, "caffe" for mean 0 only,
            "raw" for 0 to 255.

    Example:
        >>> net = siamfc_plus()
        >>> net(torch.rand(2, 3, 255, 255) * 255, torch.rand(2, 3, 255, 255) * 255).place.shape
        torch.Size([2, 17, 17])
    """

    mean: Tensor
    deviation: Tensor
    gain: Tensor
    offset: Tensor

    def __init__(
        self, features: nn.Module, side: int = 5, *, gain: float = _GAIN, scales: Scales | None = None, pixels: str
    ) -> None:
        super().__init__()
        if pixels not in PIXELS:
            raise ValueError(f"Siamese: pixels must be one of {', '.join(PIXELS)}, got {pixels!r}")
        self.features, self.side = features, side
        self.step = None if scales is None else _step(scales)
        for name, values in zip(("mean", "deviation"), PIXELS[pixels], strict=True):
            self.register_buffer(name, torch.tensor(values))
        self.register_buffer("gain", torch.tensor(gain))
        self.register_buffer("offset", torch.tensor(0.0))

    @property
    def steps(self) -> list[float]:
        """By how many octaves the template is moved along the scales, for every map of `Scores.shifts`."""
        return [] if self.step is None else [move * self.step for move in _MOVES]

    def stages(self) -> list[nn.Module]:
        """Parts from the last to the first, for training one after the other."""
        net: Any = self.features.network if isinstance(self.features, ScaleEquivariant) else self.features
        return list(net.stages())

    def embed(self, views: Tensor) -> Tensor:
        """Features of views, [B, 3, H, W] -> [B, C, S, H', W'], S = 1 for networks without scales."""
        if views.ndim != 4 or views.shape[1] != len(self.mean) or min(views.shape[2:]) < EXEMPLAR:
            raise ValueError(
                f"Siamese: expected views [B, {len(self.mean)}, H, W] of at least {EXEMPLAR} pixels along each axis, "
                f"got shape {tuple(views.shape)}"
            )
        maps: Tensor = self.features((views - self.mean[:, None, None]) / self.deviation[:, None, None])
        return maps if self.step is not None else maps[:, :, None]

    def template(self, views: Tensor) -> Template:
        """What is kept of objects in the middle of views, [B, 3, 255, 255]."""
        # To move it to smaller scales takes some of its surroundings.
        around = 0 if self.step is None else math.ceil((self.side - 1) / 2 * (2**self.step - 1))
        margin = (views.shape[-1] - EXEMPLAR) // 2 - around * STRIDE
        seen = self.embed(views[..., margin : views.shape[-2] - margin, margin : views.shape[-1] - margin])
        inner = seen[..., around : seen.shape[-2] - around, around : seen.shape[-1] - around]
        shifts = None if self.step is None else torch.stack([self._moved(seen, move) for move in _MOVES], 1)
        return Template(inner.amax(2)[:, None, :, None], shifts)

    def compare(self, template: Template, views: Tensor) -> Scores:
        """How much places of views are like one template, or like one each."""
        maps = self.embed(views)
        return Scores(self.at_places(template, maps), self.at_shifts(template, maps))

    def at_places(self, template: Template, maps: Tensor) -> Tensor:
        """`Scores.place` from the features of views."""
        return self.gain * _correlated(maps.amax(2, keepdim=True), template.place)[:, 0] + self.offset

    def at_shifts(self, template: Template, maps: Tensor) -> Tensor | None:
        """`Scores.shifts` from the features of views."""
        if template.shifts is None:
            return None
        squares = F.avg_pool2d(maps.square().sum(1), self.side, 1) * self.side**2  # [B, S, H', W']
        count = maps.shape[2]
        seen = [squares[:, max(0, move) : count - max(0, -move)].sum(1) for move in _MOVES]
        return _correlated(maps, template.shifts) / torch.stack(seen, 1).clamp_min(_LEAST).sqrt()

    def cosine(self, template: Template, maps: Tensor, row: int, column: int) -> float:
        """Of the angle between the strongest features of a template and those at a cell of a view, [1, C, S, H, W]."""
        seen = maps.amax(2)[..., row : row + self.side, column : column + self.side].flatten()
        return float(F.cosine_similarity(seen, template.place.flatten(), 0))

    def forward(self, templates: Tensor, views: Tensor) -> Scores:
        return self.compare(self.template(templates), views)

    def _moved(self, seen: Tensor, move: int) -> Tensor:
        """A template made larger by steps of the scales, [B, C, S, h, w] -> [B, C, S, side, side]: both its scales and
        its places move. Scales without one to come from are zero."""
        assert self.step is not None
        count, half = seen.shape[2], (self.side - 1) / 2
        cells = torch.linspace(-half, half, self.side, device=seen.device) * 2 ** (-move * self.step)
        cells = 2 * cells / seen.shape[-1]  # from the middle, as grid_sample counts
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1).to(seen.dtype)
        taken = seen[:, :, max(0, -move) : count - max(0, move)]
        flat = fold(taken)
        if move:
            flat = F.grid_sample(
                flat, grid.expand(len(flat), -1, -1, -1), "bicubic", padding_mode="border", align_corners=False
            )
        else:
            around = (seen.shape[-1] - self.side) // 2
            flat = flat[..., around : around + self.side, around : around + self.side]
        moved = unfold(flat, taken.shape[2])
        moved = moved / moved.square().sum((1, 2, 3, 4), keepdim=True).clamp_min(_LEAST).sqrt()
        return F.pad(moved, (0, 0, 0, 0, max(0, move), max(0, -move)))


def _step(scales: Scales) -> float:
    """Octaves from a scale to the next."""
    octaves = [math.log2(scales[k + 1] / scales[k]) for k in range(len(scales) - 1)]
    if not octaves or max(octaves) - min(octaves) > 1e-6:
        raise ValueError(f"Siamese: scales must be two or more that grow by one factor, got {scales!r}")
    return octaves[0]


def _correlated(maps: Tensor, templates: Tensor) -> Tensor:
    """Templates slid over maps, [B, C, S, H, W] and [B or 1, J, C, S, h, w] -> [B, J, H', W']."""
    kernels = templates.flatten(2, 3)  # [B, J, C * S, h, w]
    flat = maps.flatten(1, 2)
    if len(kernels) < 2:  # a sum, for an empty batch
        return F.conv2d(flat, kernels.sum(0))
    return torch.cat([F.conv2d(one[None], kernel) for one, kernel in zip(flat, kernels, strict=True)])


class SiameseLayers:
    """What the skeleton is filled with; here ordinary convolutions."""

    def stem(self, channels: int) -> nn.Module:
        return nn.Conv2d(3, channels, 7, 2, padding=3, bias=False)

    def point(self, before: int, after: int, extent: int = 1) -> nn.Module:
        return nn.Conv2d(before, after, 1, bias=False)

    def conv(self, channels: int) -> nn.Module:
        return nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)

    def pool(self) -> nn.Module:
        return nn.MaxPool2d(2)


class ScaleSiameseLayers(SiameseLayers):
    """Scale convolutions on two bases, for the stem and for all others."""

    def __init__(self, stem: HermiteBasis, other: HermiteBasis) -> None:
        self.bases, self.pixel = (stem, other), DiscreteBasis(1, other.scales)

    def stem(self, channels: int) -> nn.Module:
        return ScaleLift2d(3, channels, self.bases[0], 2, bias=False)

    def point(self, before: int, after: int, extent: int = 1) -> nn.Module:
        return ScaleConv2d(before, after, self.pixel, bias=False, scale_extent=extent)

    def conv(self, channels: int) -> nn.Module:
        return ScaleConv2d(channels, channels, self.bases[1], bias=False)

    def lift(self, channels: int) -> nn.Module:
        return ScaleLift2d(channels, channels, self.bases[1], bias=False)

    def norm(self, channels: int) -> nn.Module:
        return ScaleBatchNorm2d(channels)

    def pool(self) -> nn.Module:
        return ScaleMaxPool2d(2)


class CIRUnit(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution and a shortcut, less a border of one cell: [B, C, H, W] -> [B, C', H-2, W-2].

    Args:
        layers: What it is made of.
        before: Channels of the input.
        channels: Channels inside; the output has four times as many.
        last: Whether it is the last of a network, which has no ReLU at its end.
        extent: How many scales the first convolution sees.
        projected: Whether it takes the maximum over scales, and lifts it again.
    """

    def __init__(
        self,
        layers: SiameseLayers,
        before: int,
        channels: int,
        *,
        last: bool = False,
        extent: int = 1,
        projected: bool = False,
    ) -> None:
        super().__init__()
        inner = SiameseLayers() if projected else layers
        after = channels * _EXPANSION
        self.conv1, self.bn1 = inner.point(before, channels, extent), inner.norm(channels)
        self.conv2 = (
            layers.lift(channels) if isinstance(layers, ScaleSiameseLayers) and projected else layers.conv(channels)
        )
        self.bn2 = layers.norm(channels)
        self.conv3, self.bn3 = layers.point(channels, after), layers.norm(after)
        self.relu, self.last = nn.ReLU(inplace=True), last
        self.project = ScaleProject("max") if projected else nn.Identity()
        self.downsample = None if before == after else nn.Sequential(layers.point(before, after), layers.norm(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(self.project(x))))
        # What is behind sees single cells, so the border can go before it.
        y = F.relu(self.bn2(self.conv2(y))[..., 1:-1, 1:-1])
        x = x[..., 1:-1, 1:-1]
        out: Tensor = self.bn3(self.conv3(y))
        out += x if self.downsample is None else self.downsample(x)  # in place: large maps cost fresh memory
        return out if self.last else self.relu(out)


class CIResNet22(nn.Module):
    """Features of SiamFC+, [B, 3, H, W] -> [B, 512, H', W'], a cell for every eight pixels.

    Names are those of SiamDW and, up to the pool in the second stage, of torchvision.

    Args:
        layers: Ordinary convolutions, or scale convolutions, for which features have a scale axis.
        projected: Whether the second stage starts from the maximum over scales, as SE-SiamFC+ does.
        extent: How many scales the first block sees.

    Example:
        >>> CIResNet22()(torch.randn(1, 3, 127, 127)).shape
        torch.Size([1, 512, 5, 5])
    """

    def __init__(self, layers: SiameseLayers | None = None, *, projected: bool = False, extent: int = 1) -> None:
        super().__init__()
        layers = layers or SiameseLayers()
        self.conv1, self.bn1, self.relu = layers.stem(64), layers.norm(64), nn.ReLU(inplace=True)
        self.maxpool = layers.pool()
        first = [CIRUnit(layers, 64, 64, extent=extent), *(CIRUnit(layers, 256, 64) for _ in range(_BLOCKS[0] - 1))]
        others = [CIRUnit(layers, 512, 128, last=index == _BLOCKS[1] - 1) for index in range(1, _BLOCKS[1])]
        self.layer1 = nn.Sequential(*first)
        self.layer2 = nn.Sequential(CIRUnit(layers, 256, 128, projected=projected), layers.pool(), *others)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def stages(self) -> list[nn.Module]:
        """Blocks from the last to the first, then the stem."""
        blocks = [part for part in (*self.layer1, *self.layer2) if isinstance(part, CIRUnit)]
        return [*reversed(blocks), nn.ModuleList([self.conv1, self.bn1])]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))[..., 2:-2, 2:-2]
        y: Tensor = self.layer2(self.layer1(self.maxpool(x)))
        return y


class AlexNet(nn.Module):
    """Features of SiamFC, [B, 3, H, W] -> [B, 256, H', W'], a cell for every eight pixels.

    Example:
        >>> AlexNet()(torch.randn(1, 3, 127, 127)).shape
        torch.Size([1, 256, 6, 6])
    """

    def __init__(self) -> None:
        super().__init__()

        def stage(before: int, after: int, side: int, stride: int = 1, groups: int = 1, pool: bool = False) -> Any:
            norm_and_relu = [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            pools = [nn.MaxPool2d(3, 2)] if pool else []
            return nn.Sequential(nn.Conv2d(before, after, side, stride, groups=groups), *norm_and_relu, *pools)

        self.conv1 = stage(3, 96, 11, stride=2, pool=True)
        self.conv2 = stage(96, 256, 5, groups=2, pool=True)
        self.conv3 = stage(256, 384, 3)
        self.conv4 = stage(384, 384, 3, groups=2)
        self.conv5 = nn.Sequential(nn.Conv2d(384, 256, 3, groups=2))
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def stages(self) -> list[nn.Module]:
        """Convolutions from the last to the first."""
        return [self.conv5, self.conv4, self.conv3, self.conv2, self.conv1]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv5(self.conv4(self.conv3(self.conv2(self.conv1(x)))))
        return y


File = str | os.PathLike[str]


def siamfc(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SiamFC: AlexNet's features. TriSiam is the same, trained by triplets.

    Args:
        pretrained: A file of weights with the names of this network (.safetensors, or of `torch.save`; nothing in it
            is executed). By default weights are random.
        sha256: Of that file; another is refused.
        pixels: What the weights were trained on, see `io.weights.PIXELS`; by default what the file says.
    """
    net = Siamese(AlexNet(), 6, gain=_GAIN_ALEXNET, pixels="imagenet")
    return _with_weights(net, "track/siamfc", pretrained, sha256, pixels)


def siamfc_plus(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SiamFC+: features of CIResNet-22.

    Args:
        pretrained: A file of weights of a ResNet-50 (torchvision's names; its first two stages are taken), of SiamDW,
            or of this network. By default weights are random.
        sha256: Of that file; another is refused.
        pixels: What the weights were trained on: "imagenet", "caffe" or "raw", see `io.weights.PIXELS`; by default what
            is known of the file.
    """
    return _with_weights(Siamese(CIResNet22(), pixels="imagenet"), "track/siamfc+", pretrained, sha256, pixels)


def se_siamfc_plus(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SE-SiamFC+: CIResNet-22 of scale convolutions on Hermite functions, as the authors made it.

    Args:
        pretrained: A file as for SiamFC+, of which the kernels of the smallest scale are as near as they can be, or
            one of SE-SiamFC.
        sha256: Of that file; another is refused.
        pixels: What the weights were trained on; by default what is known of the file.
    """
    stem, other = HermiteBasis.preset("tracker-stem"), HermiteBasis.preset("tracker")
    features = CIResNet22(ScaleSiameseLayers(stem, other), projected=True, extent=2)
    net = Siamese(features, scales=other.scales, pixels="imagenet")
    return _with_weights(net, "track/se-siamfc+", pretrained, sha256, pixels)


def disco(
    *,
    pretrained: File | None = None,
    sha256: str | None = None,
    pixels: str | None = None,
    scales: Scales | Sequence[float] = (1, 2**0.5, 2),
    pooling: str = "growing",
) -> Siamese:
    """The DISCO tracker: SiamFC+ converted, so that its weights are SiamFC+'s, and exactly so at the first scale.

    Args:
        pretrained: A file as for SiamFC+, or one of a trained SiamFC+.
        sha256: Of that file; another is refused.
        pixels: What the weights were trained on; by default what is known of the file.
        scales: Of the kernels; must grow by one factor.
        pooling: Of `to_scale_equivariant`.
    """
    net = siamfc_plus(pretrained=pretrained, sha256=sha256, pixels=pixels)
    scales = as_scales(scales)
    net.step = _step(scales)
    example = torch.zeros(1, 3, EXEMPLAR, EXEMPLAR).to(net.mean)
    net.features = to_scale_equivariant(net.features, scales, example=example, project=None, pooling=pooling)
    return net


def _with_weights(net: Siamese, who: str, pretrained: File | None, sha256: str | None, pixels: str | None) -> Siamese:
    if pretrained is None:
        if sha256 is not None or pixels is not None:
            raise ValueError(f"{who}: sha256 and pixels are of a file of weights: give pretrained too")
        return net
    normal = transfer(net.features, read_checkpoint(pretrained, sha256), who, pixels)
    for name, value in normal.items():
        own = net.get_buffer(name)
        if value.shape != own.shape:
            raise ValueError(f"{who}: {pretrained} does not fit: {name} has {value.numel()} numbers, not {own.numel()}")
        own.copy_(value)
    return net


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "track/siamfc": siamfc,
    "track/trisiam": siamfc,
    "track/siamfc+": siamfc_plus,
    "track/se-siamfc+": se_siamfc_plus,
    "track/disco": disco,
}
