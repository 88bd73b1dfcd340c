"""Networks saved with their basis to a folder or the Hugging Face Hub, and loaded from there.

A folder holds JSON and safetensors, and nothing in it is executed: `config.json` has the arguments of the network,
`model.safetensors` its weights, `basis-<digest>.safetensors` the stencils of a basis whose spec is in the config.
"""

import inspect
import json
import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis
from .files import locked, make_folder, plain, read_bytes, reason, write, written_atomically
from .models import create_model, default_options
from .models.checkpoints import check_fit
from .scales import Scales

try:
    from huggingface_hub import ModelHubMixin, hf_hub_download
except ImportError as error:
    raise ImportError('the Hub needs huggingface_hub: pip install "scale-disco[hub]"') from error

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "revision", "token")  # options of hf_hub_download
_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_TAG = "scale_disco"  # key of JSON objects that encode a basis or scales
_KINDS = {cls.kind: cls for cls in (DiscreteBasis, HermiteBasis, BSplineBasis, FourierBesselBasis, LogRadialBasis)}
_CARD = """---\n{{ card_data }}\n---\n
A scale-equivariant network. `CLASS.from_pretrained` loads it; it needs `pip install "scale-disco[hub]"`.
"""


class ScaleHubMixin(ModelHubMixin):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a network of your own.

    Saves the arguments of `__init__` and the weights. Arguments may be a `Basis`, `Scales` and what JSON can hold;
    tuples are loaded as lists. Those named in `unsaved`, such as a file of initial weights, get their defaults. To save
    a network of `to_scale_equivariant`, convert it in `__init__`.

    Example:
        >>> import tempfile
        >>> from scale_disco.nn import ScaleLift2d
        >>> class Net(nn.Module, ScaleHubMixin):
        ...     def __init__(self, basis: Basis, width: int = 8):
        ...         super().__init__()
        ...         self.lift = ScaleLift2d(3, width, basis)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Net(DiscreteBasis(3, [1, 2])).save_pretrained(folder)
        ...     Net.from_pretrained(folder).lift.basis
        DiscreteBasis(3, Scales(1, 2), support=(3, 3), dilation=(1, 2))
    """

    unsaved: ClassVar[tuple[str, ...]] = ()
    _hub_weights: ClassVar[str] = ""  # the submodule whose weights are saved
    _hub_made_with: tuple[dict[str, Any], dict[str, Basis], str]  # arguments as JSON, bases, what cannot be saved

    def __init_subclass__(cls, *, tags: list[str] | None = None, **card: Any) -> None:
        """Set the contents of the model card, with the keywords of `ModelHubMixin`."""
        card = {"library_name": "scale-disco", "model_card_template": _CARD.replace("CLASS", cls.__name__), **card}
        super().__init_subclass__(tags=["scale-equivariance", *(tags or [])], **card)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Record the arguments before `__init__` can change them."""
        network = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        try:
            bound = signature.bind(network, *args, **options)
        except TypeError:  # `__init__` will raise it; copies are made without arguments and get theirs later
            return network
        given, config, bases, refused = {*bound.arguments, *options}, dict[str, Any](), dict[str, Basis](), ""
        bound.apply_defaults()
        values = {**dict(zip(signature.parameters, bound.args, strict=False)), **bound.kwargs}
        for name, value in [(name, values[name]) for name in list(values)[1:] if name not in cls.unsaved]:
            try:
                if name in signature.parameters and signature.parameters[name].kind in _UNNAMED:
                    raise TypeError("it has no keyword")
                config[name] = json.loads(json.dumps(value, default=partial(_encoded, bases=bases), allow_nan=False))
            except (TypeError, ValueError) as error:
                refused = f"{name}: {error}" if name in given else refused  # a default stays with the class
        object.__setattr__(network, "_hub_made_with", (config, bases, refused))
        return network

    def save_pretrained(self, save_directory: str | Path, *, push_to_hub: bool = False, **options: Any) -> str | None:
        """Write the network to a folder, and with `push_to_hub` to the Hub; options are those of `ModelHubMixin`.

        Former content of the folder is replaced atomically, except for its README.md.
        """
        who, folder = f"{type(self).__name__}.save_pretrained", Path(save_directory)
        arguments, bases, refused = self._hub_made_with
        if refused:
            raise TypeError(f"{who}: cannot save the argument {refused}")
        if options.pop("config", None) is not None:
            raise ValueError(f"{who}: the config has the arguments of the network, it cannot be given")
        state = cast(nn.Module, self).get_submodule(self._hub_weights).state_dict()
        for name, value in state.items():  # copied, since safetensors takes no shared memory
            state[name] = value.detach().to("cpu", copy=True).contiguous() if isinstance(value, Tensor) else value
        make_folder(folder)
        with locked(folder):  # or configs and weights of two writers could mix
            for digest, basis in bases.items():
                basis.save(folder / f"basis-{digest}.safetensors")
            with written_atomically(folder / _CONFIG) as note, written_atomically(folder / _WEIGHTS) as weights:
                weights.write_bytes(save(state, {"format": "pt"}))
                note.write_text(json.dumps(arguments, indent=2, sort_keys=True) + "\n", encoding="utf-8")
                (folder / _CONFIG).unlink(missing_ok=True)  # so that no reader sees an old config with new weights
        if not (readme := folder / "README.md").exists():
            write(readme, str(self.generate_model_card(**(options.get("model_card_kwargs") or {}))).encode())
        return str(self.push_to_hub(options.pop("repo_id", None) or folder.name, **options)) if push_to_hub else None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a network from a folder, or from the Hub if there is none; on the CPU and in evaluation mode.

        Options are those of `hf_hub_download`, and arguments that override saved ones. A `Path` is always a folder.
        """
        who, source = f"{cls.__name__}.from_pretrained", pretrained_model_name_or_path
        download = {name: options.pop(name) for name in _DOWNLOAD if name in options}

        def fetch(name: str) -> Path:
            if isinstance(source, os.PathLike) or os.path.exists(source):
                if not (path := Path(source, name)).is_file():
                    raise FileNotFoundError(f"{who}: no such file: {path}")
                return path
            try:
                return Path(hf_hub_download(source, name, **download))
            except (OSError, ValueError) as error:  # includes HTTP errors
                raise FileNotFoundError(f"{who}: no folder {source}, nor on the Hub: {reason(error)}") from error

        def decoded(value: dict[str, Any]) -> Any:
            if _TAG not in value:
                return value
            if value[_TAG] == "Scales":
                return Scales(value["factors"])
            if value[_TAG] != "Basis" or not re.fullmatch("[0-9a-f]{64}", value["digest"]):  # it becomes a file name
                raise ValueError(f"expected Scales or a Basis and its digest, got {textwrap.shorten(str(value), 200)}")
            path = fetch(f"basis-{value['digest']}.safetensors")
            basis: Basis = _KINDS.get(value["spec"]["kind"], Basis).load(path)
            if _encoded(basis, {}) != value:
                raise ValueError(f"{path} is of another basis: {basis.spec}")
            return basis

        config = fetch(_CONFIG)
        cannot_make = f"{who}: cannot make it from {config}"
        with _explained(cannot_make, ValueError):
            content = read_bytes(config)
        with _explained(cannot_make, Exception):
            arguments = json.loads(content.decode(), object_hook=decoded)
            if set(arguments) & set(cls.unsaved):
                raise ValueError(f"{', '.join(cls.unsaved)} cannot be among what was saved")
            arguments = {**arguments, **options}
        weights = fetch(_WEIGHTS)
        with _explained(f"{who}: refused {weights}", SafetensorError, OSError):
            state = load_file(weights)
        try:
            changed = read_bytes(config) != content
        except FileNotFoundError:  # removed until new weights are in place
            changed = True
        if changed:
            raise ValueError(f"{who}: {config.parent} was written while it was read: try again")
        with _explained(cannot_make, Exception):
            cls._hub_check(arguments, state)
            network = cls(**arguments)
        module = cast(nn.Module, network).eval().get_submodule(cls._hub_weights)
        with _explained(f"{who}: refused {weights}", RuntimeError):
            for name, tensor in module.state_dict(keep_vars=True).items():  # cast to the precision of the file
                if name in state and tensor.is_floating_point() and state[name].is_floating_point():
                    tensor.data = tensor.data.to(state[name].dtype)
            module.load_state_dict(state)
        return network

    @classmethod
    def _hub_check(cls, arguments: dict[str, Any], state: dict[str, Tensor]) -> None:
        """Raise an error for arguments that do not fit the weights, before a network is built with them."""


class ScaleModel(nn.Module, ScaleHubMixin):
    """A network of `create_model` that can be saved; it is `network` inside, and weights keep its names.

    Example:
        >>> ScaleModel("mnist/disco")(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    unsaved = ("pretrained", "sha256")  # the weights are saved, not their origin
    _hub_weights = "network"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.network = create_model(name, **options)
        for option, value in default_options(name).items():  # independent of later defaults
            if option not in self.unsaved:
                self._hub_made_with[0].setdefault(option, json.loads(json.dumps(value)))
        if options.get("pretrained") is not None:  # set by the file
            self._hub_made_with[0]["classes"] = len(self.network.state_dict()["fc.bias"])

    @classmethod
    def _hub_check(cls, arguments: dict[str, Any], state: dict[str, Tensor]) -> None:
        with torch.device("meta"):  # malicious arguments could exhaust memory
            check_fit(create_model(**arguments), state)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.network(*inputs, **options)


@contextmanager
def _explained(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of a file or a class into ValueError."""
    try:
        yield
    except kinds as error:
        raise ValueError(f"{what}: {type(error).__name__} {plain(error)}") from error


def _encoded(value: object, bases: dict[str, Basis]) -> dict[str, Any]:
    """Encode a basis or scales as JSON, and collect bases by their digests."""
    if isinstance(value, Scales):
        return {_TAG: "Scales", "factors": list(value)}
    if not isinstance(value, Basis):
        raise TypeError(f"expected a Basis, Scales or what JSON can hold, got {textwrap.shorten(repr(value), 200)}")
    bases[value.digest] = value
    return {_TAG: "Basis", "digest": value.digest, "spec": json.loads(json.dumps(value.spec))}
