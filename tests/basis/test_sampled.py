"""The four sampled families against the authors' tensors, and their common rules."""

import json
import math
import re

import numpy as np
import pytest
import torch

from scale_disco.basis.families import BSplineBasis, FourierBesselBasis, LogRadialBasis, _spline, bessel, bessel_zeros
from scale_disco.basis.hermite import MIXING_PRESETS, HermiteBasis, hermite_mixing, hermite_mixing_preset
from scale_disco.basis.stencil import Basis
from tests.conftest import GOLDEN

FAMILIES = [HermiteBasis, BSplineBasis, FourierBesselBasis, LogRadialBasis]

# The reference is float32 and printed to six decimals; our float64 differs by less than 2e-6 everywhere.
ATOL = 1e-5

# Per tensor of the authors: our basis, its norm at each scale, and some entries [function, scale, row, column].
REFERENCE = {
    "hermiteB_mnist_noaug": (
        lambda: HermiteBasis.preset("mnist"),
        [7.000000, 6.253668, 5.984481, 5.017225],
        {(1, 0, 5, 7): -0.292984, (16, 1, 6, 7): -0.264160, (48, 3, 6, 7): 1.739636, (47, 1, 7, 7): -0.516724},
    ),
    "hermiteB_mnist_aug": (
        lambda: HermiteBasis.preset("mnist+"),
        [7.000000, 5.739047, 4.805621, 3.951089],
        {(1, 0, 5, 7): -0.281167, (16, 1, 6, 7): -0.243611, (48, 3, 6, 7): 0.811483, (47, 1, 7, 7): -0.535640},
    ),
    "hermiteA_size15_eff7": (
        lambda: HermiteBasis(7, [1.5, 1.89, 2.38, 3.0]),
        [7.000000, 5.565805, 4.398044, 3.524381],
        {(1, 0, 5, 7): -0.292984, (16, 1, 7, 7): 0.326371, (48, 3, 7, 7): 0.134783, (47, 1, 6, 7): 0.296048},
    ),
    "hermiteA_size5_eff3": (
        lambda: HermiteBasis(3, [0.9 * 1.41**i for i in range(3)], size=5),
        [3.000000, 1.689672, 1.322480],
        {(1, 0, 1, 2): -0.562202, (3, 1, 2, 1): -0.272568, (8, 2, 2, 2): 0.245152, (7, 1, 1, 2): 0.337461},
    ),
    "hermiteA_stl_sesn_size7_eff3_09": (
        lambda: HermiteBasis.preset("stl10"),
        [3.000000, 2.211901, 1.557502],
        {(1, 0, 2, 3): -0.562202, (3, 1, 3, 2): -0.272568, (8, 2, 3, 3): 0.245152, (7, 1, 2, 3): 0.337461},
    ),
    "hermiteA_stl_sesn_size7_eff3_11": (
        lambda: HermiteBasis.preset("stl10-c"),
        [3.000000, 2.336498, 1.645381],
        {(1, 0, 2, 3): -0.516370, (3, 1, 3, 1): -0.242507, (8, 2, 3, 3): 0.246503, (7, 1, 1, 3): 0.327792},
    ),
    "hermiteA_siam_size9_eff7": (
        lambda: HermiteBasis.preset("tracker-stem"),
        [7.000000, 5.587197, 3.973810],
        {(1, 0, 3, 4): -0.533984, (16, 1, 4, 4): 0.406752, (48, 2, 4, 4): 0.124924, (47, 1, 3, 4): 0.420541},
    ),
    "hermiteA_siam_size5_eff3": (
        lambda: HermiteBasis.preset("tracker"),
        [3.000000, 1.709169, 1.352748],
        {(1, 0, 1, 2): -0.562202, (3, 1, 2, 1): -0.277214, (8, 2, 2, 2): 0.252232, (7, 1, 1, 2): 0.343213},
    ),
    "bspline_mnist_noaug": (
        lambda: BSplineBasis.preset("mnist"),
        [7.000000, 5.779424, 4.504494, 4.055126],
        {(1, 0, 6, 5): 0.933336, (16, 1, 6, 6): 0.763530, (48, 3, 11, 11): 0.260958, (47, 1, 9, 9): 0.483729},
    ),
    "bspline_mnist_aug": (
        lambda: BSplineBasis.preset("mnist+"),
        [7.000000, 8.686807, 11.168975, 6.168367],
        {(1, 0, 6, 5): 1.000000, (16, 1, 6, 6): 3.155298, (48, 3, 11, 11): 0.413265, (47, 1, 9, 9): 0.350589},
    ),
    "bspline_size5_eff3": (
        lambda: BSplineBasis(3, [1, 1.41, 2], size=5),
        [3.000000, 1.508978, 0.777778],
        {(1, 0, 2, 1): 1.000000, (3, 1, 1, 2): 0.502993, (8, 2, 4, 4): 0.250000, (7, 1, 2, 3): 0.502993},
    ),
    "fb_mnist_noaug": (
        lambda: FourierBesselBasis.preset("mnist"),
        [7.000000, 5.854757, 4.373297, 4.188095],
        {(1, 0, 4, 7): -0.227504, (16, 1, 4, 3): 0.237533, (48, 3, 2, 1): -0.084010, (47, 1, 6, 6): 0.209323},
    ),
    "fb_mnist_aug": (
        lambda: FourierBesselBasis.preset("mnist+"),
        [7.000000, 5.787090, 4.549546, 3.813236],
        {(1, 0, 5, 7): -0.257997, (16, 1, 7, 3): -0.178383, (48, 3, 2, 7): -0.088181, (47, 1, 6, 6): 0.286292},
    ),
    "fb_size5_eff3": (
        lambda: FourierBesselBasis(3, [1, 1.41, 2], size=5),
        [3.000000, 1.501982, 1.252452],
        {(1, 0, 1, 2): -0.500849, (3, 1, 1, 2): 0.152631, (8, 2, 1, 2): -0.233224, (7, 1, 1, 1): -0.124677},
    ),
    "lrh_mnist_noaug": (
        lambda: LogRadialBasis.preset("mnist"),
        [7.000000, 6.089508, 5.513411, 4.942828],
        {(1, 0, 6, 7): 0.511169, (16, 1, 6, 6): 0.386850, (48, 3, 6, 8): 0.337197, (47, 1, 5, 8): 0.299392},
    ),
    "lrh_mnist_aug": (
        lambda: LogRadialBasis.preset("mnist+"),
        [7.000000, 6.442262, 5.400627, 4.447867],
        {(1, 0, 5, 7): 0.473338, (16, 1, 6, 7): 0.426994, (48, 3, 7, 6): 0.226030, (47, 1, 6, 8): -0.254947},
    ),
    "lrh_size5_eff3": (
        lambda: LogRadialBasis(3, [1, 1.41, 2], size=5, orders=2, rotations=3),
        [3.000000, 2.011480, 1.656673],
        {(1, 0, 1, 2): -0.577147, (3, 1, 2, 1): 0.673047, (8, 2, 2, 1): 0.353367, (7, 1, 1, 2): -0.572623},
    ),
}

# Per mixing matrix: preset, norm, rank, the proxy basis it mixes and the tensor that comes out.
MIXING = {
    "discoA_mixing_stl": ("stl10", 4.114026, 9, "disco_proxy_size5_eff3", "discoA_stl"),
    "discoB_mixing_mult1.5": ("mnist", 14.992427, 45, "disco_proxy_size15_eff7", "discoB_mnist_noaug"),
    "discoB_mixing_mult1.9": ("mnist+", 28.736238, 44, "disco_proxy_size15_eff7", "discoB_mnist_aug"),
}


def golden(name: str) -> dict[str, np.ndarray]:
    path = GOLDEN / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the authors' tensors are not next to this repository: no {path.name}")
    with np.load(path) as file:
        return dict(file)


def assert_close(ours: torch.Tensor, reference: object) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(reference, dtype=torch.float64), rtol=0, atol=ATOL)


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


@pytest.mark.parametrize("name", REFERENCE)
def test_equals_the_authors_tensor(name):
    basis, reference = REFERENCE[name][0](), golden(name)
    assert_close(basis.dense(), reference["basis"])
    np.testing.assert_allclose(list(basis.scales), reference["scales"], rtol=1e-12)


@pytest.mark.parametrize("name", REFERENCE)
def test_has_the_authors_norms_and_entries(name):
    make, norms, entries = REFERENCE[name]
    dense = make().dense()
    assert_close(dense.transpose(0, 1).flatten(1).norm(dim=1), norms)
    assert_close(torch.stack([dense[index] for index in entries]), list(entries.values()))


@pytest.mark.parametrize("name", MIXING)
def test_mixing_has_the_authors_norm_and_rank(name):
    preset, norm, rank, *_ = MIXING[name]
    weights = hermite_mixing_preset(preset)
    assert weights.dtype == torch.float64
    assert_close(weights.norm(), norm)
    assert torch.linalg.matrix_rank(weights.float()) == rank


@pytest.mark.parametrize("name", MIXING)
def test_mixing_equals_the_authors_matrix_and_networks(name):
    preset, _, _, proxy, network = MIXING[name]
    weights, reference = hermite_mixing_preset(preset), golden(network)
    assert_close(weights, golden(name)["W"])
    pixels = torch.from_numpy(golden(proxy)["basis"])
    basis = Basis.from_dense(pixels, reference["scales"], kernel_size=math.isqrt(len(pixels)))
    assert_close(basis.mix(weights).normalized().dense(), reference["basis"])


@pytest.mark.parametrize(
    ("name", "scales", "size", "mult"),
    [
        ("mnist-sesn", [2.0, 2.52, 3.17, 4.0], 15, 1.5),
        ("mnist-sesn+", [1.5, 1.89, 2.38, 3.0], 13, 1.4),
    ],
)
def test_presets_of_the_sesn_code(name, scales, size, mult):
    basis = HermiteBasis.preset(name)
    assert list(basis.scales) == scales
    assert basis.dense().shape == (49, 4, size, size)
    assert (basis.spec["max_order"], basis.spec["mult"]) == (4, mult)


@pytest.mark.parametrize("family", FAMILIES)
def test_supports_follow_the_scales(family):
    assert family(7, [2 ** (i / 3) for i in range(4)]).support == (7, 9, 11, 15)
    assert family(3, [0.9 * 1.41**i for i in range(3)]).support == (3, 5, 7)
    assert family(3, [1, 1.41, 2], size=5).support == (3, 3, 5)
    assert family(3, [1, 3.0000000000000004]).support[-1] == 9  # not 11 for a rounding error


@pytest.mark.parametrize("family", FAMILIES)
def test_base_scale_multiplies_the_scales(family):
    relative, absolute = family(3, [1, 1.5, 2], base_scale=0.8), family(3, [0.8, 1.2, 1.6])
    torch.testing.assert_close(relative.dense(), absolute.dense(), rtol=0, atol=1e-12)
    assert not torch.allclose(relative.dense(), family(3, [1, 1.5, 2]).dense())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel_size", [1, 2, 4, 5])
def test_functions_have_norm_one_at_the_first_scale(family, kernel_size):
    first = family(kernel_size, [1, 2], base_scale=0.6).stencils[0].functions
    assert len(first) == kernel_size**2
    torch.testing.assert_close(first.flatten(1).norm(dim=1), torch.ones(kernel_size**2, dtype=torch.float64))


@pytest.mark.parametrize(
    "make",
    [
        lambda: HermiteBasis(5, [1, 2]),
        lambda: HermiteBasis(5, [1, 2], max_order=4, mult=1.4),
        lambda: FourierBesselBasis(5, [1, 2]),
    ],
)
def test_twice_the_scale_is_twice_as_wide(make):
    small, large = (stencil.functions for stencil in make().stencils)  # [25, 5, 5] and [25, 11, 11]
    torch.testing.assert_close(large[:, 1:10:2, 1:10:2], small / 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded(family, tmp_path):
    basis = family.preset("mnist")
    assert json.loads(json.dumps(basis.spec)) == basis.spec
    assert basis.spec["kind"] == family.kind
    basis.save(tmp_path / "basis.safetensors")
    loaded = family.load(tmp_path / "basis.safetensors")
    assert type(loaded) is family
    assert loaded.digest == basis.digest


@pytest.mark.parametrize("order", [1, 2, 3])
def test_splines_sum_to_one(order):
    x = torch.linspace(-0.5, 0.5, 41, dtype=torch.float64)
    shifts = torch.arange(-4, 5, dtype=torch.float64)[:, None]
    torch.testing.assert_close(_spline(x + shifts, order).sum(0), torch.ones_like(x))
    assert not _spline(torch.tensor([(order + 1) / 2, 9.0]), order).any()


def test_cubic_spline():
    x = torch.tensor([0, 0.5, 1, 1.5, 2], dtype=torch.float64)
    torch.testing.assert_close(_spline(x, 3), torch.tensor([32, 23, 8, 1, 0], dtype=torch.float64) / 48)


def test_bessel_equals_scipy():
    special = pytest.importorskip("scipy.special", reason="scipy computes the Bessel functions to compare with")
    x, orders = torch.linspace(0, 40, 201, dtype=torch.float64), torch.tensor([0, 1, 2, 7, 30])[:, None]
    expected = torch.from_numpy(special.jv(orders.numpy(), x.numpy()))
    torch.testing.assert_close(bessel(orders, x), expected, rtol=0, atol=1e-14)

    ours, orders = bessel_zeros(30)
    zeros = sorted((zero, k) for k in range(30) for zero in special.jn_zeros(k, 10) if zero < 30)
    assert orders.tolist() == [k for _, k in zeros]
    np.testing.assert_allclose(ours.numpy(), [zero for zero, _ in zeros], rtol=1e-14)


def test_bessel_zeros():
    zeros, orders = bessel_zeros(18)
    known = [0, 1, 2, 0, 3, 1, 4, 2, 0, 5, 3, 6, 1, 4, 7, 2, 0, 8, 5, 3, 1, 9, 6, 4, 10, 2, 7]
    assert orders.tolist()[: len(known)] == known
    np.testing.assert_allclose(zeros[:2].numpy(), [2.404825557695773, 3.831705970207512], rtol=1e-15)


@pytest.mark.parametrize("kernel_size", range(1, 16))
def test_bessel_zeros_suffice(kernel_size):
    assert FourierBesselBasis(kernel_size, [1]).num_functions == kernel_size**2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 0}, "kernel_size must be an integer >= 1, got 0"),
        ({"size": 8}, "size must be an odd integer >= kernel_size 3, got 8"),
        ({"size": 1}, "size must be an odd integer >= kernel_size 3, got 1"),
        ({"size": 7.0}, "size must be an odd integer >= kernel_size 3, got 7.0"),
        ({"base_scale": 0}, "base_scale must be a positive finite number, got 0"),
        ({"base_scale": math.nan}, "base_scale must be a positive finite number, got nan"),
        ({"base_scale": math.inf}, "base_scale must be a positive finite number, got inf"),
        ({"base_scale": "1"}, "base_scale must be a positive finite number, got '1'"),
    ],
)
def test_errors_of_all_families(family, arguments, message):
    with pytest.raises(ValueError, match=exactly(f"{family.__name__}: {message}")):
        family(**{"kernel_size": 3, "scales": [1, 2], **arguments})


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        (HermiteBasis, {"max_order": 4}, "max_order and mult go together, got max_order=4, mult=None"),
        (HermiteBasis, {"mult": 1.5}, "max_order and mult go together, got max_order=None, mult=1.5"),
        (HermiteBasis, {"max_order": -1, "mult": 1.5}, "max_order must be an integer >= 0, got -1"),
        (HermiteBasis, {"max_order": 4, "mult": 0.0}, "mult must be a positive finite number, got 0.0"),
        (BSplineBasis, {"order": 0}, "order must be one of 1, 2, 3, got 0"),
        (BSplineBasis, {"order": 2.0}, "order must be one of 1, 2, 3, got 2.0"),
        (BSplineBasis, {"mult": -1}, "mult must be a positive finite number, got -1"),
        (LogRadialBasis, {"orders": 0}, "orders must be an integer >= 1, got 0"),
        (LogRadialBasis, {"orders": 2, "rotations": 2}, "rotations must be an integer >= 3, got 2"),
        (LogRadialBasis, {"width": 0}, "width must be a positive finite number, got 0"),
        (
            LogRadialBasis,
            {"base_scale": 1.5},
            "base_scale * scale must be below 1.414, the distance to the corner of the 3 x 3 stencil, got 1.5",
        ),
    ],
)
def test_errors_of_one_family(family, arguments, message):
    with pytest.raises(ValueError, match=exactly(f"{family.__name__}: {message}")):
        family(**{"kernel_size": 3, "scales": [1, 2], **arguments})


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda: FourierBesselBasis(3, [1, 2], base_scale=0.1), 1),  # the disc contains the center only
        (lambda: FourierBesselBasis(5, [1, 2], size=5), 11),  # sin(4 phi) is zero on 3 x 3 pixels but for rounding
        (lambda: BSplineBasis(3, [1, 2], base_scale=0.5), 0),  # no pixel under the corner spline
        (lambda: HermiteBasis(3, [1, 2], max_order=1, mult=4), 7),  # a width of 1/16 pixel leaves exp(-128)
        (lambda: HermiteBasis(3, [1, 2], max_order=0, mult=1e300), 1),  # infinite at the center
    ],
)
def test_functions_must_exist_at_the_first_scale(make, function):
    with pytest.raises(
        ValueError, match=rf"finite and nonzero on the 3 x 3 pixels .*, but function {function} is not$"
    ):
        make()


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_preset_names_the_valid_ones(family):
    names = ", ".join(family.presets)
    with pytest.raises(
        ValueError, match=exactly(f"{family.__name__}.preset: name must be one of {names}, got 'cifar'")
    ):
        family.preset("cifar")


def test_errors_of_hermite_mixing():
    with pytest.raises(ValueError, match=exactly("hermite_mixing: kernel_size must be an integer >= 1, got 0")):
        hermite_mixing(0, 1.0)
    with pytest.raises(ValueError, match=exactly("hermite_mixing: sigma must be a positive finite number, got -1.0")):
        hermite_mixing(3, -1.0)
    with pytest.raises(ValueError, match=r"^hermite_mixing: max_order and mult go together"):
        hermite_mixing(3, 1.0, max_order=4)
    names = ", ".join(MIXING_PRESETS)
    with pytest.raises(ValueError, match=exactly(f"hermite_mixing_preset: name must be one of {names}, got 'cifar'")):
        hermite_mixing_preset("cifar")
