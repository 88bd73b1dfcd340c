"""Deep scale spaces (Worrall and Welling 2019): Gaussian blur lifts the image, dilated convolutions follow."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...basis import DiscreteBasis
from ...checks import check_choice, check_count, check_positive
from ...fold import unfold
from ...functional.layout import check_shape
from ...nn import ScaleConv2d
from ...nn.fixed import FixedTensors
from . import check_odd


class ScaleSpace(FixedTensors):
    """Gaussian scale space of an image: [B, C, H, W] -> [B, C, S, H, W]; the blur doubles with the scale.

    Scale k is filtered with the discrete Gaussian `e^-t I_|x|(t)` of variance `t = sigma^2 (4^k - 1)`, which takes an
    image of blur `sigma`, in pixels, to `2^k sigma`. It is truncated at four standard deviations; the padding is zero.
    S = `scales` includes the image.

    Example:
        >>> ScaleSpace(3)(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 1, 3, 28, 28])
    """

    def __init__(self, scales: int, sigma: float = 0.5) -> None:
        super().__init__()
        self.scales = check_count("ScaleSpace", "scales", scales, 1)
        self.sigma = check_positive("ScaleSpace", "sigma", sigma)
        variances = [self.sigma**2 * (4**k - 1) for k in range(1, self.scales)]
        self.fix({f"taps{k}": discrete_gaussian(t) for k, t in enumerate(variances, 1)}, torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        check_shape("ScaleSpace", x, 2, maps=False)
        blurred = [_blur(x, self.get_buffer(f"taps{k}").to(x)) for k in range(1, self.scales)]
        return unfold(torch.cat([x, *blurred]), self.scales)

    def extra_repr(self) -> str:
        return f"{self.scales}, sigma={self.sigma:g}"


class DilatedScaleConv2d(ScaleConv2d):
    """Scale convolution with a kernel dilated by 1, 2, 4, ...: [B, C, S, H, W] -> [B, C', S, H', W'], no bias.

    It is `ScaleConv2d` on the discrete basis, which is pure dilation for these scales, with the initialization of DSS:
    `init="he"` draws from N(0, 2 / (k^2 T C)), "delta" starts close to copying the channels. `scales` is their number.

    Example:
        >>> conv = DilatedScaleConv2d(16, 32, 7, scales=2)
        >>> conv(torch.randn(2, 16, 2, 28, 28)).shape
        torch.Size([2, 32, 2, 28, 28])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        scales: int,
        stride: int = 1,
        scale_extent: int = 1,
        init: str = "he",
    ) -> None:
        who = "DilatedScaleConv2d"
        self._init = check_choice(who, "init", init, ("he", "delta"))
        factors = [2**k for k in range(check_count(who, "scales", scales, 1))]
        basis = DiscreteBasis(check_odd(who, "kernel_size", kernel_size), factors)
        super().__init__(in_channels, out_channels, basis, stride, bias=False, scale_extent=scale_extent)

    def reset_parameters(self) -> None:
        """Draw random weights as in the authors' code."""
        if self._init == "he":
            nn.init.normal_(self.weight, 0, math.sqrt(2 / self.weight[0].numel()))
            return
        nn.init.uniform_(self.weight, -0.01, 0.01)
        outputs, inputs, _, taps = self.weight.shape
        blocks = math.gcd(inputs, outputs)
        block = torch.arange(outputs)[:, None] * blocks // outputs == torch.arange(inputs) * blocks // inputs
        with torch.no_grad():
            self.weight[..., taps // 2].masked_fill_(block[..., None], blocks / outputs)


def discrete_gaussian(variance: float) -> Tensor:
    """Return the taps `e^-t I_|x|(t)` for |x| <= 4 ceil(sqrt t), divided by their sum, in float64.

    They are the Fourier coefficients of `exp(t (cos w - 1))`, with a period long enough that aliasing is negligible.

    Example:
        >>> discrete_gaussian(0.1875).shape
        torch.Size([9])
    """
    half = 4 * math.ceil(math.sqrt(variance))
    period = 16 * half
    frequency = 2 * math.pi / period * torch.arange(period // 2 + 1, dtype=torch.float64, device="cpu")
    taps: Tensor = torch.fft.irfft(torch.exp(variance * (frequency.cos() - 1)), period).roll(half)[: 2 * half + 1]
    return taps / taps.sum()


def _blur(x: Tensor, taps: Tensor) -> Tensor:
    """Filter every channel along both axes with zero padding: [B, C, H, W] -> [B, C, H, W]."""
    half = len(taps) // 2
    rows = F.conv2d(x.flatten(0, 1)[:, None], taps[None, None, None], padding=(0, half))
    both: Tensor = F.conv2d(rows, taps[None, None, :, None], padding=(half, 0))
    return both.view(x.shape)
