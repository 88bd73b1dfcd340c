"""Options of `disco data stl10` and `disco train stl10`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...models import create_model, default_options, list_models
from ..options import FOLDER, FRACTION, CommandOptions, at_least, flag, option
from ..runs.options import NetworkOptions
from ..runs.recipe import Recipe

SIDE = 96
FORMATS = ("stl10", "folder")
_SGD: dict[str, Any] = {"optimizer": "sgd", "weights": "last", "weight_decay": 5e-4}
RECIPES = {
    "paper": Recipe(epochs=1000, batch=128, learning_rate=0.1, schedule="drops", **_SGD),
    "fast": Recipe(epochs=30, batch=32, learning_rate=0.05, schedule="cosine", **_SGD),
}
# Where the authors' script differs from the rest of the paper.
_EXCEPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "stl10/disco"): {"batch": 64, "learning_rate": 0.05, "weight_decay": 1e-3}
}
_MODELS = list_models("stl10")
_LAYOUTS, _POOLS = ("projected", "plain", "interscale"), ("max", "mean", "blur", "stride")


@dataclass(frozen=True)
class Stl10Options(NetworkOptions):
    """Options of a run on STL-10, or on images in folders."""

    experiment = "stl10"
    recipes = RECIPES
    caches = True
    named = ("model", "depth", "width", "recipe", "seed")
    summary = "Train a network of Tables 2 and 3 on STL-10, or on your own images."
    examples = """\
  disco train stl10 --model stl10/disco --recipe paper --data data --device cuda --precision bf16
  disco train stl10 --data my/images --format folder --depth 10 --limit 500 --out runs/mine
  disco train stl10 --resume --out runs/mine
"""

    model: str = option("stl10/disco", "network", choices=_MODELS)
    recipe: str = option("fast", "paper (1000 epochs, four drops) or fast (30 epochs, cosine)", choices=RECIPES)
    holdout: float = option(0.0, "fraction of the training images held out for validation", rule=FRACTION)
    depth: int = option(16, "depth of the network: 10, 16, 22...")
    width: int = option(8, "width multiplier of the network")
    dropout: float = option(0.3, "dropout probability in every block")
    layout: str | None = option(
        None, "where SESN and DISCO combine scales: projected (default), plain or interscale", choices=_LAYOUTS
    )
    pools: str | None = option(None, "downsampling of DISCO: max (default), mean, blur or stride", choices=_POOLS)
    basis_steps: int | None = option(
        None, "stop the gradient descent to the basis of DISCO after this many steps (Table 3)", rule=at_least(0)
    )
    format: str = option("stl10", "stl10 (binary files) or folder (a folder of images per class)", choices=FORMATS)
    side: int = option(SIDE, "side of the images of --format folder, which are cropped and resized", rule=at_least(16))
    fold: int | None = option(None, "train on one of the ten folds of STL-10, 0 to 9")
    test_share: float | None = option(None, "fraction of every class to test on, for folders without train and test")
    smoothing: float = option(0.0, "label smoothing, such as 0.1", rule=FRACTION)

    def __post_init__(self) -> None:
        super().__post_init__()
        import torch

        known = default_options(self.model)
        for name in self.model_options():
            if name not in known:
                raise ValueError(f"{flag(name)} is not an option of {self.model}")
        with torch.device("meta"):  # the network checks its own options
            create_model(self.model, depth=self.depth, width=self.width, dropout=self.dropout)

    @classmethod
    def data_file(cls, folder: Path, values: Mapping[str, Any]) -> tuple[Path, str] | None:
        if values["format"] != "stl10":
            return None
        inside = folder / "stl10_binary"  # in the parent folder, as downloaded
        return (inside if inside.is_dir() else folder) / "train_X.bin", "disco data stl10 --download --out DIR"

    @property
    def base_recipe(self) -> Recipe:
        return dataclasses.replace(super().base_recipe, **_EXCEPTIONS.get((self.recipe, self.model), {}))

    @property
    def run_name(self) -> str:
        steps = "" if self.basis_steps is None else f"-{self.basis_steps}"
        return f"{self.model.replace('/', '-')}{steps}-{self.depth}-{self.width}-{self.recipe}-{self.seed}"

    def model_options(self) -> dict[str, Any]:
        """Return the options of the network, as far as they are given."""
        names = ("depth", "width", "dropout", "layout", "pools", "basis_steps")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class Stl10DataOptions(CommandOptions):
    """Download STL-10 (Tables 2 and 3), or verify existing files."""

    entry = "tasks.stl10.command:run"
    examples = """\
  disco data stl10 --data my/stl10_binary --check
  disco data stl10 --download --out data

STL-10 is an archive of 2.6 GB, of which 360 MB are extracted. An interrupted download is resumed. Nothing is downloaded
without --download.
"""
    former: ClassVar[Mapping[str, str]] = {"--root": "--data"}

    data: Path | None = option(None, "folder with STL-10's files (default: OUT)", exists=FOLDER)
    check: bool = option(False, "recompute the checksums, and fail for other files than STL-10's")
    download: bool = option(False, "download STL-10 to OUT/stl10_binary first")
    out: Path = option(Path("data"), "write the data to this folder")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.download and self.data:
            raise ValueError("--download and --data cannot be combined")
