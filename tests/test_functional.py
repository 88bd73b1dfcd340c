from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scale_disco import DiscreteBasis, Scales
from scale_disco.functional import scale_lift


def test_equals_the_dense_packing():
    basis = DiscreteBasis(3, Scales.geometric(2**0.5, 4))
    images, weight = torch.randn(2, 3, 20, 20, dtype=torch.float64), torch.randn(5, 3, 9, dtype=torch.float64)
    kernels = torch.einsum("oif,fskl->osikl", weight, basis.dense()).flatten(0, 1)
    expected = F.conv2d(images, kernels, padding=kernels.shape[-1] // 2).unflatten(1, (5, 4))
    torch.testing.assert_close(scale_lift(images, weight, basis), expected)


def test_wrong_shapes_get_one_line():
    basis = DiscreteBasis(3, [1, 2])
    with pytest.raises(ValueError, match=r"expected images .* 2 spatial axes, got shape \(1, 8, 8\)"):
        scale_lift(torch.rand(1, 8, 8), torch.rand(2, 1, 9), basis)
    with pytest.raises(ValueError, match=r"expected weight \[C', 1, 9\] .* got shape \(2, 3, 9\)"):
        scale_lift(torch.rand(1, 1, 8, 8), torch.rand(2, 3, 9), basis)
