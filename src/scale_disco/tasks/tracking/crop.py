"""Square crops around an object, of any size.

Pixel i covers the interval from i to i + 1, so the center of a box [x, y, w, h] is (x + w / 2, y + h / 2).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_CONTEXT = 0.5
_MAX_SAMPLES = 4  # per pixel and axis


def exemplar_side(width: float, height: float) -> float:
    """Return the side, in frame pixels, of the square that shows an object with half of its size around it.

    Example:
        >>> exemplar_side(40, 40)
        80.0
    """
    margin = _CONTEXT * (width + height)
    return math.sqrt((width + margin) * (height + margin))


def mean_color(image: Tensor) -> Tensor:
    """Return the mean color of a frame, which pads it: [3, H, W] -> [3]."""
    return image.float().mean((1, 2))


def crops(image: Tensor, centers: Tensor, sides: Tensor, out: int, fill: Tensor) -> Tensor:
    """Return square crops of a frame, uint8 [3, H, W] -> [N, 3, out, out], from 0 to 255.

    When a crop shrinks the frame, every pixel is the mean of up to four by four samples of the area it covers.

    Args:
        centers: x and y of the centers, [N, 2].
        sides: Sides in frame pixels, [N].
        out: Side of the crops in their own pixels.
        fill: Color outside of the frame, [3].

    Example:
        >>> frame = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8).expand(3, 8, 8)
        >>> crop = crops(frame, torch.tensor([[4.0, 4.0]]), torch.tensor([4.0]), 2, mean_color(frame))
        >>> crop[0, 0]
        tensor([[22.5000, 24.5000],
                [38.5000, 40.5000]])
    """
    samples = min(max(1, math.ceil(float(sides.max()) / out)), _MAX_SAMPLES)  # per pixel and axis
    count = out * samples
    size = torch.tensor([image.shape[2], image.shape[1]])
    # Only the visible part of the frame is converted to float; interpolation also reads the next pixel.
    low = ((centers - sides[:, None] / 2).amin(0).floor() - 1).clamp_min(0).minimum(size - 1).long()
    high = ((centers + sides[:, None] / 2).amax(0).ceil() + 1).clamp_min(1).minimum(size).long().maximum(low + 1)
    visible = image[:, low[1] : high[1], low[0] : high[0]].float() - fill[:, None, None]
    steps = (torch.arange(count) + 0.5) / count - 0.5
    points = centers[:, None] - low + sides[:, None, None] * steps[:, None]  # [N, count, 2]
    x, y = (2 * points / (high - low) - 1).to(image.device, torch.float32).unbind(-1)
    grid = torch.stack([x[:, None].expand(-1, count, -1), y[:, :, None].expand(-1, -1, count)], -1)
    sampled = F.grid_sample(visible.expand(len(sides), -1, -1, -1), grid, align_corners=False)  # zero outside
    return (F.avg_pool2d(sampled, samples) if samples > 1 else sampled) + fill[:, None, None]
