"""Images of any size: small ones, large ones, and none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

from scale_disco import DiscreteBasis, Scales, bake, equivariance_error, functional, to_scale_equivariant
from scale_disco import nn as snn
from scale_disco.tasks.scene.readout import READOUTS
from tests.convert.networks import NETWORKS, images, network
from tests.nn.cases import SCALES
from tests.nn.test_every_layer import every_case
from tests.reliability.numbers import (
    CLOSE,
    FAMILIES,
    Problem,
    basis,
    dims_of,
    output_of,
    relative_error,
    sized,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*assumes equal steps")  # any scales will do


def twin_error(problem: Problem, space, seed):
    """Compare a layer with its dense reference; None if it refuses the image."""
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
    if any(kind in case.name for kind in ("dropout", "project", "decision")):  # which take maps of any size
        return
    layer = case.layer()
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: expected at least 1 pixels[^\n]*$"):
        layer(torch.zeros(*case.shape[:-1], 0))


def test_feature_maps_too_small_to_downsample_are_refused():
    with pytest.raises(ValueError, match=r"^ScaleUpsample: expected at least 3 pixels"):
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
from tests.reliability.test_image_sizes import crop_error, downsampling_network
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
