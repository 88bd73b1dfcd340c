"""Pretrained weights: checkpoints read without running what is in them, downloads that are checked."""

from __future__ import annotations

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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..files import make_folder, mapped, plain, reason

PACKAGES = ("torchvision", "timm")  # that know where weights are
_NESTED = ("state_dict", "model_state_dict", "model")  # what training scripts call the weights among other things
_SHOWN = 3  # names in an error


class RefusedError(ValueError):
    """A file that could run code or fill the memory."""


class Checkpoint(NamedTuple):
    """Tensors by name, the file that they are from, and its sha256."""

    tensors: dict[str, Tensor]
    path: Path
    sha256: str


def read_weights(path: str | os.PathLike[str], sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, on the CPU. Nothing in the file is executed.

    Files that end in .safetensors are read by safetensors, others by torch (`weights_only`). Where weights are kept
    beside other things, under "state_dict" or "model", they are taken from there.

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
    """What `read_weights` reads, with the file's path and sha256."""
    path = Path(path)
    expected = _check_sha256(sha256)
    found = _sha256_of(path)
    if expected not in (None, found):
        raise ValueError(f"read_weights: expected sha256 {expected}, {path} has {found}: get it anew, or mend sha256")
    content = _safe_tensors(path) if path.suffix == ".safetensors" else _torch_file(path)
    if isinstance(content, dict):
        content = next((content[key] for key in _NESTED if isinstance(content.get(key), dict)), content)
    return Checkpoint(_checked(content, path), path, found)


def download_weights(name: str, package: str, sha256: str | None = None) -> Path:
    """The file with a network's weights from where torchvision or timm says that it is.

    It is downloaded into the folder that `torch.hub` keeps, unless it is there. Its sha256 must begin as the file's
    name says, which ends in eight or more digits of it, and be the one that is given, if one is.
    """
    expected = _check_sha256(sha256)
    url = _address(name, package)
    file = urllib.parse.urlsplit(url).path.rpartition("/")[2]
    in_name = re.search(r"-([0-9a-f]{8,64})\.\w+$", file)
    start = in_name.group(1) if in_name else expected
    if start is None:
        raise ValueError(f"{name}: {url} has no checksum in its name: give its sha256")
    if expected is not None and not expected.startswith(start):
        raise ValueError(f"{name}: expected sha256 {expected}, but that of {url} begins with {start}")
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    target = folder / file
    if not target.is_file():
        make_folder(folder)
        try:
            torch.hub.download_url_to_file(url, str(target), expected or start)
        except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
            raise OSError(f"{name}: cannot download {url} ({reason(error)}); give a file of your own") from error
    elif not (found := _sha256_of(target)).startswith(start):
        raise ValueError(f"{name}: expected sha256 {start}... of {target}, found {found}: delete it and try again")
    return target


def load_weights(network: nn.Module, checkpoint: Checkpoint, who: str, *, but: Collection[str] = ()) -> None:
    """Give a network the tensors of a checkpoint, whose names and shapes must be the network's own.

    Tensors are cast to the network's dtype. The batch counters of norms may be missing: old files have none.

    Args:
        network: Changed in place.
        checkpoint: From `read_checkpoint`.
        who: The network's name, for errors.
        but: Names that stay as they are in the network, whatever the file has.
    """
    own = {name: tensor for name, tensor in network.state_dict().items() if name not in but}
    given = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in but}
    if complaints := _misfits(own, given):
        raise ValueError(f"{who}: {checkpoint.path} does not fit: {complaints}")
    network.load_state_dict(given, strict=False)  # copies, and casts on the way


def check_fit(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than a network has, which may lie on the device "meta"."""
    if complaints := _misfits(network.state_dict(), tensors):
        raise ValueError(complaints)


def _misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """In what names and shapes differ, in words; none if they do not."""
    required = [name for name in own if not name.endswith(".num_batches_tracked")]
    complaints = []
    if missing := [name for name in required if name not in given]:
        complaints.append(f"it lacks {_listed(missing)}")
    if foreign := [name for name in given if name not in own]:
        complaints.append(f"it has {_listed(foreign)}, which the network has not")
    if wrong := [
        f"{name} is {_kind(given[name])}, expected {_kind(tensor)}"
        for name, tensor in own.items()
        if name in given and not _fits(given[name], tensor)
    ]:
        complaints.append(_listed(wrong))
    return plain("; ".join(complaints))


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


def _safe_tensors(path: Path) -> Any:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"read_weights: {path} is damaged, or no safetensors file ({plain(reason(error))})") from error


def load_plain(path: Path) -> Any:
    """What `torch.save` wrote, if that is tensors, numbers and words; errors are torch's, of any kind.

    Nothing in the file is executed, and what it holds is as large as the file.
    """
    # Before 2.6 torch executed files in its oldest format, a tar, in spite of `weights_only`.
    if _is_tar(path):
        raise RefusedError("tar files of old versions of torch could run code")
    if zipfile.is_zipfile(path):  # torch packs nothing, but unpacks what others packed
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise RefusedError("it would unpack to more than it holds")
    with mapped(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd pickles, with advice to report them
        source: Any = path if file[:2] == b"PK" else file
        return torch.load(source, map_location="cpu", weights_only=True)


def _is_tar(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:"):  # tarfile.is_tarfile would also try to unpack it, which may take for ever
            return True
    except tarfile.TarError:
        return False


def _torch_file(path: Path) -> Any:
    try:
        return load_plain(path)
    except MemoryError:
        raise
    except RefusedError as error:
        raise ValueError(f"read_weights: refused {path}: {error}") from error
    except Exception as error:  # a foreign file makes it raise anything; its words, not repeated, advise to execute it
        blocked = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if blocked:
            raise ValueError(
                f"read_weights: refused {path}: it would call {plain(blocked.group(1))}: save its state_dict() alone"
            ) from error
        raise ValueError(f"read_weights: {path} is damaged, or no checkpoint of torch or safetensors") from error


def _checked(content: Any, path: Path) -> dict[str, Tensor]:
    """A dictionary of tensors, or an error that says what else it is."""
    if not isinstance(content, dict) or not content:
        found = "nothing" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ValueError(f"read_weights: expected tensors by name in {path}, found {found}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            found = f"{plain(repr(name))} with a {type(tensor).__name__}"
            raise ValueError(f"read_weights: expected tensors by name in {path}, found {found}")
    return dict(content)


def _address(name: str, package: str) -> str:
    """Where a package says that the weights of a network are."""
    try:
        module: Any = importlib.import_module(package)
    except Exception as error:  # what an import of another package raises is its own affair
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ImportError(f"{name}: pretrained={package!r} needs {package}: pip install {package}") from error
        raise ImportError(
            f"{name}: {package} cannot be imported ({reason(error)}): mend it, or give a file of weights"
        ) from error
    try:
        if package == "torchvision":
            url = module.models.get_model_weights(name).DEFAULT.url
        else:
            url = module.get_pretrained_cfg(name).url
    except Exception as error:  # old versions have other names for these
        raise ValueError(f"{name}: {package} does not say where its weights are ({reason(error)})") from error
    if not isinstance(url, str) or not url:
        raise ValueError(f"{name}: {package} does not say where its weights are (url is {url!r}): give a file of them")
    return url


def _fits(given: Tensor, own: Tensor) -> bool:
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
