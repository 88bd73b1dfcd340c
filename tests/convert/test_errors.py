from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scale_disco import DiscreteBasis, to_scale_equivariant
from scale_disco.convert.pools import GrowingMaxPool
from scale_disco.nn import ScaleLift2d
from tests.convert.networks import UNet, sequential


def conv():
    return nn.Conv2d(3, 4, 3, padding=1)


def refusal(*arguments, **options):
    """The one line that a call is refused with."""
    with pytest.raises((ValueError, TypeError)) as caught:
        to_scale_equivariant(*arguments, **options)
    text = str(caught.value)
    assert text.startswith(("to_scale_equivariant: ", "ScaleProject: ", "Scales: "))
    assert "\n" not in text
    return text


class Attention(nn.Module):
    """A vision transformer in small, attention written out or by torch's function."""

    def __init__(self, fused):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 5)
        self.fused = fused

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        tokens = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.head(tokens.mean(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.encoder(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def test_transformers_are_refused():
    assert "encoder.layers.0 (TransformerEncoderLayer)" in refusal(Encoder().eval())
    assert "attention" in refusal(Attention(fused=True))
    assert "a product of two maps, as in attention" in refusal(Attention(fused=False))
    assert "has no convolution of more than one pixel" in refusal(nn.TransformerEncoderLayer(8, 2))
    assert "has no convolution of more than one pixel" in refusal(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Linear(3, 4)))


def test_traced_scripted_compiled_and_wrapped_networks_are_refused():
    net, x = sequential().eval(), torch.randn(1, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, in newer versions
        traced = torch.jit.trace(net, x)
    assert "is a TorchScript module" in refusal(traced)
    assert "is a compiled module" in refusal(torch.compile(net))
    assert "convert its .module" in refusal(nn.DataParallel(net))
    assert "expected a module, got function" in refusal(lambda x: x)
    assert "scale-equivariant already" in refusal(to_scale_equivariant(net, (1, 2)))
    assert "scale-equivariant already" in refusal(nn.Sequential(ScaleLift2d(3, 4, DiscreteBasis(3, [1, 2]))))


def test_a_graph_of_modules_is_a_network_like_any_other():
    net, x = sequential().eval(), torch.randn(2, 3, 16, 16)
    graph = torch.fx.symbolic_trace(net)
    with torch.no_grad():
        torch.testing.assert_close(
            to_scale_equivariant(graph, (1, 2), project=None)(x), to_scale_equivariant(net, (1, 2), project=None)(x)
        )


def test_device_mismatches_are_refused():
    net = sequential()
    example = torch.randn(1, 3, 16, 16)
    assert "expected an example on cpu like the network, got one on meta" in refusal(net, example=example.to("meta"))
    assert "expected an example on meta like the network, got one on cpu" in refusal(net.to("meta"), example=example)
    split = nn.Sequential(conv(), conv().to("meta"))
    assert "expected a network on one device, got cpu, meta" in refusal(split)


def test_invalid_examples_are_refused():
    net = sequential()
    assert "expected an example [B, C, H, W], got shape (3, 16, 16)" in refusal(net, example=torch.randn(3, 16, 16))
    assert "expected an example [B, C, H, W], got list" in refusal(net, example=[1, 2])
    assert "got shape (0, 3, 8, 8)" in refusal(net, example=torch.randn(0, 3, 8, 8))
    text = refusal(net, example=torch.randn(1, 4, 16, 16))
    assert "Sequential fails on the example" in text
    assert "(1, 4, 16, 16)" in text
    assert "fails on the example" in refusal(net, example=torch.randn(1, 3, 16, 16).double())
    assert "fails on the example" in refusal(net, example=torch.randn(1, 4, 16, 16), project=None)


def test_invalid_options_are_refused():
    net = sequential()
    for name in ("layer9", "", 3):
        text = refusal(net, project=name)
        names = "auto, decision, None or the name of a module such as 0, 1, 2, 3, 4, 5, 6, 7, 8"
        assert f"project must be {names}, got {name!r}" in text
    assert "pooling must be one of auto, growing, as-is, average, got 'mean'" in refusal(net, pooling="mean")
    assert "downsampling must be one of as-is, centered, got 'mean'" in refusal(net, downsampling="mean")
    assert "reduce must be one of max, mean, logsumexp, got 'sum'" in refusal(net, reduce="sum")
    assert "scale extent must be an integer from 1 to 3 (the scales), got 4" in refusal(net, scale_extent=4)
    assert "ascending" in refusal(net, (2, 1))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.spare = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)


def test_invalid_projection_points_are_refused():
    assert "this module is never called in the forward pass" in refusal(Unused(), project="spare")
    # Its skip connection still holds all scales where the deeper map holds one.
    text = refusal(UNet(), project="deep")
    assert "UNet does not run with the scales reduced after deep" in text


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Upsampled(nn.ConvTranspose2d):
    def forward(self, x):
        return super().forward(x)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x):
        return F.max_pool2d(F.conv2d(self.first(x), self.weight), 2)


def test_layers_that_cannot_be_converted_are_all_listed():
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3))
    net = nn.Sequential(conv(), Upsampled(4, 4, 2, 2), Standardized(4, 4, 3), normed)
    text = refusal(net)
    assert "1 (Upsampled has a forward of its own)" in text
    assert "2 (Standardized has a forward of its own that is not padding layers and the convolution)" in text
    assert "3 (its weights are computed by a parametrization: remove that first)" in text
    assert "strict=False" in text


def test_layers_that_cannot_be_converted_can_be_kept():
    net = nn.Sequential(conv(), Upsampled(4, 4, 2, 2), Standardized(4, 4, 3)).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        converted = to_scale_equivariant(net, (1, 2), project=None, strict=False)
        torch.testing.assert_close(converted(x)[:, :, 0], net(x))
    assert converted.unconverted == ("1", "2")
    assert type(converted.network[2]) is Standardized


def test_functions_that_cannot_be_converted():
    assert "Functional (a convolution outside of a convolutional layer)" in refusal(Functional())
    net = to_scale_equivariant(Functional(), strict=False, pooling="as-is")
    assert net(torch.randn(2, 3, 16, 16)).shape == (2, 4, 7, 7)


class SamePool(nn.MaxPool2d):
    """Pads as TensorFlow does."""

    def forward(self, x):
        return super().forward(F.pad(x, (0, 1, 0, 1), value=-torch.inf))


class Pools(nn.Module):
    """A max pool whose windows can grow, and one whose cannot."""

    def __init__(self, pool):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.grows, self.pool = nn.MaxPool2d(2), pool

    def forward(self, x):
        y = self.grows(self.first(x))
        y = F.max_pool2d(y, 2) if self.pool is None else self.pool(y)
        return self.second(y[0] if isinstance(y, tuple) else y).mean((2, 3))


RIGID = {
    "Pools (max_pool2d outside of a module)": None,
    "pool (MaxPool2d that returns indices)": nn.MaxPool2d(2, return_indices=True),
    "pool (SamePool has a forward of its own)": SamePool(2),
}


@pytest.mark.parametrize("reason", RIGID)
def test_max_pools_that_cannot_grow_keep_their_windows_with_a_warning(reason):
    net, x = Pools(RIGID[reason]).eval(), torch.randn(2, 3, 32, 32)
    for pooling in ("growing", "average"):
        assert reason in refusal(net, example=x, pooling=pooling)
    text = f"to_scale_equivariant: {reason}: max pooling windows stay the same at all scales"
    with pytest.warns(UserWarning, match=re.escape(text)) as caught:
        converted = to_scale_equivariant(net, example=x)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert converted.unconverted == (reason.split()[0],)
    assert isinstance(converted.network.grows, GrowingMaxPool)
    assert converted.network.pool is None or type(converted.network.pool) is type(net.pool)
    with torch.no_grad():
        torch.testing.assert_close(converted.with_scales([1])(x), net(x))
    assert to_scale_equivariant(net, example=x, pooling="as-is").unconverted == ()
    if net.pool is not None:  # it sees one scale, so there is nothing to report
        assert to_scale_equivariant(net, example=x, project="first").unconverted == ()


def test_what_follows_a_named_place_need_not_be_converted():
    class Read(nn.Module):
        """Text recognition: convolutions, then a recurrent network along the width."""

        def __init__(self):
            super().__init__()
            self.body, self.rnn = sequential()[:6], nn.LSTM(16, 8, batch_first=True)

        def forward(self, x):
            return self.rnn(self.body(x).mean(2).transpose(1, 2))[0]

    net, x = Read().eval(), torch.randn(2, 3, 16, 32)
    assert "rnn (LSTM)" in refusal(net)
    assert to_scale_equivariant(net, project="body")(x).shape == net(x).shape


def test_convolutions_with_other_spatial_dims_are_refused():
    class Channels(nn.Module):
        """Attention over channels by a convolution along them."""

        def __init__(self):
            super().__init__()
            self.conv, self.mix = nn.Conv2d(3, 8, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x):
            x = self.conv(x)
            return x * self.mix(x.mean((2, 3))[:, None])[:, 0, :, None, None].sigmoid()

    net, x = Channels().eval(), torch.randn(2, 3, 16, 16)
    assert "mix (Conv1d in a network of 2 spatial axes)" in refusal(net)
    with torch.no_grad():
        converted = to_scale_equivariant(net, (1, 2), project=None, strict=False)
        torch.testing.assert_close(converted(x)[:, :, 0], net(x))


def test_lazy_layers_are_refused():
    assert "run a forward pass first" in refusal(nn.Sequential(nn.LazyConv2d(4, 3)))
