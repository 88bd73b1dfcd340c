"""A stencil per scale, and the basis that holds them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
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
from ..resample import canonical_mode
from ..scales import Scales, as_scales
from .cpu import on_cpu
from .power import settled_power
from .prior import as_prior
from .solve import Conditions, predicted_errors, tap_offsets, total_error

CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by spatial axes
_FORMAT = "scale-disco basis 1"


@dataclass(frozen=True, eq=False)
class Stencil:
    """The basis functions of one scale on their own small grid, [F, side, ...], spread by a dilation.

    The centre is tap (side - 1) // 2, also for even sides: tap i acts at `dilation * (i - centre)` pixels.
    """

    functions: Tensor
    dilation: int = 1

    @property
    def side(self) -> int:
        """Taps along one axis."""
        return self.functions.shape[-1]

    @property
    def spatial_dims(self) -> int:
        return self.functions.ndim - 1

    @property
    def taps(self) -> int:
        """Multiplications per output pixel and channel pair."""
        return int(self.side**self.spatial_dims)

    @property
    def reach(self) -> tuple[int, int]:
        """Pixels before and after the centre that the stencil covers along each axis."""
        centre = (self.side - 1) // 2
        return centre * self.dilation, (self.side - 1 - centre) * self.dilation

    def apply(self, x: Tensor) -> Tensor:
        """Correlate one-channel images with every function: [B, 1, ...] -> [B, F, ...], zeros outside."""
        padded = F.pad(x, self.reach * self.spatial_dims)
        return CONVOLUTION[self.spatial_dims](padded, self.functions[:, None].to(x), dilation=self.dilation)


class Basis:
    """Scales, and for each of them the same basis functions as a stencil.

    A kernel is one set of weights times the stencil of its scale. Numbers are float64; layers cast them.

    Args:
        scales: The scales, one stencil for each.
        stencils: Functions [F, side, ...] and dilation per scale.
        kernel_size: Side of a kernel at the first scale.
        spec: What the numbers were made from; saved with them.

    Example:
        >>> delta = Stencil(torch.ones(1, 1, 1))
        >>> Basis([1, 2], [delta, delta], kernel_size=1).dense().shape
        torch.Size([1, 2, 1, 1])
    """

    kind: ClassVar[str | None] = None  # what `spec["kind"]` must say for `load` of a subclass

    def __init__(
        self,
        scales: Scales | Sequence[float],
        stencils: Sequence[Stencil],
        *,
        kernel_size: int,
        spec: dict[str, Any] | None = None,
    ) -> None:
        self.scales = as_scales(scales)
        self.stencils = tuple(Stencil(s.functions.detach().to("cpu", torch.float64), s.dilation) for s in stencils)
        self.kernel_size = check_count(type(self).__name__, "kernel_size", kernel_size, 1)
        if len(self.stencils) != len(self.scales):
            raise ValueError(f"Basis: expected one stencil per scale, {len(self.scales)}, got {len(self.stencils)}")
        first = self.stencils[0].functions
        for stencil in self.stencils:
            functions = stencil.functions
            if functions.ndim not in (2, 3, 4) or 0 in functions.shape:
                raise ValueError(
                    f"Basis: a stencil must be [F, side, ...] with 1 to 3 axes, got shape {tuple(functions.shape)}"
                )
            if len(set(functions.shape[1:])) > 1:
                raise ValueError(f"Basis: a stencil must have equal sides, got shape {tuple(functions.shape)}")
            if functions.ndim != first.ndim or len(functions) != len(first):
                raise ValueError(
                    f"Basis: stencils must have the same functions and axes at every scale, "
                    f"got shape {tuple(functions.shape)} beside {tuple(first.shape)}"
                )
            if not bool(torch.isfinite(functions).all()):
                raise ValueError("Basis: a stencil holds NaN or infinite values")
            if not isinstance(stencil.dilation, int) or stencil.dilation < 1:
                raise ValueError(f"Basis: dilation must be an integer >= 1, got {stencil.dilation!r}")
        self.spec: dict[str, Any] = {"kind": "custom", **(spec or {}), **self._shape()}

    def _shape(self) -> dict[str, Any]:
        """The part of the spec that the stencils must agree with."""
        return {
            "kernel_size": self.kernel_size,
            "spatial_dims": self.spatial_dims,
            "functions": self.num_functions,
            "scales": list(self.scales),
            "support": list(self.support),
            "dilation": [stencil.dilation for stencil in self.stencils],
        }

    @classmethod
    def from_dense(cls, dense: Tensor, scales: Scales | Sequence[float], *, kernel_size: int) -> Basis:
        """A basis from the paper's packing [F, S, K, ...], each scale cut to the square where it is not zero.

        Example:
            >>> basis = Basis.from_dense(torch.eye(9).reshape(9, 1, 3, 3), [1], kernel_size=3)
            >>> basis.support
            (3,)
        """
        if dense.ndim not in (3, 4, 5) or not dense.is_floating_point() or dense.shape[-1] % 2 == 0:
            raise ValueError(
                f"Basis.from_dense: expected floating-point [F, S, K, ...] with odd K, "
                f"got {dense.dtype} {tuple(dense.shape)}"
            )
        centre = dense.shape[-1] // 2
        stencils = []
        for functions in dense.double().unbind(1):
            far = (functions != 0).nonzero()[:, 1:].sub(centre).abs()
            reach = int(far.max()) if far.numel() else 0
            inner = slice(centre - reach, centre + reach + 1)
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
        """Multiplications per output pixel and channel pair, over all scales."""
        return sum(stencil.taps for stencil in self.stencils)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """For each scale the first one with the same functions; dilations share theirs, and layers their kernels."""
        functions = [stencil.functions for stencil in self.stencils]
        return tuple(
            next(l for l in range(k + 1) if torch.equal(functions[l], functions[k])) for k in range(len(functions))
        )

    @property
    def pointwise(self) -> bool:
        """Whether kernels are the same single pixel at all scales."""
        return set(self.sources) == {0} and self.stencils[0].side == 1

    def dense(self) -> Tensor:
        """The paper's packing [F, S, K, ...]: one grid for all scales, zeros filled in, centre at (K - 1) // 2."""
        before = max(stencil.reach[0] for stencil in self.stencils)
        after = max(stencil.reach[1] for stencil in self.stencils)
        side = max(2 * before + 1, 2 * after)
        centre = (side - 1) // 2
        dense = torch.zeros(self.num_functions, len(self.scales), *[side] * self.spatial_dims, dtype=torch.float64)
        for k, stencil in enumerate(self.stencils):
            where = (tap_offsets(stencil.side, stencil.dilation) + centre).long()
            index: tuple[Any, ...] = torch.meshgrid(*[where] * self.spatial_dims, indexing="ij")
            dense[(slice(None), k, *index)] = stencil.functions
        return dense

    @on_cpu
    def mix(self, matrix: Tensor) -> Basis:
        """Functions recombined alike at every scale: new function i is `sum_j matrix[i, j] * function j`."""
        matrix = torch.as_tensor(matrix)
        if matrix.is_complex() or matrix.ndim != 2 or matrix.shape[1] != self.num_functions or len(matrix) == 0:
            raise ValueError(
                f"mix: expected a real matrix [F', {self.num_functions}] (the functions of this basis), "
                f"got {matrix.dtype} of shape {tuple(matrix.shape)}"
            )
        weights = matrix.detach().to("cpu", torch.float64)
        digest = hashlib.sha256(weights.contiguous().numpy().tobytes()).hexdigest()
        return self._recombined(
            [torch.tensordot(weights, stencil.functions, dims=1) for stencil in self.stencils],
            {"mixed by": [*self.spec.get("mixed by", []), f"sha256:{digest}"], "normalized": False},
        )

    def normalized(self) -> Basis:
        """Every function divided, at all scales, by its L2 norm at the first scale."""
        norms = self.stencils[0].functions.flatten(1).norm(dim=1)
        if bool((norms == 0).any()):
            raise ValueError("normalized: a function vanishes at the first scale, so it has no norm to divide by")
        return self._recombined(
            [stencil.functions / norms.reshape(-1, *[1] * self.spatial_dims) for stencil in self.stencils],
            {"normalized": True},
        )

    def _recombined(self, functions: Sequence[Tensor], said: dict[str, Any]) -> Basis:
        stencils = [Stencil(f, s.dilation) for f, s in zip(functions, self.stencils, strict=True)]
        kind = self.spec["kind"] if self.spec["kind"].startswith("recombined ") else f"recombined {self.spec['kind']}"
        spec = {**self.spec, **said, "kind": kind}
        recombined = Basis(self.scales, stencils, kernel_size=self.kernel_size, spec=spec)
        if "_conditions" in self.__dict__:
            recombined._conditions = self._conditions
        return recombined

    @on_cpu
    def pair_errors(
        self,
        *,
        prior: Any = None,
        mode: str | None = None,
        antialias: bool | None = None,
        scales: Scales | Sequence[float] | None = None,
    ) -> dict[tuple[int, int], tuple[float, float]]:
        """Expected squared norms of `L[f] * psi_l - L[f * psi_k]` and of `L[f * psi_k]` for all pairs (k, l), k > l.

        Operator and prior are those of the basis where they are not given: a solved basis remembers its own,
        the others use the defaults of `DiscreteBasis`. `scales` stands in for rounded scales, such as the presets have.
        """
        conditions = Conditions(
            self._conditions.prior if prior is None else as_prior(prior, self.spatial_dims),
            self.spec.get("mode", "cubic") if mode is None else canonical_mode(mode),
            self.spec.get("antialias", False) if antialias is None else antialias,
            self.spatial_dims,
        )
        chosen = self.scales if scales is None else as_scales(scales)
        if len(chosen) != len(self.scales):
            raise ValueError(f"pair_errors: expected {len(self.scales)} scales, one per stencil, got {chosen}")
        return predicted_errors(chosen, [(s.functions, s.dilation) for s in self.stencils], conditions)

    @cached_property
    def error(self) -> float:
        """Predicted relative equivariance error, Eq. 14 in expectation over images and independent random weights."""
        return total_error(self.scales, self.pair_errors())

    @cached_property
    def _conditions(self) -> Conditions:
        prior = self.spec.get("prior", "image")
        if str(prior).startswith("images "):
            raise ValueError(
                "the images that this basis was solved for are not saved with it; give pair_errors a prior"
            )
        mode, antialias = self.spec.get("mode", "cubic"), self.spec.get("antialias", False)
        return Conditions(as_prior(prior, self.spatial_dims), mode, antialias, self.spatial_dims)

    @property
    def digest(self) -> str:
        """Fingerprint of the spec and all numbers."""
        state = hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode())
        for stencil in self.stencils:
            state.update(stencil.functions.contiguous().numpy().tobytes())
        return state.hexdigest()

    @cached_property
    @on_cpu
    def power(self) -> float:
        """What the basis does to the variance of deep ReLU features; layers divide their random weights by it.

        Example:
            >>> from scale_disco import DiscreteBasis
            >>> round(DiscreteBasis(3, [1, 2]).power, 6)  # pixels: He's rule
            9.0
        """
        return settled_power([(stencil.functions, stencil.dilation) for stencil in self.stencils])

    @cached_property
    @on_cpu
    def fingerprint(self) -> tuple[float, ...]:
        """Three numbers per scale that tell bases apart and, unlike `digest`, bear rounding: compare within 1e-6."""
        marks = []
        for stencil in self.stencils:
            numbers = stencil.functions.flatten()
            probe = torch.cos(torch.arange(len(numbers), dtype=torch.float64) ** 1.3)
            marks += [float(stencil.dilation), float(numbers.norm()), float(numbers @ probe)]
        return tuple(marks)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write stencils and spec to a safetensors file, whole or not at all."""
        tensors = {str(k): stencil.functions.contiguous() for k, stencil in enumerate(self.stencils)}
        metadata = {"format": _FORMAT, "spec": json.dumps(self.spec, sort_keys=True), "digest": self.digest}
        write(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a saved basis; a file that is damaged or does not match its spec is refused."""
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
            for name, value in basis._shape().items():
                if value != spec[name]:
                    raise ValueError(f"its spec says {name} {spec[name]}, its stencils {value}")
            if basis.digest != metadata.get("digest"):
                raise ValueError("its numbers do not match its spec's fingerprint")
            if cls.kind is not None and spec["kind"] != cls.kind:
                raise ValueError(f"it holds a {spec['kind']} basis, expected {cls.kind}")
        except FileNotFoundError:
            raise FileNotFoundError(f"{cls.__name__}.load: no such file: {path}") from None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{cls.__name__}.load: refused {path}: {plain(reason)}") from error
        return basis

    def __repr__(self) -> str:
        dilation = tuple(stencil.dilation for stencil in self.stencils)
        return f"{type(self).__name__}({self.kernel_size}, {self.scales}, support={self.support}, dilation={dilation})"
