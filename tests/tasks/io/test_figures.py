from __future__ import annotations

import sys

import pytest
import torch

from scale_disco import DiscreteBasis
from scale_disco.tasks.equivariance.plots import plot_basis, plot_errors
from scale_disco.tasks.io.figures import save_figure
from scale_disco.tasks.scene.plots import overlay, plot_field
from scale_disco.tasks.tracking.plots import plot_sizes
from tests.conftest import ROOT_2


def test_basis_is_drawn_scale_by_scale():
    pytest.importorskip("matplotlib")
    figure = plot_basis(DiscreteBasis(3, ROOT_2))
    assert len(figure.axes) == 3 * 9 + 1
    assert "dilation 2" in figure.axes[2 * 9].get_ylabel()
    assert len(plot_basis(DiscreteBasis(5, ROOT_2, spatial_dims=1)).axes) == 3 * 5 + 1
    with pytest.raises(ValueError, match="1 or 2 spatial axes can be drawn, got 3"):
        plot_basis(DiscreteBasis(2, ROOT_2, spatial_dims=3))


def test_errors_are_bars_and_exact_bases_have_none(tmp_path):
    pytest.importorskip("matplotlib")
    errors = {"DISCO": {"photos": 0.01, "digits": 0.02}, "Hermite": {"photos": 0.1, "digits": 0.3}, "exact": {}}
    figure = plot_errors(errors, {"DISCO": 67, "Hermite": 83, "exact": 27}, "errors")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.0, 0.1, 0.01, 0.0, 0.3, 0.02]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [27, 83, 67]
    assert "dark: photos, light: digits" in figure.get_suptitle()
    save_figure(figure, tmp_path / "errors.svg")
    assert (tmp_path / "errors.svg").read_text().startswith("<?xml")


def test_sizes_are_drawn_in_octaves_over_the_first():
    pytest.importorskip("matplotlib")
    figure = plot_sizes(
        {"walk": {"truth": [8, 16, 4], "ours": [3, 3, 6]}, "static": {"truth": [2, 2]}}, "truth", "ours"
    )
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[0, 1, -1], [0, 0, 1]]
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [[0, 0]]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["truth", "ours"]


def test_fields_have_colours_where_they_are_sure():
    matplotlib = pytest.importorskip("matplotlib")
    image = torch.zeros(3, 4, 8, dtype=torch.uint8)
    image[0] = 200
    octaves = torch.linspace(-2, 2, 8).expand(4, 8)
    confidence = torch.tensor([0.0, 0.1, 0.5, 1.0])[:, None].expand(4, 8)
    drawn = overlay(image, octaves, confidence, 1.0)
    assert (drawn.dtype, drawn.shape) == (torch.uint8, (3, 4, 8))
    assert drawn[:, 0].unique().tolist() == [60]  # the photograph in grey
    spread = drawn.float().std(0)
    assert (spread[1] < spread[2]).all()
    assert torch.equal(drawn[:, 2], drawn[:, 3])
    assert torch.equal(drawn[:, 3, 0], drawn[:, 3, 1])  # beyond the limit
    ends = torch.tensor([matplotlib.colormaps["plasma"](end)[:3] for end in (0.0, 1.0)]).T * 255
    assert (drawn[:, 3, [0, -1]] - (0.7 * ends + 0.3 * 59.8)).abs().max() <= 1


@pytest.mark.parametrize("size", [(30, 40), (40, 400), (400, 40)])
def test_fields_are_drawn_beside_the_photograph(size, tmp_path):
    pytest.importorskip("matplotlib")
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    figure = plot_field(image, torch.zeros(size), torch.ones(size), 1.5, "street.jpg")
    photograph, field, bar = figure.axes
    assert (photograph.images[0].get_array() == image.permute(1, 2, 0).numpy()).all()
    assert field.images[0].get_array().shape == (*size, 3)
    assert bar.get_ylim() == (-1.5, 1.5)
    assert bar.get_ylabel() == "octaves: larger is nearer"
    assert figure.get_suptitle() == "street.jpg"
    save_figure(figure, tmp_path / "field.png")


@pytest.mark.parametrize("name", ["errors", "errors.txt", "folder"])
def test_a_picture_that_cannot_be_drawn_is_refused(name, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    with pytest.raises((ValueError, OSError), match=r"cannot (draw|write)"):
        save_figure(plot_errors({"a": {"photos": 1.0}}, {"a": 9}, "errors"), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_matplotlib_is_answered_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "scale-disco\[plot\]"'):
        plot_errors({"a": {"photos": 1.0}}, {"a": 9}, "errors")
