"""Scale-steerable networks, SS-CNN (Ghosh and Gupta 2019): log-radial harmonics, scaled by a phase rotation."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...basis import Basis, Stencil
from ...basis.sampled import centered
from ...checks import check_count
from ...nn import ScaleLift2d, ScaleProject
from ...resampling import on_cpu

_ANGLES = 9  # wedges from 0 to pi, both ends included although they are the same wedge
_WIDTH = math.pi / 16  # of a wedge, in radians
_PHASE = -math.pi / 4


class SteerableBasis(Basis):
    """Log-radial waves in double wedges, real and imaginary part: 18 functions for each order.

    The waves are sampled once on the largest grid, in a disc. A kernel of size m is its central m x m pixels after a
    phase rotation by the frequency times log(m / reference): scaling shifts the logarithm of the radius.

    Args:
        sizes: Odd kernel sizes, ascending; the scale of size m is m / reference.
        reference: Kernel size at scale 1.
        orders: Frequencies: periods of the wave between one pixel and the corner of the largest grid.

    Example:
        >>> SteerableBasis([3, 5, 7], 3).num_functions
        18
    """

    kind = "steerable"

    @on_cpu()
    def __init__(self, sizes: Sequence[int], reference: int, orders: Sequence[float] = (1,)) -> None:
        sizes = [check_count("SteerableBasis", "sizes", size, 3) for size in sizes]
        if not sizes or any(size % 2 == 0 for size in sizes):
            raise ValueError(f"SteerableBasis: sizes must be odd, at least one, got {sizes}")
        if not orders or not all(math.isfinite(order) and order > 0 for order in orders):
            raise ValueError(f"SteerableBasis: orders must be positive numbers, at least one, got {orders!r}")
        scales = [size / check_count("SteerableBasis", "reference", reference, 1) for size in sizes]
        side = sizes[-1]
        rows, cols = torch.meshgrid(*[centered(side)] * 2, indexing="ij")
        distance = torch.hypot(rows, cols)
        log_radius = torch.where(distance == 0, 1, distance).log()  # the center counts as one pixel away
        frequency = 2 * math.pi * torch.tensor(orders, dtype=torch.float64) / log_radius.max()
        turn = torch.linspace(0, math.pi, _ANGLES, dtype=torch.float64)[:, None, None]
        off = torch.remainder(torch.atan2(cols, -rows) - turn + math.pi / 2, math.pi) - math.pi / 2
        wedge = torch.exp(-off.square() / (2 * _WIDTH**2) - log_radius) * (distance <= (side - 1) / 2)
        phase = frequency[:, None, None] * log_radius + _PHASE
        real, imaginary = (wave[:, None] * wedge for wave in (phase.cos(), phase.sin()))  # [orders, angles, M, M]
        real, imaginary = (part / part.norm(dim=(-2, -1), keepdim=True) for part in (real, imaginary))
        stencils = []
        for size, scale in zip(sizes, scales, strict=True):
            angle = -frequency[:, None, None, None] * math.log(scale)
            # Factors of the real and of the imaginary weights.
            cos, sin = angle.cos(), angle.sin()
            functions = torch.stack([cos * real - sin * imaginary, -sin * real - cos * imaginary]).flatten(0, 2)
            inner = slice((side - size) // 2, (side + size) // 2)
            stencils.append(Stencil(functions[:, inner, inner].contiguous()))
        spec = {"kind": self.kind, "reference": reference, "orders": list(orders)}
        super().__init__(scales, stencils, kernel_size=sizes[0], spec=spec)


class SteerableLift2d(ScaleLift2d):
    """`ScaleLift2d` on a steerable basis with the random weights of SS-CNN: [B, C, H, W] -> [B, C', S, H', W']."""

    def reset_parameters(self) -> None:
        """Draw uniform weights as in the authors' code."""
        bound = math.sqrt(2 / (_ANGLES * self.in_channels * self.out_channels))
        nn.init.uniform_(self.weight, -bound, bound)


class SteerableConv2d(nn.Module):
    """Largest response over the sizes of a steerable kernel: [B, C, H, W] -> [B, C', H', W'], no bias.

    `SteerableBasis` has the arguments `sizes`, `reference` and `orders`.

    Example:
        >>> conv = SteerableConv2d(3, 8, [3, 5, 7], 3, stride=2)
        >>> conv(torch.randn(2, 3, 24, 24)).shape
        torch.Size([2, 8, 12, 12])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        sizes: Sequence[int],
        reference: int,
        orders: Sequence[float] = (1,),
        stride: int = 1,
    ) -> None:
        super().__init__()
        basis = SteerableBasis(sizes, reference, orders)
        self.lift = SteerableLift2d(in_channels, out_channels, basis, stride, bias=False)
        self.project = ScaleProject("max")
        # Part of the authors' layer and so of the paper's parameter counts, but unused: it gets no gradient.
        self.unused = nn.Parameter(torch.zeros(out_channels, in_channels))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.lift(x))
        return y
