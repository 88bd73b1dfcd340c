"""Finite inputs give finite outputs; batches, threads and memory layouts do not change them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

from scale_disco import DiscreteBasis, Scales, bake, functional, to_scale_equivariant
from scale_disco import nn as snn
from scale_disco.functional import _fft, _winograd
from scale_disco.models import create_model, list_models
from scale_disco.tasks.scene.readout import READOUTS
from scale_disco.tasks.tracking.networks import Siamese
from tests.convert.networks import NETWORKS, images, network
from tests.nn.cases import CASES, SCALES
from tests.nn.test_every_layer import every_case, everything
from tests.reliability.numbers import (
    CLOSE,
    FAST,
    KINDS,
    PRECISIONS,
    Problem,
    batch_error,
    non_finite,
    output_of,
    relative_error,
    sized,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*assumes equal steps")  # any scales will do
every_network = pytest.mark.parametrize("kind", [kind for kind in NETWORKS if "resnet" not in kind])
every_fast = pytest.mark.parametrize("name", FAST)


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
    with pytest.raises(ValueError, match=r"^Siamese: expected crops \[B, 3, H, W\] of at least 127 pixels [^\n]*$"):
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
