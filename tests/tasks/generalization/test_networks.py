from __future__ import annotations

import pytest
import torch

from scale_disco.models import create_model, list_models
from tests.conftest import tiered

SCALED = ("generalization/sesn-hermite", "generalization/disco", "generalization/decimated")


@pytest.mark.parametrize("name", list_models("generalization"))
def test_parameters_are_the_same(name):
    net = create_model(name)
    assert sum(parameter.numel() for parameter in net.parameters()) == 26_250
    assert net(torch.rand(2, 1, 64, 64)).shape == (2, 10)


@pytest.mark.parametrize("head", ["project", "decide"])
@pytest.mark.parametrize("name", tiered(SCALED, lambda name: name != "generalization/sesn-hermite"))
def test_heads_combine_scales(name, head):
    x = torch.nn.functional.interpolate(torch.rand(2, 1, 8, 8), size=64, mode="bilinear")  # blobs of all sizes
    single, double = create_model(name, scales=[1], head=head), create_model(name, scales=[1, 2], head=head)
    for ours, theirs in zip(double.parameters(), single.parameters(), strict=True):
        ours.data.copy_(theirs)
    first, both = single(x), double(x)
    assert not torch.allclose(first, both)
    if head == "decide":  # the mean of probabilities is at least half of each
        assert (both.exp() >= first.softmax(1) / 2 - 1e-6).all()
        assert torch.allclose(both.exp().sum(1), torch.ones(2))


def test_the_ensemble_averages_logits():
    net, x = create_model("generalization/ensemble"), torch.rand(2, 1, 64, 64)
    levels = [x]
    for _ in range(3):
        size = levels[-1].shape[-1] // 2
        levels.append(torch.nn.functional.interpolate(levels[-1], (size, size), mode="bicubic", antialias=True))
    expected = torch.stack([net.network(level) for level in levels]).mean(0)
    assert torch.allclose(net(x), expected, atol=1e-4)


def test_unknown_heads_are_refused():
    with pytest.raises(ValueError, match="head must be one of project, decide, got 'mean'"):
        create_model("generalization/disco", head="mean")
