"""From scales back to one image."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_REDUCTIONS = ("max", "mean", "logsumexp")


class ScaleProject(nn.Module):
    """Reduce the scale axis: [B, C, S, ...] -> [B, C, ...].

    What an object's size moves along S is the same after it, up to what enters and leaves at the ends of S.

    Args:
        reduce: "max" (the paper's), "mean", or "logsumexp": `t (log mean over S of exp(x / t))` with a learnable
            temperature t, which is the maximum for t -> 0 and the mean for large t.
        temperature: Where t starts, for "logsumexp".

    Example:
        >>> ScaleProject("max")(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, reduce: str = "max", *, temperature: float = 1.0) -> None:
        super().__init__()
        if reduce not in _REDUCTIONS:
            raise ValueError(f"ScaleProject: reduce must be one of {', '.join(_REDUCTIONS)}, got {reduce!r}")
        if not (isinstance(temperature, (int, float)) and math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"ScaleProject: temperature must be a positive number, got {temperature!r}")
        self.reduce = reduce
        if reduce == "logsumexp":
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(f"ScaleProject: expected input [B, C, S, ...], got shape {tuple(x.shape)}")
        if self.reduce == "max":
            return x.max(2).values  # not amax, which would save its output from in-place layers behind it
        if self.reduce == "mean":
            return x.mean(2)
        temperature = self.log_temperature.exp()
        return temperature * (torch.logsumexp(x / temperature, 2) - math.log(x.shape[2]))

    def extra_repr(self) -> str:
        return repr(self.reduce)
