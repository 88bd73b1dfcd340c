"""Residual networks (He et al. 2016) with torchvision's names, so that its weights load; plain and scale-equivariant.

Images must be normalized as in training. For weights of torchvision and timm: RGB from 0 to 1, minus the mean (0.485,
0.456, 0.406), divided by (0.229, 0.224, 0.225). For the original Caffe weights, which Keras has too: BGR from 0 to 255,
minus the mean (103.939, 116.779, 123.68). The wrong normalization gives no error, only wrong classes.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..convert import ScaleEquivariant, to_scale_equivariant
from ..scales import Scales
from .checkpoints import PACKAGES, download_weights, load_weights, read_checkpoint

_CLASSES = 1000  # of ImageNet
_EXAMPLE_SIDE = 64  # of the example for conversion: small, yet with more than one pixel before the last pool

LATER_STAGES = ("layer3.", "layer4.", "fc.")  # names of their weights begin with these
# Caffe's weights, by way of Keras, in float16, by sha256: all of them, and the stages that come with the package.
CAFFE = (
    "defd770bd9f35073cfb2dbf8101b9fad51fdbc0d981bb59b4d2d9b74b1e14bec",
    "932c7b6db4b7cbafff63f5038bb66a689f765883dafde40679fe1d8a5f301ca0",
)
# Whether known weights of bottlenecks have their stride first, by the beginning of their files' sha256.
_STRIDE_FIRST = {
    **dict.fromkeys(CAFFE, True),
    "19c8e357": False,  # torchvision's of 2017
    "0676ba61": False,  # the same, saved again
    "11ad3fa6": False,  # torchvision's second
    "14fe96d1": False,  # timm's
}


class _Block(nn.Module):
    """Convolutions, each with a norm, and a shortcut: [B, C, H, W] -> [B, C', H', W']."""

    sides: ClassVar[tuple[int, ...]]  # of the kernels
    expansion: ClassVar[int]  # C' over the channels inside

    def __init__(self, in_channels: int, channels: int, stride: int = 1, *, stride_first: bool = False) -> None:
        super().__init__()
        widths = [in_channels, *[channels] * (len(self.sides) - 1), channels * self.expansion]
        strided = 1 if stride_first else self.sides.index(3) + 1
        for k, side in enumerate(self.sides, 1):
            step = stride if k == strided else 1
            conv = nn.Conv2d(widths[k - 1], widths[k], side, step, padding=side // 2, bias=False)
            self.add_module(f"conv{k}", conv)
            self.add_module(f"bn{k}", nn.BatchNorm2d(widths[k]))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != widths[-1]:
            shortcut = nn.Conv2d(in_channels, widths[-1], 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k in range(1, len(self.sides) + 1):
            conv, norm = getattr(self, f"conv{k}"), getattr(self, f"bn{k}")  # torch 2.6 cannot trace `get_submodule`
            y = norm(conv(y if k == 1 else self.relu(y)))
        out: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return out


class BasicBlock(_Block):
    """Two 3x3 convolutions and a shortcut. The stride is always in the first."""

    sides, expansion = (3, 3), 1


class Bottleneck(_Block):
    """A 1x1, a 3x3 and a 1x1 convolution and a shortcut.

    The stride is in the 3x3 convolution, as in torchvision, or in the first 1x1 (`stride_first`), as in the original.
    """

    sides, expansion = (1, 3, 1), 4


class ResNet(nn.Module):
    """A residual network, [B, 3, H, W] -> [B, classes].

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: Number of blocks in each of the four stages.
        classes: Number of classes.
        stride_first: Whether bottlenecks have their stride in the first 1x1 convolution.

    Example:
        >>> resnet18(classes=10)(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, block: type[_Block], depths: Sequence[int], classes: int = _CLASSES, *, stride_first: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        widths = [64, *(64 * 2**index * block.expansion for index in range(4))]

        def stage(index: int) -> nn.Sequential:
            first = block(widths[index], 64 * 2**index, 2 if index else 1, stride_first=stride_first)
            others = (block(widths[index + 1], 64 * 2**index) for _ in range(depths[index] - 1))
            return nn.Sequential(first, *others)

        self.layer1, self.layer2, self.layer3, self.layer4 = map(stage, range(4))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], check_count(type(self).__name__, "classes", classes, 1))
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        y: Tensor = self.fc(self.avgpool(x).flatten(1))
        return y


def init_convolutions(net: nn.Module) -> None:
    """Draw He's random weights for all convolutions, with fan-out."""
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


resnet18: Callable[..., ResNet] = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet34: Callable[..., ResNet] = partial(ResNet, BasicBlock, (3, 4, 6, 3))
resnet50: Callable[..., ResNet] = partial(ResNet, Bottleneck, (3, 4, 6, 3))
_NETWORKS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}


def cnn(
    name: str,
    *,
    pretrained: str | os.PathLike[str] | None = None,
    sha256: str | None = None,
    classes: int | None = None,
    stride_first: bool = False,
) -> ResNet:
    """A ResNet-18, -34 or -50 of ordinary convolutions, [B, 3, H, W] -> [B, classes].

    Args:
        name: "resnet18", "resnet34" or "resnet50".
        pretrained: A file of weights with torchvision's names (.safetensors, or of `torch.save`; nothing in it is
            executed), or "torchvision" or "timm" for the default weights of that package, which must be installed:
            they are downloaded into the folder of `torch.hub` and verified. By default weights are random.
        sha256: Checksum of the file of weights; another file is refused.
        classes: Number of classes; by default that of the file, or ImageNet's 1000. If the file has another number,
            its last layer is not loaded, and `fc` stays random, for fine-tuning.
        stride_first: Whether bottlenecks (of ResNet-50) have their stride in the first 1x1 convolution, as in the
            original, or in the 3x3, as in torchvision and timm. Weights load in both and are right in one; files that
            are known to be of the other kind are refused.
    """
    network, sources = _NETWORKS[name], f"a file, {' or '.join(PACKAGES)}"
    if pretrained is None:
        if sha256 is not None:
            raise ValueError(f"{name}: sha256 requires pretrained")
        return network(_CLASSES if classes is None else classes, stride_first=stride_first)
    if not isinstance(pretrained, (str, os.PathLike)):
        raise TypeError(f"{name}: pretrained must be {sources}, got {pretrained!r}")
    if pretrained in PACKAGES:
        _check_stride(name, f"{pretrained}'s", False, stride_first)
        pretrained = download_weights(name, str(pretrained), sha256)
    elif not os.path.exists(pretrained):
        raise FileNotFoundError(f"{name}: pretrained must be {sources}; no such file: {pretrained}")
    checkpoint = read_checkpoint(pretrained, sha256)
    for start, needed in _STRIDE_FIRST.items():
        if checkpoint.sha256.startswith(start):
            _check_stride(name, str(checkpoint.path), needed, stride_first)
    last = checkpoint.tensors.get("fc.weight")
    saved = last.shape[0] if last is not None and last.ndim else _CLASSES
    net = network(saved if classes is None else classes, stride_first=stride_first)
    load_weights(net, checkpoint, name, but=("fc.weight", "fc.bias") if classes not in (None, saved) else ())
    return net


def disco(
    name: str,
    *,
    pretrained: str | os.PathLike[str] | None = None,
    sha256: str | None = None,
    classes: int | None = None,
    stride_first: bool = False,
    scales: Scales | Sequence[float] = (1, 2**0.5, 2),
    grid: str = "full",
    project: str | None = "auto",
    reduce: str | None = None,
    scale_extent: int = 1,
    pooling: str = "auto",
    downsampling: str = "as-is",
    antialias: bool = False,
) -> ScaleEquivariant:
    """The network of `cnn` converted to a scale-equivariant one, [B, 3, H, W] -> [B, classes].

    Options up to `stride_first` are those of `cnn`, the others those of `to_scale_equivariant`.
    """
    net = cnn(name, pretrained=pretrained, sha256=sha256, classes=classes, stride_first=stride_first)
    return to_scale_equivariant(
        net,
        scales,
        grid=grid,
        example=torch.randn(1, 3, _EXAMPLE_SIDE, _EXAMPLE_SIDE).to(net.fc.weight),
        project=project,
        reduce=reduce,
        scale_extent=scale_extent,
        pooling=pooling,
        downsampling=downsampling,
        antialias=antialias,
    )


def is_stride_first(sha256: str) -> bool:
    """Return whether the weights of a file with this checksum are known to have the stride in the first 1x1."""
    return any(first and sha256.startswith(start) for start, first in _STRIDE_FIRST.items())


def _check_stride(name: str, whose: str, needed: bool, stride_first: bool) -> None:
    """Raise an error if known weights would load into a network with the stride elsewhere and give wrong features."""
    if name == "resnet50" and needed != stride_first:
        where = "first 1x1" if needed else "3x3"
        hint = f"give stride_first={needed}, got {stride_first}"
        raise ValueError(f"{name}: {whose} weights have the stride in the {where} convolution: {hint}")


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    f"{name}/{kind}": partial(build, name) for name in _NETWORKS for kind, build in (("cnn", cnn), ("disco", disco))
}
