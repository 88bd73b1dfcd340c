"""Options of `disco quickstart`."""

from dataclasses import dataclass
from pathlib import Path

from ..options import CommandOptions, at_least, device_option, option, seed_option


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions(CommandOptions):
    """Measure and train in minutes, and write a report."""

    entry = "tasks.quickstart.tour:run"
    examples = """\
  disco quickstart
  disco quickstart --out first-look --seeds 1 --limit 500
  disco quickstart --seeds 5 --processes 8

After Ctrl-C, the same command continues.
"""

    out: Path = option(Path("quickstart"), "write the report and all runs to this folder")
    seeds: int = option(3, "number of seeds per network", rule=at_least(1))
    seed: int = seed_option("the first network of each kind")
    epochs: int | None = option(None, "number of epochs (default: 4)")
    limit: int | None = option(None, "maximum number of training images (default: 2,500)")
    processes: int | None = option(
        None,
        "networks trained concurrently, one thread each (default: the number of cores, at most 4; 1 on a GPU)",
        rule=at_least(1),
    )
    device: str = device_option()
