"""Projection: from scales to one image."""

import math

import torch
from torch import Tensor, nn

from ..checks import check_choice, check_positive


class ScaleProject(nn.Module):
    """Reduce the scale axis: [B, C, S, ...] -> [B, C, ...].

    The output is invariant to shifts along S, up to what enters and leaves at the ends.

    Args:
        reduce: "max" (as in the paper), "mean", or "logsumexp": `t (log mean over S of exp(x / t))` with a learnable
            temperature t, which approaches the maximum for t -> 0 and the mean for large t.
        temperature: Initial t, for "logsumexp".

    Example:
        >>> ScaleProject("max")(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, reduce: str = "max", *, temperature: float = 1.0) -> None:
        super().__init__()
        self.reduce = check_choice("ScaleProject", "reduce", reduce, ("max", "mean", "logsumexp"))
        temperature = check_positive("ScaleProject", "temperature", temperature)
        if reduce == "logsumexp":
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(f"ScaleProject: expected input [B, C, S, ...], got shape {tuple(x.shape)}")
        if self.reduce == "max":
            return x.max(2).values  # not amax, whose saved output in-place layers would overwrite
        if self.reduce == "mean":
            return x.mean(2)
        temperature = self.log_temperature.exp()
        return temperature * (torch.logsumexp(x / temperature, 2) - math.log(x.shape[2]))

    def extra_repr(self) -> str:
        return repr(self.reduce)
