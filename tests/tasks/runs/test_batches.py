from __future__ import annotations

import numpy as np
import pytest
import torch

from scale_disco.tasks.mnist_scale.data import Digits, scaled
from scale_disco.tasks.mnist_scale.training import DigitDataset, normalize
from scale_disco.tasks.runs.batches import evaluation_batches, training_batches

COUNT = 50


def digits():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (COUNT, 28, 28), np.uint8)
    return Digits(images, np.arange(COUNT, dtype=np.uint8) % 10, np.ones(COUNT))


def batches(*, epoch=0, seed=0, augment=False, parts=1, rank=0, world=1):
    shown = DigitDataset(digits(), seed if augment else None)
    loader = training_batches(shown, 16, seed=seed, parts=parts, rank=rank, world=world)
    loader.sampler.set_epoch(epoch)
    return list(loader)


def images(loaded):
    return torch.cat([batch.images for batch in loaded])


def test_every_image_comes_once_an_epoch():
    loaded = batches()
    assert [len(batch.labels) for batch in loaded] == [16, 16, 16, 2]
    order = lambda x: x.flatten(1).sum(1).sort().values  # noqa: E731
    torch.testing.assert_close(order(images(loaded)), order(normalize(digits().images)))


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
        for batch, *parts in zip(whole, *shares, strict=True):
            for rank, part in enumerate(parts):
                assert torch.equal(part.images, batch.images[rank::2])
                assert torch.equal(part.labels, batch.labels[rank::2])
            assert sum(part.weight for part in parts) == pytest.approx(2)


@pytest.mark.parametrize("world", [1, 2])
def test_micro_batches_are_weighted_by_their_images(world):
    whole = batches()
    parts = [batches(parts=3, rank=rank, world=world) for rank in range(world)]
    for index, batch in enumerate(whole[:-1]):  # the last is too small for all of them
        those = [part for mine in parts for part in mine[3 * index : 3 * index + 3]]
        assert sorted(row for part in those for row in part.rows) == sorted(batch.rows)
        mean = lambda batch: batch.images.flatten(1).sum(1).mean()  # noqa: E731 - stands for the loss
        weighted = sum(mean(part) * part.weight for part in those) / (3 * world)
        torch.testing.assert_close(weighted, mean(batch))


def test_augmentation_scales_every_image():
    once, again = images(batches(epoch=0, augment=True)), images(batches(epoch=0, augment=True))
    assert torch.equal(once, again)
    plain = images(batches(epoch=0))
    assert not any(torch.equal(scaled_image, image) for scaled_image, image in zip(once, plain, strict=True))
    factors = np.linspace(0.5, 2, 301)
    row = digits().images[torch.where((normalize(digits().images) == plain[0]).flatten(1).all(1))[0][0]]
    distance = [float((normalize(scaled(row, factor)[None])[0] - once[0]).abs().mean()) for factor in factors]
    assert min(distance) < 0.2 < np.median(distance)  # the same digit, at a scale from 0.5 to 2


def test_evaluation_shows_all_in_order():
    loaded = list(evaluation_batches(DigitDataset(digits())))
    assert torch.equal(images(loaded), normalize(digits().images))
    halves = [images(evaluation_batches(DigitDataset(digits()), rank=rank, world=2)) for rank in range(2)]
    assert torch.equal(halves[1], normalize(digits().images[1::2]))
