from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from scale_disco import DiscreteBasis, Scales, bake, to_scale_equivariant
from scale_disco.convert.decimated import PerScale, ScaleLevels
from scale_disco.models import create_model
from scale_disco.models.resnet import resnet18, resnet50
from scale_disco.nn import ScaleDecision, ScaleLift2d, ScaleProject
from scale_disco.resampling import pyramid
from tests.convert.networks import VGG, UNet, every_network, images, network, sequential
from tests.convert.test_errors import Encoder, refusal

SCALES = Scales.geometric(2**0.5, 4)


def decimated(net, scales=SCALES, **options):
    return to_scale_equivariant(net, scales, grid="decimated", **options)


def shifts(net, x, scales=SCALES):
    """The largest difference between outputs of shrunk images at scale k and of the images at k + j, and its unit."""
    with torch.no_grad():
        whole = net(x)
        difference = max(
            float((net.with_scales(Scales(list(scales)[: len(scales) - j]))(small) - whole[:, :, j:]).abs().max())
            for j, small in enumerate(pyramid(x, scales))
        )
    return difference, float(whole.abs().max())


class Functional(nn.Module):
    """No modules but parameters: strides, max pools, a skip connection and sizes that the code computes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(8, 3, 5, 5)), nn.Parameter(torch.randn(8, 8, 3, 3))

    def forward(self, x):
        x = F.max_pool2d(F.conv2d(x, self.first, stride=2).relu(), 3, 2, 1)
        height, width = x.shape[-2:]
        y = F.interpolate(F.conv2d(x, self.second, padding=1), size=(height // 2 + 1, int(width**0.5) + 1))
        return torch.cat([x.amax((2, 3)), y.mean((2, 3))], 1)


@pytest.mark.parametrize("make", [resnet18, Encoder, Functional, lambda: network("depthwise, squeeze-excitation")])
@pytest.mark.parametrize("shape", [(64, 64), (75, 98)])
def test_whole_networks_commute_with_shrinking_bit_for_bit(make, shape):
    """Strides, max pools, attention, borders: an image shrunk by scale j has the outputs of the image, shifted by j."""
    net = decimated(make().eval(), project=None)
    assert shifts(net, torch.randn(2, 3, *shape))[0] == 0


@pytest.mark.thorough
def test_a_resnet50_commutes_in_double_precision():
    net = decimated(resnet50(classes=5).double().eval(), project=None)
    assert shifts(net, torch.randn(1, 3, 96, 80).double())[0] == 0


@pytest.mark.thorough
def test_a_pretrained_resnet50_commutes(shared):
    file = shared / "data/resnet50/resnet50_caffe_fp16.safetensors"
    if not file.exists():
        pytest.skip("no weights of ResNet-50 in ../shared/data/resnet50")
    net = decimated(create_model("resnet50/cnn", pretrained=file, stride_first=True).eval(), project=None)
    assert shifts(net, 50 * torch.randn(1, 3, 160, 160))[0] == 0


def test_the_check_of_equivariance_can_fail():
    """Without a common step the second level is not that of the shrunk image."""
    net, scales = decimated(resnet18(classes=5).eval(), [1, 2, 3.9, 7.8], project=None), Scales([1, 2, 3.9, 7.8])
    difference, unit = shifts(net, torch.randn(1, 3, 64, 64), scales)
    assert difference > 1e-4 * unit


@every_network
def test_scale_one_is_the_network(kind):
    net, x = network(kind), images(kind)
    converted = decimated(net, [0.5, 1, 2], project=None)
    with torch.no_grad():
        finest = tree_leaves(net(pyramid(x, converted.scales)[0]))
        for output, expected, first in zip(tree_leaves(converted(x)), tree_leaves(net(x)), finest, strict=True):
            size = first.shape[2:]
            assert output.shape == (*expected.shape[:2], 3, *size)
            wide = F.interpolate(expected, size, mode="bilinear") if size else expected
            assert torch.equal(output[:, :, 1], wide)
            assert torch.equal(output[:, :, 0], first)


PLACES = {
    "sequential": "before 7",
    "vgg 5x5": "before classifier",
    "depthwise, squeeze-excitation": "before head",
    "dense, strided 7x7": "before classifier",
    "u-net": "at the output",
    "transposed convolutions": "at the output",
    "reused": "before head",
    "counted": "before head",
    "even, oblong, dilated": "before 7",
    "signals": "before 4",
    "volumes": "before 4",
    "resnet18": "before fc",
    "resnet50": "before fc",
}


@every_network
def test_auto_reduces_vectors_behind_the_last_pool(kind):
    net, x = network(kind), images(kind)
    converted = decimated(net, [1, 2], example=x)
    assert str(converted.place) == PLACES.get(kind, "before head")
    with torch.no_grad():
        assert tree_map(lambda y: y.shape, converted(x)) == tree_map(lambda y: y.shape, net(x))


def test_features_are_projected_in_front_of_the_classifier():
    net, x = network("resnet18"), images("resnet18")
    for reduce in ("max", "mean", "logsumexp"):
        converted = decimated(net, reduce=reduce)
        body = copy.deepcopy(net)
        body.fc = nn.Identity()
        with torch.no_grad():
            features = torch.stack([body(level) for level in pyramid(x, SCALES)], 2)
            torch.testing.assert_close(converted(x), net.fc(ScaleProject(reduce)(features)))


def test_maps_are_brought_to_the_finest_grid():
    net, x = sequential().eval(), torch.randn(2, 3, 32, 32)
    converted = decimated(net, project="5")
    with torch.no_grad():
        maps = [net[:6](level) for level in pyramid(x, SCALES)]
        wide = [F.interpolate(level, maps[0].shape[2:], mode="bilinear") for level in maps]
        torch.testing.assert_close(converted(x), net[6:](torch.stack(wide, 2).mean(2)))
        unet = UNet().eval()
        assert decimated(unet, [1, 2])(x).shape == (2, 4, 32, 32)
        assert decimated(unet, [1, 2], project=None)(x).shape == (2, 4, 2, 32, 32)


def test_networks_with_a_classifier_of_one_size_reduce_in_front_of_it():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10))
    converted = decimated(net, example=torch.randn(1, 1, 28, 28))
    assert str(converted.place) == "before 3"
    assert converted(torch.randn(5, 1, 28, 28)).shape == (5, 10)


@pytest.mark.parametrize("reduce", [None, "max", "mean"])
@pytest.mark.parametrize("grid", ["full", "decimated"])
def test_decisions_are_combined_at_the_output(grid, reduce):
    net, x = network("resnet18"), images("resnet18")
    converted = to_scale_equivariant(net, [1, 2], grid=grid, project="decision", reduce=reduce)
    with torch.no_grad():
        logits = to_scale_equivariant(net, [1, 2], grid=grid, project=None)(x)
        torch.testing.assert_close(converted(x), ScaleDecision(reduce or "logsumexp")(logits))
    assert str(converted.place) == "at the output, as decisions"


def test_checkpoints_load_in_both_directions_and_copies_work():
    net, x = network("resnet18"), images("resnet18")
    converted = decimated(net)
    assert list(converted.state_dict()) == list(net.state_dict())
    net.load_state_dict(converted.state_dict())
    with torch.no_grad():
        expected = converted(x)
        assert torch.equal(copy.deepcopy(converted)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(converted))(x), expected)
        assert torch.equal(converted.network(x), net(x))  # the network itself is unchanged


def test_baked_networks_are_the_same():
    x = images("resnet18")
    for project in ("auto", "layer3", "decision", None):
        net = decimated(network("resnet18"), project=project, example=x)
        baked = bake(net)
        assert not any(isinstance(part, nn.BatchNorm2d) for part in baked.modules())
        with torch.no_grad():
            torch.testing.assert_close(baked(x), net(x), rtol=1e-3, atol=1e-4)


def joint_norm(norm, levels):
    """Batch norm of the pixels of all levels in one tensor: the truth for `ScaleLevels`."""
    flat = [level.reshape(*level.shape[:2], -1) for level in levels]
    parts = F.batch_norm(
        torch.cat(flat, 2), norm.running_mean, norm.running_var, norm.weight, norm.bias, True, norm.momentum, norm.eps
    ).split([x.shape[2] for x in flat], 2)
    return [part.reshape(level.shape) for part, level in zip(parts, levels, strict=True)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shapes", [[(4, 3, 9, 8), (4, 3, 5, 4)], [(4, 3, 9), (4, 3, 5), (4, 3, 2)], [(4, 3), (4, 3)]])
def test_batch_norms_see_all_scales_together(shapes, affine):
    norm = (nn.BatchNorm2d if len(shapes[0]) == 4 else nn.BatchNorm1d)(3, affine=affine).double()
    if affine:
        nn.init.uniform_(norm.weight)
    other = copy.deepcopy(norm)
    levels = [torch.randn(shape).double().requires_grad_() for shape in shapes]
    ours = norm(ScaleLevels(levels)).levels
    truth = joint_norm(other, levels)
    for mine, theirs in zip(ours, truth, strict=True):
        torch.testing.assert_close(mine, theirs)
    mine, theirs = (
        torch.autograd.grad(sum(x.pow(3).sum() for x in outputs), [*levels, *module.parameters()])
        for outputs, module in ((ours, norm), (truth, other))
    )
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close([*norm.buffers()][:2], [*other.buffers()][:2])
    assert torch.autograd.gradcheck(lambda *maps: norm(ScaleLevels(maps)).levels, levels)


@every_network
def test_training_shares_statistics_and_reaches_every_parameter(kind):
    converted = decimated(network(kind), [1, 2], example=images(kind)).train()
    sum(output.square().sum() for output in tree_leaves(converted(images(kind, 4)))).backward()
    for name, parameter in converted.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_networks_in_training_compute_the_same_together_and_in_turn():
    """Where no norm uses the batch, running all scales at once changes nothing."""
    x = torch.randn(2, 3, 40, 48)
    for make in (VGG, UNet, Functional):
        net = make().eval()
        converted = decimated(net, [1, 2], example=x)
        together = copy.deepcopy(converted)
        together.network.add_module("unused", nn.BatchNorm2d(3).train())
        if make is Functional:
            with pytest.raises(ValueError, match="Functional fails at all scales together, as batch norms in training"):
                together(x)
        else:
            torch.testing.assert_close(together(x), converted(x))


class Sizes(nn.Module):
    """What code does with the sizes of maps."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.norm(self.conv(x))
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, -1)
        low = F.max_pool2d(x, 2)
        high = F.interpolate(low, scale_factor=2)
        high = F.pad(high, [0, width - high.size(3), 0, height - high.size(2)])
        x = x[:, :, : height - 1] + high[:, :, 1:]
        assert x.shape[2] == height - 1
        return x.reshape(batch, channels, -1).sum(-1) / (height * width) + x.max(2).values.mean(-1)


def test_code_may_compute_with_sizes_that_differ_between_scales():
    net, x = Sizes().train(), torch.randn(4, 3, 17, 22)
    converted = decimated(net, [1, 2], project=None)
    output = converted(x)
    levels = pyramid(x, Scales([1, 2]))
    normed = joint_norm(copy.deepcopy(net.norm), [net.conv(level) for level in levels])
    expected = []
    for level in normed:
        body = Sizes()
        body.conv = body.norm = nn.Identity()
        expected.append(body(level))
    torch.testing.assert_close(output, torch.stack(expected, 2))


def test_values_per_scale():
    side = PerScale((8, 5))
    assert (2 * side + 1 - side // 2).values == (13, 9)
    assert (side == PerScale((8, 5))) is True
    assert (side > 3) is True
    assert (side % 2).values == (0, 1)
    assert repr(16 - side) == "PerScale(8, 11)"
    with pytest.raises(TypeError, match="its code branches on the size of images"):
        bool(side % 2 == 0)


def test_training_in_half_precision():
    """By autocast, with norms in single precision, and of a whole network."""
    torch.manual_seed(1)
    norm, maps = nn.BatchNorm2d(3).train(), [torch.randn(4, 3, side, side) + 5 for side in (9, 6)]
    exact = norm(ScaleLevels(maps)).levels
    halves = [x.bfloat16().requires_grad_() for x in maps]
    for module in (copy.deepcopy(norm), copy.deepcopy(norm).bfloat16()):
        module.running_mean.zero_()
        outputs = module(ScaleLevels(halves)).levels
        assert all(x.dtype == torch.bfloat16 for x in outputs)
        torch.testing.assert_close(outputs[0].float(), exact[0], rtol=0.05, atol=0.1)
        torch.testing.assert_close(module.running_mean.float(), norm.running_mean, rtol=0.02, atol=0)
        sum(x.float().square().sum() for x in outputs).backward()
        assert halves[0].grad.isfinite().all()
    net = decimated(network("resnet18"), [1, 2]).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(images("resnet18", 4)).float().square().sum()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


def test_scales_cost_about_two_networks():
    """Floating-point operations of a training step, by a tool that follows gradients through modules."""

    def flops(net):
        with FlopCounterMode(display=False) as counter:
            net.train()(x).square().sum().backward()
        return counter.get_total_flops()

    net, x = network("resnet18"), torch.randn(2, 3, 224, 224)
    one_network = flops(net)
    costs = [flops(decimated(net, Scales.geometric(2**0.5, count), project="decision")) for count in (3, 9)]
    assert 1.75 * one_network < costs[0] < costs[1] < 2.1 * one_network


def test_frozen_norms_and_single_scales_run_in_turn():
    net, x = network("resnet18"), images("resnet18")
    converted = decimated(net, [1, 2])
    frozen = copy.deepcopy(converted).train()
    for part in frozen.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    torch.testing.assert_close(frozen(x), converted(x))
    single = decimated(copy.deepcopy(net), [1]).train()
    torch.testing.assert_close(single(x), net.train()(x))


def test_invalid_options_and_networks_are_refused():
    net = sequential()
    assert "grid must be one of full, decimated, got 'octaves'" in refusal(net, grid="octaves")
    text = refusal(net, grid="decimated", pooling="growing", antialias=True)
    assert "pooling, antialias: only for grid='full'" in text
    assert "project must be auto, decision, None" in refusal(net, grid="decimated", project="layer9")
    assert "scale-equivariant already" in refusal(
        nn.Sequential(ScaleLift2d(3, 4, DiscreteBasis(3, [1, 2]))), grid="decimated"
    )
    assert "scale-equivariant already" in refusal(decimated(net), grid="decimated")
    assert "it has no convolution" in refusal(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), grid="decimated")


def test_sizes_that_a_network_cannot_take_are_refused():
    fixed = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 16 * 16, 5))
    x = torch.randn(2, 3, 16, 16)
    with pytest.raises(
        ValueError, match="Sequential fails at scale 2, on images of 8x8 pixels: mat1 and mat2"
    ) as caught:
        decimated(fixed, [1, 2], project="decision")(x)
    assert "\n" not in str(caught.value)
    assert "fails at scale 2, on images of 8x8 pixels" in refusal(
        fixed, [1, 2], grid="decimated", project="2", example=x
    )
    valid = decimated(nn.Sequential(nn.Conv2d(3, 4, 7), nn.AdaptiveAvgPool2d(1), nn.Flatten()), [1, 2, 4])
    with pytest.raises(ValueError, match=r"fails at scale 4, on images of 6x6 pixels: .*Kernel size"):
        valid(torch.randn(1, 3, 24, 24))
    with pytest.raises(ValueError, match="scale 4 leaves no pixel of images of 3x24 pixels"):
        valid(torch.randn(1, 3, 3, 24))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)

    def forward(self, x):
        return self.patch(x).flatten(2).transpose(1, 2)


class Merged(nn.Module):
    """Changes the batch: one row per image and pixel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).movedim(1, 3).flatten(0, 2)


class Hurried(nn.Module):
    """Skips a layer for small images."""

    def __init__(self):
        super().__init__()
        self.conv, self.more, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

    def forward(self, x):
        x = self.conv(x)
        x = self.more(x) if x.shape[-1] > 20 else x
        return self.head(x.mean((2, 3)))


def test_outputs_that_cannot_be_combined_are_refused():
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(ValueError, match="expected vectors of one size or maps of one width, got"):
        decimated(Tokens(), [1, 2], project=None)(x)
    with pytest.raises(ValueError, match=r"expected outputs of 2 images along the first axis, got \(1800, 8\)"):
        decimated(Merged(), [1, 2], project=None)(x)
    assert "along the first axis" in refusal(Merged(), [1, 2], grid="decimated", project="decision", example=x)
    with pytest.raises(ValueError, match="Hurried does not pass the projection after more at every scale"):
        decimated(Hurried(), [1, 2], project="more")(x)
    assert decimated(Hurried(), [1, 2], example=x)(x).shape == (2, 5)
