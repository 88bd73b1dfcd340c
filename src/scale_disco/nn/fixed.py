"""Tensors that belong to a layer and are neither trained nor saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..functional import at_least_single


class FixedTensors(nn.Module):
    """A module with fixed tensors: buffers outside the `state_dict`, cast anew from float64 whenever the module moves.

    So a module that was in half precision and comes back has lost nothing of them, and one that was built on the meta
    device gets them with its weights.
    """

    _fixed: Mapping[str, Tensor] = {}

    def fix(self, tensors: Mapping[str, Tensor], like: Tensor) -> None:
        """Keep float64 tensors under these names, on the device and in the (at least single) precision of another."""
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
