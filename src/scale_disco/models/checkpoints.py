"""Pretrained weights: checkpoints read without executing anything in them, and verified downloads."""

import hashlib
import http.client
import importlib
import os
import pickle
import re
import tarfile
import urllib.parse
import warnings
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..files import listed, make_folder, mapped, plain, reason

PACKAGES = ("torchvision", "timm")  # that know where weights are
_NESTED = ("state_dict", "model_state_dict", "model")  # keys of weights in the files of training scripts


class RefusedError(ValueError):
    """A file that could run code or exhaust memory."""


class Checkpoint(NamedTuple):
    """Tensors by name, the file that they are from, and its sha256."""

    tensors: dict[str, Tensor]
    path: Path
    sha256: str


def read_weights(path: str | os.PathLike[str], sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU. Nothing in the file is executed.

    Files that end in .safetensors are read by safetensors, others by torch (`weights_only`). Weights nested under
    "state_dict" or "model" are found.

    Args:
        path: The file.
        sha256: Its checksum, 64 hexadecimal digits; a file with another one is refused.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "linear.pth"
        >>> torch.save({"epoch": 3, "state_dict": nn.Linear(2, 5).state_dict()}, path)
        >>> {name: tuple(tensor.shape) for name, tensor in read_weights(path).items()}
        {'weight': (5, 2), 'bias': (5,)}
    """
    return read_checkpoint(path, sha256).tensors


def read_checkpoint(path: str | os.PathLike[str], sha256: str | None = None) -> Checkpoint:
    """Return what `read_weights` reads, with the file's path and sha256."""
    path, expected = Path(path), _check_sha256(sha256)
    actual = _sha256_of(path)
    if expected not in (None, actual):
        raise ValueError(f"read_weights: expected sha256 {expected}, {path} has {actual}: get it again, or fix sha256")
    content = _read(path)
    if isinstance(content, dict):
        content = next((content[key] for key in _NESTED if isinstance(content.get(key), dict)), content)
    problem = f"a {type(content).__name__}" if not isinstance(content, dict) else "" if content else "nothing"
    for name, tensor in content.items() if isinstance(content, dict) else ():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            problem = problem or f"{plain(repr(name))} with a {type(tensor).__name__}"
    if problem:
        raise ValueError(f"read_weights: expected tensors by name in {path}, found {problem}")
    return Checkpoint(dict(content), path, actual)


def weight_file(pretrained: str | os.PathLike[str], name: str, sha256: str | None = None) -> Path:
    """Return the file of pretrained weights, downloaded first if it is one of `PACKAGES` for a network of this name."""
    return download_weights(name, str(pretrained), sha256) if pretrained in PACKAGES else Path(pretrained)


def download_weights(name: str, package: str, sha256: str | None = None) -> Path:
    """Return the file with a network's weights, downloaded from the address that torchvision or timm has for it.

    The file is kept in the folder of `torch.hub`. Its sha256 must begin with the eight or more digits at the end of its
    name, and be the given one, if any.
    """
    expected = _check_sha256(sha256)
    url = _address(name, package)
    file = urllib.parse.urlsplit(url).path.rpartition("/")[2]
    in_name = re.search(r"-([0-9a-f]{8,64})\.\w+$", file)
    start = in_name.group(1) if in_name else expected
    if start is None:
        raise ValueError(f"{name}: {url} has no checksum in its name; pass its sha256")
    if expected is not None and not expected.startswith(start):
        raise ValueError(f"{name}: expected sha256 {expected}, but that of {url} begins with {start}")
    target = Path(torch.hub.get_dir()) / "checkpoints" / file
    if not target.is_file():
        make_folder(target.parent)
        try:
            torch.hub.download_url_to_file(url, str(target), expected or start)
        except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
            raise OSError(f"{name}: cannot download {url} ({reason(error)}); pass a weights file") from error
    elif not (actual := _sha256_of(target)).startswith(start):
        raise ValueError(f"{name}: expected sha256 {start}... of {target}, found {actual}: delete it and try again")
    return target


def load_weights(network: nn.Module, checkpoint: Checkpoint, who: str, *, but: Collection[str] = ()) -> None:
    """Load the tensors of a checkpoint into a network with the same names and shapes.

    Tensors are cast to the network's dtype; those named in `but` are not loaded. The batch counters of norms may be
    missing, as in old files. `who` is the network's name, for errors.
    """
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in but}
    where = f"{who}: {checkpoint.path} does not fit: "
    check_fit(network, tensors, where, but=but)
    try:
        network.load_state_dict(tensors, strict=False)
    except ValueError as error:  # from a layer with another basis
        raise ValueError(f"{where}{error}") from error


def check_fit(network: nn.Module, tensors: Mapping[str, Tensor], where: str = "", *, but: Collection[str] = ()) -> None:
    """Raise an error unless tensors have the names and shapes of a network, which may be on the meta device.

    Layers compare their extra states themselves: those of one basis may differ in a digit.
    """
    own = {name: tensor for name, tensor in network.state_dict().items() if name not in but}

    def kind(tensor: Tensor) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

    missing = [name for name in own if name not in tensors and not name.endswith(".num_batches_tracked")]
    unexpected = [name for name in tensors if name not in own]
    different = [
        f"{name} is {kind(tensors[name])}, expected {kind(tensor)}"
        for name, tensor in own.items()
        if name in tensors
        and not name.endswith("_extra_state")
        and (tensors[name].shape, tensors[name].is_floating_point()) != (tensor.shape, tensor.is_floating_point())
    ]
    parts = [f"it lacks {listed(missing)}"] if missing else []
    parts += [f"it has {listed(unexpected)}, which the network has not"] if unexpected else []
    parts += [listed(different)] if different else []
    if parts:
        raise ValueError(where + plain("; ".join(parts)))


def _check_sha256(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"read_weights: sha256 must have 64 hexadecimal digits, got {sha256!r}")
    return sha256.lower()


def _sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise FileNotFoundError(f"read_weights: no such file: {path}") from None
    except OSError as error:
        raise type(error)(f"read_weights: cannot read {path}: {error.strerror}") from error


def load_plain(path: Path) -> Any:
    """Load what `torch.save` wrote, if that is tensors, numbers and strings; errors are torch's, of any kind.

    Nothing in the file is executed, and what it holds is as large as the file.
    """
    # Before 2.6 torch executed files in its oldest format, a tar, in spite of `weights_only`.
    # `tarfile.is_tarfile` would also try to decompress it, which may never end.
    with suppress(tarfile.TarError), tarfile.open(path, "r:"):
        raise RefusedError("tar files of old versions of torch could run code")
    if zipfile.is_zipfile(path):  # torch does not compress, but decompresses
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise RefusedError("it would unpack to more than it holds")
    with mapped(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on unusual pickles, with advice to report them
        source: Any = path if file[:2] == b"PK" else file
        return torch.load(source, map_location="cpu", weights_only=True)


def _read(path: Path) -> Any:
    """Return the content of a file of weights."""
    safe = path.suffix == ".safetensors"
    try:
        return load_file(path) if safe else load_plain(path)
    except Exception as error:  # torch may raise anything; its advice to execute the file is not repeated
        if isinstance(error, MemoryError) or (safe and not isinstance(error, SafetensorError)):
            raise
        blocked = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if blocked or isinstance(error, RefusedError):
            why = f"it would call {plain(blocked.group(1))}: save its state_dict() alone" if blocked else error
            raise ValueError(f"read_weights: refused {path}: {why}") from error
        kind = f"safetensors file ({plain(reason(error))})" if safe else "checkpoint of torch or safetensors"
        raise ValueError(f"read_weights: {path} is damaged, or not a {kind}") from error


def _address(name: str, package: str) -> str:
    """Return the URL that a package has for the weights of a network."""
    try:
        module: Any = importlib.import_module(package)
    except Exception as error:  # importing another package may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ImportError(f"{name}: pretrained={package!r} needs {package}: pip install {package}") from error
        hint = "fix it, or give a file of weights"
        raise ImportError(f"{name}: {package} cannot be imported ({reason(error)}): {hint}") from error
    try:
        vision = package == "torchvision"
        url = (module.models.get_model_weights(name).DEFAULT if vision else module.get_pretrained_cfg(name)).url
    except Exception as error:  # old versions have other names for these
        raise ValueError(f"{name}: {package} does not say where its weights are ({reason(error)})") from error
    if not isinstance(url, str) or not url:
        raise ValueError(f"{name}: {package} does not say where its weights are (url is {url!r}); pass a weights file")
    return url
