"""Is it scale-equivariant? `equivariance_error` measures any callable, `assert_equivariant` turns it into a test.

Photos are shrunk by every ratio of the scales, before and after the mapping; the error is the relative difference
of the two (squared norms, Eq. 14 of the paper), away from the border. The relative error divides it by that of an
ordinary layer: 0 is exact, 1 knows nothing of scale.

    python examples/check_equivariance.py

prints both for layers and networks with random weights. A scale convolution is exact between scales of integer ratio,
and close elsewhere. An ordinary convolution responds to details of one size in pixels, and is off at every ratio. In
networks ReLU and downsampling count as well: blur pools cost little, strides cost much.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scale_disco import DiscreteBasis, HermiteBasis, Scales, assert_equivariant, equivariance_error
from scale_disco.fold import fold, unfold
from scale_disco.nn import ScaleBlurPool2d, ScaleConv2d, ScaleLift2d
from scale_disco.tasks.io.report import table
from scale_disco.tasks.io.samples import photos

torch.manual_seed(0)
scales = Scales([1, 2**0.5, 2])
basis = DiscreteBasis(3, scales)
images = photos()  # [6, 1, 160, 160]


class Attention(nn.Module):
    """A custom layer: channels weighted by their mean, all scales alike."""

    def __init__(self, lift: ScaleLift2d) -> None:
        super().__init__()
        self.lift, channels = lift, lift.out_channels
        self.weights = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid())

    def forward(self, images: Tensor) -> Tensor:
        maps = fold(self.lift(images))  # [S * B, C, H, W]
        return unfold(maps * self.weights(maps), len(scales))


def network(down: nn.Module, stride: int = 1) -> nn.Sequential:
    def layer(kind: Callable[..., nn.Module], channels: int, stride: int = 1) -> nn.Module:
        return kind(channels, 16, basis, stride=stride, padding_mode="reflect")

    first, second = layer(ScaleLift2d, 1, stride), layer(ScaleConv2d, 16, stride)
    return nn.Sequential(first, nn.ReLU(), down, second, nn.ReLU(), down, layer(ScaleConv2d, 16))


lift, plain = ScaleLift2d(1, 16, basis), nn.Conv2d(1, 16, 3, padding=1, bias=False)
with torch.no_grad():
    lift.weight.sub_(lift.weight.mean(-1, keepdim=True))  # kernels of edges; a uniform gray is the same at any size
    plain.weight.copy_(lift.weight.reshape(16, 1, 3, 3))  # in the pixel basis

mappings: dict[str, Callable[[Tensor], Tensor]] = {
    "ScaleLift2d": lift,
    "custom attention": Attention(lift),
    "ScaleLift2d, Hermite basis": ScaleLift2d(1, 16, HermiteBasis.preset("stl10")),
    "nn.Conv2d, the same kernels": plain,
    "nn.Conv2d at every scale": lambda images: torch.stack([plain(images)] * len(scales), dim=2),
    "network with ScaleBlurPool2d": network(ScaleBlurPool2d(scales)),
    "network with strides": network(nn.Identity(), stride=2),
}
rows = []
for name, mapping in mappings.items():
    errors = equivariance_error(mapping, images, scales, per_step=True)  # {ratio: error}
    relative = equivariance_error(mapping, images, scales, relative=True)
    rows.append([name, *(f"{error:.1e}" for error in errors.values()), f"{relative:.2f}"])
print(table(["error at ratio", *(f"{ratio:.3g}" for ratio in errors), "relative"], rows))


# In a test suite: the relative error may be 0.2. `tolerance` bounds Eq. 14, for exact layers: 1e-10 in float32.
assert_equivariant(mappings["network with ScaleBlurPool2d"], images, scales)
assert_equivariant(lift, images, scales)
assert_equivariant(ScaleLift2d(1, 16, DiscreteBasis(3, [1, 2])), images, [1, 2], tolerance=1e-10)
try:
    assert_equivariant(plain, images, scales)
except AssertionError as error:
    print(f"nn.Conv2d: {error}")
