"""`disco train`: train a network of the paper."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from ..files import plain, read_bytes
from ..tasks.io.terminal import (
    Progress,
    UsageError,
    add_command,
    add_device,
    add_out,
    chosen_device,
    is_quiet,
    say,
    show,
    suggest,
)
from ..tasks.runs.experiments import EXPERIMENTS
from ..tasks.runs.options import RunOptions
from ..tasks.runs.record import check_experiment, read_record

_EXAMPLES = """\
  disco train mnist-scale --model mnist/disco --recipe fast --out runs/disco
  disco train mnist-scale --resume --out runs/disco
  disco train mnist-scale --model mnist/cnn --split mini --epochs 2 --out runs/trial
  disco train mnist-scale --config run.yaml --seed 1
  disco train stl10 --model stl10/disco --recipe paper --root data --device cuda --precision bf16
  disco train stl10 --root my/pictures --format folder --depth 10 --width 1 --out runs/mine
  disco train tracker --root my/videos --pretrained resnet50.safetensors --out runs/tracker
  disco train scene --root my/pictures --pretrained resnet50.safetensors --out runs/scene
"""

# The options of every experiment; one of the same name has the same kind of value in all.
_FIELDS: dict[str, dict[str, dataclasses.Field[Any]]] = {
    name: {field.name: field for field in dataclasses.fields(one)}  # type: ignore[arg-type]
    for name, one in EXPERIMENTS.items()
}
_NAMES = list(dict.fromkeys(name for fields in _FIELDS.values() for name in fields))
_LARGEST = 1 << 16  # bytes of a file of settings
_GREATEST = 10**18  # number in it, either way
# Beside the settings, what a file of --config may hold, and what it is if nothing is said.
_OTHERS: dict[str, Any] = {
    "data": Path("data"),
    "out": None,
    "resume": False,
    "device": "auto",
    "devices": 1,
    "nodes": 1,
    "channels_last": False,
    "cache": None,
    "threads": None,
}


def add(commands: Any) -> None:
    """Add the command to the parser; options that are not given are not set, since a file or a run may hold them."""
    train = add_command(commands, "train", run, "train a network of the paper", _EXAMPLES)
    train.add_argument(
        "experiment",
        choices=[*EXPERIMENTS],
        help="mnist-scale (Table 1), stl10 (Tables 2 and 3), tracker (Table 4) or scene (Sec. 4.4)",
    )
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    owners = {name: tuple(one for one, fields in _FIELDS.items() if name in fields) for name in _NAMES}
    groups: dict[tuple[str, ...], Any] = {tuple(EXPERIMENTS): train.add_argument_group("settings")}
    for some in sorted(set(owners.values()) - set(groups), key=lambda some: (-len(some), some)):
        groups[some] = train.add_argument_group(f"settings of {' and '.join(some)}")
    for name in _NAMES:
        _add_setting(groups[owners[name]], name, owners[name], unset)
    train.add_argument(
        "--data",
        "--root",
        type=Path,
        metavar="DIR",
        help="folder of the data, from `disco data` (default data)",
        **unset,
    )
    add_out(train, "the run into this folder (default: runs, then its settings)", folder=True, **unset)
    train.add_argument("--resume", action="store_true", help="go on with the run in --out", **unset)
    add_device(train, "auto")
    train.add_argument("--devices", type=int, metavar="N", help="processes or GPUs that share every batch", **unset)
    train.add_argument(
        "--nodes", type=int, metavar="N", help="machines, each with so many devices (torchrun, SLURM)", **unset
    )
    train.add_argument(
        "--channels-last",
        action="store_true",
        help="keep the channels of a pixel side by side, faster on newer GPUs with --precision 16 or bf16",
        **unset,
    )
    train.add_argument(
        "--cache",
        type=Path,
        metavar="FILE",
        help="keep the decoded pictures of a folder in this file; of scene: what the network sees, in this folder "
        "(default: profiles beside the run)",
        **unset,
    )
    train.add_argument("--config", type=Path, metavar="FILE", help="read arguments from a YAML file")
    train.add_argument(
        "--print-config", "--print_config", action="store_true", help="print such a file for this call, and stop"
    )
    train.set_defaults(parser=train, device=None)


def _add_setting(group: Any, name: str, owners: tuple[str, ...], unset: dict[str, Any]) -> None:
    """The option of a setting that some experiments have."""
    option = f"--{name.replace('_', '-')}"
    fields = [_FIELDS[owner][name] for owner in owners]
    abouts: dict[str, list[str]] = {}
    for owner, field in zip(owners, fields, strict=True):
        abouts.setdefault(field.metadata["help"] + _default_of(field), []).append(owner)
    all_alike = len(abouts) == 1
    about = "; ".join(one if all_alike else f"{', '.join(some)}: {one}" for one, some in abouts.items())
    if fields[0].type == "bool":
        group.add_argument(option, action="store_true", help=about, **unset)
        return
    kind = next(kind for kind in (str, int, float) if str(fields[0].type).startswith(kind.__name__))
    words = [word for owner in owners for word in EXPERIMENTS[owner].suggestions().get(name, [])]
    suggest(group.add_argument(option, type=kind, help=about, **unset), dict.fromkeys(words))


def _default_of(field: dataclasses.Field[Any]) -> str:
    return "" if field.default in (None, False) else f" (default {field.default})"


def run(options: argparse.Namespace) -> None:
    """Read the arguments and train."""
    given = (_configured(options) if options.config else {}) | _given(options)
    if given.get("resume"):  # what is not said is as it was
        if "out" not in given:
            raise ValueError("--resume needs --out, the folder of the run")
        record = read_record(given["out"])
        check_experiment(given["out"], record, options.experiment)
        given = record["settings"] | {"data": Path(record["data"])} | given
    fields = _FIELDS[options.experiment]
    for name in given:
        if name in _NAMES and name not in fields:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"disco train: {option} is not a setting of {options.experiment}; see disco train --help")
    settings = EXPERIMENTS[options.experiment](**{name: given[name] for name in fields if name in given})
    given = _OTHERS | {name: value for name, value in given.items() if name not in _NAMES}
    if options.print_config:
        _print_config(options, settings, given)
        return
    try:
        import rich  # noqa: F401 - Lightning asks for these late
        import tensorboard  # noqa: F401

        from ..tasks.runs.loop import train
    except ModuleNotFoundError as error:
        raise ImportError(f'training needs {error.name}: pip install "scale-disco[train,plot,demo]"') from error
    if given["threads"] is not None:
        if given["threads"] < 1:
            raise ValueError(f"--threads must be at least 1, got {given['threads']}")
        torch.set_num_threads(given["threads"])
    out = given["out"] or Path("runs") / settings.folder
    record = train(
        settings,
        data=given["data"],
        out=out,
        resume=given["resume"],
        device=given["device"] if given["device"] == "auto" else chosen_device(argparse.Namespace(**given)),
        devices=given["devices"],
        nodes=given["nodes"],
        channels_last=given["channels_last"],
        cache=given["cache"] or (settings.kept and out.parent / settings.kept) or None,
        say=say,
        bar=not (is_quiet() or options.json),
        reading=Progress("reading"),
    )
    if record["status"] == "finished":
        best = record["results"].get("validation error")
        known = (
            f"training loss {record['epochs'][-1]['training loss']:.4f}"
            if best is None
            else f"best validation error {best:.2%}"
        )
        say(f"{known}; next: {settings.test.replace('RUN', shlex.quote(str(out)))}")
        if options.json:
            print(json.dumps(record))


def _given(options: argparse.Namespace) -> dict[str, Any]:
    known = [*_NAMES, *_OTHERS]
    return {name: value for name, value in vars(options).items() if name in known and value is not None}


def _configured(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments in the file of --config."""
    import yaml  # type: ignore[import-untyped,unused-ignore]

    path = options.config
    try:
        packed = read_bytes(path, _LARGEST)
        parts = 0
        for event in yaml.parse(packed):  # before anything is made of it: aliases could unfold to gigabytes
            parts += isinstance(event, yaml.CollectionStartEvent)
            if isinstance(event, yaml.AliasEvent) or parts > 1:
                raise ValueError("expected lines such as `epochs: 2`, not lists or aliases")
        content = yaml.safe_load(packed)
    except OSError:
        raise
    except Exception as error:  # dates, numbers and tags that are none make it raise a dozen kinds
        raise ValueError(f"{path}: no YAML file of arguments ({plain(error) or type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected arguments such as `epochs: 2`, got {plain(content)}")
    if (named := content.get("experiment", options.experiment)) != options.experiment:
        raise ValueError(f"{path}: it is for {plain(named)}, got {options.experiment}")
    words = [options.experiment]
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, NoneType)):
            raise ValueError(f"{path}: expected arguments such as `epochs: 2`, got {plain(f'{name}: {value}')}")
        if isinstance(value, int) and abs(value) > _GREATEST:
            raise ValueError(f"{path}: {plain(name)} is absurdly large")
        if name != "experiment" and value is not None and value is not False:
            option = f"--{name}".replace("_", "-")
            words += [option] if value is True else [f"{option}={value}"]
    try:
        read, unknown = options.parser.parse_known_args(words)
        if unknown:
            options.parser.refuse(unknown)
    except UsageError as error:
        raise UsageError(f"{plain(error)} (in {path})") from error
    return _given(read)


def _print_config(options: argparse.Namespace, settings: RunOptions, others: dict[str, Any]) -> None:
    import yaml  # type: ignore[import-untyped,unused-ignore]

    plain = {name: str(value) if isinstance(value, Path) else value for name, value in others.items()}
    document = {"experiment": options.experiment} | settings.as_dict() | plain
    show(options, document, yaml.safe_dump(document, sort_keys=False).rstrip())
