"""Readers of weights, basis files and hub folders."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_tensors

from scale_disco import DiscreteBasis, Scales
from scale_disco.basis import Basis
from scale_disco.hub import ScaleModel
from scale_disco.models.checkpoints import read_weights
from scale_disco.tasks.equivariance.command import _dense_file
from tests.reliability.malformed import Files, Reader, files_of
from tests.reliability.mutations import Seed, seeds_of
from tests.reliability.readers.content import (
    DEPTH,
    HUGE,
    Payload,
    as_file,
    header_seed,
    malformed_json,
    malformed_tensors,
    npy,
    npy_header,
    npz,
    npz_cases,
    only_file,
    relabeled,
    split_tensor_file,
    tensor_file,
    torch_file,
    zip_bomb,
)


def weight_seeds() -> list[Seed]:
    tensors = {"conv.weight": torch.arange(6.0).reshape(2, 3), "norm.bias": torch.zeros(2, dtype=torch.int64)}
    files = {
        "a.safetensors": save_tensors({name: tensor.numpy() for name, tensor in tensors.items()}),
        "a.pth": torch_file({"state_dict": tensors, "epoch": 3}),
        "a.pt": torch_file(tensors, _use_new_zipfile_serialization=False),
    }
    return [
        *(Seed({name: content}, name, content) for name, content in files.items()),
        header_seed({"a.safetensors": files["a.safetensors"]}, "a.safetensors"),
        pickle_seed({"a.pth": files["a.pth"]}, "a.pth"),
    ]


def members_of(content: bytes) -> tuple[dict[str, bytes], str]:
    """Return the members of a zip file of torch, and the name of its pickle."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    (inner,) = [name for name in members if name.endswith("data.pkl")]
    return members, inner


def pickle_seed(files: dict[str, bytes], name: str) -> Seed:
    """Return a seed that mutates the pickle inside a zip file of torch."""
    members, inner = members_of(files[name])
    return Seed(files, name, members[inner], partial(_with_pickle, members=members, inner=inner))


def _with_pickle(content: bytes, members: dict[str, bytes], inner: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, member in (members | {inner: content}).items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return packed.getvalue()


def malformed_torch_files() -> dict[str, bytes | int | None]:
    members, inner = members_of(torch_file({"a": torch.ones(2)}))
    (values,) = [name for name in members if name.endswith("data/0")]
    others = {name: content for name, content in members.items() if name != values}
    return {
        "a payload": torch_file({"weight": Payload()}),
        "a payload in the old format": torch_file({"weight": Payload()}, _use_new_zipfile_serialization=False),
        "a plain pickle": pickle.dumps(Payload()),
        "a storage of three gigabytes": zip_bomb(values, others=others),
        "truncated": torch_file({"a": torch.ones(2)})[:-50],
        "empty": b"",
        "zeros": bytes(1000),
        "larger than memory": HUGE,
        "a list": torch_file([1, 2]),
        "deep nesting": _with_pickle(b"\x80\x02" + b"]" * DEPTH + b"a" * (DEPTH - 1) + b".", members, inner),
    }


def weight_cases() -> dict[str, Files]:
    return {
        **relabeled("safetensors", as_file("a.safetensors", malformed_tensors())),
        **relabeled("torch", as_file("a.pth", malformed_torch_files())),
        "a folder": {"a.pth": None},
        "a folder, safetensors": {"a.safetensors": None},
    }


@cache
def basis_file() -> bytes:
    return files_of(lambda folder: DiscreteBasis(3, [1, 2**0.5, 2]).save(folder / "a.safetensors"))["a.safetensors"]


def basis_spec() -> str:
    spec: str = json.loads(split_tensor_file(basis_file())[0])["__metadata__"]["spec"]
    return spec


def with_spec(content: bytes) -> bytes:
    header, values = split_tensor_file(basis_file())
    document = json.loads(header)
    document["__metadata__"]["spec"] = content.decode("utf-8", "replace")
    return tensor_file(json.dumps(document).encode(), values)


def basis_seeds() -> list[Seed]:
    files = {"a.safetensors": basis_file()}
    spec = Seed(files, "a.safetensors", basis_spec().encode(), with_spec)
    return [*seeds_of(files), header_seed(files, "a.safetensors"), spec]


def basis_cases() -> dict[str, Files]:
    spec = json.loads(basis_spec())
    changes = {
        "a kernel of 10^9": {"kernel_size": 10**9},
        "a dilation of 10^12": {"dilation": [1, 1, 10**12]},
        "a million scales": {"scales": list(range(1, 10**5)), "dilation": [1] * (10**5 - 1)},
        "NaN as a scale": {"scales": [1, float("nan"), 2]},
        "infinite scales": {"scales": [1, 2, float("inf")]},
        "an empty prior": {"prior": [[]]},
    }
    return as_file(
        "a.safetensors",
        {
            **malformed_tensors(),
            **{case: with_spec(json.dumps({**spec, **change}).encode()) for case, change in changes.items()},
            "a deep spec": with_spec(b"[" * DEPTH),
            "a spec with a number of 10^6 digits": with_spec(b'{"scales": ' + b"9" * 10**6 + b"}"),
            "a folder": None,
        },
    )


def dense_seeds() -> list[Seed]:
    dense = npy(DiscreteBasis(3, [1, 2]).dense().numpy())
    files = {"a.npz": npz(basis=dense)}
    return [*seeds_of(files), Seed(files, "a.npz", dense, lambda content: npz(basis=content))]


def dense_cases() -> dict[str, Files]:
    return as_file(
        "a.npz",
        {
            **npz_cases("basis"),
            "objects": npz(basis=npy_header("(1,)", "|O") + pickle.dumps(Payload())),
            "an absurd shape": npz(basis=npy_header("(1099511627776,)")),
            "strings": npz(basis=npy(np.array([["a"]]))),
            "a scalar": npz(basis=npy(np.array(1.0))),
        },
    )


def saved_model(name: str, **options: Any) -> dict[str, bytes]:
    files = files_of(lambda folder: ScaleModel(name, **options).save_pretrained(folder))
    return {name: content for name, content in files.items() if name != "README.md"}


@cache
def hub_files() -> dict[str, bytes]:
    return saved_model("mnist/cnn")


def read_hub(folder: Path) -> None:
    ScaleModel.from_pretrained(folder)


def hub_seeds() -> list[Seed]:
    files = hub_files()
    return [
        *seeds_of(files, "config.json", "model.safetensors"),
        *seeds_of(files, "config.json"),
        header_seed(files, "model.safetensors"),
        *seeds_of(saved_model("stl10/disco", depth=10, width=1), "config.json"),
    ]


def hub_cases() -> dict[str, Files]:
    files = hub_files()
    scales = {
        "a digest with a path": {"scale_disco": "Basis", "digest": "../../../x", "spec": {}},
        "an infinite scale": {"scale_disco": "Scales", "factors": [1, float("inf")]},
        "a scale of 1000.5": {"scale_disco": "Scales", "factors": [1, 1000.5]},
        "a scale of 100,000.5": {"scale_disco": "Scales", "factors": [1, 100_000.5]},
        "absurd scales": {"scale_disco": "Scales", "factors": [1, 1e9]},
        "many scales": {"scale_disco": "Scales", "factors": list(range(1, 5000))},
    }
    wide = {"name": "stl10/wrn", "depth": 10, "width": 10**9}
    configs = {
        **{case: {"name": "resnet18/disco", "scales": value} for case, value in scales.items()},
        "weights of a path": {"name": "resnet18/cnn", "pretrained": "/etc/passwd"},
        "a width of 10^9": wide,
        "a width of 1000": wide | {"width": 1000},
        "a depth of 6 * 10^9 + 4": wide | {"depth": 6 * 10**9 + 4},
        "10^12 classes": wide | {"width": 1, "classes": 10**12},
    }
    return {
        **as_file("config.json", malformed_json(), files),
        **relabeled("weights", as_file("model.safetensors", malformed_tensors(), files)),
        **as_file("config.json", {case: json.dumps(config).encode() for case, config in configs.items()}, files),
    }


READERS = {
    "weights": Reader(lambda folder: read_weights(only_file(folder)), weight_seeds, weight_cases),
    "basis": Reader(lambda folder: Basis.load(folder / "a.safetensors"), basis_seeds, basis_cases),
    "dense basis": Reader(lambda folder: _dense_file(folder / "a.npz", Scales([1, 2])), dense_seeds, dense_cases),
    "hub folder": Reader(read_hub, hub_seeds, hub_cases),
}
