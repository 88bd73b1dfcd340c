"""Guarantees about values: finite inputs, batches, threads, image sizes, memory layouts, NaN and infinity."""

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
from scale_disco.functional import _fft, _winograd
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
    basis,
    batch_error,
    non_finite,
    problems,
    relative_error,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*supposes equal steps")  # any scales will do
every_network = pytest.mark.parametrize("kind", [kind for kind in NETWORKS if "resnet" not in kind])
every_fast = pytest.mark.parametrize("name", FAST)
LARGEST_SIDE = {1: 30, 2: 14, 3: 7}  # of small images, by spatial dimensions


def dims_of(case):
    return int(case.name[-2])


def output_of(layer, x):
    """Return the output of a layer, None if it refuses the image as too small, in one line."""
    try:
        return layer(x)
    except ValueError as error:
        if not re.fullmatch(
            rf"({type(layer).__name__}|scale convolution): [^\n]*(smaller|at least|can continue)[^\n]*", str(error)
        ):
            raise
    return None


@every_case
@pytest.mark.parametrize("precision", PRECISIONS)
def test_finite_input_gives_finite_outputs_and_gradients(case, precision):
    for training in (True, False) if "norm" in case.name else (True,):
        for kind in KINDS:
            layer = case.layer().train(training)
            assert non_finite(layer, values(kind, case.shape), precision) == [], (kind, training)


def stays_finite(problem: Problem, space, kind, precision, seed):
    x = values(kind, problem.shape(2, space), seed)
    refused = output_of(problem.layer, x.float()) is None
    assert refused or non_finite(problem.layer, x, precision) == []
    return not refused


@st.composite
def sized(draw):
    """Draw a scale convolution and the size of images."""
    problem = draw(problems())
    dims = problem.layer.spatial_dims
    return problem, draw(st.tuples(*[st.integers(1, LARGEST_SIDE[dims])] * dims))


FINITE = {
    "problem": sized(),
    "kind": st.sampled_from(KINDS),
    "precision": st.sampled_from(PRECISIONS),
    "seed": st.integers(0, 9),
}


@settings(max_examples=60)
@given(**FINITE)
def test_scale_convolutions_keep_values_finite(problem, kind, precision, seed):
    stays_finite(*problem, kind, precision, seed)


@pytest.mark.slow
def test_many_scale_convolutions_keep_values_finite(record_figures):
    accepted = []

    @settings(max_examples=3000)
    @given(**FINITE)
    def run(problem, kind, precision, seed):
        accepted.append(stays_finite(*problem, kind, precision, seed))

    run()
    refused = len(accepted) - sum(accepted)
    record_figures("numbers", "scale convolutions of finite inputs", cases=len(accepted), refused=refused, non_finite=0)


@every_network
@pytest.mark.parametrize("baked", [False, True], ids=["converted", "baked"])
def test_converted_networks_keep_values_finite(kind, baked):
    x = images(kind)
    net = to_scale_equivariant(network(kind), SCALES, example=x, pooling="growing")
    net = bake(net) if baked else net
    for chosen, precision in (("zeros", "float32"), ("constant", "bfloat16"), ("all magnitudes", "float32")):
        assert non_finite(net.eval(), values(chosen, tuple(x.shape), largest=1e6), precision) == [], chosen


@every_case
def test_output_does_not_depend_on_the_rest_of_the_batch(case):
    layer = case.layer().eval()
    magnitudes = 10 ** torch.linspace(-6, 6, 5)
    x = torch.cat([case.input(), case.input() + 1, case.input()[:1] - 1]) * magnitudes.reshape(
        -1, *[1] * (len(case.shape) - 1)
    )
    with torch.no_grad():
        assert batch_error(layer, x) <= CLOSE[torch.float32]


@pytest.fixture
def paths(monkeypatch):
    """The fast paths taken, by module name."""
    taken = []
    for module in (_winograd, _fft):
        name, correlate = module.__name__.rpartition(".")[2], module.correlate
        monkeypatch.setattr(module, "correlate", lambda *a, n=name, f=correlate: taken.append(n) or f(*a))
    return taken


@every_fast
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_fast_paths_agree_with_single_images(name, dtype, paths):
    case = FAST[name]
    layer, x = case.layer(dtype), case.input(dtype)
    with torch.no_grad():
        layer(x[:1])
        assert paths == []
        layer(x)
        assert case.path in paths
        assert batch_error(layer, x) <= CLOSE[dtype]


@every_fast
def test_gradients_of_fast_paths_agree_with_single_images(name):
    case = FAST[name]
    layer, x = case.layer(torch.float64), case.input(torch.float64).requires_grad_()
    (whole,) = torch.autograd.grad(layer(x).square().sum(), x)
    single = [torch.autograd.grad(layer(image).square().sum(), image)[0] for image in x.split(1)]
    assert relative_error(torch.cat(single), whole) <= CLOSE[torch.float64]


@every_network
def test_converted_and_baked_networks_agree_with_single_images(kind):
    x = images(kind, batch=4)
    net = to_scale_equivariant(network(kind), SCALES, example=x)
    with torch.no_grad():
        for module in (net, bake(net)):
            assert batch_error(module, x) <= CLOSE[torch.float32]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def thread_error(run, threads):
    """Compare outputs with two and four threads with those of one."""
    threads(1)
    with torch.no_grad():
        expected = run()
    worst = 0.0
    for count in (2, 4):
        threads(count)
        with torch.no_grad():
            worst = max(worst, relative_error(run(), expected))
    return worst


@every_fast
def test_number_of_threads_does_not_change_fast_paths(name, threads):
    case = FAST[name]
    layer, x = case.layer(), case.input()
    assert thread_error(lambda: layer(x), threads) <= CLOSE[torch.float32]


def test_number_of_threads_does_not_change_a_network(threads):
    net, x = everything(), torch.randn(4, 3, 32, 32)
    assert thread_error(lambda: net(x), threads) <= CLOSE[torch.float32]


def test_layers_run_in_several_threads():
    converted = to_scale_equivariant(network("sequential"), SCALES, example=images("sequential"))
    baked, x = bake(converted), images("sequential", batch=4)
    fft = FAST["FFT"]
    layer = fft.layer()

    def outputs(_):
        torch.manual_seed(0)
        with torch.random.fork_rng():
            lift = snn.ScaleLift2d(3, 4, DiscreteBasis(3, [1, 1.3, 1.9]))
            nn.init.ones_(lift.weight)
        with torch.inference_mode():
            values = [lift(x), converted(x), baked(x), layer(fft.input())]
        return [*values, *torch.autograd.grad(converted(x).sum(), converted.network[0].weight)]

    expected = outputs(0)
    with ThreadPoolExecutor(4) as pool:
        for actual in pool.map(outputs, range(12)):
            for y, want in zip(actual, expected, strict=True):
                assert relative_error(y.flatten()[None], want.flatten()[None]) <= CLOSE[torch.float32]


def test_direct_convolutions_are_chosen_per_thread(paths):
    case, entered, leave = FAST["FFT"], threading.Event(), threading.Event()
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
            assert paths == []
        layer(x)
        leave.set()  # after the context that was entered first
        other.result()
        layer(x)
    assert paths == ["_fft", "_fft"]


def twin_error(problem: Problem, space, seed):
    """Compare a layer with its dense twin; None if it refuses the image."""
    layer = problem.layer.double()
    x = torch.randn(problem.shape(2, space), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = output_of(layer, x)
    if y is not None:
        return relative_error(y, problem.dense(x))
    assert problem.options["padding"] != "same" or problem.options["padding_mode"] in ("circular", "reflect")
    return None


@settings(max_examples=80)
@given(problem=sized(), seed=st.integers(0, 9))
def test_small_images_agree_with_the_dense_twin(problem, seed):
    error = twin_error(*problem, seed)
    assert error is None or error <= CLOSE[torch.float64]


@pytest.mark.slow
def test_many_small_images_agree_with_the_dense_twin(record_figures):
    errors, refused = [], []

    @settings(max_examples=3000)
    @given(problem=sized(), seed=st.integers(0, 9))
    def run(problem, seed):
        error = twin_error(*problem, seed)
        (refused if error is None else errors).append(error)
        assert error is None or error <= CLOSE[torch.float64]

    run()
    cases = len(errors) + len(refused)
    record_figures("numbers", "small images by dense twins", cases=cases, refused=len(refused), worst=max(errors))


@every_case
def test_small_images_are_processed_or_refused_in_one_line(case):
    layer, dims = case.layer().eval(), dims_of(case)
    for space in {(1,) * dims, (*(1,) * (dims - 1), 9), (9, *(1,) * (dims - 1)), (2,) * dims, (3,) * dims}:
        x = torch.rand(*case.shape[: len(case.shape) - dims], *space) + 1
        y = output_of(layer, x)
        assert y is None or y.isfinite().all()
        if y is not None and ("pool" in case.name or "upsample" in case.name):  # means and maxima stay within the range
            assert 0.99 <= y.min() <= y.max() <= 2.01


@every_case
def test_images_without_pixels_are_refused(case):
    if "dropout" in case.name or "project" in case.name:
        return
    layer = case.layer()
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: expected images of at least 1 pixels[^\n]*$"):
        layer(torch.zeros(*case.shape[:-1], 0))


def test_feature_maps_too_small_to_downsample_are_refused():
    with pytest.raises(ValueError, match=r"^ScaleUpsample: expected images of at least 3 pixels"):
        snn.ScaleUpsample(0.4)(torch.zeros(1, 1, 1, 2, 5))
    assert snn.ScaleUpsample(1 / 49)(torch.zeros(1, 1, 1, 50, 50)).shape == (1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"^ScaleUpsample: scale_factor must be a positive finite number, got inf"):
        snn.ScaleUpsample(torch.inf)


def downsampling_network(channels=2):
    """Return three layers with two downsampling steps and few channels, for large images."""
    torch.manual_seed(0)
    bases = [DiscreteBasis(3, SCALES), DiscreteBasis(1, SCALES)]
    net = nn.Sequential(
        snn.ScaleLift2d(1, channels, bases[0]),
        snn.ScaleBatchNorm2d(channels),
        nn.ReLU(inplace=True),
        snn.ScaleAvgPool2d(2),
        snn.ScaleConv2d(channels, channels, bases[0], scale_extent=2),
        snn.ScaleBlurPool2d(SCALES),
        snn.ScaleConv2d(channels, 1, bases[1]),
        snn.ScaleProject("max"),
    )
    return net.eval()


def crop_error(net, image, top, left, side):
    """Compare the interior of a crop with the output of the whole image; all sizes are multiples of 4."""
    margin = 32
    whole = net(image)[..., top // 4 : (top + side) // 4, left // 4 : (left + side) // 4]
    crop = net(image[..., top - margin : top + side + margin, left - margin : left + side + margin])
    inside = slice(margin // 4, (margin + side) // 4)
    return relative_error(crop[..., inside, inside], whole)


@torch.no_grad()
def test_crop_agrees_with_the_whole_image():
    assert crop_error(downsampling_network(), torch.randn(1, 1, 600, 800), 400, 640, 64) <= CLOSE[torch.float32]


@torch.no_grad()
@pytest.mark.parametrize("space", [(1, 5000), (5000, 1), (3, 4001)])
def test_long_thin_images_agree_with_the_dense_twin(space):
    layer = snn.ScaleLift2d(1, 2, DiscreteBasis(3, SCALES)).double()
    x = torch.randn(1, 1, *space, dtype=torch.float64)
    dense = functional.reference.scale_lift(x, layer.weight, layer.basis, layer.bias)
    assert relative_error(layer(x), dense) <= CLOSE[torch.float64]


LARGE = """
import json, resource, torch
from tests.reliability.test_numbers import crop_error, downsampling_network
torch.set_num_threads(1)
net, image = downsampling_network(), torch.randn(1, 1, 3000, 4000)
with torch.no_grad():
    net(image[..., :64, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = crop_error(net, image, 2800, 3800, 128)
peak = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps({"worst": error, "bytes": peak}))
"""


@pytest.mark.slow
def test_very_large_image_takes_little_memory(record_figures):
    process = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    figures = json.loads(process.stdout)
    maps = 4 * 3000 * 4000 * 2 * 3  # bytes of the largest feature map
    record_figures(
        "numbers", "an image of 3000 x 4000", **figures, times_the_largest_map=round(figures["bytes"] / maps, 2)
    )
    assert figures["worst"] <= CLOSE[torch.float32]
    assert figures["bytes"] <= 4 * maps


@every_case
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_empty_batch_runs_forward_and_backward(case, training):
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
def test_empty_batch_in_converted_and_baked_networks(kind, options):
    x = images(kind)
    net = to_scale_equivariant(network(kind), SCALES, example=x, **options)
    for module in (net, bake(net)):
        empty = x[:0].clone().requires_grad_()
        outputs, full = tree_leaves(module(empty)), tree_leaves(module(x))
        assert [y.shape[1:] for y in outputs] == [y.shape[1:] for y in full]
        assert all(len(y) == 0 for y in outputs)
        sum(y.sum() for y in outputs).backward()
        assert empty.grad.shape == empty.shape


def test_equivariance_error_needs_images():
    with pytest.raises(
        ValueError, match=r"^equivariance_error: expected at least one image, got shape \(0, 1, 32, 32\)$"
    ):
        equivariance_error(nn.Identity(), torch.zeros(0, 1, 32, 32), [1, 2])


@pytest.mark.parametrize("name", READOUTS)
def test_readouts_of_no_profiles_are_empty(name):
    scales = Scales.geometric(2**0.5, 5)
    reading = READOUTS[name](6, scales).eval().read(torch.rand(0, 6, 5))
    assert [len(values) for values in reading] == [0, 0]


@pytest.mark.parametrize("name", READOUTS)
def test_silent_channels_have_finite_gradients(name):
    torch.manual_seed(0)
    readout = READOUTS[name](6, Scales.geometric(2**0.5, 5)).eval()
    profiles = torch.rand(4, 6, 5)
    profiles[:, 2], profiles[1] = 0.0, 0.0  # as after a ReLU

    def run(x):
        return readout.compare(x[:2], x[2:]), readout.read(x)

    assert non_finite(readout, profiles, "float32", run) == []
    assert non_finite(readout, torch.zeros(4, 6, 5), "float32", run) == []


@pytest.mark.parametrize("channels", [(0, 4), (4, 0)])
@pytest.mark.parametrize("kind", [snn.ScaleLift2d, snn.ScaleConv2d])
def test_zero_channels_are_refused(kind, channels):
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: (in|out)_channels must be an integer >= 1, got 0$"):
        kind(*channels, DiscreteBasis(3, SCALES))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_scale_and_one_channel_are_a_plain_convolution(family):
    layer = snn.ScaleLift2d(1, 1, basis(family, 3, (1,), 2)).double()
    x = torch.randn(1, 1, 9, 9, dtype=torch.float64)
    (kernel,) = layer.kernels()
    plain = torch.conv2d(x, kernel, layer.bias, padding=kernel.shape[-1] // 2)
    assert relative_error(layer(x)[:, :, 0], plain) <= CLOSE[torch.float64]


@every_case
def test_memory_layout_does_not_change_the_output(case):
    layer, x = case.layer().eval(), case.input()
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    for other in (x.transpose(-1, 1).contiguous().transpose(-1, 1), wide[..., ::2]):
        assert torch.equal(other, x)
        assert relative_error(layer(other), layer(x)) <= CLOSE[torch.float32]
    for expanded in (x[:1].expand_as(x), x[:, :1].expand_as(x), x[..., :1].expand_as(x)):
        leaf = expanded.detach().requires_grad_()
        copied = expanded.clone().requires_grad_()
        actual, expected = layer(leaf), layer(copied)
        assert relative_error(actual, expected) <= CLOSE[torch.float32]
        (gradient,), (expected_gradient,) = (
            torch.autograd.grad(y.sum(), i) for y, i in ((actual, leaf), (expected, copied))
        )
        assert relative_error(gradient, expected_gradient) <= CLOSE[torch.float32]
    with torch.inference_mode():
        assert relative_error(layer(x.clone()), layer(x).clone()) == 0.0


@every_case
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_values_are_visible_and_reach_no_other_image(case, value):
    layer, x = case.layer().eval(), case.input()
    expected = layer(x)
    x[0, 0, ..., *[4] * dims_of(case)] = value
    y = layer(x)
    assert not y[0].isfinite().all()
    assert relative_error(y[1:], expected[1:]) <= CLOSE[torch.float32]


@settings(max_examples=40)
@given(problem=problems(), value=st.sampled_from([torch.nan, torch.inf]))
def test_direct_path_spreads_non_finite_values_within_the_kernel(problem, value):
    layer, dims = problem.layer, problem.layer.spatial_dims
    x = torch.rand(problem.shape(1, ({1: 60, 2: 41, 3: 13}[dims],) * dims))
    spot = (..., *[6 if dims == 3 else 20] * dims)
    impulse = torch.zeros_like(x)
    impulse[spot] = 1.0
    x[spot] = value
    run = functional.lift if layer.lifting else functional.convolve
    reached = run(impulse, [torch.ones_like(kernel) for kernel in layer.kernels()], None, layer.layout) > 0
    assert torch.equal(~layer(x).isfinite() & ~reached, torch.zeros_like(reached))


def reached_from_non_finite(x, taps, step, more):
    """Return the pixels that a kernel with `more` additional taps per side reaches from non-finite ones."""
    bad = (~x.isfinite()).any(1, keepdim=True).float()
    side = 2 * step * (taps // 2 + more) + 1
    return nn.functional.max_pool2d(bad, side, 1, side // 2)[:, 0] > 0


@pytest.mark.parametrize(("taps", "step"), [(3, 1), (5, 1), (3, 2), (5, 2)])
def test_winograd_spreads_non_finite_values_three_taps_farther(taps, step):
    x, kernel = torch.randn(2, 8, 33, 30), torch.randn(6, 8, taps, taps)
    for row in range(8, 16):
        spoiled = x.clone()
        spoiled[0, 3, row, row + 5] = torch.nan
        y = _winograd.correlate(spoiled, kernel, step)
        bad = (~y.isfinite()).any(1)
        assert (reached_from_non_finite(spoiled, taps, 1, 0) & bad).any()
        assert not (bad & ~reached_from_non_finite(spoiled, taps, step, 3)).any()
        assert torch.equal(y[1], _winograd.correlate(x, kernel, step)[1])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e6, 1e30])
def test_fft_spreads_non_finite_values_within_their_image(value):
    x, kernel = torch.randn(16, 16, 20, 20), torch.randn(4, 16, 15, 15)
    expected = _fft.correlate(x, kernel)
    x[3, 5, 9, 9] = value
    y = _fft.correlate(x, kernel)
    others = [k for k in range(16) if k != 3]
    assert relative_error(y[others], expected[others]) <= CLOSE[torch.float32]
    assert y.isfinite().all() == (value < torch.inf)
    if value < torch.inf:
        assert relative_error(y, torch.conv2d(x, kernel, padding=7)) <= CLOSE[torch.float32]


def test_growing_windows_do_not_hide_nan():
    pool = GrowingMaxPool(nn.MaxPool2d(3, 2, 1), Scales([1, 2, 4]))
    x = torch.zeros(3, 1, 4, 4)  # so small that windows may reach over all of it
    x[..., 2, 2] = torch.nan
    assert pool(x)[:, 0, 0, 0].isnan().tolist() == [False, True, False]
    assert pool(x)[:, 0, 1, 1].isnan().all()


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


def check_model(name):
    """Check finite values and empty batches; compare single images with their batch."""
    net, run, x = model(name)
    for chosen, precision in (("zeros", "float32"), ("constant", "float32"), ("all magnitudes", "bfloat16")):
        assert non_finite(net, values(chosen, tuple(x[:2].shape), largest=1e6), precision, run) == [], chosen
    empty = x[:0].clone().requires_grad_()
    outputs = tree_leaves(run(empty))
    assert all(len(y) == 0 for y in outputs)
    if outputs[0].requires_grad:
        sum(y.sum() for y in outputs).backward()
    if name in ("scene/shift", "scene/matched"):  # they compare the images of a batch
        return 0.0
    with torch.no_grad():
        return batch_error(run, x, least=1.0 if name.startswith("scene") else 1e-30)  # octaves may be about zero


SMALL = [name for name in list_models() if name.startswith(("digits", "stl10"))]
SMALL += ["mnist/disco"]


@pytest.mark.parametrize("name", SMALL)
def test_named_models(name):
    assert check_model(name) <= CLOSE[torch.float32]


@pytest.mark.slow
def test_all_named_models(record_figures):
    errors = {name: check_model(name) for name in list_models()}
    record_figures("numbers", "named models", cases=len(errors), worst=max(errors.values()))
    assert max(errors.values()) <= CLOSE[torch.float32]


def test_crops_too_small_to_track_are_refused():
    net = create_model("track/siamfc+").eval()
    with pytest.raises(ValueError, match=r"^Siamese: expected views \[B, 3, H, W\] of at least 127 pixels [^\n]*$"):
        net(torch.zeros(1, 3, 100, 100), torch.zeros(1, 3, 255, 255))


@pytest.mark.slow
def test_batches_and_threads_over_many_seeds(record_figures, threads):
    of_batches, of_threads = [], []
    with torch.no_grad():
        for seed in range(5):
            of_batches += [batch_error(case.layer(seed).eval(), torch.cat([case.input()] * 3), seed) for case in CASES]
            for case in FAST.values():
                of_batches.append(batch_error(case.layer(), case.input(), seed))
                of_threads.append(thread_error(partial(case.layer(), case.input()), threads))
    for row, errors in (("images in batches", of_batches), ("one, two and four threads", of_threads)):
        record_figures("numbers", row, cases=len(errors), worst=max(errors))
        assert max(errors) <= CLOSE[torch.float32]
