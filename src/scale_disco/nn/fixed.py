"""Base classes of layers: fixed tensors that are neither trained nor saved, and the number of spatial axes."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..functional.conv import at_least_single


class SpatialDims:
    """A class for 1, 2 or 3 spatial axes, given as `class Layer2d(Layer, spatial_dims=2)`."""

    spatial_dims: ClassVar[int]

    def __init_subclass__(cls, *, spatial_dims: int | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if spatial_dims is not None:
            cls.spatial_dims = spatial_dims


class FixedTensors(nn.Module):
    """A module with fixed tensors: non-persistent buffers, cast again from float64 whenever the module moves.

    They lose no precision when a module is cast to half and back, and appear with the weights of a module that was
    built on the meta device.
    """

    _fixed: Mapping[str, Tensor] = {}

    def fix(self, tensors: Mapping[str, Tensor], like: Tensor) -> None:
        """Register float64 tensors as buffers on the device and in the (at least single) precision of another.

        Replaces those that were registered before.
        """
        for name in self._fixed:
            delattr(self, name)
        self._fixed = dict(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name, at_least_single(tensor, like), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in self._fixed.items():
            self._buffers[name] = at_least_single(tensor, self.get_buffer(name))
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        weight = next(self.parameters(recurse=False), None)
        for name, tensor in self._fixed.items():
            # With `assign`, weights may have come from the meta device, or have another precision than before.
            if weight is not None or self.get_buffer(name).is_meta:
                self._buffers[name] = at_least_single(tensor, torch.empty(0) if weight is None else weight)
