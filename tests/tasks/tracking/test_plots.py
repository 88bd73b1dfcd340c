from __future__ import annotations

import pytest

from scale_disco.tasks.tracking.plots import plot_sizes


def test_object_sizes_are_in_octaves_relative_to_the_first_frame():
    pytest.importorskip("matplotlib")
    figure = plot_sizes(
        {"walk": {"truth": [8, 16, 4], "ours": [3, 3, 6]}, "static": {"truth": [2, 2]}}, "truth", "ours"
    )
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[0, 1, -1], [0, 0, 1]]
    assert [list(line.get_ydata()) for line in figure.axes[1].lines] == [[0, 0]]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["truth", "ours"]
