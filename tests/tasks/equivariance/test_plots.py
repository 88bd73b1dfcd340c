from __future__ import annotations

import pytest

from scale_disco import DiscreteBasis
from scale_disco.tasks.equivariance.plots import plot_basis, plot_errors
from scale_disco.tasks.io.figures import save_figure
from tests.conftest import ROOT_2


def test_basis_plot_has_a_row_per_scale():
    pytest.importorskip("matplotlib")
    figure = plot_basis(DiscreteBasis(3, ROOT_2))
    assert len(figure.axes) == 3 * 9 + 1
    assert "dilation 2" in figure.axes[2 * 9].get_ylabel()
    assert len(plot_basis(DiscreteBasis(5, ROOT_2, spatial_dims=1)).axes) == 3 * 5 + 1
    with pytest.raises(ValueError, match="1 or 2 spatial dimensions, got 3"):
        plot_basis(DiscreteBasis(2, ROOT_2, spatial_dims=3))


def test_error_plot_has_a_bar_per_basis_and_image_set(tmp_path):
    pytest.importorskip("matplotlib")
    errors = {"DISCO": {"photos": 0.01, "digits": 0.02}, "Hermite": {"photos": 0.1, "digits": 0.3}, "exact": {}}
    figure = plot_errors(errors, {"DISCO": 67, "Hermite": 83, "exact": 27}, "errors")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.0, 0.1, 0.01, 0.0, 0.3, 0.02]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [27, 83, 67]
    assert "dark: photos, light: digits" in figure.get_suptitle()
    save_figure(figure, tmp_path / "errors.svg")
    assert (tmp_path / "errors.svg").read_text().startswith("<?xml")
