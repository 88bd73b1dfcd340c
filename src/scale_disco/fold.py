"""The scale axis folded into the batch, so that any 2-D layer runs on feature maps unchanged."""

from torch import Tensor


def fold(x: Tensor) -> Tensor:
    """Move scales into the batch: [B, C, S, ...] -> [S * B, C, ...], scale by scale.

    A view if memory is scale-major, as for outputs of `unfold` and of the layers; a copy otherwise.

    Example:
        >>> import torch
        >>> fold(torch.zeros(2, 3, 4, 8, 8)).shape
        torch.Size([8, 3, 8, 8])
    """
    if x.ndim < 3:
        raise ValueError(f"fold: expected a feature map [B, C, S, ...], got shape {tuple(x.shape)}")
    return x.movedim(2, 0).flatten(0, 1)


def unfold(x: Tensor, scales: int) -> Tensor:
    """Invert `fold`: [S * B, C, ...] -> [B, C, S, ...], always a view.

    Example:
        >>> import torch
        >>> unfold(torch.zeros(8, 3, 5, 5), 4).shape
        torch.Size([2, 3, 4, 5, 5])
    """
    if x.ndim < 2 or scales < 1 or x.shape[0] % scales:
        raise ValueError(f"unfold: expected [S * B, C, ...] divisible by {scales} scales, got shape {tuple(x.shape)}")
    return x.view(scales, x.shape[0] // scales, *x.shape[1:]).movedim(0, 2)
