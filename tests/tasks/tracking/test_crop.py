"""Views out of frames: right place, right size, no aliasing."""

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
def test_every_pixel_is_where_it_says(x, y, side, out):
    """A ramp keeps its values under interpolation and means, so a view of it says where it was taken."""
    frame = ramp(200, 220)
    view = crops(frame, torch.tensor([[x, y]]), torch.tensor([side]), out, mean_color(frame))[0]
    steps = ((torch.arange(out) + 0.5) / out - 0.5) * side
    torch.testing.assert_close(view[0], (x + steps - 0.5).expand(out, out), atol=0.02, rtol=0)
    torch.testing.assert_close(view[1], (y + steps - 0.5)[:, None].expand(out, out), atol=0.02, rtol=0)


def test_outside_has_the_fill():
    frame = ramp(20, 20)
    fill = torch.tensor([9.0, 8.0, 7.0])
    view = crops(frame, torch.tensor([[-50.0, 10.0], [10.0, 10.0]]), torch.tensor([20.0, 20.0]), 5, fill)
    torch.testing.assert_close(view[0], fill[:, None, None].expand(3, 5, 5))
    assert not torch.allclose(view[1], fill[:, None, None].expand(3, 5, 5))


def test_a_fine_pattern_becomes_grey():
    """A checkerboard seen from far is its mean, not an alias of it."""
    y, x = torch.meshgrid(torch.arange(240), torch.arange(240), indexing="ij")
    frame = (255 * ((x + y) % 2)).to(torch.uint8).expand(3, 240, 240)
    view = crops(frame, torch.tensor([[120.0, 120.0]]), torch.tensor([200.0]), 25, mean_color(frame))
    torch.testing.assert_close(view, torch.full_like(view, 127.5), atol=1, rtol=0)


def test_views_of_several_sizes_at_once():
    frame = ramp(100, 100)
    centres, sides, fill = torch.tensor([[40.0, 50.0], [60.0, 30.0]]), torch.tensor([10.0, 30.0]), mean_color(frame)
    both = crops(frame, centres, sides, 8, fill)
    for index in range(2):
        one = crops(frame, centres[index : index + 1], sides[index : index + 1], 8, fill)
        torch.testing.assert_close(both[index], one[0], atol=0.02, rtol=0)


@pytest.mark.parametrize(("width", "height"), [(10, 10), (30, 12)])
def test_side_of_an_exemplar(width, height):
    margin = (width + height) / 2
    assert exemplar_side(width, height) ** 2 == pytest.approx((width + margin) * (height + margin))
