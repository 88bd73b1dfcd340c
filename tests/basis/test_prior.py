from __future__ import annotations

import pytest
import torch

from scale_disco.basis.prior import CorrelatedNoise, ImagePrior, TooFewPixelsError, as_prior
from scale_disco.basis.solve import Conditions


def pair(prior, dims, ratio=2**0.5, mode="cubic"):
    return Conditions(prior, mode, False, dims).pair(ratio, (3, 1), (5, 1))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("dims", "count", "side"), [(1, 256, 1000), (2, 64, 200)])
def test_moments_of_the_model_equal_those_of_its_samples(correlation, dims, count, side):
    model = CorrelatedNoise(correlation)
    samples = ImagePrior(model.sample(count, side, dims, torch.Generator().manual_seed(0)), dims)
    for expected, observed in zip(model.grams(pair(model, dims)), samples.grams(pair(samples, dims)), strict=True):
        scale = expected.abs().max()
        assert float((expected - observed).abs().max() / scale) < (0.03 if correlation == 0 else 0.1)


def test_moments_of_images_are_averages_over_pixels():
    """By brute force: one image, one output pixel at a time."""
    image = torch.rand(30, 26, dtype=torch.float64)
    prior = ImagePrior(image, 2)
    scales = pair(prior, 2)
    grams = prior.grams(scales)
    axes = [prior._axis(scales, size) for size in image.shape]
    a, b, count = [], [], 0
    for row_a, row_b in zip(*axes[0], strict=True):
        for column_a, column_b in zip(*axes[1], strict=True):
            a.append((row_a @ image @ column_a.T).flatten())
            b.append((row_b @ image @ column_b.T).flatten())
            count += 1
    a, b = torch.stack(a), torch.stack(b)
    for observed, (left, right) in zip(grams, ((a, a), (a, b), (b, b)), strict=True):
        torch.testing.assert_close(observed, left.T @ right / count)


def test_blocks_of_rows_do_not_change_the_moments(monkeypatch):
    prior = ImagePrior(torch.rand(2, 40, 40, dtype=torch.float64), 2)
    whole = prior.grams(pair(prior, 2))
    monkeypatch.setattr("scale_disco.basis.prior._BLOCK", 1)
    for expected, observed in zip(whole, prior.grams(pair(prior, 2)), strict=True):
        torch.testing.assert_close(expected, observed)


def test_rational_ratios_are_averaged_over_one_period():
    """At 3/2 output pixels read at 1/4 and 3/4 only: the moments of one long signal, exactly."""
    model = CorrelatedNoise(0.0)
    # All shifts of an impulse: the covariance of white noise, without sampling error.
    signal = ImagePrior(torch.eye(400, dtype=torch.float64), 1)
    observed = signal.grams(pair(signal, 1, ratio=1.5))
    for expected, moment in zip(model.grams(pair(model, 1, ratio=1.5)), observed, strict=True):
        torch.testing.assert_close(expected, moment * 400, atol=1e-3, rtol=0)


def test_equal_images_are_equal_priors():
    images = torch.rand(2, 1, 20, 20)
    assert as_prior(images, 2).spec == as_prior(images.clone(), 2).spec
    assert as_prior(images, 2).spec == as_prior(images.numpy(), 2).spec
    assert as_prior(images, 2).spec != as_prior(images + 1, 2).spec
    assert as_prior("image", 2) == as_prior(0.9, 2)
    assert as_prior("white", 2).spec == "white"


def test_too_few_pixels_raise_an_error():
    prior = ImagePrior(torch.rand(18, 18, dtype=torch.float64), 2)
    with pytest.raises(TooFewPixelsError, match=r"need 100 pixels away from borders, got \d+; add more images"):
        prior.grams(pair(prior, 2))
    with pytest.raises(ValueError, match="at least 30 pixels a side, got 18"):
        prior.sample(1, 30, 2, torch.Generator())
