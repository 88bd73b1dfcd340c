"""Options of `disco scene`, `disco compare`, `disco train scene` and `disco test scene`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...models import list_models
from ..options import (
    FILE,
    FILE_OR_FOLDER,
    FOLDER,
    WEIGHTS,
    CommandOptions,
    Rule,
    argument,
    at_least,
    device_option,
    option,
    plot_option,
    report_option,
)
from ..runs.options import OptimizerOptions
from ..runs.recipe import Recipe

if TYPE_CHECKING:
    from .copies import Sizes

CELL = 8  # stride of the maps, in pixels
BACKBONES = ("shift", "as-is", "hermite")
PRETRAINED = (
    "weights of the ResNet-50: a file, torchvision or timm to download them, or random (default: ImageNet's, which "
    "come with the package)"
)
SPAN = Rule(lambda octaves: 0 < octaves <= 2, "above 0 octaves and at most 2")
_MODELS = [name for name in list_models("scene") if name != "scene/shift"]  # which has no parameters
RECIPES = {"small": Recipe(10, 256, 1e-3, "cosine", weight_decay=1e-5)}


@dataclass(frozen=True)
class SceneTrainOptions(OptimizerOptions):
    """Options of a readout that is trained on pairs of resized copies of images."""

    experiment = "scene"
    recipes = RECIPES
    caches = True
    named = ("model", "seed")
    summary = "Train a scale estimator on resized copies of images (Sec. 4.4)."
    examples = """\
  disco train scene --data my/images --out runs/scene
  disco train scene --model scene/matched --data my/images --limit 50 --pretrained resnet50.safetensors
"""

    model: str = option("scene/equivariant", "readout", choices=_MODELS)
    recipe: str = option("small", "small (10 epochs)", choices=RECIPES)
    backbone: str = option("shift", "frozen network", choices=BACKBONES)
    pretrained: str | None = option(None, PRETRAINED, exists=WEIGHTS)
    loss: str = option(
        "log", "loss of ratios (ratio, the paper's) or of their logarithms (log)", choices=("ratio", "log")
    )
    span: float | None = option(
        None,
        "maximum change of scale of the copies, in octaves (default: factors from 0.5 to 2, as in the paper)",
        rule=SPAN,
    )
    copies: int = option(6, "resized copies per image", rule=at_least(2))
    windows: int = option(24, "windows per image", rule=at_least(1))
    pairs: int = option(4096, "pairs of windows per epoch", rule=at_least(2))

    @property
    def sizes(self) -> "Sizes":
        """How copies are drawn."""
        from .copies import Sizes

        return Sizes(self.copies, self.windows, self.span, seed=self.seed)

    @property
    def run_name(self) -> str:
        return f"{self.model.replace('/', '-')}-{self.backbone}-{self.recipe}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class SceneOptions(CommandOptions):
    """Compute scale fields of images and videos."""

    entry = "tasks.scene.commands.scene:run"
    examples = """\
  disco scene street.jpg
  disco scene photos --out fields --run runs/scene
  disco scene photos --window 96 --no-figure
  disco scene drive.mp4 --every 10 --frames 50 --out drive

OUT gets NAME.npy (float32 [H, W]: apparent scale in octaves relative to the median), NAME-confidence.npy (0 to 1),
NAME.png, NAME-overlay.png and NAME.json for every image; for a video NAME.npy and NAME-confidence.npy ([T, h, w], a
value per 8 x 8 pixels), NAME.mp4 and NAME.json. The same call resumes after Ctrl-C. Unreadable images in a folder are
skipped and listed. Nothing needs to be trained or downloaded. Larger values look larger, be it a coarser texture or one
that is closer: apparent scale is not depth.
"""

    source: Path = argument("image, folder of images, or video", exists=FILE_OR_FOLDER)
    run: Path | None = option(
        None, "run of `disco train scene` (default: compare windows without training)", exists=FOLDER
    )
    pretrained: str | None = option(None, PRETRAINED, exists=WEIGHTS)
    window: int | None = option(None, "side of a window in pixels (default: as trained, 64)", rule=at_least(2 * CELL))
    step: int | None = option(None, "pixels between windows (default: a quarter of a window)", rule=at_least(1))
    longest: int = option(1024, "shrink longer sides to this")
    frames: int | None = option(None, "maximum number of fields of a video (default: all)", rule=at_least(1))
    every: int | None = option(None, "process every N-th frame of a video (default: 1)", rule=at_least(1))
    no_figure: bool = option(False, "write arrays only, no .png and no .mp4")
    again: bool = option(False, "do not reuse results of an earlier call")
    device: str = device_option()
    out: Path = option(Path("scene"), "write the files into this folder")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(CommandOptions):
    """Measure by how much larger the content of one image looks than that of others."""

    entry = "tasks.scene.commands.compare:run"
    examples = """\
  disco compare near.jpg far.jpg
  disco compare day*.png --plot matched.png --out sizes.md

Octaves are relative to the first image: at 1 the content looks twice as large, and the image must be resized by 1/2 to
match the first. They refer to pixels of the files, whatever their sizes. Images must show the same kind of content,
such as one material or one place; an uncertainty of half an octave or more means that they hardly compare.
"""

    images: tuple[Path, ...] = argument("two or more images; the first is the reference", exists=FILE)
    pretrained: str | None = option(None, PRETRAINED, exists=WEIGHTS)
    device: str = device_option()
    out: Path | None = report_option()
    plot: Path | None = plot_option("the images, resized to match, and the octaves")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.images) < 2:
            raise ValueError(f"IMAGES must be two or more, got {len(self.images)}")


@dataclass(frozen=True, kw_only=True)
class SceneTestOptions(CommandOptions):
    """Evaluate scale estimators: those of runs of `disco train scene`, and others that need no training."""

    entry = "tasks.scene.commands.test:run"
    examples = """\
  disco test scene --planes 40
  disco test scene runs/scene-* --data images --planes 40 --depth depth --cache cache --out scene.md

Each network sees every image once. Its features are stored in --cache, so that the same call resumes after Ctrl-C.
A test takes minutes; --limit shortens it.
"""
    former: ClassVar[Mapping[str, str]] = {"--root": "--data"}

    runs: tuple[Path, ...] = option((), "runs of `disco train scene`", exists=FOLDER, positional=True)
    data: Path | None = option(None, "test on resized copies of the images in this folder", exists=FOLDER)
    limit: int | None = option(None, "maximum number of images of --data (default: all)", rule=at_least(1))
    span: float | None = option(
        None, "resize images of --data by at most this many octaves (default: 0.5 to 2, as in the paper)", rule=SPAN
    )
    planes: int | None = option(None, "test on this many textured slanted planes", rule=at_least(1))
    textures: Path | None = option(None, "images for planes (default: the bundled photos)", exists=FOLDER)
    depth: Path | None = option(
        None, "test on photos NAME.jpg with depth, NAME_depth_mm.png (16 bits, mm)", exists=FOLDER
    )
    pretrained: str | None = option(None, PRETRAINED, exists=WEIGHTS)
    cache: Path | None = option(None, "store scale profiles of images in this folder (10 MB each)")
    device: str = device_option()
    out: Path | None = report_option()
    plot: Path | None = plot_option("ratios and rank correlations")
