"""Scale profiles of whole images from a pretrained network on the decimated grid: the mean response at each scale."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...resampling import resample
from ...scales import Scales, as_scales
from ..io.arrays import cached_tensors
from ..io.progress import Progress
from ..io.weights import PIXELS
from ..scene.networks import Stages

CHANNELS = 512
_SMALLEST = 16  # side of the shrunk image, in pixels


class PretrainedStages(nn.Module):
    """The first two stages of a ResNet-50, [B, 3, H, W] in RGB from 0 to 255 -> [B, 512, H / 8, W / 8].

    Args:
        pretrained: A file of weights with torchvision's names, such as ImageNet's, or "torchvision" or "timm".
        sha256: Its expected checksum.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, pretrained: str | os.PathLike[str], sha256: str | None = None) -> None:
        super().__init__()
        self.stages, self.sha256, pixels = Stages.load(pretrained, sha256)
        for name, values in zip(("mean", "std"), PIXELS[pixels], strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None])
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.stages((images - self.mean) / self.std)
        return maps


@torch.inference_mode()
def scale_profiles(
    network: nn.Module, images: Sequence[Tensor], scales: Scales | Sequence[float], progress: Progress | None = None
) -> Tensor:
    """Return the spatial means of the features of every image at every scale, [N, C, S].

    At scale s the network sees the image shrunk by s, with antialiasing; scales below 1 enlarge it. An image of an
    object twice as large has the same profile an octave further along the scale axis.
    """
    scales = as_scales(scales)
    profiles = []
    for index, image in enumerate(images):
        if min(image.shape[1:]) < _SMALLEST * scales[-1]:
            size = f"{image.shape[2]} x {image.shape[1]} pixels shrunk by {scales[-1]:g}"
            raise ValueError(f"scale_profiles: image {index} of {size} is below {_SMALLEST} pixels; use smaller scales")
        pixels = image[None].float()
        at_scales = [network(resample(pixels, 1 / scale, antialias=True)).mean((2, 3))[0] for scale in scales]
        profiles.append(torch.stack(at_scales, 1))
        if progress is not None:
            progress(index + 1, len(images))
    return torch.stack(profiles)


def cached_profiles(
    network: PretrainedStages,
    images: Sequence[Tensor],
    scales: Scales | Sequence[float],
    *,
    key: object,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Return `scale_profiles` from a folder of cached ones, or compute and store them; `key` identifies the images."""
    scales = as_scales(scales)
    shapes = {"profiles": (len(images), None, len(scales))}

    def compute() -> dict[str, Tensor]:
        return {"profiles": scale_profiles(network, images, scales, progress)}

    return cached_tensors(cache, "profiles", (key, network.sha256, tuple(scales)), shapes, compute)["profiles"]
