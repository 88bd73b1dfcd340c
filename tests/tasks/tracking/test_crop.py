"""Crops: position, size, padding and antialiasing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_disco.tasks.tracking.crop import crops, exemplar_side, mean_color


def ramp(height: int, width: int) -> torch.Tensor:
    """A frame whose red is the column and whose green is the row."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).to(torch.uint8)


@given(x=st.floats(80, 120), y=st.floats(80, 110), side=st.floats(4, 120), out=st.sampled_from([1, 2, 7, 16, 31]))
def test_pixels_are_sampled_at_their_positions(x, y, side, out):
    """A ramp is invariant under interpolation and averaging, so its values are the sampled positions."""
    frame = ramp(200, 220)
    crop = crops(frame, torch.tensor([[x, y]]), torch.tensor([side]), out, mean_color(frame))[0]
    steps = ((torch.arange(out) + 0.5) / out - 0.5) * side
    torch.testing.assert_close(crop[0], (x + steps - 0.5).expand(out, out), atol=0.02, rtol=0)
    torch.testing.assert_close(crop[1], (y + steps - 0.5)[:, None].expand(out, out), atol=0.02, rtol=0)


def test_pixels_outside_of_the_frame_are_filled():
    frame = ramp(20, 20)
    fill = torch.tensor([9.0, 8.0, 7.0])
    crop = crops(frame, torch.tensor([[-50.0, 10.0], [10.0, 10.0]]), torch.tensor([20.0, 20.0]), 5, fill)
    torch.testing.assert_close(crop[0], fill[:, None, None].expand(3, 5, 5))
    assert not torch.allclose(crop[1], fill[:, None, None].expand(3, 5, 5))


def test_fine_patterns_are_not_aliased():
    """A shrunk checkerboard becomes its mean."""
    y, x = torch.meshgrid(torch.arange(240), torch.arange(240), indexing="ij")
    frame = (255 * ((x + y) % 2)).to(torch.uint8).expand(3, 240, 240)
    crop = crops(frame, torch.tensor([[120.0, 120.0]]), torch.tensor([200.0]), 25, mean_color(frame))
    torch.testing.assert_close(crop, torch.full_like(crop, 127.5), atol=1, rtol=0)


def test_crops_of_several_sizes_in_one_call():
    frame = ramp(100, 100)
    centers, sides, fill = torch.tensor([[40.0, 50.0], [60.0, 30.0]]), torch.tensor([10.0, 30.0]), mean_color(frame)
    both = crops(frame, centers, sides, 8, fill)
    for index in range(2):
        single = crops(frame, centers[index : index + 1], sides[index : index + 1], 8, fill)
        torch.testing.assert_close(both[index], single[0], atol=0.02, rtol=0)


@pytest.mark.parametrize(("width", "height"), [(10, 10), (30, 12)])
def test_exemplar_side_includes_the_context(width, height):
    margin = (width + height) / 2
    assert exemplar_side(width, height) ** 2 == pytest.approx((width + margin) * (height + margin))
