from __future__ import annotations

import pytest
import torch

from scale_disco import Basis, DiscreteBasis, HermiteBasis, Stencil, hermite_mixing_preset
from tests.conftest import CUBE_ROOT_2


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pixels_have_the_power_of_their_number(dims):
    assert DiscreteBasis(3, [1, 2, 4], spatial_dims=dims).power == pytest.approx(3**dims)


def test_power_follows_the_square_of_the_functions():
    basis = HermiteBasis.preset("stl10")
    twice = basis.mix(2 * torch.eye(basis.num_functions))
    assert twice.power == pytest.approx(4 * basis.power)


def test_smooth_functions_amplify_smooth_features():
    mixed = DiscreteBasis(7, CUBE_ROOT_2).mix(hermite_mixing_preset("mnist")).normalized()
    assert mixed.power > 2 * 49 > 1.5 * DiscreteBasis(7, CUBE_ROOT_2).power


def test_a_vanishing_basis_has_no_power():
    with pytest.raises(ValueError, match="vanish at a scale"):
        _ = Basis([1], [Stencil(torch.zeros(1, 3, 3))], kernel_size=3).power


def test_bases_can_be_made_on_the_meta_device():
    with torch.device("meta"):
        solved, sampled = DiscreteBasis(3, [1, 1.2345]), HermiteBasis.preset("mnist")
        assert solved.error > 0
        assert sampled.power > 0
        mixed = solved.mix(hermite_mixing_preset("stl10")).normalized()
    assert mixed.stencils[1].functions.device.type == "cpu"
    assert solved.stencils[1].functions.device.type == "cpu"
    torch.testing.assert_close(sampled.stencils[1].functions, HermiteBasis.preset("mnist").stencils[1].functions)


def test_dilations_share_their_functions():
    assert DiscreteBasis(3, [1, 2**0.5, 2, 8**0.5]).sources == (0, 1, 0, 1)
    assert HermiteBasis.preset("stl10").sources == (0, 1, 2)
    assert DiscreteBasis(1, [1, 1.3, 2]).pointwise
    assert not DiscreteBasis(3, [1, 2]).pointwise
