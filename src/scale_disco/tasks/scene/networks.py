"""How large things look: a frozen network with a scale axis, and what reads the axis (Sec. 4.4 of the paper).

Maps of the second stage of a ResNet-50 at nine scales, [B, 512, 9, h, w] as in the paper, are averaged over windows,
which gives a *profile* [512, 9]: how strongly every channel answers at every scale. What looks twice as large has the
same profile an octave further along the axis. A read-out (see `models.readout`) tells from profiles how large things
look: in octaves, up to a constant.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...basis import HermiteBasis
from ...convert import to_scale_equivariant
from ...convert.layers import FoldedConv, is_spatial
from ...convert.surgery import exchanged
from ...fold import fold, unfold
from ...models.checkpoints import PACKAGES, download_weights, read_checkpoint
from ...models.resnet import ResNet, cnn, is_stride_first
from ...nn import ScaleConv2d
from ...scales import Scales
from ..io.weights import PIXELS, fit_kernels, is_caffe
from .readout import READOUTS, Reading, Readout

SCALES = Scales.geometric(2**0.25, 9)  # as many as in the paper, over two octaves
CHANNELS, CELL, WINDOW = 512, 8, 64  # of the maps; pixels from a cell of them to the next, and of a window's side
# Which network: one whose maps move along the scales as they should; the plain conversion; Hermite functions, as SESN.
BACKBONES = ("shift", "as-is", "hermite")
_SEEN = {"shift": 99, "as-is": 99, "hermite": 135}  # pixels that a cell sees over those at the first scale, about
_SMALLEST = 64  # side of a picture, so that maps are wider than what is reflected at their edges
_HERMITE_WIDTH = 0.9  # of the functions at the first scale, in pixels, as in SE-SiamFC
_NETWORK = "resnet50"

File = str | os.PathLike[str]


class Stages(nn.Module):
    """The first two stages of a residual network, [B, 3, H, W] -> [B, C, H / 8, W / 8]."""

    def __init__(self, net: ResNet) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = net.conv1, net.bn1, net.relu, net.maxpool
        self.layer1, self.layer2 = net.layer1, net.layer2

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer2(self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x))))))
        return out


class Backbone(nn.Module):
    """Maps of the second stage of a ResNet-50 at nine scales, [B, 3, H, W] in RGB from 0 to 255 -> [B, 512, 9, h, w].

    Edges are continued by reflection: zeros there would tell how large a picture is.

    Args:
        kind: One of `BACKBONES`. "shift" has max pools that grow with the scale, images at the resolution of the scale
            and stencils solved for shrinking with a filter; "as-is" is the plain conversion; "hermite" has the same
            weights carried over to Hermite functions as nearly as they allow.
        pretrained: A file of weights with torchvision's names, or "torchvision" or "timm"; random by default.
        sha256: Of the file of weights; another is refused.

    Attributes:
        sha256: Of the weights; None for random ones.
        mark: Kind, scales and weights in a word, which tells it from others.
        reach: Pixels around a place that its maps depend on, at the largest scale.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, kind: str = "shift", *, pretrained: File | None = None, sha256: str | None = None) -> None:
        super().__init__()
        if kind not in BACKBONES:
            raise ValueError(f"Backbone: kind must be one of {', '.join(BACKBONES)}, got {kind!r}")
        net, self.sha256 = _resnet(pretrained, sha256)
        pixels = "caffe" if self.sha256 is not None and is_caffe(self.sha256) else "imagenet"
        stages = Stages(net).eval()
        if pixels == "caffe":
            stages.conv1.weight.data = stages.conv1.weight.data.flip(1)  # of BGR
        spatial: list[Any] = [part for part in stages.modules() if is_spatial(part)]
        for conv in spatial:
            conv.padding_mode = "reflect"
        careful = kind == "shift"
        self.stages = to_scale_equivariant(
            stages,
            SCALES,
            example=torch.zeros(1, 3, _SMALLEST, _SMALLEST),
            project=None,
            pooling="growing" if careful else "as-is",
            antialias=careful,
        )
        if kind == "hermite":
            exchanged(self.stages.network, lambda part: isinstance(part, FoldedConv), _HermiteConv)
        for name, values in zip(("mean", "deviation"), PIXELS[pixels], strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None])
        self.reach = round(_SEEN[kind] / 2 * SCALES.ratio(len(SCALES) - 1))
        self.kind, self.mark = kind, f"{_NETWORK}-{kind}-{SCALES}-{self.sha256 or 'random'}"
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Backbone:
        """It stays frozen."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        images = (images - self.mean) / self.deviation
        maps: Tensor = self.stages(_continued(images, max(0, _SMALLEST - width), max(0, _SMALLEST - height)))
        return maps[..., : -(-height // CELL), : -(-width // CELL)]


class ScaleEstimator(nn.Module):
    """How large things look in pictures: a backbone and a read-out.

    Args:
        backbone: That gives maps.
        readout: That reads the means of maps over windows.

    Attributes:
        cell: Pixels from a cell of the maps to the next.
        window: Pixels of the side of a window.
        reach: Pixels around a place that its features depend on, at the largest scale.

    Example:
        >>> estimator = create("shift")
        >>> pictures = 255 * torch.rand(2, 3, 64, 64)
        >>> estimator(pictures).shape
        torch.Size([2])
    """

    cell, window = CELL, WINDOW

    def __init__(self, backbone: nn.Module, readout: Readout) -> None:
        super().__init__()
        mark = getattr(backbone, "mark", "")
        if not readout.is_of(mark):
            raise ValueError(
                "ScaleEstimator: the read-out was trained for a network of another kind, other scales or other weights "
                f"than {mark}: give the network that it was trained for, or train it anew"
            )
        self.backbone, self.readout = backbone, readout
        self.reach: int = getattr(backbone, "reach", 0)

    def maps(self, images: Tensor) -> Tensor:
        """Features of images in RGB from 0 to 255, [B, 3, H, W] -> [B, C, S, h, w]."""
        maps: Tensor = self.backbone(images)
        return maps

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        """Octaves and how clear they are, from means of maps over windows of one picture [N, C, S]."""
        return self.readout.read(profiles, weights)

    def forward(self, images: Tensor) -> Tensor:
        """How large things look in whole pictures, in octaves: [B, 3, H, W] -> [B].

        Read-outs that compare, `shift` and `matched`, compare the pictures of the batch with each other.
        """
        return self.read(self.maps(images).mean((3, 4))).octaves


def create(
    readout: str, *, backbone: str = "shift", pretrained: File | None = None, sha256: str | None = None
) -> ScaleEstimator:
    """An estimator of which the read-out has not learned yet; `shift` need not.

    Args:
        readout: One of `models.readout.READOUTS`.
        backbone: One of `BACKBONES`.
        pretrained: Weights of a ResNet-50: a file with torchvision's names, or "torchvision" or "timm". By default they
            are random; profiles can be compared all the same, but not as well.
        sha256: Of the file of weights; another is refused.
    """
    frozen = Backbone(backbone, pretrained=pretrained, sha256=sha256)
    return ScaleEstimator(frozen, READOUTS[readout](CHANNELS, SCALES)).eval()


def _resnet(pretrained: File | None, sha256: str | None) -> tuple[ResNet, str | None]:
    """A ResNet-50 and the checksum of its weights."""
    if pretrained is None:
        if sha256 is not None:
            raise ValueError("Backbone: sha256 is of a file of weights: give pretrained too")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # profiles of two calls must be of the same network
            return cnn(_NETWORK), None
    path = download_weights(_NETWORK, str(pretrained), sha256) if pretrained in PACKAGES else pretrained
    found = read_checkpoint(path, sha256).sha256
    return cnn(_NETWORK, pretrained=path, sha256=sha256, stride_first=is_stride_first(found)), found


def _continued(images: Tensor, right: int, down: int) -> Tensor:
    """Images continued to the right and down by reflection, as often as it takes."""
    while right or down:
        more = min(right, images.shape[3]), min(down, images.shape[2])
        images = torch.cat([images, images.flip(3)[..., : more[0]]], 3)
        images = torch.cat([images, images.flip(2)[..., : more[1], :]], 2)
        right, down = right - more[0], down - more[1]
    return images


class _HermiteConv(nn.Module):
    """A convolution at every scale by Hermite functions: [S * B, C, H, W] -> [S * B, C', H', W']."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        basis = HermiteBasis(conv.kernel_size[0], SCALES, base_scale=_HERMITE_WIDTH)
        self.conv = ScaleConv2d(
            conv.in_channels,
            conv.out_channels,
            basis,
            stride=conv.stride[0],
            bias=False,
            padding_mode="reflect",
        )
        self.conv.weight.data = fit_kernels(conv.weight, basis)[:, :, None]

    def forward(self, x: Tensor) -> Tensor:
        return fold(self.conv(unfold(x, len(SCALES))))


BUILDERS: dict[str, Callable[..., nn.Module]] = {f"scene/{name}": partial(create, name) for name in READOUTS}
