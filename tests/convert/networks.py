"""Small networks of every kind that people convert, with the place where their scales are to be reduced."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scale_disco.models.resnet import resnet18, resnet50
from tests.conftest import tiered


def sequential():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class VGG(nn.Module):
    """5x5 kernels, an adaptive pool that keeps some space, and a classifier on what is flattened."""

    def __init__(self):
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, padding=2), relu, nn.Conv2d(8, 8, 5, padding=2), relu, nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 5, padding="same"), relu,
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d(4)
        self.classifier = nn.Sequential(nn.Linear(256, 32), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(32, 5))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Excited(nn.Module):
    """A depthwise-separable block with squeeze and excitation."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.excite = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.SiLU(), nn.Conv2d(4, channels, 1), nn.Sigmoid())
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = F.silu(self.norm(self.depthwise(x)))
        return x + self.pointwise(y * self.excite(self.squeeze(y)))


class Mobile(nn.Module):
    """Depthwise blocks, and a 1x1 convolution behind the global pool."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.Sequential(Excited(8), Excited(8))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Conv2d(8, 12, 1)
        self.classifier = nn.Linear(12, 5)

    def forward(self, x):
        x = self.pool(self.blocks(self.stem(x)))
        return self.classifier(F.hardswish(self.head(x)).flatten(1))


class Dense(nn.Module):
    """Concatenation, and a head without modules for the last activation and pool."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        self.first = nn.Conv2d(8, 4, 3, padding=1)
        self.second = nn.Conv2d(12, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.classifier = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([x, self.first(F.relu(x))], 1)
        x = torch.cat([x, self.second(F.relu(x))], 1)
        x = F.relu(self.norm(x))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    """Skip connections and upsampling: the output is a map."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.Conv2d(24, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        skip = F.relu(self.down(x))
        deep = F.relu(self.deep(F.avg_pool2d(skip, 2)))
        return self.up(torch.cat([skip, F.interpolate(deep, scale_factor=2, mode="bilinear")], 1))


class Decoder(nn.Module):
    """A U-Net with transposed convolutions, as in nnU-Net and many others."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.up, self.norm = nn.ConvTranspose2d(8, 6, 2, 2, groups=2), nn.BatchNorm2d(6)
        self.last = nn.ConvTranspose2d(14, 2, 3, 1, 1)

    def forward(self, x):
        skip = F.relu(self.down(x))
        y = F.relu(self.norm(self.up(F.relu(self.deep(skip)))))
        return self.last(torch.cat([skip, y], 1))


class Reused(nn.Module):
    """One convolution called twice, by a functional forward."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 5)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        x = torch.tanh(self.conv(x))
        return self.head(x.mean((2, 3)))


class Counted(nn.Module):
    """Keeps the size of its batch, so that scales can be reduced at the output only."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        batch = x.shape[0]
        return self.head(self.pool(self.conv(x)).reshape(batch, -1))


class Heads(nn.Module):
    """Two outputs, of which one is a map."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, padding=1)
        self.heat = nn.Conv2d(6, 2, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = F.relu(self.body(x))
        return {"heat": self.heat(x), "label": self.head(self.pool(x).flatten(1))}


def odd_kinds():
    return nn.Sequential(
        nn.Conv2d(3, 8, 2, padding=1),
        nn.Conv2d(8, 8, (1, 5), padding=(0, 2)),
        nn.Conv2d(8, 8, (5, 3), stride=(2, 1), padding=(2, 1)),
        nn.Conv2d(8, 8, 3, dilation=2, padding=2, padding_mode="circular"),
        nn.Conv2d(8, 8, 3, dilation=6, padding=6),
        nn.Conv2d(8, 8, 4, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def signals():
    return nn.Sequential(nn.Conv1d(3, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 8, 4), nn.AdaptiveAvgPool1d(1), nn.Flatten())


def volumes():
    return nn.Sequential(
        nn.Conv3d(3, 4, (1, 3, 3), padding=(0, 1, 1)),
        nn.ReLU(),
        nn.Conv3d(4, 4, 3, padding=1),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
    )


NETWORKS = {
    "sequential": (sequential, "before 6"),
    "vgg 5x5": (VGG, "after avgpool"),
    "depthwise, squeeze-excitation": (Mobile, "before pool"),
    "dense, strided 7x7": (Dense, "after norm"),
    "u-net": (UNet, "at the output"),
    "transposed convolutions": (Decoder, "at the output"),
    "reused": (Reused, "after conv"),
    "counted": (Counted, "at the output"),
    "heads": (Heads, "before pool"),
    "even, oblong, dilated": (odd_kinds, "before 6"),
    "signals": (signals, "before 3"),
    "volumes": (volumes, "before 3"),
    "resnet18": (lambda: resnet18(classes=5), "before avgpool"),
    "resnet50": (lambda: resnet50(classes=5, stride_first=True), "before avgpool"),
}

every_network = pytest.mark.parametrize("kind", tiered(NETWORKS, lambda kind: kind != "resnet50"))


def images(kind, batch=2):
    sides = {"signals": [64], "volumes": [10, 12, 12]}.get(kind, [64, 64] if "resnet" in kind else [32, 32])
    return torch.randn(batch, 3, *sides, generator=torch.Generator().manual_seed(1))


def network(kind):
    """A network in evaluation mode whose norms do something."""
    torch.manual_seed(0)
    model = NETWORKS[kind][0]().eval()
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.running_mean, -0.5, 0.5)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model
