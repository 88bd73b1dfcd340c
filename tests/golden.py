"""Inputs, weights and outputs of the authors' layers, and comparisons with tolerances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def golden(shared: Path, name: str) -> dict[str, Tensor]:
    with np.load(shared / "facts" / "golden" / f"layer_{name}.npz") as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive}


def loaded(layer: nn.Module, **values: Tensor) -> nn.Module:
    """Set parameters of a layer by name; return the layer."""
    for name, value in values.items():
        parameter = layer.get_parameter(name)
        assert parameter.shape == value.shape, f"{name}: {tuple(value.shape)} for {tuple(parameter.shape)}"
        parameter.data = value.clone()
    return layer


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float = 2e-6) -> None:
    """Assert equality up to a fraction of the largest value."""
    assert ours.shape == theirs.shape
    assert float((ours.detach() - theirs).abs().max()) <= tolerance * max(1.0, float(theirs.abs().max()))


def assert_same_with_gradients(actual: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected)
    probe = torch.randn_like(actual)
    gradients = [torch.autograd.grad((y * probe).sum(), leaves, retain_graph=True) for y in (actual, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
