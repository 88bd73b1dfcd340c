"""Options of `disco data` and `disco train generalization`, and of `disco test kth-tips`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models import default_options, list_models
from ...scales import Scales
from ..options import (
    FOLDER,
    NON_NEGATIVE,
    WEIGHTS,
    CommandOptions,
    argument,
    at_least,
    option,
    plot_option,
    report_option,
)
from ..runs.options import RunOptions
from ..runs.recipe import Recipe

MODELS = list_models("generalization")
RECIPES = {
    "fast": Recipe(epochs=8, batch=32, learning_rate=0.01, schedule="one-cycle", weights="last"),
    "quick": Recipe(epochs=3, batch=32, learning_rate=0.01, schedule="one-cycle", weights="last"),
}
LARGE_SCALE = "mnist-large-scale"
DATA_SETS = ("stir-mnist", LARGE_SCALE)
# Sizes in the training data of each scenario of STIR-MNIST, first and last; all sizes are tested.
SCENARIOS = {"1": (17, 32), "2": (33, 48), "3": (49, 64), "4": (17, 64)}
HEADS = ("project", "decide")
CUBE_ROOT, SQUARE_ROOT = 2 ** (1 / 3), 2**0.5  # steps between scales on the full and on the decimated grid
# By model; the others have a fixed set of scales, or one.
STEPS = {
    "generalization/sesn-hermite": CUBE_ROOT,
    "generalization/disco": CUBE_ROOT,
    "generalization/decimated": SQUARE_ROOT,
}


def data_command(folder: Path, name: str) -> str:
    """Return the command that creates the file of a data set."""
    return f"disco data generalization --name {name} --out {folder} --mnist DIR"


@dataclass(frozen=True)
class GeneralizationOptions(RunOptions):
    """Options of a run on digits of some sizes."""

    experiment = "generalization"
    recipes = RECIPES
    named = ("model", "data_set", "scenario", "head", "recipe", "seed")
    summary = "Train on digits of some sizes, to test on all (STIR-MNIST, MNIST Large Scale)."
    examples = """\
  disco train generalization --model generalization/decimated --test-scales 6 --data data
  disco train generalization --scenario 3 --test-scales 3 --enlarge 2 --limit 1000 --recipe quick
  disco train generalization --data-set mnist-large-scale --scenario 2 --test-scales 5 --enlarge 2
"""

    model: str = option("generalization/decimated", "network", choices=MODELS)
    recipe: str = option("fast", "fast (8 epochs) or quick (3), one cycle", choices=RECIPES)
    data_set: str = option("stir-mnist", "data set", choices=DATA_SETS)
    scenario: str = option(
        "1",
        "sizes in training: of STIR-MNIST 17-32 (1), 33-48 (2), 49-64 (3) or all (4); of MNIST Large Scale the scale: "
        "1, 2 or 4",
        choices=SCENARIOS,
    )
    head: str = option(
        "decide", "decide at every scale, or project the largest responses before the classifier", choices=HEADS
    )
    scales: int | None = option(
        None, "number of scales in training, from 1 up (default: of the model)", rule=at_least(1)
    )
    test_scales: int = option(9, "number of scales of a second test, from 1 up", rule=at_least(1))
    enlarge: int = option(0, "number of scales below 1 in it, for networks on the decimated grid", rule=at_least(0))
    augment: bool = option(False, "scale training digits by a random factor from 1/2 to 2, within the canvas")
    batch: int | None = option(None, "batch size (default: the recipe's)", rule=at_least(2))
    learning_rate: float | None = option(None, "peak learning rate (default: the recipe's)", rule=NON_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_set == LARGE_SCALE and self.scenario == "3":
            raise ValueError(f"--scenario must be the training scale 1, 2 or 4 of {LARGE_SCALE}, got 3")
        if self.model not in STEPS and self.scales is not None:
            raise ValueError(f"--scales: {self.model} has a fixed set of scales; leave it out")
        if self.enlarge and self.model != "generalization/decimated":
            raise ValueError(f"--enlarge is for generalization/decimated, got {self.model}")

    @classmethod
    def data_file(cls, folder: Path, values: Mapping[str, Any]) -> tuple[Path, str]:
        name = cls(**values).data_set
        return folder / f"{name}.npz", data_command(folder, name)

    @property
    def run_name(self) -> str:
        name = self.model.replace("/", "-") + ("+" if self.augment else "")
        scales = "" if self.scales is None else f"-{self.scales}"
        head = f"-{self.head}" if self.model in STEPS else ""
        return f"{name}{scales}{head}-{self.data_set}-{self.scenario}-{self.recipe}-{self.seed}"

    @property
    def training_sizes(self) -> tuple[int, int]:
        """Smallest and largest size of training digits, in pixels."""
        if self.data_set == LARGE_SCALE:
            from .digits import large_scale_size

            return (large_scale_size(int(self.scenario)),) * 2
        return SCENARIOS[self.scenario]

    def scale_set(self, count: int | None, enlarge: int = 0) -> Scales | None:
        """Return so many scales from 1 up, after `enlarge` below 1; None for a model whose scales are fixed."""
        if (step := STEPS.get(self.model)) is None:
            return None
        if count is None:
            default: Scales = default_options(self.model)["scales"]
            return default
        return Scales.geometric(step, count + enlarge, start=step**-enlarge)


@dataclass(frozen=True, kw_only=True)
class GeneralizationDataOptions(CommandOptions):
    """Build data sets of digits of many sizes from MNIST, or verify existing files."""

    entry = "tasks.generalization.command:build"
    examples = """\
  disco data generalization --mnist my/mnist --limit 100
  disco data generalization --name stir-mnist mnist-large-scale --mnist my/mnist --out data

`disco data mnist-scale --download` downloads MNIST's files. STIR-MNIST takes minutes, MNIST Large Scale longer.
"""

    name: tuple[str, ...] = option(("stir-mnist",), "data sets", choices=DATA_SETS)
    mnist: Path | None = option(None, "folder with MNIST's four files, gzipped or not", exists=FOLDER)
    limit: int | None = option(
        None, "maximum number of digits in each part, for quick trials (default: all)", rule=at_least(10)
    )
    out: Path = option(Path("data"), "write the data to this folder")


@dataclass(frozen=True, kw_only=True)
class KthTipsOptions(CommandOptions):
    """Classify materials of KTH-TIPS at distances that are not in training, with pretrained features."""

    entry = "tasks.generalization.command:test_kth_tips"
    examples = """\
  disco test kth-tips KTH_TIPS --pretrained resnet50.pth
  disco test kth-tips KTH_TIPS --pretrained resnet50.pth --cache cache --out kth.md --plot kth.png

Every classifier is trained on images of one distance and tested on all nine. Hyper-parameters are chosen on other
images than those tested. Features take minutes, and are stored in --cache.
"""

    folder: Path = argument("KTH-TIPS: a folder with a subfolder of each material", exists=FOLDER)
    pretrained: str | None = option(
        None, "weights of the ResNet-50 (required): a file, or torchvision or timm to download them", exists=WEIGHTS
    )
    side: int = option(160, "center-crop images to so many pixels", rule=at_least(64))
    cache: Path | None = option(None, "store features in this folder")
    out: Path | None = report_option()
    plot: Path | None = plot_option("accuracy vs. distance")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is None:
            raise ValueError("--pretrained is required: a file of weights of a ResNet-50, or torchvision or timm")
