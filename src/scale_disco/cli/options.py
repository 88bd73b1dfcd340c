"""Options of the commands that belong to no task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..tasks.options import (
    FILE,
    FOLDER,
    CommandOptions,
    OperatorOptions,
    ScalesOptions,
    argument,
    at_least,
    device_option,
    option,
    plot_option,
    report_option,
    seed_option,
)


@dataclass(frozen=True, kw_only=True)
class BasisOptions(ScalesOptions, OperatorOptions):
    """Solve a discrete basis; print, plot or save it."""

    entry = "cli.basis:run"
    examples = """\
  disco basis --kernel-size 3 --scales 1 2^0.5 2 --plot basis.png
  disco basis --kernel-size 7 --step "2^(1/3)" --count 4 --out basis.safetensors
  disco basis --load basis.safetensors
  disco basis --prior white --solver gradient --steps 300
"""
    former: ClassVar[Mapping[str, str]] = {"--save": "--out"}

    kernel_size: int | None = option(None, "kernel size at the first scale (default: 3)")
    dims: int = option(2, "spatial dimensions, 1 to 3")
    prior: str | None = option(
        None,
        "images that the basis is optimal for: image, white (noise, as in the paper), a correlation of neighboring "
        "pixels in [0, 1), photos, digits or a folder of images (default: image)",
    )
    support: tuple[int, ...] | None = option(
        None, "side of the solved stencils in taps, one or per scale (default: enlarged until the error hardly falls)"
    )
    solver: str = option("exact", "exact, or gradient descent as in the paper", choices=("exact", "gradient"))
    steps: int | None = option(None, "number of gradient descent steps (required by --solver gradient)")
    seed: int = seed_option("gradient descent")
    load: Path | None = option(
        None, "load a basis instead of solving one; --prior sets the images of its error", exists=FILE
    )
    out: Path | None = option(None, "write the basis to a safetensors file")
    plot: Path | None = plot_option("the stencils")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(CommandOptions):
    """Options of `disco train` that are not part of a run. They have those of the experiment next to them."""

    entry = "cli.train:run"
    former: ClassVar[Mapping[str, str]] = {"--root": "--data", "--print_config": "--print-config"}

    data: Path = option(Path("data"), "data folder, from `disco data`")
    out: Path | None = option(None, "write the run to this folder (default: runs/NAME, named after the options)")
    resume: bool = option(False, "resume the run in --out")
    device: str = device_option("auto")
    devices: int = option(1, "GPUs or CPU processes per node, which split each batch", rule=at_least(1))
    nodes: int = option(1, "number of nodes with --devices each (torchrun, SLURM)", rule=at_least(1))
    channels_last: bool = option(False, "use the channels_last memory format, faster on newer GPUs with 16 or bf16")
    cache: Path | None = option(None, "store decoded images in this file; scene: scale profiles in this folder")
    config: Path | None = option(None, "read options from a YAML file")
    print_config: bool = option(False, "print such a YAML file and exit")
    experiment: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)  # options that are not at their defaults

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.out is None:
            raise ValueError("--resume requires --out, the run folder")
        if self.resume and self.out and not (self.out / "run.json").is_file():
            raise FileNotFoundError(f"{self.out}: not a training run (run.json is missing)")
        if not (self.resume or self.print_config or self.data.is_dir()):
            made = self.experiment in ("mnist-scale", "stl10", "generalization")
            hint = f"create it with disco data {self.experiment}" if made else "pass a folder of your own"
            raise FileNotFoundError(f"--data: no folder {self.data}; {hint}")


@dataclass(frozen=True, kw_only=True)
class TestOptions(CommandOptions):
    """Evaluate a trained network, also at scales outside the training range."""

    entry = "cli.test:run"
    examples = """\
  disco test runs/mnist-disco-0-fast-0
  disco test runs/mnist-disco-0-fast-0 --plot scales.png --out scales.md
  disco test runs/mnist-disco-0-fast-0 --limit 1000
  disco test runs/mnist-disco-0-fast-0 --test-scales 7 --out more.md
  disco test runs/stl10-disco-16-8-paper-0 --device cuda

The test set of MNIST-scale has 50,000 images: --limit shortens the test, and is not recorded in the run.
"""
    former: ClassVar[Mapping[str, str]] = {"--root": "--data"}
    __test__: ClassVar[bool] = False  # not a test case of pytest

    run: Path = argument("folder of a run of `disco train`", exists=FOLDER)
    data: Path | None = option(None, "data folder (default: the training data)", exists=FOLDER)
    checkpoint: str | None = option(
        None, "best on validation, or last (default: the recipe's)", choices=("best", "last")
    )
    limit: int | None = option(None, "maximum number of images of the test set (default: all)", rule=at_least(1))
    outside: int = option(2000, "maximum number of images per set outside the training scales", rule=at_least(0))
    test_scales: int | None = option(
        None, "test with so many scales from 1 up as well (DISCO, decimated grid)", rule=at_least(1)
    )
    enlarge: int = option(0, "number of scales below 1 in that test (decimated grid)", rule=at_least(0))
    device: str = device_option()
    out: Path | None = report_option()
    plot: Path | None = plot_option("error vs. scale")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.enlarge and self.test_scales is None:
            raise ValueError("--enlarge requires --test-scales")


@dataclass(frozen=True, kw_only=True)
class TableOptions(CommandOptions):
    """Compare evaluated runs with the paper's table."""

    entry = "cli.table:run"

    runs: tuple[Path, ...] = argument(
        "run folders, or parent folders of runs; runs of other experiments are skipped", exists=FOLDER
    )
    out: Path | None = option(None, "write the table: Markdown, or JSON if the name ends in .json")
    plot: Path | None = plot_option("error vs. equivariance error; generalization: accuracy vs. size and time")
    scales: Path | None = option(None, "also plot error vs. scale of images")
    experiment: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(CommandOptions):
    """List the networks, and the weights that come with the package."""

    entry = "cli.models:run"
    examples = """\
  disco models
  disco models track/disco
  disco models mnist scene --json

Networks with weights have a score, the size of their file and its license. Named networks are shown with the card of
their weights: what they are, where they are from, and how they were made.
"""

    names: tuple[str, ...] = option((), "networks, or their families such as mnist (default: all)", positional=True)


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(CommandOptions):
    """Print a shell completion script."""

    entry = "cli.app:print_completion"
    examples = """\
  disco completion bash > ~/.local/share/bash-completion/completions/disco
  disco completion zsh > ~/.zsh/completions/_disco
  disco completion fish > ~/.config/fish/completions/disco.fish

Create the folder if it is missing, and start a new shell afterwards. bash reads this folder if the package
bash-completion is installed; without it, write the script to any file and `source` it in ~/.bashrc. zsh reads the
folders of its fpath: put `fpath=(~/.zsh/completions $fpath); autoload -U compinit; compinit` into ~/.zshrc. The script
is for this version of disco; write it again after an update.
"""

    shell: str = argument("shell of the script", choices=("bash", "fish", "zsh"))
