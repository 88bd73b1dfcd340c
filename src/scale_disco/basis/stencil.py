"""Stencil: the basis functions at one scale. Basis: one stencil per scale."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..checks import check_count
from ..files import parse_json, plain, write
from ..resampling import canonical_mode, on_cpu
from ..scales import as_scales
from .prior import Prior, as_prior
from .solve import Conditions, predicted_errors, tap_offsets, total_error

CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by spatial axes
_PERIOD = {1: 256, 2: 64, 3: 32}  # pixels of the periodic grid on which `Stencil.power` follows correlations
_LAYERS = 10  # after which the correlation of features, and so the power, has converged
_FORMAT = "scale-disco basis 1"
Spec = dict[str, Any]  # a JSON object


@dataclass(frozen=True, eq=False)
class Stencil:
    """Basis functions of one scale on a small grid [F, side, ...], with a dilation.

    The center is tap (side - 1) // 2, also for even sides: tap i is applied at `dilation * (i - center)` pixels.
    """

    functions: Tensor
    dilation: int = 1

    @property
    def side(self) -> int:
        """Number of taps along one axis."""
        return self.functions.shape[-1]

    @property
    def spatial_dims(self) -> int:
        return self.functions.ndim - 1

    @property
    def taps(self) -> int:
        """Number of multiplications per output pixel and channel pair."""
        return int(self.side**self.spatial_dims)

    @property
    def reach(self) -> tuple[int, int]:
        """Pixels before and after the center that the stencil covers along each axis."""
        center = (self.side - 1) // 2
        return center * self.dilation, (self.side - 1 - center) * self.dilation

    def apply(self, x: Tensor) -> Tensor:
        """Correlate one-channel images with every function, zero-padded: [B, 1, ...] -> [B, F, ...]."""
        padded = F.pad(x, self.reach * self.spatial_dims)
        return CONVOLUTION[self.spatial_dims](padded, self.functions[:, None].to(x), dilation=self.dilation)

    def power(self) -> float:
        """Return the power of the response to ReLU features of unit power, per unit of weight variance.

        In a deep random network responses are Gaussian with a correlation r over space. A ReLU turns it into
        `(sqrt(1 - r^2) + r (pi - arccos r)) / pi` (Cho and Saul, 2009), which the next layer filters by the spectrum of
        the stencil. For pixels the power is their number, He's rule; it is larger for smooth functions.
        """
        grid = [_PERIOD[self.spatial_dims]] * self.spatial_dims
        positions = torch.arange(self.side) * self.dilation % grid[0]
        taps = torch.meshgrid(*[positions] * self.spatial_dims, indexing="ij")
        spectrum = torch.zeros(grid, dtype=torch.float64)
        for function in self.functions:
            image = torch.zeros(grid, dtype=torch.float64).index_put_(taps, function, accumulate=True)
            spectrum += torch.fft.fftn(image).abs().square()
        correlation = torch.zeros(grid, dtype=torch.float64)
        correlation.view(-1)[0] = 1
        power = 0.0
        for _ in range(_LAYERS):
            response = torch.fft.ifftn(spectrum * torch.fft.fftn(correlation)).real
            power = float(response.view(-1)[0])
            if power == 0:
                raise ValueError("power: all functions of the basis vanish at a scale")
            r = (response / power).clamp(-1, 1)
            correlation = ((1 - r.square()).sqrt() + r * (math.pi - r.acos())) / math.pi
        return power


class Basis:
    """The same basis functions at every scale, one stencil per scale.

    A kernel is one set of weights times the stencil of its scale. Values are float64; layers cast them.

    Args:
        scales: One scale per stencil.
        stencils: Functions [F, side, ...] and dilation of each scale.
        kernel_size: Side of a kernel at the first scale.
        spec: How the values were computed; saved with them.

    Example:
        >>> delta = Stencil(torch.ones(1, 1, 1))
        >>> Basis([1, 2], [delta, delta], kernel_size=1).dense().shape
        torch.Size([1, 2, 1, 1])
    """

    kind: ClassVar[str | None] = None  # the `spec["kind"]` that `load` of a subclass requires

    def __init__(
        self, scales: Iterable[float], stencils: Sequence[Stencil], *, kernel_size: int, spec: Spec | None = None
    ) -> None:
        self.scales = as_scales(scales)
        self.stencils = tuple(Stencil(s.functions.detach().to("cpu", torch.float64), s.dilation) for s in stencils)
        self.kernel_size = check_count(type(self).__name__, "kernel_size", kernel_size, 1)
        if len(self.stencils) != len(self.scales):
            raise ValueError(f"Basis: expected one stencil per scale, {len(self.scales)}, got {len(self.stencils)}")
        first = tuple(self.stencils[0].functions.shape)
        for stencil in self.stencils:
            shape = tuple(stencil.functions.shape)
            if len(first) not in (2, 3, 4) or 0 in shape or shape != (first[0], *shape[-1:] * (len(first) - 1)):
                rule = "[F, side, ...] with 1 to 3 equal sides, and the same F and axes at every scale"
                raise ValueError(f"Basis: stencils must be {rule}, got shape {shape}")
            if not bool(torch.isfinite(stencil.functions).all()):
                raise ValueError("Basis: a stencil has NaN or infinite values")
            if not isinstance(stencil.dilation, int) or stencil.dilation < 1:
                raise ValueError(f"Basis: dilation must be an integer >= 1, got {stencil.dilation!r}")
        self.spec: Spec = {
            "kind": "custom",
            **(spec or {}),
            "kernel_size": self.kernel_size,
            "spatial_dims": self.spatial_dims,
            "functions": self.num_functions,
            "scales": list(self.scales),
            "support": list(self.support),
            "dilation": [stencil.dilation for stencil in self.stencils],
        }

    @classmethod
    def from_dense(cls, dense: Tensor, scales: Iterable[float], *, kernel_size: int) -> "Basis":
        """Return a basis from the paper's packing [F, S, K, ...], each scale cropped to its nonzero square.

        Example:
            >>> basis = Basis.from_dense(torch.eye(9).reshape(9, 1, 3, 3), [1], kernel_size=3)
            >>> basis.support
            (3,)
        """
        if dense.ndim not in (3, 4, 5) or not dense.is_floating_point() or dense.shape[-1] % 2 == 0:
            shape = f"{dense.dtype} {tuple(dense.shape)}"
            raise ValueError(f"Basis.from_dense: expected floating-point [F, S, K, ...] with odd K, got {shape}")
        center = dense.shape[-1] // 2
        stencils = []
        for functions in dense.double().unbind(1):
            distance = (functions != 0).nonzero()[:, 1:].sub(center).abs()
            reach = int(distance.max()) if distance.numel() else 0
            inner = slice(center - reach, center + reach + 1)
            stencils.append(Stencil(functions[(slice(None), *[inner] * (functions.ndim - 1))].contiguous()))
        return Basis(scales, stencils, kernel_size=kernel_size, spec={"kind": "dense"})

    @property
    def spatial_dims(self) -> int:
        return self.stencils[0].spatial_dims

    @property
    def num_functions(self) -> int:
        return len(self.stencils[0].functions)

    @property
    def support(self) -> tuple[int, ...]:
        """Side of the stencil of each scale, before dilation."""
        return tuple(stencil.side for stencil in self.stencils)

    @property
    def taps(self) -> int:
        """Number of multiplications per output pixel and channel pair, over all scales."""
        return sum(stencil.taps for stencil in self.stencils)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """For each scale, the first scale with the same functions; layers compute one kernel for both."""
        functions = [stencil.functions for stencil in self.stencils]
        return tuple(next(l for l, psi in enumerate(functions) if torch.equal(psi, other)) for other in functions)

    @property
    def pointwise(self) -> bool:
        """Whether kernels are the same single pixel at all scales."""
        return set(self.sources) == {0} and self.stencils[0].side == 1

    def dense(self) -> Tensor:
        """Return the paper's packing [F, S, K, ...]: one zero-filled grid for all scales, center (K - 1) // 2."""
        before, after = (max(reach) for reach in zip(*(stencil.reach for stencil in self.stencils), strict=True))
        side = max(2 * before + 1, 2 * after)
        dense = torch.zeros(self.num_functions, len(self.scales), *[side] * self.spatial_dims, dtype=torch.float64)
        for k, stencil in enumerate(self.stencils):
            positions = (tap_offsets(stencil.side, stencil.dilation) + (side - 1) // 2).long()
            index: tuple[Any, ...] = torch.meshgrid(*[positions] * self.spatial_dims, indexing="ij")
            dense[(slice(None), k, *index)] = stencil.functions
        return dense

    @on_cpu()
    def mix(self, matrix: Tensor) -> "Basis":
        """Return a basis whose function i is `sum_j matrix[i, j] * function j`, at every scale."""
        matrix = torch.as_tensor(matrix)
        if matrix.is_complex() or matrix.ndim != 2 or matrix.shape[1] != self.num_functions or len(matrix) == 0:
            rule = f"a real matrix [F', {self.num_functions}] (the functions of this basis)"
            raise ValueError(f"mix: expected {rule}, got {matrix.dtype} of shape {tuple(matrix.shape)}")
        weights = matrix.detach().to("cpu", torch.float64)
        digest = hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
        functions = [torch.tensordot(weights, stencil.functions, dims=1) for stencil in self.stencils]
        history = [*self.spec.get("mixed by", []), f"sha256:{digest}"]
        return self._recombined(functions, {"mixed by": history, "normalized": False})

    def normalized(self) -> "Basis":
        """Return a basis with every function divided, at all scales, by its L2 norm at the first scale."""
        norms = self.stencils[0].functions.flatten(1).norm(dim=1)
        if bool((norms == 0).any()):
            raise ValueError("normalized: a function vanishes at the first scale, so its norm there is zero")
        functions = [s.functions / norms.reshape(-1, *[1] * self.spatial_dims) for s in self.stencils]
        return self._recombined(functions, {"normalized": True})

    def _recombined(self, functions: Sequence[Tensor], changes: Spec) -> "Basis":
        stencils = [Stencil(f, s.dilation) for f, s in zip(functions, self.stencils, strict=True)]
        spec = {**self.spec, **changes, "kind": f"recombined {self.spec['kind'].removeprefix('recombined ')}"}
        recombined = Basis(self.scales, stencils, kernel_size=self.kernel_size, spec=spec)
        if "_prior" in self.__dict__:  # images are not in the spec
            recombined._prior = self._prior
        return recombined

    @cached_property
    def _prior(self) -> Prior:
        prior = self.spec.get("prior", "image")
        if str(prior).startswith("images "):
            raise ValueError("the images this basis was solved for are not saved with it; pass a prior to pair_errors")
        return as_prior(prior, self.spatial_dims)

    def _conditions(self, prior: Any = None, mode: str | None = None, antialias: bool | None = None) -> Conditions:
        """Return operator and prior: those the basis was solved for, or else `DiscreteBasis`'s defaults."""
        return Conditions(
            self._prior if prior is None else as_prior(prior, self.spatial_dims),
            canonical_mode(self.spec.get("mode", "cubic") if mode is None else mode),
            self.spec.get("antialias", False) if antialias is None else antialias,
            self.spatial_dims,
        )

    @on_cpu()
    def pair_errors(
        self,
        *,
        prior: Any = None,
        mode: str | None = None,
        antialias: bool | None = None,
        scales: Iterable[float] | None = None,
    ) -> dict[tuple[int, int], tuple[float, float]]:
        """Return expected squared norms of `L[f] * psi_l - L[f * psi_k]` and `L[f * psi_k]` for all pairs k > l.

        Operator and prior default to those the basis was solved for, or else to the defaults of `DiscreteBasis`.
        `scales` replaces rounded scales, such as those of the presets.
        """
        exact = self.scales if scales is None else as_scales(scales)
        if len(exact) != len(self.scales):
            raise ValueError(f"pair_errors: expected {len(self.scales)} scales, one per stencil, got {exact}")
        stencils = [(stencil.functions, stencil.dilation) for stencil in self.stencils]
        return predicted_errors(exact, stencils, self._conditions(prior, mode, antialias))

    @cached_property
    def error(self) -> float:
        """Predicted equivariance error, Eq. 14 in expectation over independent random weights and images of the prior.

        No image is measured. Noise of the default prior is less smooth than photos, on which `basis_error` measures
        about a tenth: compare bases by either, but not one with the other.
        """
        return total_error(self.scales, self.pair_errors())

    @cached_property
    @on_cpu()
    def power(self) -> float:
        """How much the basis amplifies the variance of deep ReLU features; layers divide their random weights by it.

        The geometric mean of `Stencil.power` over scales.

        Example:
            >>> from scale_disco import DiscreteBasis
            >>> round(DiscreteBasis(3, [1, 2]).power, 6)  # pixels: He's rule
            9.0
        """
        return math.exp(sum(math.log(stencil.power()) for stencil in self.stencils) / len(self.stencils))

    @property
    def digest(self) -> str:
        """SHA-256 of the spec and all values."""
        state = hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode())
        for stencil in self.stencils:
            state.update(stencil.functions.contiguous().numpy().tobytes())
        return state.hexdigest()

    @cached_property
    @on_cpu()
    def fingerprint(self) -> tuple[float, ...]:
        """Three numbers per scale that identify a basis up to rounding, unlike `digest`: compare within 1e-6."""
        numbers: list[float] = []
        for stencil in self.stencils:
            values = stencil.functions.flatten()
            probe = torch.cos(torch.arange(len(values), dtype=torch.float64) ** 1.3)
            numbers += [float(stencil.dilation), float(values.norm()), float(values @ probe)]
        return tuple(numbers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write stencils and spec to a safetensors file, atomically."""
        tensors = {str(k): stencil.functions.contiguous() for k, stencil in enumerate(self.stencils)}
        metadata = {"format": _FORMAT, "spec": json.dumps(self.spec, sort_keys=True), "digest": self.digest}
        write(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved basis. Raises ValueError if the file is damaged or its values do not match its spec."""
        try:
            if os.path.isdir(path):
                raise ValueError("it is a folder")
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}, expected {_FORMAT!r}")
            spec = parse_json(metadata["spec"])
            stencils = [Stencil(tensors[str(k)], dilation) for k, dilation in enumerate(spec["dilation"])]
            basis = cls.__new__(cls)
            Basis.__init__(basis, spec["scales"], stencils, kernel_size=spec["kernel_size"], spec=spec)
            for name, value in basis.spec.items():
                if value != spec[name]:
                    raise ValueError(f"its spec has {name} {spec[name]}, its stencils {value}")
            if basis.digest != metadata.get("digest"):
                raise ValueError("its values do not match its digest")
            if cls.kind is not None and spec["kind"] != cls.kind:
                raise ValueError(f"it contains a {spec['kind']} basis, expected {cls.kind}")
        except FileNotFoundError:
            raise FileNotFoundError(f"{cls.__name__}.load: no such file: {path}") from None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{cls.__name__}.load: refused {path}: {plain(reason)}") from error
        return basis

    def __repr__(self) -> str:
        dilation = tuple(stencil.dilation for stencil in self.stencils)
        return f"{type(self).__name__}({self.kernel_size}, {self.scales}, support={self.support}, dilation={dilation})"
