from __future__ import annotations

import pytest
import torch

from scale_disco.nn import ScaleProject

X = torch.randn(2, 3, 4, 8, 8)


def test_reductions():
    torch.testing.assert_close(ScaleProject("max")(X), X.max(2).values)
    torch.testing.assert_close(ScaleProject("mean")(X), X.mean(2))


def test_logsumexp_lies_between_mean_and_maximum():
    y = ScaleProject("logsumexp")(X)
    assert bool((y <= X.amax(2)).all())
    assert bool((y >= X.mean(2)).all())
    torch.testing.assert_close(ScaleProject("logsumexp", temperature=1e-3)(X), X.amax(2), atol=5e-3, rtol=0)
    torch.testing.assert_close(ScaleProject("logsumexp", temperature=1e3)(X), X.mean(2), atol=5e-3, rtol=0)


def test_logsumexp_survives_large_values():
    y = ScaleProject("logsumexp", temperature=0.01)(1e4 * X)
    assert bool(torch.isfinite(y).all())


def test_temperature_gets_gradients():
    project = ScaleProject("logsumexp", temperature=2.0)
    project(X).sum().backward()
    (temperature,) = project.parameters()
    assert temperature.grad is not None
    assert float(temperature.grad) != 0


@pytest.mark.parametrize("reduce", ["max", "mean", "logsumexp"])
def test_in_place_layers_may_follow(reduce):
    x = X.clone().requires_grad_()
    torch.nn.functional.relu(ScaleProject(reduce)(x), inplace=True).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScaleProject("median"), "reduce must be one of max, mean, logsumexp, got 'median'"),
        (lambda: ScaleProject("logsumexp", temperature=0), "temperature must be a positive finite number, got 0"),
        (lambda: ScaleProject()(X[0, 0, 0]), r"expected input \[B, C, S, ...\], got shape \(8, 8\)"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
