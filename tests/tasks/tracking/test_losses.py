from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lightning", reason="training needs the extra `train`")

from scale_disco.models import create_model
from scale_disco.tasks.tracking.losses import (
    _TEMPERATURE,
    TrackerModule,
    balanced_loss,
    distance,
    positive_cells,
    scale_scores,
    shift_loss,
    triplet_loss,
)
from scale_disco.tasks.tracking.options import TrackerOptions

STEPS = [-0.5, 0.0, 0.5]


def softplus(x):
    return math.log1p(math.exp(x))


def test_positive_cells_are_those_around_the_true_one():
    (middle,) = positive_cells(torch.zeros(1, 2), 17)
    assert middle.sum() == 13
    cells = {(int(row) - 8, int(column) - 8) for row, column in middle.nonzero()}
    assert cells == {(y, x) for y in range(-2, 3) for x in range(-2, 3) if abs(x) + abs(y) <= 2}
    (moved,) = positive_cells(torch.tensor([[16.0, -24.0]]), 17)  # right by two cells, up by three
    assert torch.equal(moved[:-3, 2:], middle[3:, :-2])
    assert moved.sum() == 13


def test_a_target_between_cells_is_not_rounded():
    (right,) = positive_cells(torch.tensor([[4.0, 0.0]]), 17)  # half a cell to the right
    columns = right[8].nonzero().flatten().tolist()
    assert columns == [7, 8, 9, 10]
    assert right.sum() == 8
    assert torch.equal(right[:, 7], right[:, 10])
    assert torch.equal(right[:, 8], right[:, 9])


@settings(max_examples=50, deadline=None)
@given(st.floats(-64, 64), st.floats(-64, 64))
def test_every_target_has_positive_and_negative_cells(x, y):
    (right,) = positive_cells(torch.tensor([[x, y]], dtype=torch.float64), 17)
    assert 4 <= right.sum() <= 13
    scores = torch.where(right, 100.0, -100.0)[None]
    assert balanced_loss(scores, right[None]) < 1e-6
    assert triplet_loss(scores, right[None]) < 1e-6


def test_balanced_loss_by_hand():
    place = torch.tensor([[[2.0, -1.0, 0.5, 0.0]], [[1.0, 1.0, 1.0, 3.0]]])
    right = torch.tensor([[[True, False, False, False]], [[True, True, True, False]]])
    first = (softplus(-2) + (softplus(-1) + softplus(0.5) + softplus(0)) / 3) / 2
    second = (softplus(-1) + softplus(3)) / 2
    assert float(balanced_loss(place, right)) == pytest.approx((first + second) / 2, rel=1e-6)


def test_triplet_loss_by_hand():
    place = torch.tensor([[[2.0, -1.0, 0.5]], [[1.0, 4.0, 3.0]]])
    right = torch.tensor([[[True, False, False]], [[True, True, False]]])
    first = (softplus(-3) + softplus(-1.5)) / 2
    second = (softplus(2) + softplus(-1)) / 2
    assert float(triplet_loss(place, right)) == pytest.approx((first + second) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("octaves", "shares"),
    [
        (0.0, (0, 1, 0)),
        (0.25, (0, 0.5, 0.5)),
        (-0.4, (0.8, 0.2, 0)),
        (0.5, (0, 0, 1)),
        (3.0, (0, 0, 1)),
        (-1.0, (1, 0, 0)),
    ],
)
def test_shift_loss_by_hand(octaves, shares):
    """What lies between two steps or two cells belongs to both; what lies beyond the last steps, to them."""
    shifts = torch.zeros(1, 3, 17, 17)
    shifts[0, :, 6, 11] = torch.tensor([0.1, 0.3, -0.2])
    shifts[0, 0, 2, 3] = 0.25
    logits = _TEMPERATURE * shifts[0]
    total = float(logits.flatten().logsumexp(0))
    cells = {(6, 11): 0.75, (6, 12): 0.25}  # three and a quarter cells to the right, two up
    expected = sum(
        share * part * (total - float(logits[step, row, column]))
        for step, share in enumerate(shares)
        for (row, column), part in cells.items()
    )
    shift = torch.tensor([[8 * 3.25, 8 * -2.0]])
    loss = shift_loss(shifts, shift, torch.tensor([octaves]), STEPS)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_gradients_of_losses():
    torch.manual_seed(0)
    right = positive_cells(torch.tensor([[3.0, -5.0], [30.0, 32.0]]), 9)
    place = torch.randn(2, 9, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: balanced_loss(x, right), place)
    assert torch.autograd.gradcheck(lambda x: triplet_loss(x, right), place)
    shifts = (0.1 * torch.randn(2, 3, 5, 5, dtype=torch.float64)).requires_grad_()
    shift, octaves = torch.tensor([[3.0, -5.0], [9.0, 0.0]]), torch.tensor([0.2, -0.7])
    assert torch.autograd.gradcheck(lambda x: shift_loss(x, shift, octaves, STEPS), shifts)


def test_distance_is_counted_in_cells():
    place = torch.zeros(2, 17, 17)
    place[0, 8, 8] = place[1, 5, 12] = 1
    shift = torch.tensor([[6.0, -8.0], [32.0, -24.0]])
    torch.testing.assert_close(distance(place, shift), torch.tensor([1.25, 0.0]))


def test_scores_become_logits():
    net = create_model("track/siamfc+")
    torch.manual_seed(0)
    right = positive_cells(torch.tensor([[3.0, -5.0], [30.0, 32.0]]), 17)
    raw = torch.randn(2, 17, 17) * 40 + 3000 + 90 * right
    scale_scores(net, 0.1 * raw, right)
    logits = net.gain * raw + net.offset
    assert float(logits[~right].std()) == pytest.approx(1, rel=1e-4)
    assert float(logits[right].mean()) == pytest.approx(-float(logits[~right].mean()), rel=1e-2)
    assert logits[right].mean() > 0.5


def frozen_and_learning(module):
    stages = module.network.stages()
    learning = [all(parameter.requires_grad for parameter in stage.parameters()) for stage in stages]
    norms = [
        any(part.training for part in stage.modules() if isinstance(part, torch.nn.BatchNorm2d)) for stage in stages
    ]
    return learning, norms


def test_last_stages_learn_and_norms_keep_their_statistics():
    module = TrackerModule(create_model("track/siamfc+"), TrackerOptions(model="track/siamfc+"), steps=2)
    learning, training = frozen_and_learning(module)
    assert learning == [True] * 4 + [False] * 4
    assert not any(training)
    assert not module.unfreezes
    assert sum(parameter.numel() for parameter in module.trainable()) == 1_219_584


def test_the_paper_unfreezes_stage_after_stage():
    chosen = TrackerOptions(model="track/siamfc+", recipe="paper")
    assert [chosen.trained_stages(epoch) for epoch in (0, 3, 4, 9, 14, 24, 29, 34, 49)] == [1, 1, 2, 3, 4, 5, 6, 8, 8]
    module = TrackerModule(create_model("track/siamfc+"), chosen, steps=2)
    assert module.unfreezes
    assert len(module.trainable()) == len(list(module.network.parameters()))
    module._unfreeze(2)
    learning, training = frozen_and_learning(module)
    assert learning == training == [True] * 2 + [False] * 6
    constant = TrackerModule(
        create_model("track/siamfc+"), TrackerOptions(model="track/siamfc+", recipe="paper", stages=3), steps=2
    )
    assert not constant.unfreezes
