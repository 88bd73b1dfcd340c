"""`disco train`: train a network of the paper."""

import argparse
import json
import shlex
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import torch

from ..files import plain, read_bytes
from ..tasks.io import terminal
from ..tasks.runs.experiments import EXPERIMENTS
from ..tasks.runs.options import RunOptions, flag
from ..tasks.runs.record import read_record

_EXAMPLES = """\
  disco train mnist-scale --model mnist/disco --recipe fast --out runs/disco
  disco train mnist-scale --resume --out runs/disco
  disco train mnist-scale --model mnist/cnn --split mini --epochs 2 --out runs/trial
  disco train mnist-scale --config run.yaml --seed 1
  disco train stl10 --model stl10/disco --recipe paper --data data --device cuda --precision bf16
  disco train stl10 --data my/images --format folder --depth 10 --width 1 --out runs/mine
  disco train tracker --data my/videos --pretrained resnet50.safetensors --out runs/tracker
  disco train scene --data my/images --pretrained resnet50.safetensors --out runs/scene
"""

# The options of every experiment; an option of several experiments has the same type in all.
_FIELDS = {name: experiment.options.fields() for name, experiment in EXPERIMENTS.items()}
_OWNERS = {
    name: tuple(each for each, theirs in _FIELDS.items() if name in theirs)
    for fields in _FIELDS.values()
    for name in fields
}
_MAX_BYTES = 1 << 16  # of a file of --config
_MAX_NUMBER = 10**18  # in it, of either sign
# Other arguments that a file of --config may hold, with their defaults.
_OTHERS: dict[str, Any] = {"data": Path("data"), "out": None, "resume": False, "device": "auto", "devices": 1}
_OTHERS |= {"nodes": 1, "channels_last": False, "cache": None, "threads": None}


def add(commands: Any) -> None:
    """Add the command to the parser. Options have no defaults there, since a file or a run may hold their values."""
    train = terminal.add_command(commands, "train", run, "train a network of the paper", _EXAMPLES)
    train.add_argument(
        "experiment",
        choices=[*EXPERIMENTS],
        help="mnist-scale (Table 1), stl10 (Tables 2 and 3), tracker (Table 4) or scene (Sec. 4.4)",
    )
    groups = {tuple(EXPERIMENTS): train.add_argument_group("options of all experiments")}
    for owners in sorted(set(_OWNERS.values()) - set(groups), key=lambda names: (-len(names), names)):
        groups[owners] = train.add_argument_group(f"options of {' and '.join(owners)}")
    for name, owners in _OWNERS.items():
        _add_option(groups[owners], name, owners)
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    argument = partial(train.add_argument, **unset)
    argument("--data", "--root", type=Path, metavar="DIR", help="data folder, from `disco data` (default data)")
    about = "the run to this folder (default: runs/NAME, with NAME derived from the options)"
    terminal.add_out(train, about, folder=True, **unset)
    argument("--resume", action="store_true", help="resume the run in --out")
    terminal.add_device(train, "auto")
    argument("--devices", type=int, metavar="N", help="GPUs or CPU processes per node, which split each batch")
    argument("--nodes", type=int, metavar="N", help="number of nodes with --devices each (torchrun, SLURM)")
    argument(
        "--channels-last",
        action="store_true",
        help="use the channels_last memory format, faster on newer GPUs with --precision 16 or bf16",
    )
    argument(
        "--cache",
        type=Path,
        metavar="FILE",
        help="store the decoded images of --format folder in this file; scene: scale profiles in this folder "
        "(default: profiles next to the run)",
    )
    train.add_argument("--config", type=Path, metavar="FILE", help="read arguments from a YAML file")
    train.add_argument("--print-config", "--print_config", action="store_true", help="print such a YAML file and exit")
    train.set_defaults(parser=train, device=None)


def _add_option(group: Any, name: str, owners: tuple[str, ...]) -> None:
    """Add an option that some experiments have; where their help differs, it names them."""
    fields = [_FIELDS[owner][name] for owner in owners]
    helps: dict[str, list[str]] = {}
    for owner, field in zip(owners, fields, strict=True):
        default = "" if field.default in (None, False) else f" (default {field.default})"
        helps.setdefault(field.metadata["help"] + default, []).append(owner)
    about = "; ".join(text if len(helps) == 1 else f"{', '.join(names)}: {text}" for text, names in helps.items())
    expected = EXPERIMENTS[owners[0]].options.types()[name]
    if expected is bool:
        group.add_argument(flag(name), action="store_true", help=about, default=argparse.SUPPRESS)
        return
    kind = (get_args(expected) or (expected,))[0]
    argument = group.add_argument(flag(name), type=kind, help=about, default=argparse.SUPPRESS)
    terminal.suggest(argument, dict.fromkeys(choice for field in fields for choice in field.metadata["choices"]))


def run(options: argparse.Namespace) -> None:
    """Collect the arguments and train."""
    values = (_configured(options) if options.config else {}) | _given(options)
    if values.get("resume"):  # options that are not given are those of the run
        if "out" not in values:
            raise ValueError("--resume requires --out, the run folder")
        record = read_record(values["out"], options.experiment)
        values = record["settings"] | {"data": Path(record["data"])} | values
    fields = _FIELDS[options.experiment]
    for name in sorted(values.keys() & _OWNERS.keys() - fields.keys()):
        raise terminal.UsageError(
            f"disco train: {flag(name)} is not an option of {options.experiment}; see disco train --help"
        )
    experiment = EXPERIMENTS[options.experiment]
    chosen = experiment.options(**{name: values[name] for name in fields if name in values})
    others = _OTHERS | {name: value for name, value in values.items() if name not in _OWNERS}
    if options.print_config:
        _print_config(options, chosen, others)
        return
    try:
        import rich  # noqa: F401 - Lightning asks for these late
        import tensorboard  # noqa: F401

        from ..tasks.runs.loop import train
    except ModuleNotFoundError as error:
        raise ImportError(f'{error.name} is required: pip install "scale-disco[train,plot,demo]"') from error
    threads = others.pop("threads")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    if others["device"] != "auto":
        others["device"] = terminal.chosen_device(argparse.Namespace(**others))
    out = others["out"] = others["out"] or Path("runs") / chosen.run_name
    if others["cache"] is None and experiment.cache_folder is not None:
        others["cache"] = out.parent / experiment.cache_folder
    bar, reading = not (terminal.is_quiet() or options.json), terminal.Progress("reading")
    record = train(chosen, **others, say=terminal.say, bar=bar, reading=reading)
    if record["status"] == "finished":
        best, loss = record["results"].get("validation error"), record["epochs"][-1]["training loss"]
        result = f"training loss {loss:.4f}" if best is None else f"best validation error {best:.2%}"
        terminal.say(f"{result}; next: {experiment.test_command.replace('RUN', shlex.quote(str(out)))}")
        if options.json:
            print(json.dumps(record))


def _given(options: argparse.Namespace) -> dict[str, Any]:
    names = _OWNERS.keys() | _OTHERS.keys()
    return {name: value for name, value in vars(options).items() if name in names and value is not None}


def _configured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments in the file of --config."""
    import yaml  # type: ignore[import-untyped,unused-ignore]

    path = options.config
    try:
        packed = read_bytes(path, _MAX_BYTES)
        collections = 0
        for event in yaml.parse(packed):  # before loading: aliases could expand to gigabytes
            collections += isinstance(event, yaml.CollectionStartEvent)
            if isinstance(event, yaml.AliasEvent) or collections > 1:
                raise ValueError("expected lines such as `epochs: 2`, not lists or aliases")
        content = yaml.safe_load(packed)
    except OSError:
        raise
    except Exception as error:  # malformed dates, numbers and tags make it raise a dozen types
        raise ValueError(f"{path}: not a valid YAML config file ({plain(error) or type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected arguments such as `epochs: 2`, got {plain(content)}")
    if (named := content.get("experiment", options.experiment)) != options.experiment:
        raise ValueError(f"{path}: this config is for {plain(named)}, not {options.experiment}")
    words = [options.experiment]
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, NoneType)):
            raise ValueError(f"{path}: expected arguments such as `epochs: 2`, got {plain(f'{name}: {value}')}")
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise ValueError(f"{path}: {plain(name)} is too large")
        if name != "experiment" and value is not None and value is not False:
            words += [flag(name)] if value is True else [f"{flag(name)}={value}"]
    try:
        parsed, unknown = options.parser.parse_known_args(words)
        if unknown:
            options.parser.refuse(unknown)
    except terminal.UsageError as error:
        raise terminal.UsageError(f"{plain(error)} (in {path})") from error
    return _given(parsed)


def _print_config(options: argparse.Namespace, chosen: RunOptions, others: dict[str, Any]) -> None:
    import yaml  # type: ignore[import-untyped,unused-ignore]

    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in others.items()}
    document = {"experiment": options.experiment} | chosen.as_dict() | arguments
    terminal.show(options, document, yaml.safe_dump(document, sort_keys=False).rstrip())
