"""Layers on feature maps [B, C, S, ...]: thin modules over `functional` that follow the conventions of `torch.nn`."""

from .conv import ScaleConv1d, ScaleConv2d, ScaleConv3d, ScaleLift1d, ScaleLift2d, ScaleLift3d
from .norm import ScaleBatchNorm1d, ScaleBatchNorm2d, ScaleBatchNorm3d, ScaleDropout
from .pool import (
    ScaleAvgPool1d,
    ScaleAvgPool2d,
    ScaleAvgPool3d,
    ScaleBlurPool1d,
    ScaleBlurPool2d,
    ScaleBlurPool3d,
    ScaleMaxPool1d,
    ScaleMaxPool2d,
    ScaleMaxPool3d,
    ScaleUpsample,
)
from .project import ScaleDecision, ScaleProject

__all__ = ["ScaleConv1d", "ScaleConv2d", "ScaleConv3d", "ScaleLift1d", "ScaleLift2d", "ScaleLift3d"]
__all__ += ["ScaleBatchNorm1d", "ScaleBatchNorm2d", "ScaleBatchNorm3d", "ScaleDropout"]
__all__ += ["ScaleAvgPool1d", "ScaleAvgPool2d", "ScaleAvgPool3d", "ScaleMaxPool1d", "ScaleMaxPool2d", "ScaleMaxPool3d"]
__all__ += ["ScaleBlurPool1d", "ScaleBlurPool2d", "ScaleBlurPool3d", "ScaleDecision", "ScaleProject"]
__all__ += ["ScaleUpsample"]
