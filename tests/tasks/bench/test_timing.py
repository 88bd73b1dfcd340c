from __future__ import annotations

import pytest
import torch
from torch import nn

from scale_disco import DiscreteBasis, Scales
from scale_disco import nn as snn
from scale_disco.tasks.bench.timing import (
    BAKED,
    DENSE,
    LOWER_BOUND,
    OURS,
    PLAIN,
    Cost,
    LayerSetting,
    count_flops,
    layer_steps,
    measure,
    model_steps,
    network,
    network_steps,
    on_reference,
    peak_memory,
)

SMALL = LayerSetting(1, 2, 3, 12, 3, Scales([1, 2**0.5, 2]), 2)


def test_peak_memory_counts_what_is_held_at_once():
    x = torch.ones(1000, 1000)
    assert peak_memory(lambda: (x + 1) * 2) == pytest.approx(8e6, rel=0.01)
    assert peak_memory(lambda: x.add_(1)) < 1e5


def test_flops_are_those_of_the_stencils():
    steps = layer_steps(LayerSetting(1, 2, 3, 12, 3, Scales([1, 2, 4])), backward=False)
    per_pixel = 2 * 2 * 3 * 27  # a multiplication and an addition for each pair of channels and tap
    products = 2 * 6 * 9 * 9  # weights times the one stencil that all three scales share
    assert count_flops(steps[LOWER_BOUND]) == per_pixel * 144
    assert count_flops(steps[OURS]) == per_pixel * 144 + products
    assert count_flops(steps[DENSE]) > 2 * count_flops(steps[OURS])


@pytest.mark.parametrize("backward", [False, True])
def test_every_contender_is_measured_in_every_round(backward):
    rounds = []
    costs = measure(layer_steps(SMALL, backward=backward), repeats=3, progress=lambda: rounds.append(1))
    assert set(costs) == {OURS, DENSE, LOWER_BOUND, PLAIN} | (set() if backward else {BAKED})
    assert len(rounds) == 3
    for cost in costs.values():
        assert len(cost.seconds) == 3
        assert min(cost.seconds) > 0
        assert cost.flops > 0
        assert cost.peak > 0


def test_a_whole_network_is_measured():
    steps = network_steps(batch=1, side=12, scales=Scales([1, 2]), backward=True)
    assert set(measure(steps, repeats=1)) == {OURS, DENSE, LOWER_BOUND, PLAIN}


def test_a_network_of_the_zoo_is_measured():
    steps = model_steps("mnist/disco", batch=2, backward=True)
    costs = measure(steps, repeats=1)
    assert set(costs) == {OURS, DENSE, LOWER_BOUND, PLAIN}
    assert costs[DENSE].flops > 2 * costs[OURS].flops
    with pytest.raises(ValueError, match="mnist/cnn has no scale convolutions"):
        model_steps("mnist/cnn", batch=1, backward=False)


def test_ratios_compare_within_a_round():
    slow, fast = Cost((2.0, 20.0, 200.0), 0, 0), Cost((1.0, 10.0, 100.0), 0, 0)
    assert slow.ratio(fast) == (2.0, 2.0, 2.0)
    assert slow.median == 20.0


def test_the_dense_copy_computes_the_same():
    net = network(Scales([1, 2**0.5, 2])).eval()
    images = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(on_reference(net)(images), net(images), rtol=1e-4, atol=1e-4)
    layer = snn.ScaleConv2d(2, 2, DiscreteBasis(3, [1, 2]), stride=2, padding_mode="reflect")
    maps = torch.randn(1, 2, 2, 12, 12)
    torch.testing.assert_close(on_reference(nn.Sequential(layer))(maps), layer(maps))
    torch.testing.assert_close(on_reference(layer)(maps), layer(maps))
