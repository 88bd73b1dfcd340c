"""The networks of the paper's experiments, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from . import mnist

_BUILDERS: dict[str, Callable[..., nn.Module]] = {**mnist.BUILDERS}

__all__ = ["create_model", "list_models"]


def create_model(name: str, *, augmented: bool = False) -> nn.Module:
    """A network of the paper by its name, with random weights.

    Args:
        name: One of `list_models()`.
        augmented: Whether it will be trained with scale augmentation: the authors tuned some bases for that.

    Example:
        >>> import torch
        >>> create_model("mnist/disco")(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    if name not in _BUILDERS:
        raise ValueError(f"create_model: expected one of {', '.join(list_models())}, got {name!r}")
    return _BUILDERS[name](augmented=augmented)


def list_models(family: str = "") -> list[str]:
    """Names that `create_model` knows, of all families or of one, such as "mnist".

    Example:
        >>> "mnist/disco" in list_models("mnist")
        True
    """
    return [name for name in _BUILDERS if name.startswith(f"{family}/" if family else "")]
