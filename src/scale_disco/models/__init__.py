"""Networks by name: those of the paper's experiments, and residual networks with pretrained weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from . import digits, mnist, resnet, scale_estimator, siamfc, stl10

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    **{name: partial(build, augmented=False) for name, build in mnist.BUILDERS.items()},
    **digits.BUILDERS,
    **stl10.BUILDERS,
    **resnet.BUILDERS,
    **siamfc.BUILDERS,
    **scale_estimator.BUILDERS,
}

__all__ = ["create_model", "list_models"]


def create_model(name: str, **options: Any) -> nn.Module:
    """A network by its name.

    Args:
        name: One of `list_models()`.
        options: Those of the network; others are refused. For the networks for digits `augmented`: whether it will be
            trained with scale augmentation, for which the authors tuned some bases. For STL-10 `depth`, `width`,
            `classes` and `dropout`, and those of `models.stl10.sesn` and `models.stl10.disco`. For residual networks
            those of `models.resnet.cnn` (`pretrained`, `sha256`, `classes`, `stride_first`) and `models.resnet.disco`.
            For trackers `pretrained`, `sha256` and `pixels`, and those of `models.siamfc.disco`.
            For scene geometry `backbone`, `pretrained` and `sha256`.

    Example:
        >>> import torch
        >>> create_model("mnist/disco")(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
        >>> create_model("stl10/disco", depth=10, width=1)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> create_model("resnet18/disco", classes=10, scales=(1, 2))(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """
    if name not in _BUILDERS:
        raise ValueError(f"create_model: expected one of {', '.join(list_models())}, got {name!r}")
    known = default_options(name)
    for option in options:
        if option not in known:
            raise TypeError(f"create_model: expected options of {name} among {', '.join(known)}, got {option!r}")
    return _BUILDERS[name](**options)


def default_options(name: str) -> dict[str, Any]:
    """The options of a network and what they are unless given."""
    return {option: one.default for option, one in inspect.signature(_BUILDERS[name]).parameters.items()}


def list_models(family: str = "") -> list[str]:
    """Names that `create_model` knows, of all families or of one, such as "mnist", "stl10" or "resnet50".

    Example:
        >>> "mnist/disco" in list_models("mnist")
        True
        >>> list_models("resnet50")
        ['resnet50/cnn', 'resnet50/disco']
    """
    return [name for name in _BUILDERS if name.startswith(f"{family}/" if family else "")]
