"""The script that draws the figures of the documentation runs, and the claims of the figures hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from scale_disco import DiscreteBasis, HermiteBasis

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def drawing():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("doc_figures", DOCS / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pillow():
    pytest.importorskip("matplotlib", reason="needs scale-disco[plot]")
    return pytest.importorskip("PIL.Image", reason="needs scale-disco[plot]")


@pytest.mark.parametrize("name", ["front", "axis", "square", "dilation", "optimum", "cost", "tracking", "scene"])
def test_figures_are_drawn(drawing, pillow, name, tmp_path):
    drawing.main(["--quick", "--only", name, "--out", str(tmp_path)])
    with pillow.open(tmp_path / f"{name}.png") as new, pillow.open(DOCS / f"{name}.png") as committed:
        assert new.size == committed.size  # drawn by this version of the script
        assert len(new.convert("RGB").getcolors(1 << 16)) > 30  # not empty
    assert (DOCS / f"{name}.png").stat().st_size < 150_000


def test_every_figure_is_tested_and_used(drawing):
    assert set(drawing.FIGURES) == {"front", "axis", "square", "dilation", "optimum", "cost", "tracking", "scene"}
    pages = "".join(page.read_text() for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"))
    for name in drawing.FIGURES:
        assert f"]({name}.png)" in pages or f"](docs/{name}.png)" in pages


def test_disco_has_the_smaller_equivariance_error(drawing):
    image = drawing.photo(drawing.CAT)
    disco = drawing.square(DiscreteBasis(3, drawing.ROOT2), 2**0.5, image)
    hermite = drawing.square(HermiteBasis.preset("stl10"), 2**0.5, image)
    assert disco.error < hermite.error / 3
    assert drawing.square(DiscreteBasis(3, [1, 2]), 2, image).error < 1e-25
    # Both have the same kernel at scale 1; only that of the larger scale differs.
    assert float((disco.then_convolved - hermite.then_convolved).abs().max()) < 1e-10


def test_dilation_alone_is_exact(drawing):
    half, two, three = drawing.error_over_ratio([1.5, 2.0, 3.0], drawing.photo(drawing.CAT))
    assert max(two, three) < 1e-25
    assert half > 1e-6


def test_gradient_descent_converges_to_the_closed_form(drawing):
    (start, end), best = drawing.error_over_steps([1, 200])
    assert best <= end < 1.1 * best
    assert start > 10 * best


def test_stencils_cost_less(drawing):
    ours, dense = drawing.taps([2, 4, 6])
    assert all(a < b for a, b in zip(ours, dense, strict=True))
    assert dense[-1] / dense[0] > 5 * ours[-1] / ours[0]


def test_tracking_finds_the_scale(drawing):
    peaks = [float(cosines.max()) for cosines in drawing.tracked(2.0).cosines]
    assert peaks.index(max(peaks)) == 2
    assert f"{peaks[2]:.3f} against {max(peaks[:2]):.2f}" in (DOCS / "tracking.md").read_text()


def test_scale_profile_shifts_by_the_ratio(drawing):
    *_, near, far = drawing.profiles(2.0)
    shifted = float((near[:, 2:] - far[:, :3]).square().mean())
    assert shifted < float((near - far).square().mean()) / 3
    assert shifted < float((near[:, 1:] - far[:, :4]).square().mean())
