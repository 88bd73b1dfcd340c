"""`disco train`: train a network of the paper."""

import json
import shlex
from pathlib import Path
from typing import Any

from ..tasks.io import terminal
from ..tasks.runs.experiments import EXPERIMENTS
from ..tasks.runs.record import read_record
from .options import TrainOptions

# What a file of --config holds next to the options of the run, and what the training loop takes.
_PLACES = ("data", "out", "resume", "device", "devices", "nodes", "channels_last", "cache")


def run(options: TrainOptions) -> None:
    """Complete the options and train."""
    experiment, values = EXPERIMENTS[options.experiment], dict(options.given)
    places: dict[str, Any] = {name: getattr(options, name) for name in _PLACES}
    if options.resume and options.out is not None:  # options that are not given are those of the run
        record = read_record(options.out, options.experiment)
        values = record["settings"] | values
        places["data"] = values.get("data", Path(record["data"]))
    chosen = experiment.options(**{name: values[name] for name in experiment.options.fields() if name in values})
    if options.print_config:
        import yaml  # type: ignore[import-untyped,unused-ignore]

        arguments = {name: str(value) if isinstance(value, Path) else value for name, value in places.items()}
        document = {"experiment": options.experiment} | chosen.as_dict() | arguments | {"threads": options.threads}
        terminal.show(options, document, yaml.safe_dump(document, sort_keys=False).rstrip())
        return
    try:
        import tensorboard  # noqa: F401 - Lightning asks for it late

        from ..tasks.runs.loop import train
    except ModuleNotFoundError as error:
        raise ImportError(f'{error.name} is required: pip install "scale-disco[train,plot,demo]"') from error
    if options.device != "auto":
        places["device"] = terminal.chosen_device(options.device)
    out = places["out"] = options.out or Path("runs") / chosen.run_name
    if options.cache is None and experiment.cache_folder is not None:
        places["cache"] = out.parent / experiment.cache_folder
    bar, reading = not (options.quiet or options.json), terminal.Progress("reading")
    record = train(chosen, **places, say=terminal.say, bar=bar, reading=reading)
    if record["status"] == "finished":
        best, loss = record["results"].get("validation error"), record["epochs"][-1]["training loss"]
        result = f"training loss {loss:.4f}" if best is None else f"best validation error {best:.2%}"
        terminal.say(f"{result}; next: {experiment.test_command.replace('RUN', shlex.quote(str(out)))}")
        if options.json:
            print(json.dumps(record))
