from __future__ import annotations

import pytest

from scale_disco.tasks.bench.plots import plot_growth
from scale_disco.tasks.bench.timing import DENSE, LOWER_BOUND, OURS


def test_growth_plot_has_a_line_per_contender():
    pytest.importorskip("matplotlib")
    (axis,) = plot_growth({OURS: {1: 0.1, 2: 0.2}, DENSE: {1: 0.1, 2: 0.8}, LOWER_BOUND: {1: 0.1, 2: 0.2}}).axes
    assert [line.get_label() for line in axis.lines] == ["ours", "dense reference", "lower bound"]
    assert [list(line.get_ydata()) for line in axis.lines] == [[0.1, 0.2], [0.1, 0.8], [0.1, 0.2]]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
