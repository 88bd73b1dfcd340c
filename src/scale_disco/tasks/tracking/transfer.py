"""Load weights of ImageNet classifiers, SiamDW and SE-SiamFC into trackers."""

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.checkpoints import Checkpoint, load_weights
from ...models.resnet import CAFFE
from ...nn.conv import ScaleConvolution
from ..io.weights import PIXELS, fit_kernels

_PREFIX = re.compile(r"^((module|network|model|backbone|features)\.)+")  # prefixes of training scripts
_UNUSED = re.compile(r"^(fc|head|classifier|layer[34])\.|\.basis$|(^|\.)(mean|std|deviation|gain|offset)$")
_AVERAGE = "average.module."  # prefix of the moving average in a run


def transfer(features: nn.Module, checkpoint: Checkpoint, who: str, pixels: str | None = None) -> dict[str, Tensor]:
    """Load the weights of another network into the features of a tracker; return buffers of its file to load as well.

    Of a ResNet-50 the first two stages are used. Ordinary kernels are converted to weights of scale convolutions: the
    smallest ones that bring the kernels of the smallest scale nearest to them.

    Args:
        features: CIResNet-22 or AlexNet with any layers, modified in place.
        pixels: Pixels that the weights were trained on, one of `PIXELS`. Default: as stored in the file; else "caffe"
            for known files of Caffe, "imagenet" for a ResNet and "raw" for SiamDW.
    """
    if pixels is not None and pixels not in PIXELS:
        raise ValueError(f"{who}: pixels must be one of {', '.join(PIXELS)}, got {pixels!r}")
    averaged = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(_AVERAGE)}
    tensors = averaged or checkpoint.tensors  # a run with a moving average stores both
    plain = {_PREFIX.sub("", name.removeprefix(_AVERAGE)): tensor for name, tensor in tensors.items()}
    resnet = "layer2.1.conv1.weight" in plain
    weights = {_renamed(name) if resnet else name: tensor for name, tensor in plain.items() if not _UNUSED.search(name)}
    normalization = _normalization(plain, pixels)
    if normalization is None:
        pixels = pixels or ("caffe" if checkpoint.sha256 in CAFFE else "imagenet" if resnet else "raw")
        normalization = dict(zip(("mean", "deviation"), map(torch.tensor, PIXELS[pixels]), strict=True))
        if pixels == "caffe" and "conv1.weight" in weights:
            weights["conv1.weight"] = weights["conv1.weight"].flip(1)  # from BGR to RGB
    own = features.state_dict()
    for name, part in features.named_modules():
        key = f"{name}.weight"
        if isinstance(part, ScaleConvolution) and key in weights:
            weights[key] = _as_scale_convolution(weights[key], part)
            weights.setdefault(extra := f"{name}._extra_state", own[extra])
    load_weights(features, checkpoint._replace(tensors=weights), who)
    return normalization | {name: plain[name] for name in ("gain", "offset") if name in plain}


def _renamed(name: str) -> str:
    """Rename blocks of the second stage of a ResNet: CIResNet-22 has a pool after the first one."""
    return re.sub(r"^layer2\.([1-3])\.", lambda match: f"layer2.{int(match[1]) + 1}.", name)


def _normalization(plain: dict[str, Tensor], pixels: str | None) -> dict[str, Tensor] | None:
    """Return mean and std of pixels from 0 to 255 as stored in the file of a tracker."""
    key, factor = ("deviation", 1) if "deviation" in plain else ("std", 255)  # of SE-SiamFC, for pixels from 0 to 1
    if pixels is not None or "mean" not in plain or key not in plain:
        return None
    return {"mean": factor * plain["mean"].flatten(), "deviation": factor * plain[key].flatten()}


def _as_scale_convolution(weight: Tensor, layer: ScaleConvolution) -> Tensor:
    """Convert weights of an ordinary convolution, or of SE-SiamFC, to those of a layer."""
    own = layer.weight
    if weight.ndim == 5:  # [C', C, T, 1, 1]
        weight = weight.flatten(3)
    if weight.shape == own.shape or weight.ndim != 4:
        return weight
    fitted = fit_kernels(weight, layer.basis)  # [C', C, F]
    return fitted if layer.lifting else F.pad(fitted[:, :, None], (0, 0, 0, own.shape[2] - 1))
