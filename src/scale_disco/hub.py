"""Networks saved with their basis to a folder or the Hugging Face Hub, and loaded from there.

A folder holds JSON and safetensors, and nothing in it is executed: `config.json` has the arguments of the network,
`model.safetensors` its weights, `basis-<digest>.safetensors` the stencils of a basis whose spec is in the config.
"""

import inspect
import json
import os
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .basis import Basis, BSplineBasis, DiscreteBasis, FourierBesselBasis, HermiteBasis, LogRadialBasis
from .checks import short_repr
from .files import locked, make_folder, plain, read_bytes, reason, write, written_atomically
from .models import create_model, default_options
from .models.checkpoints import check_fit
from .scales import Scales

try:
    from huggingface_hub import ModelHubMixin, snapshot_download
except ImportError as error:
    raise ImportError('the Hub needs huggingface_hub: pip install "scale-disco[hub]"') from error

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "revision", "token")  # options of snapshot_download
_KINDS = {cls.kind: cls for cls in (DiscreteBasis, HermiteBasis, BSplineBasis, FourierBesselBasis, LogRadialBasis)}
_CARD = """---\n{{ card_data }}\n---\n
A scale-equivariant network. `{{ network }}.from_pretrained` loads it; it needs `pip install "scale-disco[hub]"`.
"""


class ScaleHubMixin(ModelHubMixin, library_name="scale-disco", tags=["scale-equivariance"], model_card_template=_CARD):
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

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Record the arguments before `__init__` can change them.

        The mixin's coders drop what they cannot encode, and decode only arguments annotated with a class.
        """
        network, parameters = super().__new__(cls), inspect.signature(cls.__init__).parameters
        given = {**dict(zip(list(parameters)[1:], args, strict=False)), **options}
        values = {**{name: p.default for name, p in parameters.items() if p.default is not p.empty}, **given}
        unnamed = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}
        config, bases, refused = dict[str, Any](), dict[str, Basis](), ""
        for name in [name for name in values if name not in cls.unsaved]:
            try:
                if name in unnamed:
                    raise TypeError("it has no keyword")
                config[name] = json.loads(json.dumps(values[name], default=partial(_encoded, bases), allow_nan=False))
            except (TypeError, ValueError) as error:
                refused = f"{name}: {error}" if name in given else refused  # a default stays with the class
        object.__setattr__(network, "_hub_made_with", (config, bases, refused))
        return network

    def save_pretrained(self, save_directory: str | Path, *, push_to_hub: bool = False, **options: Any) -> str | None:
        """Write the network to a folder, and with `push_to_hub` to the Hub; options are those of `ModelHubMixin`.

        Former content of the folder is replaced atomically, except for its README.md.
        """
        who, folder = f"{type(self).__name__}.save_pretrained", Path(save_directory)
        config, bases, refused = self._hub_made_with
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
                note.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
                (folder / _CONFIG).unlink(missing_ok=True)  # so that no reader sees an old config with new weights
        if not (readme := folder / "README.md").exists():
            words = {"network": type(self).__name__, **(options.get("model_card_kwargs") or {})}
            write(readme, str(self.generate_model_card(**words)).encode())
        return str(self.push_to_hub(options.pop("repo_id", None) or folder.name, **options)) if push_to_hub else None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a network from a folder, or from the Hub if there is none; on the CPU and in evaluation mode.

        Options are those of `snapshot_download`, and arguments that override saved ones. A `Path` is always a folder.
        """
        who, source = f"{cls.__name__}.from_pretrained", pretrained_model_name_or_path
        download = {name: options.pop(name) for name in _DOWNLOAD if name in options}
        if isinstance(source, str) and not os.path.exists(source):
            try:
                source = snapshot_download(source, allow_patterns=[_CONFIG, "*.safetensors"], **download)
            except (OSError, ValueError) as error:  # includes HTTP errors
                raise FileNotFoundError(f"{who}: no folder {source}, nor on the Hub: {reason(error)}") from error
        folder = Path(source)
        try:
            content, state = read_bytes(folder / _CONFIG), load_file(folder / _WEIGHTS)
            if read_bytes(folder / _CONFIG) != content:
                raise ValueError("the folder was written while it was read: try again")
            arguments = json.loads(content.decode(), object_hook=partial(_decoded, folder))
            if set(arguments) & set(cls.unsaved):
                raise ValueError(f"{', '.join(cls.unsaved)} cannot be among what was saved")
            network = cls._hub_make({**arguments, **options}, state)
            module = cast(nn.Module, network).eval().get_submodule(cls._hub_weights)
            for name, tensor in module.state_dict(keep_vars=True).items():  # cast to the precision of the file
                if name in state and tensor.is_floating_point() and state[name].is_floating_point():
                    tensor.data = tensor.data.to(state[name].dtype)
            module.load_state_dict(state)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{who}: {plain(error)}") from error
        except Exception as error:  # of the files, and of a class that they do not fit
            problem = f"{type(error).__name__} {plain(error)}"
            raise ValueError(f"{who}: cannot make it from {_CONFIG} and {_WEIGHTS} in {folder}: {problem}") from error
        return network

    @classmethod
    def _hub_make(cls, arguments: dict[str, Any], state: dict[str, Tensor]) -> Self:
        return cls(**arguments)


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
                self._hub_made_with[0].setdefault(option, value)
        if options.get("pretrained") is not None and "classes" in default_options(name):  # set by the file
            self._hub_made_with[0]["classes"] = len(self.network.state_dict()["fc.bias"])

    @classmethod
    def _hub_make(cls, arguments: dict[str, Any], state: dict[str, Tensor]) -> Self:
        with torch.device("meta"):  # malicious arguments could exhaust memory
            check_fit(create_model(**arguments), state)
        return cls(**arguments)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.network(*inputs, **options)


def _encoded(bases: dict[str, Basis], value: object) -> dict[str, Any]:
    """Encode a basis or scales as JSON, and collect bases by their digests."""
    if isinstance(value, Scales):
        return {"scale_disco": "Scales", "factors": list(value)}
    if not isinstance(value, Basis):
        raise TypeError(f"expected a Basis, Scales or what JSON can hold, got {short_repr(value)}")
    bases[value.digest] = value
    return {"scale_disco": "Basis", "digest": value.digest, "spec": value.spec}


def _decoded(folder: Path, value: dict[str, Any]) -> Any:
    """Decode an object of JSON, with the files of bases in a folder."""
    match value:
        case {"scale_disco": "Scales", "factors": factors}:
            return Scales(factors)
        case {"scale_disco": "Basis", "digest": str(digest), "spec": spec} if digest.isalnum():  # it names a file
            basis = _KINDS.get(spec["kind"], Basis).load(folder / f"basis-{digest}.safetensors")
            if (basis.digest, basis.spec) != (digest, spec):
                raise ValueError(f"basis-{digest}.safetensors is of another basis: {basis.spec}")
            return basis
        case {"scale_disco": _}:
            raise ValueError(f"expected Scales or a Basis and its digest, got {short_repr(value)}")
    return value
