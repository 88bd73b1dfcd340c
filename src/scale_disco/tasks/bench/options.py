"""Options of `disco bench`."""

from dataclasses import dataclass
from pathlib import Path

from ..options import ScalesOptions, at_least, device_option, option, plot_option, report_option, seed_option

PARTS = ("layers", "scales", "network", "grids")


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ScalesOptions):
    """Time layers and networks, compared with dense kernels and plain convolutions."""

    entry = "tasks.bench.command:run"
    examples = """\
  disco bench
  disco bench --only layers --repeats 21 --threads 2
  disco bench --batch 4 --channels 64 64 --side 32 --scales 1 2 4
  disco bench --model mnist/disco --batch 64
  disco bench --only scales --plot growth.png --csv costs.csv

--batch, --channels, --side, --kernel-size, --extent and scales define a layer, timed instead of those of the paper.
"""

    only: tuple[str, ...] | None = option(None, "parts to run (default: all)", choices=PARTS)
    model: str | None = option(None, "time this model instead, such as mnist/disco")
    batch: int | None = option(None, "batch size, also with --model (default: 8)", rule=at_least(1))
    channels: tuple[int, int] | None = option(None, "channels in and out (default: 32 32)", rule=at_least(1))
    side: int | None = option(None, "height and width of the images (default: 56)", rule=at_least(1))
    kernel_size: int | None = option(None, "kernel size at the first scale (default: 3)", rule=at_least(1))
    extent: int | None = option(None, "neighboring scales per output (default: 1)", rule=at_least(1))
    repeats: int = option(11, "number of rounds", rule=at_least(1))
    seed: int = seed_option("inputs and weights")
    device: str = device_option()
    csv: Path | None = option(None, "write all medians as CSV")
    out: Path | None = report_option()
    plot: Path | None = plot_option("the cost over the number of scales")
