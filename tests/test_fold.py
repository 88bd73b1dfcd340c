from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.fold import fold, unfold


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    scales=st.integers(1, 4),
    space=st.lists(st.integers(1, 4), max_size=3),
)
def test_fold_and_unfold_are_inverse_views(batch, channels, scales, space):
    folded = torch.randn(scales * batch, channels, *space)
    maps = unfold(folded, scales)
    assert maps.shape == (batch, channels, scales, *space)
    assert torch.equal(fold(maps), folded)
    assert fold(maps).data_ptr() == maps.data_ptr() == folded.data_ptr()
    for k in range(scales):
        assert torch.equal(maps[:, :, k], folded[k * batch : (k + 1) * batch])


def test_batch_major_memory_is_copied():
    maps = torch.randn(2, 3, 4, 5, 5)  # batch-major
    assert torch.equal(unfold(fold(maps), 4), maps)
    assert fold(maps).data_ptr() != maps.data_ptr()


def test_invalid_shapes_raise_an_error():
    with pytest.raises(ValueError, match=r"fold: expected a feature map .* got shape \(2, 3\)"):
        fold(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"unfold: .* divisible by 3 scales, got shape \(8, 3, 5, 5\)"):
        unfold(torch.zeros(8, 3, 5, 5), 3)
