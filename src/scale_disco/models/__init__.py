"""Networks by name: those of the paper's experiments, and residual networks with pretrained weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .packaged import cards, packaged_weights

if TYPE_CHECKING:
    from torch import nn

__all__ = ["create_model", "default_options", "list_models"]

# Module -> names in its BUILDERS; it is imported when one of its networks is created.
_NAMES: dict[str, tuple[str, ...]] = {
    "tasks.mnist_scale.networks": (
        *("mnist/cnn", "mnist/sicnn", "mnist/si-convnet", "mnist/sevf", "mnist/dss", "mnist/ss-cnn"),
        *("mnist/sesn-hermite", "mnist/sesn-bspline", "mnist/sesn-fourier", "mnist/sesn-radial", "mnist/disco"),
        *("mnist/disco-decide", "mnist/decimated", "mnist/decimated-decide"),
    ),
    "tasks.mnist_scale.small_networks": ("digits/cnn", "digits/sesn-hermite", "digits/disco"),
    "tasks.generalization.networks": (
        *("generalization/cnn", "generalization/ensemble", "generalization/sesn-hermite", "generalization/disco"),
        "generalization/decimated",
    ),
    "tasks.stl10.networks": (
        *("stl10/wrn", "stl10/sicnn", "stl10/si-convnet", "stl10/dss", "stl10/ss-cnn"),
        *("stl10/sesn-hermite", "stl10/disco"),
    ),
    "models.resnet": tuple(f"resnet{depth}/{kind}" for depth in (18, 34, 50) for kind in ("cnn", "disco")),
    "tasks.tracking.networks": ("track/siamfc", "track/trisiam", "track/siamfc+", "track/se-siamfc+", "track/disco"),
    "tasks.scene.networks": (
        *("scene/argmax", "scene/centroid", "scene/profile", "scene/equivariant"),
        *("scene/matched", "scene/shift", "scene/first-scale"),
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def create_model(name: str, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: One of `list_models()`.
        options: Options of the network; others raise an error. `pretrained=True` takes the weights that come with the
            package, for the networks of `list_models(pretrained=True)`. For digits `augmented`: whether it will be
            trained with scale augmentation, for which the authors tuned some bases; for `mnist/cnn` and `mnist/disco`
            also `pretrained` and `sha256`. For digits of unseen sizes `scales` and `head`. For STL-10 `depth`, `width`,
            `classes`, `dropout`, and those of `tasks.stl10.networks.sesn` and `disco`. For residual networks those of
            `models.resnet.cnn` (`pretrained`, `sha256`, `classes`, `stride_first`) and `models.resnet.disco`. For
            trackers `pretrained`, `sha256`, `pixels`, and those of `tasks.tracking.networks.disco`. For scene geometry
            `backbone`, `pretrained` and `sha256`.

    Example:
        >>> import torch
        >>> create_model("mnist/disco", pretrained=True).eval()(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
        >>> create_model("stl10/disco", depth=10, width=1)(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> create_model("resnet18/disco", classes=10, scales=(1, 2))(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """
    if name not in _MODULES:
        near = "".join(f"; did you mean {other}?" for other in get_close_matches(name, _MODULES, 1))
        raise ValueError(f"create_model: expected one of {', '.join(list_models())}, got {name!r}{near}")
    if options.get("pretrained") is True:
        options["pretrained"] = packaged_weights(name)
    elif options.get("pretrained") is False:
        del options["pretrained"]
    valid = default_options(name)
    for option in options:
        if option not in valid:
            raise TypeError(f"create_model: expected options of {name} among {', '.join(valid)}, got {option!r}")
    return _builder(name)(**options)


def default_options(name: str) -> dict[str, Any]:
    """Return the options of a network with their default values."""
    return {option: parameter.default for option, parameter in inspect.signature(_builder(name)).parameters.items()}


def list_models(family: str = "", *, pretrained: bool = False) -> list[str]:
    """List the names that `create_model` knows, of all families or of one, such as "mnist", "stl10" or "resnet50".

    With `pretrained` those whose weights come with the package; `packaged.cards` says what they are.

    Example:
        >>> "mnist/disco" in list_models("mnist")
        True
        >>> list_models("resnet50")
        ['resnet50/cnn', 'resnet50/disco']
        >>> list_models(pretrained=True)
        ['mnist/cnn', 'mnist/disco', 'track/siamfc+', 'track/disco', 'scene/shift']
    """
    names = [name for name in _MODULES if name.startswith(f"{family}/" if family else "")]
    return [name for name in names if name in cards()] if pretrained else names


def _builder(name: str) -> Callable[..., nn.Module]:
    builders: dict[str, Callable[..., nn.Module]] = import_module(f"..{_MODULES[name]}", __name__).BUILDERS
    return builders[name]
