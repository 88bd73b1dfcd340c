from __future__ import annotations

import math

import pytest
import torch

from scale_disco.tasks.io.figures import save_figure
from scale_disco.tasks.scene.plots import overlay, plot_field, plot_relative_scale


def test_overlay_colors_confident_pixels():
    matplotlib = pytest.importorskip("matplotlib")
    image = torch.zeros(3, 4, 8, dtype=torch.uint8)
    image[0] = 200
    octaves = torch.linspace(-2, 2, 8).expand(4, 8)
    confidence = torch.tensor([0.0, 0.15, 0.5, 1.0])[:, None].expand(4, 8)
    drawn = overlay(image, octaves, confidence, 1.0)
    assert (drawn.dtype, drawn.shape) == (torch.uint8, (3, 4, 8))
    assert drawn[:, 0].unique().tolist() == [60, 138]  # the gray image, with hatch lines
    assert (drawn[0, 0] == 138).tolist() == [True, *[False] * 5, True, False]
    spread = drawn.float().std(0)
    assert (spread[1] < spread[2]).all()
    assert torch.equal(drawn[:, 2], drawn[:, 3])
    assert torch.equal(drawn[:, 3, 0], drawn[:, 3, 1])  # beyond the limit
    ends = torch.tensor([matplotlib.colormaps["plasma"](end)[:3] for end in (0.0, 1.0)]).T * 255
    assert (drawn[:, 3, [0, -1]] - (0.7 * ends + 0.3 * 59.8)).abs().max() <= 1


@pytest.mark.parametrize("size", [(30, 40), (40, 400), (400, 40)])
def test_field_is_plotted_next_to_the_image(size, tmp_path):
    pytest.importorskip("matplotlib")
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    figure = plot_field(image, torch.zeros(size), torch.ones(size), 1.5, "street.jpg")
    left, field, bar = figure.axes
    assert (left.images[0].get_array() == image.permute(1, 2, 0).numpy()).all()
    assert field.images[0].get_array().shape == (*size, 3)
    assert bar.get_ylim() == (-1.5, 1.5)
    assert bar.get_ylabel() == "octaves; larger = looks larger"
    assert figure.get_suptitle() == "street.jpg"
    save_figure(figure, tmp_path / "field.png")


def test_images_are_plotted_at_sizes_at_which_they_match(tmp_path):
    pytest.importorskip("matplotlib")
    images = [torch.randint(0, 256, (3, 20, 40), dtype=torch.uint8), torch.zeros(3, 30, 30, dtype=torch.uint8)]
    figure = plot_relative_scale(images, ["near.jpg", "far.jpg"], [0.0, -1.0], [0.0, math.inf])
    above, below = figure.axes
    first, second = (drawn.get_extent() for drawn in above.images)
    assert list(first) == [0, 40, 0, 20]
    assert second[1] - second[0] == second[3] == 60
    assert second[0] > first[1]
    assert [label.get_text() for label in below.get_xticklabels()] == ["near.jpg", "far.jpg"]
    save_figure(figure, tmp_path / "matched.png")
