"""Batch norm and dropout that treat all scales alike, as equivariance requires."""

import torch
from torch import Tensor, nn

from ..fold import fold, unfold
from ..functional.layout import check_shape
from .fixed import SpatialDims


class _ScaleBatchNorm(SpatialDims, nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        check_shape(type(self).__name__, x, self.spatial_dims, channels=self.num_features)
        return unfold(super().forward(fold(x)), x.shape[2])

    def _check_input_dim(self, input: Tensor) -> None:
        """Checked before folding, where the error can name the scale axis."""


class ScaleBatchNorm1d(_ScaleBatchNorm, spatial_dims=1):
    """Batch norm of [B, C, S, W] with statistics over batch, scales and space. See `ScaleBatchNorm2d`."""


class ScaleBatchNorm2d(_ScaleBatchNorm, spatial_dims=2):
    """Batch norm of [B, C, S, H, W] with one mean and variance per channel, over batch, scales and space.

    Separate statistics per scale would break equivariance. Arguments, parameters and buffers are those of
    `torch.nn.BatchNorm2d`.

    Example:
        >>> ScaleBatchNorm2d(8)(torch.randn(2, 8, 3, 16, 16)).shape
        torch.Size([2, 8, 3, 16, 16])
    """


class ScaleBatchNorm3d(_ScaleBatchNorm, spatial_dims=3):
    """Batch norm of [B, C, S, D, H, W] with statistics over batch, scales and space. See `ScaleBatchNorm2d`."""


class ScaleDropout(nn.modules.dropout._DropoutNd):
    """Randomly zero whole channels of [B, C, S, ...], at all scales and positions together.

    A channel dropped at one scale only would look like a feature of that scale.

    Args:
        p: Dropout probability of a channel.
        inplace: Whether to overwrite the input.

    Example:
        >>> x = ScaleDropout(0.5)(torch.ones(1, 64, 3, 4, 4))
        >>> bool((x.flatten(2).amin(2) == x.flatten(2).amax(2)).all())
        True
    """

    def forward(self, x: Tensor) -> Tensor:
        drop = torch.feature_dropout_ if self.inplace else torch.feature_dropout
        return drop(x, self.p, self.training)
