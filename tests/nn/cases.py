"""Every layer in every dimension, as data: the tests of `nn` run on each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scale_disco import DiscreteBasis
from scale_disco import nn as snn

SCALES = [1, 2**0.5, 2]


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the input
    output: tuple[int, ...]

    def layer(self, seed: int = 0) -> nn.Module:
        """The layer with all its parameters random, neighbors of the scale included, so that none hides a mistake."""
        torch.manual_seed(seed)
        layer = self.build()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        for name, buffer in layer.named_buffers():
            if name.startswith("running"):
                nn.init.uniform_(buffer, 0.5, 1.5)
        return layer

    @property
    def takes_images(self) -> bool:
        return len(self.output) > len(self.shape)

    @property
    def keeps_scales(self) -> bool:
        return len(self.output) >= len(self.shape)

    def input(self) -> Tensor:
        """A random input, feature maps scale-major as layers hand them on."""
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(1))
        return x if self.takes_images else x.movedim(2, 0).contiguous().movedim(0, 2)


def basis(dims: int, kernel_size: int = 3) -> DiscreteBasis:
    return DiscreteBasis(kernel_size, SCALES, spatial_dims=dims)


def _cases() -> list[Case]:
    cases = []
    for dims, side in ((1, 24), (2, 14), (3, 8)):
        space, half = (side,) * dims, (side // 2,) * dims
        images, maps = (2, 4, *space), (2, 4, 3, *space)
        lift, conv = getattr(snn, f"ScaleLift{dims}d"), getattr(snn, f"ScaleConv{dims}d")
        norm = getattr(snn, f"ScaleBatchNorm{dims}d")
        largest, average = getattr(snn, f"ScaleMaxPool{dims}d"), getattr(snn, f"ScaleAvgPool{dims}d")

        def add(name, build, shape, output, dims=dims):
            cases.append(Case(f"{name} {dims}d", build, shape, output))

        # Loops bind late: every value that a builder needs is one of its defaults.
        add("lift", lambda d=dims, lift=lift: lift(4, 6, basis(d)), images, (2, 6, 3, *space))
        add(
            "lift strided grouped reflect",
            lambda d=dims, lift=lift: lift(4, 6, basis(d), 2, groups=2, bias=False, padding_mode="reflect"),
            images,
            (2, 6, 3, *half),
        )
        add("conv", lambda d=dims, conv=conv: conv(4, 6, basis(d)), maps, (2, 6, 3, *space))
        add("conv T=2", lambda d=dims, conv=conv: conv(4, 6, basis(d), scale_extent=2), maps, (2, 6, 3, *space))
        add(
            "conv depthwise even circular",
            lambda d=dims, conv=conv: conv(4, 4, basis(d, 2), groups=4, padding_mode="circular"),
            maps,
            (2, 4, 3, *space),
        )
        add("conv 1x1", lambda d=dims, conv=conv: conv(4, 6, basis(d, 1), stride=2), maps, (2, 6, 3, *half))
        add(
            "conv 1x1 T=3",
            lambda d=dims, conv=conv: conv(4, 6, basis(d, 1), scale_extent=3),
            maps,
            (2, 6, 3, *space),
        )
        add("norm", lambda norm=norm: norm(4).eval(), maps, maps)
        add("max pool", lambda p=largest: p(3, 2, 1), maps, (2, 4, 3, *half))
        add("max pool following", lambda p=largest: p(2, scales=SCALES), maps, (2, 4, 3, *half))
        add("average pool", lambda p=average: p(2), maps, (2, 4, 3, *half))
        add("average pool following", lambda p=average: p(2, scales=SCALES), maps, (2, 4, 3, *half))
        blur = getattr(snn, f"ScaleBlurPool{dims}d")
        add("blur pool", lambda p=blur: p(SCALES), maps, (2, 4, 3, *half))
        add("upsample", lambda: snn.ScaleUpsample(2), maps, (2, 4, 3, *(2 * s for s in space)))
        add("dropout", lambda: snn.ScaleDropout(0.5).eval(), maps, maps)
        for reduce in ("max", "mean", "logsumexp"):
            add(f"project {reduce}", lambda r=reduce: snn.ScaleProject(r), maps, (2, 4, *space))
            add(f"decision {reduce}", lambda r=reduce: snn.ScaleDecision(r), maps, (2, 4, *space))
    return cases


CASES = _cases()
