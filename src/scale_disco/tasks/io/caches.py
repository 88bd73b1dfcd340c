"""Cache of tensors that took long to compute, a file for each key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from ...files import make_folder, plain, reason, write


def cached_tensors(
    folder: Path | None,
    kind: str,
    key: object,
    shapes: dict[str, tuple[int | None, ...]],
    compute: Callable[[], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Return tensors by name from the cache, or compute and store them.

    Args:
        folder: Folder of the cache; None computes without storing.
        kind: First part of the file name.
        key: Everything that the tensors depend on; its `repr` selects the file.
        shapes: Expected shape of every tensor, with None for any size. Another one is an error.
        compute: Called if there is no file.
    """
    if folder is None:
        return compute()
    make_folder(folder)
    path = folder / f"{kind}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.safetensors"
    if not path.is_file():
        tensors = compute()
        write(path, save(tensors))
        return tensors
    try:
        tensors = load_file(path)
        for name, shape in shapes.items():
            actual = tuple(tensors[name].shape)
            if len(actual) != len(shape) or any(
                size not in (None, got) for size, got in zip(shape, actual, strict=True)
            ):
                raise ValueError(f"{name} has shape {actual}")
    except Exception as error:  # whatever a damaged file makes safetensors raise
        raise ValueError(f"{path}: damaged; delete it to compute it again ({plain(reason(error))})") from error
    return tensors
