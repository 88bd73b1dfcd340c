"""`disco train`: train a network of the paper."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import torch

from ..data.mnist_scale import SPLITS
from ..training.recipe import MODELS, RECIPES, Settings
from ..training.record import read_record
from .terminal import UsageError, add_command, add_device, add_out, chosen_device, is_quiet, say, show, suggest

_EXAMPLES = """\
  disco train mnist-scale --model mnist/disco --recipe fast --out runs/disco
  disco train mnist-scale --resume --out runs/disco
  disco train mnist-scale --model mnist/cnn --split mini --epochs 2 --out runs/trial
  disco train mnist-scale --config run.yaml --seed 1
"""

_NAMES = [field.name for field in dataclasses.fields(Settings)]
_WORDS: dict[str, Any] = {"model": MODELS, "split": SPLITS, "recipe": RECIPES}
# Beside the settings, what a file of --config may hold, and what it is if nothing is said.
_OTHERS: dict[str, Any] = {
    "data": Path("data"),
    "out": None,
    "resume": False,
    "device": "auto",
    "devices": 1,
    "nodes": 1,
    "threads": None,
}


def add(commands: Any) -> None:
    """Add the command to the parser; options that are not given are not set, since a file or a run may hold them."""
    train = add_command(commands, "train", run, "train a network of the paper", _EXAMPLES)
    train.add_argument("experiment", choices=["mnist-scale"], help="its data come from `disco data mnist-scale`")
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    for field in dataclasses.fields(Settings):
        about = field.metadata["help"]
        if field.type == "bool":
            train.add_argument(f"--{field.name}", action="store_true", help=about, **unset)
        else:
            about += "" if field.default is None else f" (default {field.default})"
            kind = str if field.type == "str" else int
            suggest(train.add_argument(f"--{field.name}", type=kind, help=about, **unset), _WORDS.get(field.name, []))
    train.add_argument("--data", type=Path, metavar="DIR", help="folder of the realisations (default data)", **unset)
    add_out(train, "the run into this folder (default: runs, then its settings)", folder=True, **unset)
    train.add_argument("--resume", action="store_true", help="go on with the run in --out", **unset)
    add_device(train, "auto")
    train.add_argument("--devices", type=int, metavar="N", help="processes or GPUs that share every batch", **unset)
    train.add_argument(
        "--nodes", type=int, metavar="N", help="machines, each with so many devices (torchrun, SLURM)", **unset
    )
    train.add_argument("--config", type=Path, metavar="FILE", help="read arguments from a YAML file")
    train.add_argument(
        "--print-config", "--print_config", action="store_true", help="print such a file for this call, and stop"
    )
    train.set_defaults(parser=train, device=None)


def run(options: argparse.Namespace) -> None:
    """Read the arguments and train."""
    given = (_configured(options) if options.config else {}) | _given(options)
    if given.get("resume"):  # what is not said is as it was
        if "out" not in given:
            raise ValueError("--resume needs --out, the folder of the run")
        record = read_record(given["out"])
        given = record["settings"] | {"data": Path(record["data"])} | given
    settings = Settings(**{name: given[name] for name in _NAMES if name in given})
    given = _OTHERS | {name: value for name, value in given.items() if name not in _NAMES}
    if options.print_config:
        _print_config(options, settings, given)
        return
    try:
        import rich  # noqa: F401 - Lightning asks for these late
        import tensorboard  # noqa: F401

        from ..training.run import train
    except ModuleNotFoundError as error:
        raise ImportError(f'training needs {error.name}: pip install "scale-disco[train,plot,demo]"') from error
    if given["threads"] is not None:
        if given["threads"] < 1:
            raise ValueError(f"--threads must be at least 1, got {given['threads']}")
        torch.set_num_threads(given["threads"])
    out = given["out"] or Path("runs") / _name(settings)
    record = train(
        settings,
        data=given["data"],
        out=out,
        resume=given["resume"],
        device=given["device"] if given["device"] == "auto" else chosen_device(argparse.Namespace(**given)),
        devices=given["devices"],
        nodes=given["nodes"],
        say=say,
        bar=not (is_quiet() or options.json),
    )
    if record["status"] == "finished":
        best = record["results"]["validation error"]
        say(f"best validation error {best:.2%}; next: disco test {shlex.quote(str(out))}")
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
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected arguments such as `epochs: 2`, got {content!r}")
    words = [content.get("experiment") or options.experiment]
    for name, value in content.items():
        if name != "experiment" and value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}={value}"]
    try:
        read, unknown = options.parser.parse_known_args(words)
        if unknown:
            options.parser.refuse(unknown)
    except UsageError as error:
        raise UsageError(f"{error} (in {path})") from error
    return _given(read)


def _print_config(options: argparse.Namespace, settings: Settings, others: dict[str, Any]) -> None:
    import yaml  # type: ignore[import-untyped,unused-ignore]

    plain = {name: str(value) if isinstance(value, Path) else value for name, value in others.items()}
    document = {"experiment": options.experiment} | dataclasses.asdict(settings) | plain
    show(options, document, yaml.safe_dump(document, sort_keys=False).rstrip())


def _name(settings: Settings) -> str:
    augment = "+" if settings.augment else ""
    return f"{settings.model.replace('/', '-')}{augment}-{settings.split}-{settings.recipe}-{settings.seed}"
