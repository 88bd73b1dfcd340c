"""Weights of other networks, given to trackers: of ImageNet classifiers, of SiamDW, of SE-SiamFC."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.checkpoints import Checkpoint, load_weights
from ...nn.conv import ScaleConvolution
from ..io.weights import PIXELS, fit_kernels, is_caffe

_AROUND = re.compile(r"^((module|network|model|backbone|features)\.)+")  # what training scripts put before names
_ELSEWHERE = re.compile(r"^(fc|head|classifier|layer[34])\.|\.basis$|(^|\.)(mean|std|deviation|gain|offset)$")
_AVERAGE = "average.module."  # before names of the moving average of a run


def transfer(features: nn.Module, checkpoint: Checkpoint, who: str, pixels: str | None = None) -> dict[str, Tensor]:
    """Give the features of a tracker the weights of another network; what its file says beside them, to be loaded too.

    A file of a ResNet-50 has more blocks and another pool: its first two stages are taken. Ordinary kernels are given
    to scale convolutions such that those of the smallest scale are nearest to them, by the smallest weights that are.

    Args:
        features: CIResNet-22 or AlexNet, of any layers. Changed in place.
        checkpoint: From `read_checkpoint`.
        who: The network's name, for errors.
        pixels: What the weights were trained on, one of `PIXELS`. By default what the file says, "caffe" for files
            that are known to be Caffe's, "raw" for those of SiamDW, and "imagenet" for others.
    """
    if pixels is not None and pixels not in PIXELS:
        raise ValueError(f"{who}: pixels must be one of {', '.join(PIXELS)}, got {pixels!r}")
    averaged = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(_AVERAGE)}
    tensors = averaged or checkpoint.tensors  # a run with a moving average has both
    plain = {_AROUND.sub("", name.removeprefix(_AVERAGE)): tensor for name, tensor in tensors.items()}
    resnet = "layer2.1.conv1.weight" in plain
    given = {_placed(name) if resnet else name: tensor for name, tensor in plain.items() if not _ELSEWHERE.search(name)}
    normal = _normal(plain, pixels)
    if normal is None:
        known = "caffe" if is_caffe(checkpoint.sha256) else "imagenet" if resnet else "raw"
        pixels = pixels or known
        normal = dict(zip(("mean", "deviation"), map(torch.tensor, PIXELS[pixels]), strict=True))
        if pixels == "caffe" and "conv1.weight" in given:
            given["conv1.weight"] = given["conv1.weight"].flip(1)  # networks here see RGB
    own = features.state_dict()
    for name, part in features.named_modules():
        key = f"{name}.weight"
        if isinstance(part, ScaleConvolution) and key in given:
            given[key] = _as_scale_convolution(given[key], part)
            given.setdefault(note := f"{name}._extra_state", own[note])
    load_weights(features, checkpoint._replace(tensors=given), who)
    return normal | {name: plain[name] for name in ("gain", "offset") if name in plain}


def _placed(name: str) -> str:
    """Where the second stage of a ResNet is in CIResNet-22, which has its pool behind the first block."""
    found = re.match(r"layer2\.([1-3])\.", name)
    return f"layer2.{int(found.group(1)) + 1}.{name[found.end() :]}" if found else name


def _normal(plain: dict[str, Tensor], pixels: str | None) -> dict[str, Tensor] | None:
    """Mean and deviation of pixels from 0 to 255 that a tracker's file has."""
    if pixels is not None or "mean" not in plain:
        return None
    if "deviation" in plain:
        return {"mean": plain["mean"].flatten(), "deviation": plain["deviation"].flatten()}
    if "std" in plain:  # of SE-SiamFC, for pixels from 0 to 1
        return {"mean": 255 * plain["mean"].flatten(), "deviation": 255 * plain["std"].flatten()}
    return None


def _as_scale_convolution(weight: Tensor, layer: ScaleConvolution) -> Tensor:
    """Weights of an ordinary convolution, or of one of SE-SiamFC, in the shape of a layer's."""
    own = layer.weight
    if weight.ndim == 5:  # [C', C, T, 1, 1]
        weight = weight.flatten(3)
    if weight.shape == own.shape or weight.ndim != 4:
        return weight
    fitted = fit_kernels(weight, layer.basis)  # [C', C, F]
    return fitted if layer.lifting else F.pad(fitted[:, :, None], (0, 0, 0, own.shape[2] - 1))
