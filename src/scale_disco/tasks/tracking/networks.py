"""Siamese networks: features of a template are correlated with features of a search crop (Bertinetto et al. 2016).

SiamFC and TriSiam have features of AlexNet, SiamFC+ those of CIResNet-22 (Zhang and Peng 2019), whose residual blocks
crop what padding has touched, so that features do not depend on the position. SE-SiamFC+ (Sosnovik et al. 2021) and
the paper's DISCO tracker compute them at several scales. Crops are RGB from 0 to 255; the networks normalize them.
"""

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
from ...models.checkpoints import read_checkpoint, weight_file
from ...models.resnet import init_convolutions
from ...nn import ScaleBatchNorm2d, ScaleConv2d, ScaleLift2d, ScaleMaxPool2d, ScaleProject
from ...scales import Scales, as_scales
from ..io.weights import PIXELS
from .transfer import transfer

EXEMPLAR, INSTANCE, STRIDE = 127, 255, 8  # side of a template, side of a search crop, pixels per cell of a map
_GAIN = 0.1  # of the correlation of SiamFC+; AlexNet's features have larger values
_GAIN_ALEXNET = 0.001
_BLOCKS = (3, 4)  # in the two stages of CIResNet-22
_EXPANSION = 4
_SHIFTS = (-1, 0, 1)  # scale steps by which a template is enlarged
_EPS = 1e-12  # minimum of a squared norm


class Scores(NamedTuple):
    """Similarity of every position of a search crop to the template.

    `place` [B, 17, 17] compares the maximum over scales, as logits. `shifts` [B, J, 17, 17] compares every scale of the
    template with the scale of the crop that is j steps away, j = -1, 0, 1: the cosine between a position and the
    template enlarged by j steps. None for networks without a scale axis.
    """

    place: Tensor
    shifts: Tensor | None


class Template(NamedTuple):
    """Features of an object that are correlated with those of a search crop, for `place` and for `shifts`."""

    place: Tensor  # [B, 1, C, 1, side, side]
    shifts: Tensor | None  # [B, J, C, S, side, side], of norm 1 for every shift


class Siamese(nn.Module):
    """Compares search crops with templates.

    Args:
        features: Network of the features, [B, 3, H, W] -> [B, C, H', W'] or [B, C, S, H', W'].
        side: Side of the features of a template of 127 pixels.
        gain: Factor on the correlation; a buffer, like the offset.
        scales: Scales of the features, in geometric progression.
        pixels: Input of `features`, a key of `io.weights.PIXELS`: "raw" for 0 to 255, others for zero mean on ImageNet.

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
        for name, values in zip(("mean", "deviation"), PIXELS[pixels], strict=True):  # keys of state_dict
            self.register_buffer(name, torch.tensor(values))
        self.register_buffer("gain", torch.tensor(gain))
        self.register_buffer("offset", torch.tensor(0.0))

    @property
    def template_octaves(self) -> list[float]:
        """Octaves by which the template is enlarged, for every map of `Scores.shifts`."""
        return [] if self.step is None else [shift * self.step for shift in _SHIFTS]

    def stages(self) -> list[nn.Module]:
        """Return the stages from last to first, for gradual unfreezing."""
        net: Any = self.features.network if isinstance(self.features, ScaleEquivariant) else self.features
        return list(net.stages())

    def embed(self, crops: Tensor) -> Tensor:
        """Return the features of crops, [B, 3, H, W] -> [B, C, S, H', W'], S = 1 for networks without a scale axis."""
        if crops.ndim != 4 or crops.shape[1] != len(self.mean) or min(crops.shape[2:]) < EXEMPLAR:
            wanted = f"crops [B, {len(self.mean)}, H, W] of at least {EXEMPLAR} pixels along each axis"
            raise ValueError(f"Siamese: expected {wanted}, got shape {tuple(crops.shape)}")
        maps: Tensor = self.features((crops - self.mean[:, None, None]) / self.deviation[:, None, None])
        return maps if self.step is not None else maps[:, :, None]

    def template(self, crops: Tensor) -> Template:
        """Return the templates of objects in the center of crops, [B, 3, 255, 255]."""
        # Shifting a template to smaller scales needs some context around it.
        context = 0 if self.step is None else math.ceil((self.side - 1) / 2 * (2**self.step - 1))
        margin = (crops.shape[-1] - EXEMPLAR) // 2 - context * STRIDE
        maps = self.embed(crops[..., margin : crops.shape[-2] - margin, margin : crops.shape[-1] - margin])
        inner = maps[..., context : maps.shape[-2] - context, context : maps.shape[-1] - context]
        shifts = None if self.step is None else torch.stack([self._enlarged(maps, shift) for shift in _SHIFTS], 1)
        return Template(inner.amax(2)[:, None, :, None], shifts)

    def compare(self, template: Template, crops: Tensor) -> Scores:
        """Return the scores of search crops for one template, or for one each."""
        maps = self.embed(crops)
        return Scores(self.at_places(template, maps), self.at_shifts(template, maps))

    def at_places(self, template: Template, maps: Tensor) -> Tensor:
        """Return `Scores.place` from the features of search crops."""
        return self.gain * _correlate(maps.amax(2, keepdim=True), template.place)[:, 0] + self.offset

    def at_shifts(self, template: Template, maps: Tensor) -> Tensor | None:
        """Return `Scores.shifts` from the features of search crops."""
        if template.shifts is None:
            return None
        squares = F.avg_pool2d(maps.square().sum(1), self.side, 1) * self.side**2  # [B, S, H', W']
        count = maps.shape[2]
        norms = [squares[:, max(0, shift) : count - max(0, -shift)].sum(1) for shift in _SHIFTS]
        return _correlate(maps, template.shifts) / torch.stack(norms, 1).clamp_min(_EPS).sqrt()

    def cosine(self, template: Template, maps: Tensor, row: int, column: int) -> float:
        """Return the cosine between a template and a cell of a search crop [1, C, S, H, W], after maxima over S."""
        cell = maps.amax(2)[..., row : row + self.side, column : column + self.side].flatten()
        return float(F.cosine_similarity(cell, template.place.flatten(), 0))

    def forward(self, templates: Tensor, crops: Tensor) -> Scores:
        return self.compare(self.template(templates), crops)

    def _enlarged(self, maps: Tensor, shift: int) -> Tensor:
        """Shift a template along S and enlarge it by as much, [B, C, S, h, w] -> [B, C, S, side, side], zero-padded."""
        assert self.step is not None
        count, half = maps.shape[2], (self.side - 1) / 2
        cells = torch.linspace(-half, half, self.side, device=maps.device) * 2 ** (-shift * self.step)
        cells = 2 * cells / maps.shape[-1]  # coordinates of grid_sample
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1).to(maps.dtype)
        source = maps[:, :, max(0, -shift) : count - max(0, shift)]
        flat = fold(source)
        if shift:
            grid = grid.expand(len(flat), -1, -1, -1)
            flat = F.grid_sample(flat, grid, "bicubic", padding_mode="border", align_corners=False)
        else:
            margin = (maps.shape[-1] - self.side) // 2
            flat = flat[..., margin : margin + self.side, margin : margin + self.side]
        enlarged = unfold(flat, source.shape[2])
        enlarged = enlarged / enlarged.square().sum((1, 2, 3, 4), keepdim=True).clamp_min(_EPS).sqrt()
        return F.pad(enlarged, (0, 0, 0, 0, max(0, shift), max(0, -shift)))


def _step(scales: Scales) -> float:
    """Octaves between neighboring scales."""
    if scales.step is None:
        raise ValueError(f"Siamese: expected two or more scales in geometric progression, got {scales!r}")
    return math.log2(scales.step)


def _correlate(maps: Tensor, templates: Tensor) -> Tensor:
    """Correlate maps with templates, [B, C, S, H, W] and [B or 1, J, C, S, h, w] -> [B, J, H', W']."""
    kernels = templates.flatten(2, 3)  # [B, J, C * S, h, w]
    flat = maps.flatten(1, 2)
    if len(kernels) < 2:
        return F.conv2d(flat, kernels.sum(0))  # the sum also works for an empty batch
    return torch.cat([F.conv2d(features[None], kernel) for features, kernel in zip(flat, kernels, strict=True)])


class SiameseLayers(NamedTuple):
    """Constructors of layers by their numbers of channels; `point` also takes a scale extent."""

    stem: Callable[[int], nn.Module]
    point: Callable[[int, int, int], nn.Module]
    conv: Callable[[int], nn.Module]
    lift: Callable[[int], nn.Module]  # a `conv` whose input was projected
    norm: Callable[[int], nn.Module]
    pool: Callable[[], nn.Module]


def plain_layers() -> SiameseLayers:
    """Return ordinary convolutions, norms and pools."""
    return SiameseLayers(
        stem=lambda channels: nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
        point=lambda channels, out, extent: nn.Conv2d(channels, out, 1, bias=False),
        conv=lambda channels: nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        lift=lambda channels: nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d,
        pool=lambda: nn.MaxPool2d(2),
    )


def scale_layers(stem: HermiteBasis, other: HermiteBasis) -> SiameseLayers:
    """Return scale convolutions on two bases, for the stem and for all other layers."""
    pixel = DiscreteBasis(1, other.scales)
    return SiameseLayers(
        stem=lambda channels: ScaleLift2d(3, channels, stem, 2, bias=False),
        point=lambda channels, out, extent: ScaleConv2d(channels, out, pixel, bias=False, scale_extent=extent),
        conv=lambda channels: ScaleConv2d(channels, channels, other, bias=False),
        lift=lambda channels: ScaleLift2d(channels, channels, other, bias=False),
        norm=ScaleBatchNorm2d,
        pool=lambda: ScaleMaxPool2d(2),
    )


class CIRUnit(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut, cropped by one cell per side: [B, C, H, W] -> [B, C', H-2, W-2].

    Args:
        channels: Channels of the inner convolutions; the output has four times as many.
        last: Whether this is the last block of a network, which does not end with a ReLU.
        extent: Scale extent of the first convolution.
        projected: Whether to take the maximum over scales first, and lift it again.
    """

    def __init__(
        self,
        layers: SiameseLayers,
        in_channels: int,
        channels: int,
        *,
        last: bool = False,
        extent: int = 1,
        projected: bool = False,
    ) -> None:
        super().__init__()
        inner, conv = (plain_layers(), layers.lift) if projected else (layers, layers.conv)
        out = channels * _EXPANSION
        self.conv1, self.bn1 = inner.point(in_channels, channels, extent), inner.norm(channels)
        self.conv2, self.bn2 = conv(channels), layers.norm(channels)
        self.conv3, self.bn3 = layers.point(channels, out, 1), layers.norm(out)
        self.relu, self.last = nn.ReLU(inplace=True), last
        self.project = ScaleProject("max") if projected else nn.Identity()
        same = in_channels == out
        self.downsample = None if same else nn.Sequential(layers.point(in_channels, out, 1), layers.norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(self.project(x))))
        # Later layers are pointwise, so the border is cropped before them.
        y = F.relu(self.bn2(self.conv2(y))[..., 1:-1, 1:-1])
        x = x[..., 1:-1, 1:-1]
        out: Tensor = self.bn3(self.conv3(y))
        out += x if self.downsample is None else self.downsample(x)  # in place, to allocate no further large map
        return out if self.last else self.relu(out)


class CIResNet22(nn.Module):
    """Features of SiamFC+, [B, 3, H, W] -> [B, 512, H', W'], of stride 8.

    Parameter names are those of SiamDW and, up to the pool in the second stage, of torchvision.

    Args:
        layers: Ordinary convolutions, or scale convolutions, for which the features have a scale axis.
        projected: Whether the second stage starts from the maximum over scales, as in SE-SiamFC+.
        extent: Scale extent of the first block.

    Example:
        >>> CIResNet22()(torch.randn(1, 3, 127, 127)).shape
        torch.Size([1, 512, 5, 5])
    """

    def __init__(self, layers: SiameseLayers | None = None, *, projected: bool = False, extent: int = 1) -> None:
        super().__init__()
        layers = layers or plain_layers()
        self.conv1, self.bn1, self.relu = layers.stem(64), layers.norm(64), nn.ReLU(inplace=True)
        self.maxpool = layers.pool()
        first = [CIRUnit(layers, 64, 64, extent=extent), *(CIRUnit(layers, 256, 64) for _ in range(_BLOCKS[0] - 1))]
        others = [CIRUnit(layers, 512, 128, last=index == _BLOCKS[1] - 1) for index in range(1, _BLOCKS[1])]
        self.layer1 = nn.Sequential(*first)
        self.layer2 = nn.Sequential(CIRUnit(layers, 256, 128, projected=projected), layers.pool(), *others)
        init_convolutions(self)

    def stages(self) -> list[nn.Module]:
        """Return the blocks from last to first, then the stem."""
        blocks = [part for part in (*self.layer1, *self.layer2) if isinstance(part, CIRUnit)]
        return [*reversed(blocks), nn.ModuleList([self.conv1, self.bn1])]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))[..., 2:-2, 2:-2]
        y: Tensor = self.layer2(self.layer1(self.maxpool(x)))
        return y


class AlexNet(nn.Sequential):
    """Features of SiamFC, [B, 3, H, W] -> [B, 256, H', W'], of stride 8.

    Example:
        >>> AlexNet()(torch.randn(1, 3, 127, 127)).shape
        torch.Size([1, 256, 6, 6])
    """

    def __init__(self) -> None:
        super().__init__()

        def stage(channels: int, out: int, side: int, stride: int = 1, groups: int = 1, pool: bool = False) -> Any:
            conv = nn.Conv2d(channels, out, side, stride, groups=groups)
            pools = [nn.MaxPool2d(3, 2)] if pool else []
            return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True), *pools)

        self.conv1 = stage(3, 96, 11, stride=2, pool=True)
        self.conv2 = stage(96, 256, 5, groups=2, pool=True)
        self.conv3 = stage(256, 384, 3)
        self.conv4 = stage(384, 384, 3, groups=2)
        self.conv5 = nn.Sequential(nn.Conv2d(384, 256, 3, groups=2))
        init_convolutions(self)

    def stages(self) -> list[nn.Module]:
        """Return the convolutions from last to first."""
        return list(self)[::-1]


File = str | os.PathLike[str]


def siamfc(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SiamFC, with features of AlexNet. TriSiam is the same network, trained with a triplet loss.

    Args:
        pretrained: Weight file with the parameter names of this network (.safetensors, or of `torch.save`, of which
            nothing is executed). Default: random weights.
        sha256, pixels: As for `siamfc_plus`.
    """
    net = Siamese(AlexNet(), 6, gain=_GAIN_ALEXNET, pixels="imagenet")
    return _with_weights(net, "track/siamfc", pretrained, sha256, pixels)


def siamfc_plus(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SiamFC+, with features of CIResNet-22.

    Args:
        pretrained: Weight file of a ResNet-50 (torchvision's names; its first two stages are used), of SiamDW, or of
            this network. Default: random weights.
        sha256: Expected checksum of that file.
        pixels: Pixels that the weights were trained on, a key of `io.weights.PIXELS`. Default: as known of the file.
    """
    return _with_weights(Siamese(CIResNet22(), pixels="imagenet"), "track/siamfc+", pretrained, sha256, pixels)


def se_siamfc_plus(*, pretrained: File | None = None, sha256: str | None = None, pixels: str | None = None) -> Siamese:
    """SE-SiamFC+: CIResNet-22 with scale convolutions on Hermite functions, as in the authors' code.

    Args:
        pretrained: Weight file as for `siamfc_plus`, to which kernels of the smallest scale are fitted, or one of
            SE-SiamFC.
        sha256, pixels: As for `siamfc_plus`.
    """
    stem, other = HermiteBasis.preset("tracker-stem"), HermiteBasis.preset("tracker")
    features = CIResNet22(scale_layers(stem, other), projected=True, extent=2)
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
    """DISCO tracker: SiamFC+ converted to several scales. It has the weights of SiamFC+, and equals it at scale 1.

    Args:
        pretrained: Weight file as for `siamfc_plus`, or one of a trained SiamFC+.
        sha256, pixels: As for `siamfc_plus`.
        scales: Scales of the kernels, in geometric progression.
        pooling: See `to_scale_equivariant`.
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
            raise ValueError(f"{who}: sha256 and pixels require pretrained")
        return net
    checkpoint = read_checkpoint(weight_file(pretrained, "resnet50", sha256), sha256)
    for name, value in transfer(net.features, checkpoint, who, pixels).items():
        own = net.get_buffer(name)
        if value.shape != own.shape:
            raise ValueError(f"{who}: {pretrained} does not fit: {name} has {value.numel()} values, not {own.numel()}")
        own.copy_(value)
    return net


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "track/siamfc": siamfc,
    "track/trisiam": siamfc,
    "track/siamfc+": siamfc_plus,
    "track/se-siamfc+": se_siamfc_plus,
    "track/disco": disco,
}
