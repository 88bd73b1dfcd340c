from __future__ import annotations

import numpy as np
import torch

from scale_disco.data.mnist_scale import Digits, scaled
from scale_disco.training.batches import evaluation_batches, normalised, training_batches

COUNT = 50


def digits():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (COUNT, 28, 28), np.uint8)
    return Digits(images, np.arange(COUNT, dtype=np.uint8) % 10, np.ones(COUNT))


def batches(*, epoch=0, seed=0, augment=False, rank=0, world=1):
    loader = training_batches(digits(), 16, seed=seed, augment=augment, rank=rank, world=world)
    loader.sampler.set_epoch(epoch)
    return list(loader)


def images(found):
    return torch.cat([batch for batch, _ in found])


def test_every_image_comes_once_an_epoch():
    found = batches()
    assert [len(labels) for _, labels in found] == [16, 16, 16, 2]
    order = lambda x: x.flatten(1).sum(1).sort().values  # noqa: E731
    torch.testing.assert_close(order(images(found)), order(normalised(digits().images)))


def test_order_depends_on_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = batches(epoch=3, seed=5)
    state = torch.get_rng_state()
    assert torch.equal(images(first), images(batches(epoch=3, seed=5)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(images(first), images(batches(epoch=4, seed=5)))
    assert not torch.equal(images(first), images(batches(epoch=3, seed=6)))


def test_processes_share_every_batch():
    for augment in (False, True):
        whole = batches(augment=augment)
        shares = [batches(augment=augment, rank=rank, world=2) for rank in range(2)]
        for (all_images, all_labels), *parts in zip(whole, *shares, strict=True):
            for rank, (some_images, some_labels) in enumerate(parts):
                assert torch.equal(some_images, all_images[rank::2])
                assert torch.equal(some_labels, all_labels[rank::2])


def test_augmentation_scales_every_image_anew():
    once, again = images(batches(epoch=0, augment=True)), images(batches(epoch=0, augment=True))
    assert torch.equal(once, again)
    plain = images(batches(epoch=0))
    assert not any(torch.equal(one, other) for one, other in zip(once, plain, strict=True))
    factors = np.linspace(0.5, 2, 301)
    row = digits().images[torch.where((normalised(digits().images) == plain[0]).flatten(1).all(1))[0][0]]
    distance = [float((normalised(scaled(row, factor)[None])[0] - once[0]).abs().mean()) for factor in factors]
    assert min(distance) < 0.2 < np.median(distance)  # the same digit, at a scale from 0.5 to 2


def test_evaluation_shows_all_in_order():
    found = list(evaluation_batches(digits()))
    assert torch.equal(images(found), normalised(digits().images))
    halves = [images(evaluation_batches(digits(), rank=rank, world=2)) for rank in range(2)]
    assert torch.equal(halves[1], normalised(digits().images[1::2]))
