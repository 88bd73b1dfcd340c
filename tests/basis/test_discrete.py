"""The paper's claims about its basis: exact where that is possible, optimal elsewhere."""

from __future__ import annotations

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_disco import DiscreteBasis, Scales, Stencil, resample
from scale_disco.basis import discrete
from scale_disco.basis.descent import sampled_objective
from scale_disco.basis.solve import solve
from scale_disco.resampling import kernel_reach, kernel_weights, source_coordinates
from scale_disco.tasks.io.samples import photos
from tests.conftest import CUBE_ROOT_2, ROOT_2

MODES = ["nearest", "nearest-exact", "linear", "cubic"]


def both_sides(basis, k, l, images, mode, antialias):
    """`L[f] * psi_l` and `L[f * psi_k]` away from the border."""
    ratio = basis.scales.ratio(k, l)
    small, large = basis.stencils[l], basis.stencils[k]

    def shrink(x):
        return resample(x, 1 / ratio, mode=mode, antialias=antialias)

    left, right = small.apply(shrink(images)), shrink(large.apply(images))
    reach = kernel_reach(ratio, mode, antialias)
    margin = max(small.reach) + math.ceil((max(large.reach) + reach) / ratio)
    inner = (..., *[slice(margin, -margin)] * basis.spatial_dims)
    assert left[inner].numel() > 0
    return left[inner], right[inner]


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spatial_dims", [1, 2, 3])
@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("odd", [0, 1])
def test_integer_ratios_are_exact(mode, antialias, spatial_dims, kernel_size, odd):
    basis = DiscreteBasis(
        kernel_size, [1, 2, 3], mode=mode, antialias=antialias, spatial_dims=spatial_dims, prior="white"
    )
    side = {1: 120, 2: 60, 3: 42}[spatial_dims] + odd
    images = torch.randn(1, 1, *[side] * spatial_dims, dtype=torch.float64)
    for k in (1, 2):
        left, right = both_sides(basis, k, 0, images, mode, antialias)
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_dilations_of_solved_stencils_are_exact(mode):
    scales = Scales.geometric(2**0.5, 5)
    basis = DiscreteBasis(3, scales, mode=mode)
    assert [stencil.dilation for stencil in basis.stencils] == [1, 1, 2, 2, 4]
    images = torch.randn(1, 1, 120, 121, dtype=torch.float64)
    for k, l in ((2, 0), (3, 1), (4, 0), (4, 2)):
        left, right = both_sides(basis, k, l, images, mode, False)
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)


def test_a_scale_dilates_the_smallest_scale_that_divides_it():
    basis = DiscreteBasis(3, [1, 1.5, 3])
    assert [stencil.dilation for stencil in basis.stencils] == [1, 1, 3]
    assert torch.equal(basis.stencils[2].functions, basis.stencils[0].functions)


def test_first_scale_is_the_pixel_basis():
    for kernel_size, dims in ((3, 2), (4, 1), (2, 3)):
        functions = DiscreteBasis(kernel_size, ROOT_2, spatial_dims=dims).stencils[0].functions
        assert torch.equal(functions.flatten(1), torch.eye(kernel_size**dims, dtype=torch.float64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("big", "small"), [(24, 12), (24, 8), (24, 16), (24, 18), (25, 15)])
def test_lemma_exact_solutions_exist_for_integer_ratios_only(mode, big, small):
    """Eq. 9 on a circle: `K L = L K_s` for a kernel K, least squares over all circulant K_s."""
    ratio = big / small
    where = source_coordinates(torch.arange(small, dtype=torch.float64), ratio, mode, False)
    reach = kernel_reach(ratio, mode, False)
    weights = kernel_weights(where, torch.arange(-reach, big + reach), ratio, mode, False)
    operator = torch.zeros(small, big, dtype=torch.float64)
    operator.index_add_(1, torch.arange(-reach, big + reach) % big, weights)

    kernel = torch.tensor([0.3, 1.0, -0.5], dtype=torch.float64)
    left = sum(kernel[i] * operator.roll(-(i - 1), 0) for i in range(3))
    columns = torch.stack([operator.roll(m, 1).flatten() for m in range(big)], 1)
    best = torch.linalg.lstsq(columns, left.flatten()[:, None], driver="gelsd").solution
    residual = (columns @ best).flatten() - left.flatten()
    relative = float(residual.norm() / left.norm())
    if big % small == 0:
        assert relative < 1e-10
    else:
        assert relative > 0.05


def test_lemma_the_residual_stays_however_large_the_support():
    errors = [
        DiscreteBasis(3, [1, 2**0.5], support=side, spatial_dims=1, prior="white").error for side in (5, 17, 65, 257)
    ]
    assert all(larger <= smaller * (1 + 1e-9) for smaller, larger in itertools.pairwise(errors))
    assert errors[-1] > 0.5 * errors[0] > 0.005
    assert errors[2] - errors[3] < 1e-6 * errors[3]


@pytest.mark.parametrize(
    ("kernel_size", "scales", "dims"), [(3, ROOT_2, 2), (2, [1, 1.3, 1.7], 2), (3, [1, 1.5], 1), (2, ROOT_2, 3)]
)
@pytest.mark.parametrize(("mode", "antialias"), [("cubic", False), ("linear", True), ("nearest", False)])
def test_gradient_of_the_sampled_objective_vanishes(kernel_size, scales, dims, mode, antialias):
    """With the sample as prior, the closed form is the sample's own minimum."""
    images = torch.randn(2, 1, *[{1: 200, 2: 44, 3: 26}[dims]] * dims, dtype=torch.float64).cumsum(-1)
    basis = DiscreteBasis(kernel_size, scales, prior=images, mode=mode, antialias=antialias, spatial_dims=dims)
    roots = [root for root, _ in discrete.plan(basis.scales)]
    unknown = {root: basis.stencils[root].functions.clone().requires_grad_() for root in set(roots) - {0}}
    stencils = [Stencil(unknown.get(r, s.functions), s.dilation) for r, s in zip(roots, basis.stencils, strict=True)]
    objective = sampled_objective(basis.scales, stencils, images, basis._conditions())
    gradients = torch.autograd.grad(objective, list(unknown.values()))
    for gradient in gradients:
        assert gradient.norm().item() < 1e-8 * objective.item()

    with torch.no_grad():
        for _ in range(5):
            moved = [
                Stencil(s.functions if r == 0 else s.functions + 1e-3 * torch.randn_like(s.functions), s.dilation)
                for r, s in zip(roots, basis.stencils, strict=True)
            ]
            assert sampled_objective(basis.scales, moved, images, basis._conditions()) > objective.item()


@pytest.mark.parametrize("prior", ["white", "image"])
def test_gradient_vanishes_on_fresh_samples_of_the_prior(prior):
    """In expectation: small compared with the gradient at 1 % from the solution."""
    basis = DiscreteBasis(3, ROOT_2, prior=prior)
    images = basis._prior.sample(64, 96, 2, torch.Generator().manual_seed(1))

    def gradient(shift):
        moved = (basis.stencils[1].functions * (1 + shift)).requires_grad_()
        stencils = [basis.stencils[0], Stencil(moved), basis.stencils[2]]
        return float(
            torch.autograd.grad(sampled_objective(ROOT_2, stencils, images, basis._conditions()), moved)[0].norm()
        )

    assert gradient(0.0) < 0.5 * gradient(0.01)


@pytest.mark.thorough  # test_doc_figures.py is its representative in the first tier
@pytest.mark.parametrize("prior", ["white", "image"])
def test_descent_converges_to_the_closed_form(prior):
    exact = DiscreteBasis(3, ROOT_2, prior=prior)
    start, end = (DiscreteBasis(3, ROOT_2, prior=prior, solver="gradient", steps=steps) for steps in (20, 300))

    def distance(basis):
        target = exact.stencils[1].functions
        return float((basis.stencils[1].functions - target).norm() / target.norm())

    assert distance(end) < 0.01 < 1 < distance(start)
    assert exact.error < end.error * 1.01 < start.error
    assert end.spec["solver"] == "gradient"
    assert end.spec["steps"] == 300


@pytest.mark.thorough
def test_descent_converges_on_own_images():
    exact = DiscreteBasis(2, [1, 1.5], prior=photos())
    end = DiscreteBasis(2, [1, 1.5], prior=photos(), solver="gradient", steps=600)
    assert exact.error < end.error < 1.05 * exact.error


@settings(max_examples=25)
@given(
    factors=st.lists(st.floats(1.05, 5), min_size=1, max_size=3, unique_by=lambda f: round(f, 1)),
    kernel_size=st.integers(1, 5),
    mode=st.sampled_from(MODES),
    antialias=st.booleans(),
)
def test_any_scales_give_a_local_minimum(factors, kernel_size, mode, antialias):
    scales = Scales([1.0, *sorted(factors)])
    basis = DiscreteBasis(kernel_size, scales, mode=mode, antialias=antialias, spatial_dims=1)

    def objective(stencils):
        norms = discrete.predicted_errors(scales, stencils, basis._conditions())
        return sum(difference / scales.ratio(*pair) for pair, (difference, _) in norms.items())

    roots = [root for root, _ in discrete.plan(scales)]
    best = objective([(s.functions, s.dilation) for s in basis.stencils])
    noise = {root: torch.randn_like(basis.stencils[root].functions) for root in set(roots) - {0}}
    for size in (0.1, -0.1):
        moved = [
            (s.functions + size * noise[r] if r else s.functions, s.dilation)
            for r, s in zip(roots, basis.stencils, strict=True)
        ]
        assert objective(moved) >= best - 1e-12
    assert basis.error >= 0
    assert all(side % 2 == kernel_size % 2 for side in basis.support)


@pytest.mark.parametrize(("kernel_size", "scales"), [(3, ROOT_2), (7, CUBE_ROOT_2), (4, ROOT_2), (3, [1, 1.3, 2.2])])
@pytest.mark.parametrize("prior", ["white", "image"])
def test_default_support_is_minimal(kernel_size, scales, prior):
    basis = DiscreteBasis(kernel_size, scales, prior=prior)
    roots = [root for root, _ in discrete.plan(basis.scales)]
    larger = [side + 2 * (root != 0) for side, root in zip(basis.support, roots, strict=True)]
    grown = DiscreteBasis(kernel_size, scales, prior=prior, support=larger)
    assert (1 - discrete.SUPPORT_TOLERANCE) * basis.error < grown.error < basis.error


def test_flipping_the_kernel_flips_the_stencils():
    for scales in (ROOT_2, CUBE_ROOT_2):
        for stencil in DiscreteBasis(3, scales).stencils:
            grid = stencil.functions.reshape(3, 3, stencil.side, stencil.side)
            torch.testing.assert_close(grid, grid.flip(0, 2))
            torch.testing.assert_close(grid, grid.transpose(0, 1).transpose(2, 3))


def test_image_prior_keeps_the_mean_and_white_noise_does_not():
    sums = {
        prior: DiscreteBasis(3, ROOT_2, prior=prior).stencils[1].functions.sum((1, 2)) for prior in ("image", "white")
    }
    assert float((sums["image"] - 1).abs().max()) < 0.02
    assert float(sums["white"].mean()) > 1.05


def test_one_pixel_kernels_are_exact_at_any_scale():
    basis = DiscreteBasis(1, [1, 1.4, 2.3])
    assert basis.error < 1e-12
    assert basis.support == (1, 1, 1)


def test_a_single_scale_is_a_plain_convolution():
    basis = DiscreteBasis(3, [1])
    assert basis.error == 0
    assert basis.taps == 9


def test_solved_bases_are_cached_and_copies_are_independent(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return solve(*arguments)

    monkeypatch.setattr(discrete, "_SOLVED", {})
    monkeypatch.setattr(discrete, "solve", counted)
    first = DiscreteBasis(3, ROOT_2, support=5)
    again = DiscreteBasis(3, list(ROOT_2), support=5, progress=lambda done, total: None)
    assert len(calls) == 1
    DiscreteBasis(3, ROOT_2, support=5, prior="white")
    assert len(calls) == 2
    assert first.spec == again.spec
    first.stencils[1].functions.zero_()
    assert DiscreteBasis(3, ROOT_2, support=5).digest == again.digest


def test_the_cache_drops_the_oldest_basis(monkeypatch):
    monkeypatch.setattr(discrete, "_SOLVED", {})
    monkeypatch.setattr(discrete, "_CACHE_SIZE", 2)
    for kernel_size in (1, 2, 3):
        DiscreteBasis(kernel_size, [1, 2])
    assert [key[0] for key in discrete._SOLVED] == [2, 3]


def test_torch_names_of_modes_give_the_same_basis():
    assert DiscreteBasis(3, ROOT_2, mode="bicubic").digest == DiscreteBasis(3, ROOT_2, mode="cubic").digest


def test_support_can_be_set():
    scales = Scales.geometric(2**0.5, 4)
    basis = DiscreteBasis(3, scales, support=7)
    assert basis.support == (3, 7, 3, 7)
    assert DiscreteBasis(3, scales, support=basis.support).digest == basis.digest


def test_numpy_numbers_are_accepted():
    basis = DiscreteBasis(np.int64(3), np.array([1, 1.5]), support=np.array([3, 7]), prior=np.float32(0.5))
    assert basis.support == (3, 7)
    assert DiscreteBasis(3, [1, 1.5], support=np.int64(7)).support == (3, 7)


def test_the_number_of_threads_is_restored():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    DiscreteBasis(3, [1, 1.37])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


def test_progress_of_a_descent_is_reported():
    seen = []
    DiscreteBasis(
        2,
        [1, 1.5],
        spatial_dims=1,
        solver="gradient",
        steps=3,
        seed=5,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 0}, "kernel_size must be an integer >= 1, got 0"),
        ({"kernel_size": 3.0}, "kernel_size must be an integer >= 1, got 3.0"),
        ({"kernel_size": True}, "kernel_size must be an integer >= 1, got True"),
        ({"scales": []}, "at least one scale, got none"),
        ({"scales": [2, 1]}, "ascending order, got 1 after 2"),
        ({"mode": "lanczos"}, "mode: expected one of nearest, .*, got 'lanczos'"),
        ({"antialias": "yes"}, "antialias must be True or False, got 'yes'"),
        ({"prior": "snow"}, "prior: expected .* got 'snow'"),
        ({"prior": 1.0}, "prior: expected .* got 1.0"),
        ({"prior": torch.rand(1, 1, 6, 6)}, r"prior: images need at least \d+ pixels a side .*, got 6"),
        ({"prior": torch.full((1, 1, 40, 40), math.nan)}, "prior: expected finite images"),
        (
            {"prior": torch.zeros(1, 1, 40, 40, dtype=torch.uint8)},
            "prior: images must be floating-point, got torch.uint8",
        ),
        ({"spatial_dims": 4}, "spatial_dims must be one of 1, 2, 3, got 4"),
        ({"support": 4}, "support must be positive and odd like kernel_size 3, got 4 at scale 1"),
        ({"support": -1}, "support must be positive and odd like kernel_size 3, got -1 at scale 1"),
        ({"support": [5, 5, 5]}, "scale 0 is the pixel basis, so its support is 3, got 5"),
        ({"scales": [1, 1e300]}, "at most 1e.06 times the smallest, got 1 and 1e.300"),
        ({"scales": [1, 1000.5]}, "at most 8000 taps can be solved for, got 4012009 for stencils of sides 2003"),
        ({"prior": torch.zeros(2, 1, 40, 40)}, "prior: images must not be all zero"),
        ({"prior": [[1.0] * 50] * 50}, "prior: expected .* got "),
        ({"mode": []}, "mode: expected one of"),
        ({"spatial_dims": 2.0}, "spatial_dims must be one of 1, 2, 3, got 2.0"),
        ({"solver": "gradient", "steps": 1, "seed": "a"}, "seed must be an integer .*, got 'a'"),
        ({"support": [3, 5]}, r"one side per scale, 3, got \[3, 5\]"),
        ({"support": [3, 5, 5]}, "scale 2 is a dilation of scale 0, so its support is 3, got 5"),
        ({"support": "5"}, "support must be one side or one side per scale, got '5'"),
        ({"solver": "magic"}, "solver must be one of exact, gradient, got 'magic'"),
        ({"solver": "gradient"}, "steps must be given with solver"),
        ({"steps": 5}, "steps must be given with solver"),
        ({"solver": "gradient", "steps": -1}, "steps must be an integer >= 0, got -1"),
    ],
)
def test_invalid_arguments_raise_a_one_line_error(arguments, message):
    arguments = {"kernel_size": 3, "scales": ROOT_2, **arguments}
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        DiscreteBasis(arguments.pop("kernel_size"), arguments.pop("scales"), **arguments)
    assert "\n" not in str(caught.value)


def test_concurrent_threads_solve_a_basis_once(monkeypatch):
    """One of them solves the basis for all, and torch keeps the number of its own threads."""
    asked, expected, before = [1, 1.7], DiscreteBasis(3, [1, 1.7], support=5).digest, torch.get_num_threads()
    solved = []

    def slow(*arguments):
        time.sleep(0.05)
        solved.append(torch.get_num_threads())
        return solve(*arguments)

    monkeypatch.setattr(discrete, "_SOLVED", {})
    monkeypatch.setattr(discrete, "solve", slow)
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(8) as threads:
            digests = list(threads.map(lambda _: DiscreteBasis(3, asked, support=5).digest, range(16)))
            others = threads.map(lambda n: DiscreteBasis(3, [1, 1.2 + n / 100], support=5).digest, range(8))
            assert len(set(others)) == 8
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)
    assert set(digests) == {expected}
    assert solved == [1] * 9
