"""Square views around an object, at any size, out of a frame.

A pixel i covers the interval from i to i + 1, so that a box [x, y, w, h] has its centre at (x + w / 2, y + h / 2).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_CONTEXT = 0.5
_FINEST = 4  # samples per pixel and axis, at most


def exemplar_side(width: float, height: float) -> float:
    """The side, in pixels of the frame, of the square that shows an object with half of its size around it.

    Example:
        >>> exemplar_side(40, 40)
        80.0
    """
    margin = _CONTEXT * (width + height)
    return math.sqrt((width + margin) * (height + margin))


def mean_color(image: Tensor) -> Tensor:
    """What is seen outside of a frame: its mean colour, [3, H, W] -> [3]."""
    return image.float().mean((1, 2))


def crops(image: Tensor, centres: Tensor, sides: Tensor, out: int, fill: Tensor) -> Tensor:
    """Square views of a frame, [3, H, W] -> [N, 3, out, out], from 0 to 255.

    Where a view is smaller than its part of the frame, every pixel is a mean over the part that it covers, of up to
    four by four samples.

    Args:
        image: A frame of bytes.
        centres: x and y of the middle of every view, [N, 2].
        sides: Its side in pixels of the frame, [N].
        out: Its side in its own pixels.
        fill: Colour outside of the frame, [3].

    Example:
        >>> frame = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8).expand(3, 8, 8)
        >>> view = crops(frame, torch.tensor([[4.0, 4.0]]), torch.tensor([4.0]), 2, mean_color(frame))
        >>> view[0, 0]
        tensor([[22.5000, 24.5000],
                [38.5000, 40.5000]])
    """
    finer = min(max(1, math.ceil(float(sides.max()) / out)), _FINEST)  # samples per pixel and axis
    count = out * finer
    whole = torch.tensor([image.shape[2], image.shape[1]])
    # Only the part of the frame that is seen is worth converting; samples mix it with the next pixel.
    low = ((centres - sides[:, None] / 2).amin(0).floor() - 1).clamp_min(0).minimum(whole - 1).long()
    high = ((centres + sides[:, None] / 2).amax(0).ceil() + 1).clamp_min(1).minimum(whole).long().maximum(low + 1)
    part = image[:, low[1] : high[1], low[0] : high[0]].float() - fill[:, None, None]
    steps = (torch.arange(count) + 0.5) / count - 0.5
    places = centres[:, None] - low + sides[:, None, None] * steps[:, None]  # [N, count, 2]
    x, y = (2 * places / (high - low) - 1).to(image.device, torch.float32).unbind(-1)
    grid = torch.stack([x[:, None].expand(-1, count, -1), y[:, :, None].expand(-1, -1, count)], -1)
    seen = F.grid_sample(part.expand(len(sides), -1, -1, -1), grid, align_corners=False)  # zero outside
    return (F.avg_pool2d(seen, finer) if finer > 1 else seen) + fill[:, None, None]
