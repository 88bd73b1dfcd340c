"""What is promised about numbers: finite stays finite, and neither company, threads nor size change a result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

from scale_disco import DiscreteBasis, Scales, bake, equivariance_error, functional, to_scale_equivariant
from scale_disco import nn as snn
from scale_disco.convert.layers import GrowingMaxPool
from scale_disco.functional import _fft as spectral
from scale_disco.functional import _winograd as winograd
from scale_disco.models import create_model, list_models
from scale_disco.tasks.scene.readout import READOUTS
from scale_disco.tasks.tracking.networks import Siamese
from tests.convert.networks import NETWORKS, images, network
from tests.nn.cases import CASES, SCALES
from tests.nn.test_every_layer import every_case, everything
from tests.reliability.numbers import (
    CLOSE,
    FAMILIES,
    FAST,
    KINDS,
    PRECISIONS,
    Problem,
    apart,
    basis,
    deviation,
    not_finite,
    problems,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*supposes equal steps")  # numbers are numbers on any scales
every_network = pytest.mark.parametrize("kind", [kind for kind in NETWORKS if "resnet" not in kind])
every_fast = pytest.mark.parametrize("name", FAST)
MOST = {1: 30, 2: 14, 3: 7}  # pixels along each axis of small images


def dims_of(case):
    return int(case.name[-2])


def answer(layer, x):
    """What a layer gives; None where it refuses an image as too small, in one line."""
    try:
        return layer(x)
    except ValueError as error:
        if not re.fullmatch(
            rf"({type(layer).__name__}|scale convolution): [^\n]*(smaller|at least|can continue)[^\n]*", str(error)
        ):
            raise
    return None


# Finite stays finite.


@every_case
@pytest.mark.parametrize("precision", PRECISIONS)
def test_finite_values_give_finite_values_and_gradients(case, precision):
    for training in (True, False) if "norm" in case.name else (True,):
        for kind in KINDS:
            layer = case.layer().train(training)
            assert not_finite(layer, values(kind, case.shape), precision) == [], (kind, training)


def stays_finite(problem: Problem, space, kind, precision, seed):
    x = values(kind, problem.shape(2, space), seed)
    refused = answer(problem.layer, x.float()) is None
    assert refused or not_finite(problem.layer, x, precision) == []
    return not refused


@st.composite
def sized(draw):
    """A scale convolution, and the size of images."""
    problem = draw(problems())
    dims = problem.layer.spatial_dims
    return problem, draw(st.tuples(*[st.integers(1, MOST[dims])] * dims))


FINITE = {
    "problem": sized(),
    "kind": st.sampled_from(KINDS),
    "precision": st.sampled_from(PRECISIONS),
    "seed": st.integers(0, 9),
}


@settings(max_examples=60)
@given(**FINITE)
def test_any_scale_convolution_keeps_values_finite(problem, kind, precision, seed):
    stays_finite(*problem, kind, precision, seed)


@pytest.mark.slow
def test_many_scale_convolutions_keep_values_finite(note):
    tried = []

    @settings(max_examples=3000)
    @given(**FINITE)
    def run(problem, kind, precision, seed):
        tried.append(stays_finite(*problem, kind, precision, seed))

    run()
    refused = len(tried) - sum(tried)
    note("numbers", "scale convolutions of finite input", cases=len(tried), refused=refused, not_finite=0)


@every_network
@pytest.mark.parametrize("baked", [False, True], ids=["converted", "baked"])
def test_converted_networks_keep_values_finite(kind, baked):
    x = images(kind)
    net = to_scale_equivariant(network(kind), SCALES, example=x, pooling="growing")
    net = bake(net) if baked else net
    for chosen, precision in (("zeros", "single"), ("constant", "bfloat16"), ("all sizes", "single")):
        assert not_finite(net.eval(), values(chosen, tuple(x.shape), largest=1e6), precision) == [], chosen


# Company does not matter.


@every_case
def test_an_image_does_not_depend_on_the_others(case):
    layer = case.layer().eval()
    sizes = 10 ** torch.linspace(-6, 6, 5)
    x = torch.cat([case.input(), case.input() + 1, case.input()[:1] - 1]) * sizes.reshape(
        -1, *[1] * (len(case.shape) - 1)
    )
    with torch.no_grad():
        assert apart(layer, x) <= CLOSE[torch.float32]


@pytest.fixture
def seen(monkeypatch):
    """Fast paths that were taken."""
    taken = []
    for module in (winograd, spectral):
        name, way = module.__name__.rpartition(".")[2], module.correlate
        monkeypatch.setattr(module, "correlate", lambda *a, name=name, way=way: taken.append(name) or way(*a))
    return taken


@every_fast
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_fast_paths_give_what_an_image_alone_gives(name, dtype, seen):
    case = FAST[name]
    layer, x = case.layer(dtype), case.input(dtype)
    with torch.no_grad():
        layer(x[:1])
        assert seen == []
        layer(x)
        assert case.path in seen
        assert apart(layer, x) <= CLOSE[dtype]


@every_fast
def test_gradients_are_those_of_images_alone(name):
    case = FAST[name]
    layer, x = case.layer(torch.float64), case.input(torch.float64).requires_grad_()
    (whole,) = torch.autograd.grad(layer(x).square().sum(), x)
    alone = [torch.autograd.grad(layer(one).square().sum(), one)[0] for one in x.split(1)]
    assert deviation(torch.cat(alone), whole) <= CLOSE[torch.float64]


@every_network
def test_converted_and_baked_networks_give_what_an_image_alone_gives(kind):
    x = images(kind, batch=4)
    net = to_scale_equivariant(network(kind), SCALES, example=x)
    with torch.no_grad():
        for one in (net, bake(net)):
            assert apart(one, x) <= CLOSE[torch.float32]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def of_threads(run, threads):
    """How far results are with two and four threads from those with one."""
    threads(1)
    with torch.no_grad():
        alone = run()
    worst = 0.0
    for count in (2, 4):
        threads(count)
        with torch.no_grad():
            worst = max(worst, deviation(run(), alone))
    return worst


@every_fast
def test_the_number_of_threads_does_not_matter_to_fast_paths(name, threads):
    case = FAST[name]
    layer, x = case.layer(), case.input()
    assert of_threads(lambda: layer(x), threads) <= CLOSE[torch.float32]


def test_the_number_of_threads_does_not_matter_to_a_network(threads):
    net, x = everything(), torch.randn(4, 3, 32, 32)
    assert of_threads(lambda: net(x), threads) <= CLOSE[torch.float32]


def test_layers_may_be_used_from_several_threads():
    converted = to_scale_equivariant(network("sequential"), SCALES, example=images("sequential"))
    baked, x = bake(converted), images("sequential", batch=4)
    spectra = FAST["spectra"].layer()

    def all_of_them(_):
        torch.manual_seed(0)
        with torch.random.fork_rng():
            made = snn.ScaleLift2d(3, 4, DiscreteBasis(3, [1, 1.3, 1.9]))
            nn.init.ones_(made.weight)
        with torch.inference_mode():
            found = [made(x), converted(x), baked(x), spectra(FAST["spectra"].input())]
        slope = torch.autograd.grad(converted(x).sum(), converted.network[0].weight)
        return [*found, *slope]

    expected = all_of_them(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(all_of_them, range(12)):
            for one, other in zip(found, expected, strict=True):
                assert deviation(one.flatten()[None], other.flatten()[None]) <= CLOSE[torch.float32]


def test_direct_convolutions_are_a_matter_of_the_thread(seen):
    case, entered, leave = FAST["spectra"], threading.Event(), threading.Event()
    layer, x = case.layer(), case.input()

    def stay():
        with functional.direct():
            entered.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        with functional.direct():
            other = pool.submit(stay)
            entered.wait()
            layer(x)
            assert seen == []
        layer(x)
        leave.set()  # after the one that began before it
        other.result()
        layer(x)
    assert seen == ["_fft", "_fft"]


# No size is special.


def equals_its_twin(problem: Problem, space, seed):
    layer = problem.layer.double()
    x = torch.randn(problem.shape(2, space), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = answer(layer, x)
    if found is not None:
        return deviation(found, problem.dense(x))
    assert problem.options["padding"] != "same" or problem.options["padding_mode"] in ("circular", "reflect")
    return None


@settings(max_examples=80)
@given(problem=sized(), seed=st.integers(0, 9))
def test_small_images_give_what_the_dense_twin_gives(problem, seed):
    found = equals_its_twin(*problem, seed)
    assert found is None or found <= CLOSE[torch.float64]


@pytest.mark.slow
def test_many_small_images_give_what_the_dense_twin_gives(note):
    found = []

    @settings(max_examples=3000)
    @given(problem=sized(), seed=st.integers(0, 9))
    def run(problem, seed):
        found.append(equals_its_twin(*problem, seed))
        assert found[-1] is None or found[-1] <= CLOSE[torch.float64]

    run()
    right = [one for one in found if one is not None]
    note("numbers", "small images by dense twins", cases=len(found), refused=len(found) - len(right), worst=max(right))


@every_case
def test_small_images_are_right_or_refused_in_one_line(case):
    layer, dims = case.layer().eval(), dims_of(case)
    for space in {(1,) * dims, (*(1,) * (dims - 1), 9), (9, *(1,) * (dims - 1)), (2,) * dims, (3,) * dims}:
        x = torch.rand(*case.shape[: len(case.shape) - dims], *space) + 1
        y = answer(layer, x)
        assert y is None or y.isfinite().all()
        if y is not None and ("pool" in case.name or "upsample" in case.name):  # means and maxima stay between values
            assert 0.99 <= y.min() <= y.max() <= 2.01


@every_case
def test_images_without_pixels_are_refused(case):
    if "dropout" in case.name or "project" in case.name:
        return
    layer = case.layer()
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: expected images of at least 1 pixels[^\n]*$"):
        layer(torch.zeros(*case.shape[:-1], 0))


def test_maps_too_small_to_shrink_are_refused():
    with pytest.raises(ValueError, match=r"^ScaleUpsample: expected images of at least 3 pixels"):
        snn.ScaleUpsample(0.4)(torch.zeros(1, 1, 1, 2, 5))
    assert snn.ScaleUpsample(1 / 49)(torch.zeros(1, 1, 1, 50, 50)).shape == (1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"^ScaleUpsample: scale_factor must be a positive finite number, got inf"):
        snn.ScaleUpsample(torch.inf)


def down(channels=2):
    """Three layers and two ways down, of few channels, for large images."""
    torch.manual_seed(0)
    made = [DiscreteBasis(3, SCALES), DiscreteBasis(1, SCALES)]
    net = nn.Sequential(
        snn.ScaleLift2d(1, channels, made[0]),
        snn.ScaleBatchNorm2d(channels),
        nn.ReLU(inplace=True),
        snn.ScaleAvgPool2d(2),
        snn.ScaleConv2d(channels, channels, made[0], scale_extent=2),
        snn.ScaleBlurPool2d(SCALES),
        snn.ScaleConv2d(channels, 1, made[1]),
        snn.ScaleProject("max"),
    )
    return net.eval()


def of_a_crop(net, image, top, left, side):
    """How far the middle of a crop is from what the whole image gives there; all numbers multiples of 4."""
    margin = 32
    whole = net(image)[..., top // 4 : (top + side) // 4, left // 4 : (left + side) // 4]
    crop = net(image[..., top - margin : top + side + margin, left - margin : left + side + margin])
    inside = slice(margin // 4, (margin + side) // 4)
    return deviation(crop[..., inside, inside], whole)


@torch.no_grad()
def test_a_crop_gives_what_the_whole_image_gives():
    assert of_a_crop(down(), torch.randn(1, 1, 600, 800), 400, 640, 64) <= CLOSE[torch.float32]


@torch.no_grad()
@pytest.mark.parametrize("space", [(1, 5000), (5000, 1), (3, 4001)])
def test_long_thin_images(space):
    layer = snn.ScaleLift2d(1, 2, DiscreteBasis(3, SCALES)).double()
    x = torch.randn(1, 1, *space, dtype=torch.float64)
    dense = functional.reference.scale_lift(x, layer.weight, layer.basis, layer.bias)
    assert deviation(layer(x), dense) <= CLOSE[torch.float64]


LARGE = """
import json, resource, torch
from tests.reliability.test_numbers import down, of_a_crop
torch.set_num_threads(1)
net, image = down(), torch.randn(1, 1, 3000, 4000)
with torch.no_grad():
    net(image[..., :64, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    far = of_a_crop(net, image, 2800, 3800, 128)
peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps({"worst": far, "bytes": peak}))
"""


@pytest.mark.slow
def test_a_very_large_image(note):
    ran = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    maps = 4 * 3000 * 4000 * 2 * 3  # bytes of the largest feature map
    note("numbers", "an image of 3000 x 4000", **found, times_the_largest_map=round(found["bytes"] / maps, 2))
    assert found["worst"] <= CLOSE[torch.float32]
    assert found["bytes"] <= 4 * maps


# No images are images, too.


@every_case
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_an_empty_batch_goes_forth_and_back(case, training):
    layer, x = case.layer().train(training), case.input()[:0].requires_grad_()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers() if name != "num_batches_tracked"}
    y = layer(x)
    assert y.shape == (0, *case.output[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert all(torch.equal(parameter.grad, torch.zeros_like(parameter)) for parameter in layer.parameters())
    assert all(torch.equal(layer.get_buffer(name), buffer) for name, buffer in before.items())
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        assert len(layer(case.input()[:0])) == 0


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if "resnet" not in kind and kind != "counted"])
@pytest.mark.parametrize("options", [{}, {"pooling": "growing", "antialias": True}, {"pooling": "average"}], ids=str)
def test_an_empty_batch_through_converted_and_baked_networks(kind, options):
    x = images(kind)
    net = to_scale_equivariant(network(kind), SCALES, example=x, **options)
    for one in (net, bake(net)):
        empty = x[:0].clone().requires_grad_()
        found, full = tree_leaves(one(empty)), tree_leaves(one(x))
        assert [y.shape[1:] for y in found] == [y.shape[1:] for y in full]
        assert all(len(y) == 0 for y in found)
        sum(y.sum() for y in found).backward()
        assert empty.grad.shape == empty.shape


def test_no_error_of_no_images():
    with pytest.raises(
        ValueError, match=r"^equivariance_error: expected at least one image, got shape \(0, 1, 32, 32\)$"
    ):
        equivariance_error(nn.Identity(), torch.zeros(0, 1, 32, 32), [1, 2])


@pytest.mark.parametrize("name", READOUTS)
def test_no_profiles_have_no_sizes(name):
    scales = Scales.geometric(2**0.5, 5)
    reading = READOUTS[name](6, scales).eval().read(torch.rand(0, 6, 5))
    assert [len(part) for part in reading] == [0, 0]


@pytest.mark.parametrize("name", READOUTS)
def test_silent_channels_have_finite_gradients(name):
    torch.manual_seed(0)
    readout = READOUTS[name](6, Scales.geometric(2**0.5, 5)).eval()
    profiles = torch.rand(4, 6, 5)
    profiles[:, 2], profiles[1] = 0.0, 0.0  # after a ReLU

    def run(x):
        return readout.compare(x[:2], x[2:]), readout.read(x)

    assert not_finite(readout, profiles, "single", run) == []
    assert not_finite(readout, torch.zeros(4, 6, 5), "single", run) == []


@pytest.mark.parametrize("channels", [(0, 4), (4, 0)])
@pytest.mark.parametrize("kind", [snn.ScaleLift2d, snn.ScaleConv2d])
def test_no_channels_are_refused(kind, channels):
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: (in|out)_channels must be an integer >= 1, got 0$"):
        kind(*channels, DiscreteBasis(3, SCALES))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_scale_and_one_channel_are_an_ordinary_convolution(family):
    layer = snn.ScaleLift2d(1, 1, basis(family, 3, (1,), 2)).double()
    x = torch.randn(1, 1, 9, 9, dtype=torch.float64)
    (kernel,) = layer.kernels()
    plain = torch.conv2d(x, kernel, layer.bias, padding=kernel.shape[-1] // 2)
    assert deviation(layer(x)[:, :, 0], plain) <= CLOSE[torch.float64]


# Memory does not matter.


@every_case
def test_memory_of_any_kind(case):
    layer, x = case.layer().eval(), case.input()
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    for other in (x.transpose(-1, 1).contiguous().transpose(-1, 1), wide[..., ::2]):
        assert torch.equal(other, x)
        assert deviation(layer(other), layer(x)) <= CLOSE[torch.float32]
    for expanded in (x[:1].expand_as(x), x[:, :1].expand_as(x), x[..., :1].expand_as(x)):
        leaf = expanded.detach().requires_grad_()
        copied = expanded.clone().requires_grad_()
        found, expected = layer(leaf), layer(copied)
        assert deviation(found, expected) <= CLOSE[torch.float32]
        for one, other in zip(
            *(torch.autograd.grad(y.sum(), i) for y, i in ((found, leaf), (expected, copied))), strict=True
        ):
            assert deviation(one, other) <= CLOSE[torch.float32]
    with torch.inference_mode():
        assert deviation(layer(x.clone()), layer(x).clone()) == 0.0


# What is not finite stays where it is.


@every_case
@pytest.mark.parametrize("trouble", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_and_reaches_no_other_image(case, trouble):
    layer, x = case.layer().eval(), case.input()
    expected = layer(x)
    x[0, 0, ..., *[4] * dims_of(case)] = trouble
    y = layer(x)
    assert not y[0].isfinite().all()
    assert deviation(y[1:], expected[1:]) <= CLOSE[torch.float32]


@settings(max_examples=40)
@given(problem=problems(), trouble=st.sampled_from([torch.nan, torch.inf]))
def test_directly_it_reaches_what_kernels_reach(problem, trouble):
    layer, dims = problem.layer, problem.layer.spatial_dims
    x = torch.rand(problem.shape(1, ({1: 60, 2: 41, 3: 13}[dims],) * dims))
    spot = (..., *[6 if dims == 3 else 20] * dims)
    mark = torch.zeros_like(x)
    mark[spot] = 1.0
    x[spot] = trouble
    run = functional.lift if layer.lifting else functional.convolve
    reached = run(mark, [torch.ones_like(kernel) for kernel in layer.kernels()], None, layer.layout) > 0
    assert torch.equal(~layer(x).isfinite() & ~reached, torch.zeros_like(reached))


def within(x, taps, step, more):
    """Which pixels a kernel, or one with so many more taps, reaches from those that are not finite."""
    bad = (~x.isfinite()).any(1, keepdim=True).float()
    side = 2 * step * (taps // 2 + more) + 1
    return nn.functional.max_pool2d(bad, side, 1, side // 2)[:, 0] > 0


@pytest.mark.parametrize(("taps", "step"), [(3, 1), (5, 1), (3, 2), (5, 2)])
def test_by_tiles_it_reaches_three_taps_farther(taps, step):
    x, kernel = torch.randn(2, 8, 33, 30), torch.randn(6, 8, taps, taps)
    for row in range(8, 16):
        spoiled = x.clone()
        spoiled[0, 3, row, row + 5] = torch.nan
        y = winograd.correlate(spoiled, kernel, step)
        bad = (~y.isfinite()).any(1)
        assert (within(spoiled, taps, 1, 0) & bad).any()
        assert not (bad & ~within(spoiled, taps, step, 3)).any()
        assert torch.equal(y[1], winograd.correlate(x, kernel, step)[1])


@pytest.mark.parametrize("trouble", [torch.nan, torch.inf, 1e6, 1e30])
def test_by_the_fourier_transform_it_stays_in_its_image(trouble):
    x, kernel = torch.randn(16, 16, 20, 20), torch.randn(4, 16, 15, 15)
    expected = spectral.correlate(x, kernel)
    x[3, 5, 9, 9] = trouble
    y = spectral.correlate(x, kernel)
    others = [k for k in range(16) if k != 3]
    assert deviation(y[others], expected[others]) <= CLOSE[torch.float32]
    assert y.isfinite().all() == (trouble < torch.inf)
    if trouble < torch.inf:
        assert deviation(y, torch.conv2d(x, kernel, padding=7)) <= CLOSE[torch.float32]


def test_growing_windows_do_not_hide_what_is_no_number():
    pool = GrowingMaxPool(nn.MaxPool2d(3, 2, 1), Scales([1, 2, 4]))
    x = torch.zeros(3, 1, 4, 4)  # so small that windows may reach over all of it
    x[..., 2, 2] = torch.nan
    assert pool(x)[:, 0, 0, 0].isnan().tolist() == [False, True, False]
    assert pool(x)[:, 0, 1, 1].isnan().all()


# Networks by name.

SIDES = {"mnist": 28, "digits": 28, "track": 255, "scene": 64}


def model(name):
    torch.manual_seed(0)
    family = name.partition("/")[0]
    net = create_model(name, **({"depth": 10, "width": 1} if family == "stl10" else {})).eval()
    side = SIDES.get(family, 32)
    channels = 1 if side == 28 else 3
    x = torch.rand(3, channels, side, side) * (255 if family in ("track", "scene") else 1)
    if family == "scene":
        net.readout.prepare(net.maps(x).mean((3, 4)), net.backbone.fingerprint)
    run = (lambda x: tuple(y for y in net(x, x.flip(-1)) if y is not None)) if isinstance(net, Siamese) else net
    return net, run, x


def of_a_model(name):
    """How far images are from themselves alone; the rest is asserted."""
    net, run, x = model(name)
    for chosen, precision in (("zeros", "single"), ("constant", "single"), ("all sizes", "bfloat16")):
        assert not_finite(net, values(chosen, tuple(x[:2].shape), largest=1e6), precision, run) == [], chosen
    empty = x[:0].clone().requires_grad_()
    found = tree_leaves(run(empty))
    assert all(len(y) == 0 for y in found)
    if found[0].requires_grad:
        sum(y.sum() for y in found).backward()
    if name in ("scene/shift", "scene/matched"):  # which compare the images of a batch
        return 0.0
    with torch.no_grad():
        return apart(run, x, least=1.0 if name.startswith("scene") else 1e-30)  # octaves, which may be about zero


SMALL = [name for name in list_models() if name.startswith(("digits", "stl10"))]
SMALL += ["mnist/disco"]


@pytest.mark.parametrize("name", SMALL)
def test_networks_by_name(name):
    assert of_a_model(name) <= CLOSE[torch.float32]


@pytest.mark.slow
def test_all_networks_by_name(note):
    found = {name: of_a_model(name) for name in list_models()}
    note("numbers", "networks by name", cases=len(found), worst=max(found.values()))
    assert max(found.values()) <= CLOSE[torch.float32]


def test_views_too_small_to_track_are_refused():
    net = create_model("track/siamfc+").eval()
    with pytest.raises(ValueError, match=r"^Siamese: expected views \[B, 3, H, W\] of at least 127 pixels [^\n]*$"):
        net(torch.zeros(1, 3, 100, 100), torch.zeros(1, 3, 255, 255))


@pytest.mark.slow
def test_all_ways_to_the_same_number(note, threads):
    company, counts = [], []
    with torch.no_grad():
        for seed in range(5):
            company += [apart(case.layer(seed).eval(), torch.cat([case.input()] * 3), seed) for case in CASES]
            for case in FAST.values():
                company.append(apart(case.layer(), case.input(), seed))
                counts.append(of_threads(partial(case.layer(), case.input()), threads))
    for row, found in (("images in company", company), ("one, two and four threads", counts)):
        note("numbers", row, cases=len(found), worst=max(found))
        assert max(found) <= CLOSE[torch.float32]
