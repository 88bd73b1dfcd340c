"""From all scales to one image, or to one decision."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_choice, check_positive
from ..scales import as_scales


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


class ScaleDecision(nn.Module):
    """Combine the logits of all scales: [B, K, S] -> [B, K]; also maps of logits, [B, K, S, ...] -> [B, K, ...].

    The classifier decides at every scale, and the decisions are combined. Features that are projected over scales
    before the classifier do not gain from scales that were not in training; decisions do. Put it behind the classifier.

    Args:
        reduce: "logsumexp": the logarithm of the mean over scales of the probabilities, which the cross-entropy loss
            takes as logits; "max" or "mean" of the logits over scales.

    Example:
        >>> logits = torch.tensor([[[0.0, 0.0, 9.0], [0.0, 0.0, 0.0]]])  # the last of three scales is certain
        >>> ScaleDecision()(logits).exp()
        tensor([[0.6666, 0.3334]])
        >>> ScaleDecision().apparent_scale(logits, [1, 2, 4])
        tensor([2.3783])
    """

    def __init__(self, reduce: str = "logsumexp") -> None:
        super().__init__()
        self.reduce = check_choice("ScaleDecision", "reduce", reduce, ("logsumexp", "max", "mean"))

    def forward(self, logits: Tensor) -> Tensor:
        if logits.ndim < 3:
            raise ValueError(f"ScaleDecision: expected logits [B, K, S, ...], got shape {tuple(logits.shape)}")
        if self.reduce == "max":
            return logits.max(2).values
        if self.reduce == "mean":
            return logits.mean(2)
        return torch.logsumexp(F.log_softmax(logits, 1), 2) - math.log(logits.shape[2])

    def posterior(self, logits: Tensor) -> Tensor:
        """Return the probability of every scale given the decision, [B, K, S] -> [B, S].

        All scales are equally probable before: the probability of the decided class at each scale, divided by its sum.
        """
        decided = self(logits).argmax(1, keepdim=True)  # [B, 1]
        chosen = F.log_softmax(logits, 1).gather(1, decided[:, :, None].expand(-1, -1, *logits.shape[2:]))
        return chosen[:, 0].softmax(1)

    def apparent_scale(self, logits: Tensor, scales: Iterable[float]) -> Tensor:
        """Return the apparent scale of the decided class, [B, K, S] -> [B].

        It is the geometric mean of the scales, weighted by `posterior`: the size of the object relative to the size at
        which the network knows it. A network that recognizes it at several scales has it in their middle.
        """
        scales, posterior = as_scales(scales), self.posterior(logits)
        if len(scales) != logits.shape[2]:
            got = f"S = {logits.shape[2]} and {scales}"
            raise ValueError(f"ScaleDecision: expected logits [B, K, S] with one entry per scale, got {got}")
        exponents = torch.tensor([math.log(scale) for scale in scales], dtype=logits.dtype, device=logits.device)
        return torch.einsum("s,bs...->b...", exponents, posterior).exp()

    def extra_repr(self) -> str:
        return repr(self.reduce)
