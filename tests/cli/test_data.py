from __future__ import annotations

import pytest

from scale_disco.cli import main


@pytest.mark.parametrize(
    ("dataset", "option"),
    [
        ("mnist-scale", ["--root", "a"]), ("mnist-scale", ["--check"]), ("mnist-scale", ["--frames", "0"]),
        ("stl10", ["--split", "0"]), ("stl10", ["--mnist", "a"]), ("stl10", ["--seed", "0"]), ("stl10", ["--png"]),
        ("zoom", ["--download"]), ("zoom", ["--check"]), ("zoom", ["--split", "0"]), ("zoom", ["--mnist", "a"]),
        ("stl10", ["--images", "a"]),
    ],
)  # fmt: skip
def test_options_of_other_data_sets_are_rejected(capsys, dataset, option):
    assert main(["data", dataset, *option]) == 2
    assert f"{option[0]} is not an option of {dataset}; see disco data --help" in capsys.readouterr().err


def test_usage_errors_exit_with_2(capsys):
    for call in (["data"], ["data", "stl"], ["data", "mnist-scale", "--split", "6"],
                 ["data", "mnist-scale", "--mnist", "a", "--download"]):  # fmt: skip
        assert main(call) == 2
    assert "not allowed with argument --mnist" in capsys.readouterr().err
