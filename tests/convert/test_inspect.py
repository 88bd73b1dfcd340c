"""Networks whose conversion goes wrong in silence unless it is tried with care."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import bake, to_scale_equivariant
from scale_disco.convert.layers import FoldedConv
from tests.convert.test_errors import Standardized, refusal

SCALES = (1, 2**0.5, 2)


def conv(before, after, side=3, **options):
    return nn.Conv2d(before, after, side, padding=side // 2, **options)


class Attended(nn.Module):
    """Squeeze and excitation in a network whose output is a map."""

    def __init__(self, functional=False):
        super().__init__()
        self.first, self.second, self.last = conv(3, 8), conv(8, 8), conv(8, 3)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(8, 8, 1), nn.Sigmoid())
        self.functional = functional

    def forward(self, x):
        x = self.first(x).relu()
        y = self.second(x)
        if self.functional:
            return self.last(x + y * y.mean((2, 3))[:, :, None, None].sigmoid())
        return self.last(x + y * self.squeeze(y))


@pytest.mark.parametrize("functional", [False, True])
def test_squeeze_and_excitation_is_not_the_last_global_pool(functional):
    net = Attended(functional).eval()
    converted = to_scale_equivariant(net, SCALES)
    assert str(converted.place) == "at the output"
    assert isinstance(converted.network.last, FoldedConv)
    for batch in (1, 2, 3):
        x = torch.randn(batch, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(converted(x), to_scale_equivariant(net, SCALES, project=None)(x).mean(2))


def test_projection_points_that_only_broadcast_are_refused():
    """Scales of one image broadcast against one image."""
    assert "does not run with the scales reduced after second" in refusal(Attended(), project="second")


class Branches(nn.Module):
    """Two heads in either order; the map is made before the scales are reduced, whenever it is called."""

    def __init__(self, heat_first):
        super().__init__()
        self.heat_first = heat_first
        self.body, self.heat = conv(3, 6), conv(6, 2)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)

    def forward(self, x):
        x = self.body(x).relu()
        heat = self.heat(x) if self.heat_first else None
        label = self.head(self.pool(x).flatten(1))
        return self.heat(x) if heat is None else heat, label


def test_layers_are_converted_by_their_batch_size_not_call_order():
    nets = [Branches(heat_first) for heat_first in (True, False)]
    nets[1].load_state_dict(nets[0].state_dict())
    x = torch.randn(3, 3, 16, 16)
    first, second = (to_scale_equivariant(net, SCALES) for net in nets)
    assert str(second.place) == "before pool"
    for a, b in zip(first(x), second(x), strict=True):
        torch.testing.assert_close(a, b)


class Auxiliary(nn.Module):
    """A head that is there in training only, before or after the projection point."""

    def __init__(self, behind):
        super().__init__()
        self.behind = behind
        self.body, self.pool, self.head = conv(3, 6), nn.AdaptiveAvgPool2d(4), nn.Linear(96, 5)
        self.aux = conv(6, 2)

    def forward(self, x):
        x = self.body(x).relu()
        pooled = self.pool(x)
        label = self.head(pooled.flatten(1))
        if not self.training:
            return label
        return label, self.aux(pooled if self.behind else x).mean((2, 3))


@pytest.mark.parametrize("behind", [False, True])
def test_auxiliary_heads_of_training_mode(behind):
    converted = to_scale_equivariant(Auxiliary(behind), SCALES).train()
    assert str(converted.place) == "after pool"
    assert isinstance(converted.network.aux, nn.Conv2d if behind else FoldedConv)
    x = torch.randn(6, 3, 16, 16)
    label, aux = converted(x)
    assert label.shape == (6, 5)
    assert aux.shape == (6, 2)
    torch.testing.assert_close(converted(x[:1])[1], aux[:1])  # images are no scales


def test_layers_in_a_python_list_are_refused():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = conv(3, 4), conv(4, 4)
            self.steps = [self.first, F.relu, self.second]

        def forward(self, x):
            for step in self.steps:
                x = step(x)
            return x

    for project in ("auto", None):
        text = refusal(Listed(), project=project)
        assert "calls first from outside its submodules (is it in a plain list? Use nn.ModuleList" in text


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.conv, self.wrap = conv(3, 4), wrap

    def forward(self, x):
        return self.wrap(self.conv(x))


@dataclass
class Output:
    maps: Tensor


class Mapping(dict):
    pass


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (Output, "returns a Output: expected tensors, or tuples, lists and dicts of them"),
        (lambda y: Mapping(maps=y), "returns a Mapping"),
        (lambda y: y.mean(), r"returns a tensor of shape (), whose first dimension is not the batch size"),
        (lambda y: y.flatten(2).permute(2, 0, 1), "whose first dimension is not the batch size"),
        (lambda y: y - y.mean(0), "depends on the other images of the batch, or is random"),
        (lambda y: y + torch.randn_like(y), "depends on the other images of the batch, or is random"),
        (lambda y: torch.cat([y[: len(y) // 2]] * 2), "depends on the other images of the batch, or is random"),
        (lambda y: y.mean((2, 3)) - y[len(y) // 2 :].mean(), "depends on the other images of the batch, or is random"),
    ],
)
def test_outputs_that_mix_images_are_refused(wrap, message):
    for project in ("auto", None):
        assert message in refusal(Returning(wrap), project=project)


def test_changed_batch_sizes_are_refused():
    class Pairs(nn.Module):
        """Two images stacked along channels, then along the batch."""

        def __init__(self):
            super().__init__()
            self.first, self.body, self.head = conv(6, 6, 1), conv(3, 4), nn.Linear(8, 2)

        def forward(self, x):
            y = self.body(torch.cat(self.first(x).chunk(2, 1))).mean((2, 3))
            return self.head(torch.cat([y[: len(x)], y[len(x) :]], 1))

    for project in ("auto", None):
        text = refusal(Pairs(), project=project)
        assert "calls body with batch size 12, expected 6 (scales x images)" in text


def test_a_layer_called_before_and_after_the_projection_is_refused():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = conv(3, 3), nn.AdaptiveAvgPool2d(4)

        def forward(self, x):
            return self.conv(self.pool(self.conv(x)))

    assert "calls conv before and after the projection; pass another module as project=" in refusal(
        Again(), project="pool"
    )


def test_networks_for_batches_of_one_are_refused():
    net = Returning(lambda y: y.view(1, 4, 224, 224))
    assert "Returning fails on a batch of 2 images, and conversion folds scales into it: " in refusal(net)


def test_networks_on_the_meta_device():
    net = nn.Sequential(conv(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    converted = to_scale_equivariant(net.to("meta"), SCALES)
    assert converted(torch.randn(2, 3, 16, 16, device="meta")).shape == (2, 4)
    state = {name: torch.randn(tensor.shape) for name, tensor in net.state_dict().items()}
    converted.load_state_dict(state, assign=True)
    assert converted(torch.randn(2, 3, 16, 16)).isfinite().all()


def test_random_networks_convert_with_strict_false():
    noisy = Returning(lambda y: y + torch.randn_like(y))
    assert to_scale_equivariant(noisy, SCALES, strict=False)(torch.randn(2, 3, 8, 8)).shape == (2, 4, 8, 8)


def test_a_patched_forward_is_refused():
    net = nn.Sequential(conv(3, 4))
    net[0].forward = MethodType(lambda self, x: F.conv2d(x, self.weight * 2, self.bias), net[0])
    assert "0 (Conv2d has a forward of its own" in refusal(net)


def test_strided_pointwise_convolutions_that_cannot_be_averaged_are_refused():
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1, 2))
    for point, message in (
        (Standardized(4, 4, 1, 2), "1 (Standardized has a forward of its own"),
        (normed, "1 (its weights are computed by a parametrization"),
        (nn.Conv2d(4, 4, 1, 2, padding=1), "1 (a strided Conv2d of one pixel with padding)"),
    ):
        net = nn.Sequential(conv(3, 4), point)
        assert message in refusal(net, downsampling="centered")
        assert to_scale_equivariant(net, SCALES).unconverted == ()


def test_strided_pointwise_convolutions_keep_their_groups():
    point = nn.Conv2d(4, 8, 1, 2, groups=2)
    net = to_scale_equivariant(nn.Sequential(conv(3, 4), point), SCALES, downsampling="centered").network
    x = torch.randn(3, 4, 9, 9)
    means = F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(net[1](x), F.conv2d(means, point.weight, point.bias, groups=2))


class Permuting(nn.Module):
    """A norm of channels behind the global pool, for which they become the last axis."""

    def __init__(self):
        super().__init__()
        self.body, self.avgpool, self.norm, self.head = (
            conv(3, 6),
            nn.AdaptiveAvgPool2d(1),
            nn.LayerNorm(6),
            nn.Linear(6, 5),
        )

    def forward(self, x):
        x = self.avgpool(self.body(x))
        return self.head(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).flatten(1))


class Concatenated(nn.Module):
    """Two global pools side by side."""

    def __init__(self):
        super().__init__()
        self.body, self.head = conv(3, 6), nn.Linear(12, 5)
        self.maximum, self.mean = nn.AdaptiveMaxPool2d(1), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.body(x)
        return self.head(torch.cat([self.maximum(x), self.mean(x)], 1).flatten(1))


class Largest(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = conv(3, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.body(x).max(-1)[0].max(-1).values)


class Shuffled(nn.Module):
    """Channels shuffled by views with another number of axes."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.pool = conv(3, 6), conv(6, 5), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.body(x)
        x = x.view(len(x), 2, 3, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        return self.pool(self.head(x)).flatten(1)


@pytest.mark.parametrize(
    ("net", "place"),
    [(Permuting, "before avgpool"), (Concatenated, "after body"), (Largest, "after body"), (Shuffled, "before pool")],
)
def test_projection_points(net, place):
    assert str(to_scale_equivariant(net(), SCALES).place) == place


class Twice(nn.Module):
    """One pool for squeeze and excitation and for the head."""

    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = conv(3, 6), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)

    def forward(self, x):
        x = self.body(x)
        return self.head(self.pool(x * self.pool(x).sigmoid()).flatten(1))


def test_calls_are_counted_in_every_thread():
    converted = to_scale_equivariant(Twice(), SCALES).eval()
    assert str(converted.place) == "before pool"
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected, wrong = converted(x), []

    def run():
        with torch.no_grad():
            for _ in range(30):
                if not torch.allclose(converted(x), expected, atol=1e-5):
                    wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Asking(nn.Module):
    """Asks its layers for what they are, and calls them by keyword."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=2)

    def forward(self, x):
        return self.conv(input=x)[..., : -self.conv.padding[0]] * self.conv.stride[0] / self.conv.groups


def test_converted_layers_keep_the_attributes_of_convolutions():
    net, x = Asking(), torch.randn(2, 3, 16)
    with torch.no_grad():
        torch.testing.assert_close(to_scale_equivariant(net, SCALES, project=None)(x)[:, :, 0], net(x))


def test_all_hooks_are_preserved():
    net = nn.Sequential(conv(3, 4))
    seen = []
    net[0].register_forward_pre_hook(lambda layer, args, kwargs: seen.append("before"), with_kwargs=True)
    net[0].register_forward_hook(lambda layer, args, kwargs, out: seen.append("after"), with_kwargs=True)
    net[0].register_full_backward_hook(lambda layer, *gradients: seen.append("backward"))
    converted = to_scale_equivariant(net, SCALES)
    seen.clear()
    converted(torch.randn(1, 3, 8, 8, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_the_example_is_not_modified():
    example = torch.randn(1, 3, 8, 8)
    before = example.clone()
    to_scale_equivariant(nn.Sequential(nn.ReLU(inplace=True), conv(3, 4)), SCALES, example=example)
    assert torch.equal(example, before)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func's own imports
def test_cached_kernels_are_not_used_under_functional_transforms():
    net = to_scale_equivariant(nn.Sequential(conv(3, 4)), SCALES).eval()
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        expected = net(x)
        weight = net.network[0].weight

        def of(weight):
            return torch.func.functional_call(net.network[0], {"weight": weight}, (torch.cat([x] * 3),))

        _, tangent = torch.func.jvp(of, (weight.detach(),), (torch.ones_like(weight),))
        assert tangent.abs().max() > 0.1
    with torch.inference_mode():
        torch.testing.assert_close(net(x), expected)
    net(x).sum().backward()


def test_double_precision_and_default_devices():
    net = nn.Sequential(conv(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    assert to_scale_equivariant(net, SCALES)(torch.randn(2, 3, 8, 8).double()).shape == (2, 4)


class Padded(nn.Conv2d):
    """Pads as TensorFlow does, and then convolves."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        return F.conv2d(self.pad(x), self.weight, self.bias, self.stride)


def test_padding_layers_are_baked_too():
    net, x = nn.Sequential(Padded(3, 4, 3, 2), nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 16, 16)
    converted = to_scale_equivariant(net, SCALES, project=None)
    with torch.no_grad():
        torch.testing.assert_close(converted(x)[:, :, 0], net(x))
        torch.testing.assert_close(bake(converted)(x), converted(x))


def test_rectangular_kernels_at_non_integer_scales():
    net = nn.Sequential(nn.Conv2d(1, 1, (1, 5), padding=(0, 2), bias=False))
    scales = (1, 2 ** (1 / 3), 2 ** (2 / 3), 2 ** (4 / 3))
    kernels = to_scale_equivariant(net, scales, project=None).network[0].kernels()
    assert kernels[2].shape[-1] > kernels[1].shape[-1]  # each has its own
    torch.testing.assert_close(kernels[3], kernels[1])  # and a dilation shares it


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.pool, self.gate = nn.AdaptiveAvgPool2d(1), conv(6, 6, 1)

    def forward(self, x):
        return x * self.gate(self.pool(x)).sigmoid()


class Shrinking(nn.Module):
    """A convolution instead of a global pool, after squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.body, self.gate, self.last, self.head = conv(3, 6), Gate(), nn.Conv2d(6, 8, 16), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.last(self.gate(self.body(x))).flatten(1))


class LateGate(nn.Module):
    """Squeeze and excitation in a head that is called after the global pool of the other."""

    def __init__(self):
        super().__init__()
        self.body, self.pool, self.head = conv(3, 6), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)
        self.middle, self.gate, self.heat = conv(6, 6), Gate(), conv(6, 2)

    def forward(self, x):
        x = self.body(x)
        return self.head(self.pool(x).flatten(1)), self.heat(self.gate(self.middle(x)))


@pytest.mark.parametrize(("kind", "project"), [(Shrinking, "last"), (LateGate, "pool")])
def test_a_last_pool_that_is_not_the_global_one_leaves_the_projection_to_the_output(kind, project):
    net, x = kind(), torch.randn(2, 3, 16, 16)
    assert str(to_scale_equivariant(net, SCALES, example=x).place) == "at the output"
    named = to_scale_equivariant(net, SCALES, example=x, project=project)
    assert str(named.place) == f"after {project}"
    assert isinstance(named.network.body, FoldedConv)
