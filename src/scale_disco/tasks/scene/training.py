"""The paper's scene geometry (Sec. 4.4): a read-out learns by how much copies of a picture were resized."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models.checkpoints import PACKAGES
from ..runs.batches import Dataset, seed_of
from ..runs.evaluate import trained
from ..runs.options import Evaluation, Progress, RunOptions, TrainingData, setting
from ..runs.recipe import Recipe
from ..runs.record import read_record, settings_of
from .copies import LOSSES, Copies, CopyPairs, Sizes, draw_pairs, find, read_copies
from .networks import BACKBONES, CHANNELS, SCALES, Backbone, ScaleEstimator
from .readout import READOUTS, Readout

_MODELS = [f"scene/{name}" for name in READOUTS if name != "shift"]  # which has nothing to learn
_HELD = 1024  # pairs for validation
RECIPES = {"small": Recipe(10, 256, 1e-3, "cosine", weight_decay=1e-5)}


@dataclass(frozen=True)
class SceneOptions(RunOptions):
    """A read-out, trained on pairs of copies of pictures."""

    experiment = "scene"
    subject = "things"
    seen = (0.5, 2.0)
    models = _MODELS
    recipes = RECIPES
    named = ("model", "seed")
    words = {"backbone": BACKBONES, "loss": tuple(LOSSES)}  # noqa: RUF012
    facts = {"name": str, "pictures": int, "content": str, "weights": str}  # noqa: RUF012
    learner = "contrast"
    test = "disco test scene RUN"
    kept = "profiles"

    model: str = setting("scene/equivariant", f"read-out: {', '.join(_MODELS)}")
    backbone: str = setting("shift", f"frozen network: {', '.join(BACKBONES)}")
    pretrained: str | None = setting(None, "weights of a ResNet-50: a file, torchvision or timm")
    loss: str = setting("log", "of ratios (ratio, the paper's) or of their logarithms (log)")
    span: float | None = setting(None, "octaves by which copies are resized, at most (default: 0.5 to 2, as the paper)")
    copies: int = setting(6, "of every picture, each of another size")
    windows: int = setting(24, "places of every picture")
    pairs: int = setting(4096, "pairs of windows of an epoch")
    holdout: float = setting(0.1, "share of the pictures that is kept for validation")
    recipe: str = setting("small", "schedule: small (10 epochs)")
    epochs: int | None = setting(None, "another number of epochs")
    batch: int | None = setting(None, "another number of pairs of a step")
    learning_rate: float | None = setting(None, "another one, at its largest")
    limit: int | None = setting(None, "pictures at most, for trials")
    seed: int = setting(0, "of weights, order and augmentation")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sizes  # refuses what cannot be drawn
        for name, least in (("batch", 2), ("pairs", 2)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, got {value}")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"--holdout must be from 0 to below 1, got {self.holdout}")
        if self.learning_rate is not None and not 0 <= self.learning_rate < float("inf"):
            raise ValueError(f"--learning-rate must be a number from 0 on, got {self.learning_rate}")

    @property
    def sizes(self) -> Sizes:
        """How copies are drawn."""
        return Sizes(self.copies, self.windows, self.span, seed=self.seed)

    @property
    def full_recipe(self) -> Recipe:
        given = {name: value for name in ("batch", "learning_rate") if (value := getattr(self, name)) is not None}
        return dataclasses.replace(super().full_recipe, **given)

    @property
    def folder(self) -> str:
        return f"{self.model.replace('/', '-')}-{self.backbone}-{self.recipe}-{self.seed}"

    def lesson(self, data: Path, *, cache: Path | None = None, progress: Progress | None = None) -> TrainingData:
        pictures = find(data)
        random.Random(0).shuffle(pictures)
        pictures = pictures[: self.limit]
        held = round(self.holdout * len(pictures))
        if self.holdout and not 0 < held < len(pictures):
            raise ValueError(
                f"--holdout {self.holdout} of {len(pictures)} pictures keeps {held} for validation: "
                "there must be one at least, and one to train on; --holdout 0 keeps none"
            )
        backbone = Backbone(self.backbone, pretrained=self.pretrained)
        if backbone.sha256 is None:
            warnings.warn(
                "scene: the network has random weights; --pretrained gives it those of a ResNet-50", stacklevel=2
            )
        copies = read_copies(backbone, pictures, self.sizes, cache=cache, progress=progress)
        facts = {
            "name": data.resolve().name,
            "pictures": len(pictures),
            "content": hashlib.sha256("".join(one.fingerprint for one in pictures).encode()).hexdigest(),
            "weights": backbone.sha256 or "",
        }
        validation = (
            ProfilePairDataset(copies[:held], min(_HELD, self.pairs), 0, backbone.fingerprint) if held else None
        )
        return TrainingData(
            ProfilePairDataset(copies[held:], self.pairs, self.seed, backbone.fingerprint), validation, facts
        )

    def network(self, facts: Mapping[str, Any]) -> nn.Module:
        return READOUTS[self.model.removeprefix("scene/")](CHANNELS, SCALES)

    def estimator(self, readout: Readout, facts: Mapping[str, Any], pretrained: str | None = None) -> ScaleEstimator:
        """A trained read-out with the frozen network that it was trained for.

        Args:
            readout: From a run with these settings.
            facts: Of the run.
            pretrained: Weights of the network; by default where they were when it was trained.
        """
        weights = self.pretrained if pretrained is None else pretrained
        sha256 = facts["weights"] or None
        if sha256 is None and pretrained is not None:
            raise ValueError(
                f"scene: the run was trained with random weights of its network, got --pretrained {pretrained}"
            )
        if sha256 is not None and weights not in PACKAGES and not Path(str(weights)).is_file():
            raise FileNotFoundError(
                f"scene: no file {weights} of the network's weights: give it by --pretrained (sha256 {sha256})"
            )
        return ScaleEstimator(Backbone(self.backbone, pretrained=weights, sha256=sha256), readout).eval()

    def exam(self, data: Path, facts: Mapping[str, Any], *, limit: int | None, outside: int) -> Evaluation:
        raise ValueError(f"a read-out is tested on pictures, planes and depth, by {self.test}")


class ProfilePairDataset(Dataset):
    """CopyPairs of profiles of one window of a picture in two copies, drawn anew every epoch.

    Args:
        copies: Of every picture.
        count: CopyPairs of an epoch.
        seed: Of what is drawn.
        fingerprint: Of the network of the profiles.
    """

    pixels = 2 * CHANNELS * len(SCALES)

    def __init__(self, copies: Sequence[Copies], count: int, seed: int, fingerprint: str) -> None:
        self.copies, self.count, self.seed, self.fingerprint = copies, count, seed, fingerprint
        self.pairs = functools.lru_cache(maxsize=2)(self._pairs)

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Profiles of both, [B, 2, C, S]."""
        pairs = self.pairs(epoch)
        return torch.stack(
            [self.copies[pairs.images[row]].profiles[self._both(pairs, row), pairs.windows[row]] for row in rows]
        ).float()

    def answers(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Octaves by which the first is larger, [B]."""
        pairs = self.pairs(epoch)
        both = torch.stack([self.copies[pairs.images[row]].octaves[self._both(pairs, row)] for row in rows])
        return both[:, 0] - both[:, 1]

    def _both(self, pairs: CopyPairs, row: int) -> list[int]:
        return [int(pairs.copies[row]), int(pairs.others[row])]

    def _pairs(self, epoch: int) -> CopyPairs:
        return draw_pairs(self.copies, self.count, np.random.default_rng(seed_of(self.seed, epoch)))


def scene_estimator(run: Path, pretrained: str | None = None) -> ScaleEstimator:
    """The estimator of a run of `disco train scene`, ready for use.

    Args:
        run: Folder of the run.
        pretrained: Weights of its network, which must be those that it was trained with; by default where they were.
    """
    record = read_record(run)
    settings = settings_of(record)
    if not isinstance(settings, SceneOptions):
        raise ValueError(f"{run} is a run of {settings.experiment}, not of scene")
    readout = trained(run)
    assert isinstance(readout, Readout)
    return settings.estimator(readout, record["facts"], pretrained)
