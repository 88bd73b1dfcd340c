"""`disco train`: train a network of the paper."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import Any

import torch

from .terminal import UsageError, say

_EXAMPLES = """\
examples:
  disco train mnist-scale --model mnist/disco --recipe fast --out runs/disco
  disco train mnist-scale --resume --out runs/disco
  disco train mnist-scale --model mnist/cnn --split mini --epochs 2 --out runs/trial
"""


def add(commands: Any) -> None:
    """Add the command to the parser. Its arguments are read by jsonargparse, which is imported when they are."""
    parser = commands.add_parser(
        "train", help="train a network of the paper on MNIST-scale", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run, debug=False)


def run(options: argparse.Namespace) -> None:
    """Read the arguments and train."""
    try:
        import rich  # noqa: F401 - Lightning asks for these late
        import tensorboard  # noqa: F401
        from jsonargparse import ArgumentError

        from ..training.recipe import Settings
        from ..training.record import read_record
        from ..training.run import train
    except ModuleNotFoundError as error:
        raise ImportError(f'training needs {error.name}: pip install "scale-disco[train,plot,demo]"') from error
    parser = _parser(Settings)
    names = [field.name for field in dataclasses.fields(Settings)]
    options.debug = "--debug" in options.arguments
    try:
        given = parser.parse_args(options.arguments)
        if given.resume:  # what is not said is as it was
            if given.out is None:
                raise ValueError("--resume needs --out, the folder of the run")
            record = read_record(Path(given.out))
            parser.set_defaults(**record["settings"], data=record["data"])
            given = parser.parse_args(options.arguments)
    except ArgumentError as error:
        raise UsageError(" ".join(str(error).split())) from error
    settings = Settings(**{name: getattr(given, name) for name in names} | {"split": str(given.split)})
    if given.threads is not None:
        if given.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {given.threads}")
        torch.set_num_threads(given.threads)
    out = Path(given.out) if given.out else Path("runs") / _name(settings)
    record = train(
        settings,
        data=Path(given.data),
        out=out,
        resume=given.resume,
        devices=given.devices,
        nodes=given.nodes,
        say=say,
    )
    if record["status"] == "finished":
        best = record["results"]["validation error"]
        say(f"best validation error {best:.2%}; next: disco test {shlex.quote(str(out))}")


def _parser(settings: type) -> Any:
    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    class Help(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
        pass

    parser = ArgumentParser(
        prog="disco train",
        description="Train a network of the paper. Ctrl-C or a crash loses at most the current epoch.",
        epilog=_EXAMPLES,
        formatter_class=Help,
        exit_on_error=False,
    )
    parser.add_argument("experiment", choices=["mnist-scale"], help="its data come from `disco data mnist-scale`")
    for field in dataclasses.fields(settings):
        about: dict[str, Any] = {"default": field.default, "help": field.metadata["help"]}
        about |= {"action": "store_true"} if field.type == "bool" else {"type": _TYPES[str(field.type)]}
        if field.name == "split":
            about["type"] = str | int  # as YAML reads it
        parser.add_argument(f"--{field.name}", **about)
    parser.add_argument("--data", type=str, default="data", help="folder of the realisations")
    parser.add_argument("--out", type=str | None, default=None, help="folder of the run (default: by its settings)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--devices", type=int, default=1, help="processes or GPUs that share every batch")
    parser.add_argument("--nodes", type=int, default=1, help="machines, each with so many devices (torchrun, SLURM)")
    parser.add_argument("--threads", type=int | None, default=None, help="CPU threads of a process")
    parser.add_argument("--config", action="config", help="read arguments from a YAML file")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


_TYPES: dict[str, Any] = {"str": str, "int": int, "int | None": int | None}


def _name(settings: Any) -> str:
    augment = "+" if settings.augment else ""
    return f"{settings.model.replace('/', '-')}{augment}-{settings.split}-{settings.recipe}-{settings.seed}"
