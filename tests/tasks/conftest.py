from __future__ import annotations

import pytest

from tests.tasks.runs.trial import train


@pytest.fixture(scope="session")
def whole(data, tmp_path_factory):
    """A finished run of four epochs; read-only."""
    pytest.importorskip("lightning", reason="training needs the extra `train`")
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert train(data, run, "--model", "mnist/cnn", "--epochs", 4) == 0
    return run
