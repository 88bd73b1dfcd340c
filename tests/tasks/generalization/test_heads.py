from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from scale_disco.tasks.generalization import distances as distances_module
from scale_disco.tasks.generalization.distances import distance_table, evaluate_heads, read_profiles
from scale_disco.tasks.generalization.heads import KernelHead, NeighborHead, RidgeHead, _ridge, heads, unit_profiles

OCTAVE, REFERENCE = 4, 4


@pytest.fixture(scope="module")
def data():
    """Materials whose profiles move along the scale axis by one entry per distance, 13 scales, with noise."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(4, 24, 21, generator=generator)  # [K, C, positions]
    smooth = torch.nn.functional.avg_pool1d(patterns, 3, 1, 1)
    rows = [(label, distance, condition) for label in range(4) for distance in range(1, 10) for condition in range(3)]
    profiles = [smooth[label, :, 9 - distance : 22 - distance] for label, distance, _ in rows]
    noise = 0.02 * torch.randn(len(rows), 24, 13, generator=generator)
    labels, distances, conditions = (np.array(column) for column in zip(*rows, strict=True))
    return torch.stack(profiles) + noise, labels, distances, conditions


def test_profiles_have_unit_norm_at_every_scale():
    profiles = unit_profiles(torch.rand(3, 5, 4))
    assert torch.allclose(profiles.norm(dim=1), torch.ones(3, 4))


def test_sliding_finds_what_moved_along_the_axis(data):
    choices = heads(REFERENCE, OCTAVE)
    results = evaluate_heads(*data, choices)
    accuracy = {name: result.accuracy.mean() for name, result in results.items()}
    assert set(accuracy) == set(choices)
    assert all(result.images == 6 * 4 for result in results.values())
    for name in ("window slid along the scales", "1-nearest neighbor over shifts", "kernel ridge over shifts"):
        assert accuracy[name] > 0.8
        assert accuracy[name] > accuracy["plain"] + 0.2
    for result in results.values():  # the distance in training itself
        assert np.diag(result.accuracy).mean() > 0.8


def test_evaluates_a_folder(materials, resnet_weights, tmp_path, monkeypatch):
    """Two materials of noise that differ in brightness; the network is random."""
    seen = []
    chosen = {name: heads(REFERENCE, OCTAVE)[name] for name in ("plain", "1-nearest neighbor over shifts")}
    monkeypatch.setattr(distances_module, "heads", lambda reference, octave: chosen)
    cache = tmp_path / "cache"
    data, profiles = read_profiles(materials, resnet_weights, cache=cache, progress=lambda *step: seen.append(step))
    assert seen[-1] == (54, 54)
    _, again = read_profiles(materials, resnet_weights, cache=cache, progress=lambda *step: seen.append("computed"))
    assert "computed" not in seen
    assert torch.equal(again, profiles)
    results = evaluate_heads(
        profiles, data.labels, data.distances, data.conditions, progress=lambda *step: seen.append(step)
    )
    assert seen[-1] == (54, 54)  # six orders, nine distances in training
    assert results["plain"].accuracy.shape == (9, 9)
    assert results["plain"].accuracy.mean() > 0.9  # their brightness differs
    lines = distance_table(results).splitlines()
    assert len(lines) == 4
    assert "trained at 9" in lines[0]


def test_ridge_of_one_window_is_linear_regression(data):
    profiles, labels, distances, _ = data
    units, targets = unit_profiles(profiles).double(), torch.from_numpy(labels)
    near = torch.from_numpy(distances == 5)
    head = RidgeHead(REFERENCE, ridge=1e-9)
    scores = head.scores(units[near], targets[near], units[near], 4)
    one_hot = torch.nn.functional.one_hot(targets[near], 4).double()
    assert torch.allclose(scores, one_hot, atol=1e-3)  # fewer images than channels: an exact fit


def test_both_forms_of_ridge_agree(data):
    """With more samples than features the primal form is solved; the dual form gives the same."""
    profiles, labels, _, _ = data
    units, targets = unit_profiles(profiles).double(), torch.from_numpy(labels)
    few = units[:, :6]
    scores = RidgeHead(REFERENCE, ridge=0.5).scores(few, targets, few, 4)
    x = few[:, :, REFERENCE]
    y = torch.nn.functional.one_hot(targets, 4).double()
    centered = x - x.mean(0)
    gram = centered @ centered.T + 0.5 * centered.square().sum(1).mean() * torch.eye(len(x)).double()
    expected = centered @ centered.T @ torch.linalg.solve(gram, y - y.mean(0)) + y.mean(0)
    assert torch.allclose(scores, expected)


def test_scales_past_the_ends_are_masked(data):
    profiles = data[0]
    head = RidgeHead(REFERENCE, extent=5, shifts=8)
    windows = head._windows(profiles, 8)
    complete = [window for window, mask in windows if mask.all()]
    assert len(complete) == 9  # 13 scales have 9 windows of 5
    assert torch.equal(complete[0].reshape(-1, 24, 5), profiles[:, :, :5])
    assert len(windows) == 13  # and two at each end with at least half of their scales
    window, mask = windows[0]
    assert mask.reshape(24, 5)[0].tolist() == [0, 0, 1, 1, 1]
    assert torch.equal(window.reshape(-1, 24, 5)[:, :, 2:], profiles[:, :, :3])
    ((reduced, _),) = dataclasses.replace(head, project="max", shifts=4)._windows(profiles, 0)
    assert torch.allclose(reduced, torch.nn.functional.normalize(profiles[:, :, :9].amax(2), dim=1))


def test_projection_looks_once_at_test_images(data):
    """Augmentation is for training: moved test profiles that leave the projected scales the same score the same."""
    profiles, labels, distances, _ = data
    units, targets = unit_profiles(profiles), torch.from_numpy(labels)
    near = torch.from_numpy(distances == 5)
    head = RidgeHead(REFERENCE, project="mean", shifts=2, augment=2)
    changed = units.clone()
    changed[:, :, 7:] = 0  # past the five scales around the reference
    same = head.scores(units[near], targets[near], changed, 4)
    assert torch.equal(head.scores(units[near], targets[near], units, 4), same)


def test_masked_scales_do_not_count(data):
    """Whatever stands past the end, scores are the same; a window of equal scales scores as a complete one."""
    profiles, labels, distances, _ = data
    units, targets = unit_profiles(profiles).double(), torch.from_numpy(labels)
    constant = units[:, :, :1].expand(-1, -1, 13)
    near = torch.from_numpy(distances == 5)
    head = RidgeHead(REFERENCE, extent=5)
    at_end = dataclasses.replace(head, reference=0)
    inner = head.scores(constant[near], targets[near], constant, 4)
    mean, weight, bias = _ridge(
        constant[near][:, :, :5].flatten(1), torch.nn.functional.one_hot(targets[near], 4).double(), head.ridge
    )
    ((window, mask),) = at_end._windows(constant, 0)
    assert torch.allclose((window - mean) * (mask / mask.mean()) @ weight + bias, inner)


def test_nearest_neighbor_without_shifts_is_the_ordinary_one(data):
    profiles, labels, _, _ = data
    units, targets = unit_profiles(profiles), torch.from_numpy(labels)
    scores = NeighborHead(REFERENCE).scores(units[::2], targets[::2], units[1::2], 4)
    nearest = torch.cdist(units[1::2, :, REFERENCE], units[::2, :, REFERENCE]).argmin(1)
    assert torch.equal(scores.argmax(1), targets[::2][nearest])


def test_similarity_does_not_depend_on_where_a_profile_is(data):
    """Moved along the axis, with nothing of the template lost, a profile is as similar as before."""
    units = unit_profiles(data[0])
    head = NeighborHead(6, extent=5, shifts=3, least=5)
    moved = units.roll(3, 2)
    assert torch.allclose(head.similarity(moved[:1], units[:1]), torch.ones(1, 1))
    assert head.similarity(units[:1], units[:1]).item() == pytest.approx(1)
    still = dataclasses.replace(head, shifts=0)
    assert still.similarity(moved[:1], units[:1]).item() < 0.99


def test_kernel_ridge_fits_its_training_profiles(data):
    profiles, labels, distances, _ = data
    near = torch.from_numpy(distances == 5)
    units, targets = unit_profiles(profiles).double()[near], torch.from_numpy(labels)[near]
    scores = KernelHead(REFERENCE, extent=25, shifts=4, least=3, ridge=1e-6).scores(units, targets, units, 4)
    assert torch.allclose(scores, torch.nn.functional.one_hot(targets, 4).double(), atol=1e-2)


def test_three_conditions_are_needed(data):
    profiles, labels, distances, _ = data
    with pytest.raises(ValueError, match="at least three conditions are needed, got 1"):
        evaluate_heads(profiles, labels, distances, np.zeros(len(labels), int), {})
