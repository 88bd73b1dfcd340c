"""Estimators of apparent scale: a frozen network with a scale axis and a readout (Sec. 4.4 of the paper).

Maps of the second stage of a ResNet-50 at nine scales, [B, 512, 9, h, w] as in the paper, are averaged over windows to
a *scale profile* [512, 9]: the response of every channel at every scale. An object twice as large has the same profile
an octave further along the axis. A readout (`readout.py`) maps profiles to octaves, up to a constant.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...basis import HermiteBasis
from ...convert import to_scale_equivariant
from ...convert.layers import FoldedConv, is_spatial
from ...convert.surgery import replace_modules
from ...fold import fold, unfold
from ...models.checkpoints import load_weights, read_checkpoint, weight_file
from ...models.resnet import CAFFE, LATER_STAGES, ResNet, is_stride_first, resnet50
from ...nn import ScaleConv2d
from ...scales import Scales
from ..io.images import mirrored
from ..io.weights import PIXELS, fit_kernels
from .options import BACKBONES, CELL
from .readout import READOUTS, Reading, Readout

SCALES = Scales.geometric(2**0.25, 9)  # as many as in the paper, over two octaves
CHANNELS, WINDOW = 512, 64  # of the maps; the side of a window, in pixels
_RECEPTIVE_FIELD = {"shift": 99, "as-is": 99, "hermite": 135}  # pixels at the first scale, about
_SMALLEST = 64  # side of an image, so that maps are wider than their reflection padding
_HERMITE_WIDTH = 0.9  # of the functions at the first scale, in pixels, as in SE-SiamFC
_NETWORK = "resnet50"
UNTRAINED = "scene/shift"  # the model whose weights come with the package

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

    @classmethod
    def load(cls, pretrained: File | None, sha256: str | None = None) -> tuple["Stages", str | None, str]:
        """Return the stages for RGB images, the checksum of their weights, and their pixels, a key of `PIXELS`.

        Arguments are as for `Backbone`. Random weights are the same in every call, and have no checksum.
        """
        if pretrained is None:
            if sha256 is not None:
                raise ValueError("Backbone: sha256 is the checksum of a file of weights: pass pretrained too")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return cls(resnet50()), None, "imagenet"
        checkpoint = read_checkpoint(weight_file(pretrained, _NETWORK, sha256), sha256)
        stages = cls(resnet50(stride_first=is_stride_first(checkpoint.sha256)))
        later = [name for name in checkpoint.tensors if name.startswith(LATER_STAGES)]
        load_weights(stages, checkpoint, _NETWORK, but=later)
        caffe = checkpoint.sha256 in CAFFE
        if caffe:
            stages.conv1.weight.data = stages.conv1.weight.data.flip(1)  # from BGR
        return stages, checkpoint.sha256, "caffe" if caffe else "imagenet"


class Backbone(nn.Module):
    """Frozen first two stages of a ResNet-50 at nine scales, [B, 3, H, W] in RGB from 0 to 255 -> [B, 512, 9, h, w].

    Padding is by reflection: zeros at the edges would reveal the size of an image.

    Args:
        kind: One of `BACKBONES`. "shift" has pooling windows scaled with the kernel, images at the resolution of the
            scale and stencils solved for antialiased downsampling; "as-is" is the plain conversion; "hermite" has the
            same weights projected onto Hermite functions, as in SESN.
        pretrained: A file of weights with torchvision's names, or "torchvision" or "timm"; random by default.
        sha256: Expected checksum of the file.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, kind: str = "shift", *, pretrained: File | None = None, sha256: str | None = None) -> None:
        super().__init__()
        if kind not in BACKBONES:
            raise ValueError(f"Backbone: kind must be one of {', '.join(BACKBONES)}, got {kind!r}")
        stages, self.sha256, pixels = Stages.load(pretrained, sha256)
        stages.eval()
        spatial: list[Any] = [module for module in stages.modules() if is_spatial(module)]
        for conv in spatial:
            conv.padding_mode = "reflect"
        shift = kind == "shift"
        example, pooling = torch.zeros(1, 3, _SMALLEST, _SMALLEST), "growing" if shift else "as-is"
        self.stages = to_scale_equivariant(
            stages, SCALES, example=example, project=None, pooling=pooling, antialias=shift
        )
        if kind == "hermite":
            replace_modules(self.stages.network, lambda module: isinstance(module, FoldedConv), _HermiteConv)
        for name, values in zip(("mean", "deviation"), PIXELS[pixels], strict=True):  # keys of state_dict
            self.register_buffer(name, torch.tensor(values)[:, None, None])
        # radius of the receptive field at the largest scale, in pixels
        self.reach = round(_RECEPTIVE_FIELD[kind] / 2 * SCALES.ratio(len(SCALES) - 1))
        self.kind, self.fingerprint = kind, f"{_NETWORK}-{kind}-{SCALES}-{self.sha256 or 'random'}"
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> "Backbone":
        """Keep evaluation mode: the network is frozen."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        images = (images - self.mean) / self.deviation
        if min(height, width) < _SMALLEST:
            down, right = (mirrored(side, 0, max(0, _SMALLEST - side), images.device) for side in (height, width))
            images = images[:, :, down][..., right]
        maps: Tensor = self.stages(images)
        return maps[..., : -(-height // CELL), : -(-width // CELL)]


class ScaleEstimator(nn.Module):
    """Estimator of apparent scale: a backbone and a readout of its maps.

    Lengths are in pixels: `cell` is the stride of the maps, `window` the side of the windows that the readout was
    trained for, and `reach` the radius of the receptive field.

    Example:
        >>> estimator = create("shift")
        >>> estimator(255 * torch.rand(2, 3, 64, 64)).shape
        torch.Size([2])
    """

    cell, window = CELL, WINDOW

    def __init__(self, backbone: nn.Module, readout: Readout) -> None:
        super().__init__()
        fingerprint = getattr(backbone, "fingerprint", "")
        if not readout.accepts(fingerprint):
            raise ValueError(
                "ScaleEstimator: the readout was trained for a different backbone, other scales or other weights "
                f"than {fingerprint}: use the network that it was trained for, or train it again"
            )
        self.backbone, self.readout = backbone, readout
        self.reach: int = getattr(backbone, "reach", 0)

    def maps(self, images: Tensor) -> Tensor:
        """Compute feature maps of RGB images from 0 to 255, [B, 3, H, W] -> [B, C, S, ceil(H / cell), ...]."""
        maps: Tensor = self.backbone(images)
        return maps

    def read(self, profiles: Tensor, weights: Tensor | None = None) -> Reading:
        """Read the scale profiles of windows of one image, [N, C, S]; those of more weight [N] have more contrast."""
        return self.readout.read(profiles, weights)

    def forward(self, images: Tensor) -> Tensor:
        """Return the apparent scale of whole images in octaves, [B, 3, H, W] -> [B].

        The readouts `shift` and `matched` compare the images of the batch with each other.
        """
        return self.read(self.maps(images).mean((3, 4))).octaves


def create(
    readout: str, *, backbone: str = "shift", pretrained: File | None = None, sha256: str | None = None
) -> ScaleEstimator:
    """Create an estimator with an untrained readout; `shift` needs no training.

    Args:
        readout: One of `READOUTS`.
        backbone: One of `BACKBONES`.
        pretrained, sha256: As for `Backbone`. Profiles of random weights can be compared too, but not as well.
    """
    network = Backbone(backbone, pretrained=pretrained, sha256=sha256)
    return ScaleEstimator(network, READOUTS[readout](CHANNELS, SCALES)).eval()


class _HermiteConv(nn.Module):
    """Convolution at every scale with Hermite functions: [S * B, C, H, W] -> [S * B, C', H', W']."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        basis = HermiteBasis(conv.kernel_size[0], SCALES, base_scale=_HERMITE_WIDTH)
        size = conv.in_channels, conv.out_channels
        self.conv = ScaleConv2d(*size, basis, stride=conv.stride[0], bias=False, padding_mode="reflect")
        self.conv.weight.data = fit_kernels(conv.weight, basis)[:, :, None]

    def forward(self, x: Tensor) -> Tensor:
        return fold(self.conv(unfold(x, len(SCALES))))


BUILDERS: dict[str, Callable[..., nn.Module]] = {f"scene/{name}": partial(create, name) for name in READOUTS}
