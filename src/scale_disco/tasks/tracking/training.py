"""The experiment of tracking: pairs of views out of videos, in the layouts of OTB and GOT-10k."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...basis.cpu import one_thread
from ...models import create_model, list_models
from ...models.checkpoints import read_checkpoint
from ..runs.batches import Dataset, seed_of
from ..runs.options import Evaluation, Progress, RunOptions, TrainingData, setting
from ..runs.recipe import PRECISIONS, Recipe
from .data import sequences as otb
from .data.pairs import CropPair, cut_pair, draw_pair
from .networks import INSTANCE

_HELD = 64  # pairs of held-out videos, at most
_FARTHEST = 64  # pixels from the middle to the last cell of a map
_MODELS = list_models("track")


class UnfreezingSchedule(NamedTuple):
    """What a recipe says of trackers alone."""

    pairs: int
    shift: float
    zoom: float
    opening: tuple[tuple[float, int], ...]  # after which part of the epochs how many of the last stages learn
    norms: bool  # whether batch norms of these go on with their statistics
    scaled: bool  # whether scores become logits before the first step


RECIPES = {
    "small": Recipe(epochs=6, batch=8, learning_rate=3e-4, schedule="cosine", weights="last", clip=10.0),
    "paper": Recipe(
        epochs=50,
        batch=24,
        learning_rate=1e-2,
        schedule="logarithmic",
        optimiser="momentum",
        weight_decay=1e-4,
        weights="last",
        clip=10.0,
    ),
}
_COURSES = {
    "small": UnfreezingSchedule(160, 32.0, 0.6, ((0.0, 4),), norms=False, scaled=True),
    "paper": UnfreezingSchedule(
        450_000,
        4.0,
        0.07,
        ((0.0, 1), (0.1, 2), (0.2, 3), (0.3, 4), (0.5, 5), (0.6, 6), (0.7, 8)),
        norms=True,
        scaled=False,
    ),
}


@dataclass(frozen=True)
class TrackerOptions(RunOptions):
    """RunOptions of a run on pairs of views out of videos."""

    experiment = "tracker"
    subject = "objects"
    seen = (1.0, 1.0)
    models = _MODELS
    recipes = RECIPES
    named = ("model", "recipe", "seed")
    words = {"precision": PRECISIONS}  # noqa: RUF012
    facts = {"name": str, "videos": int, "frames": int, "boxes": str, "weights": str}  # noqa: RUF012
    learner = "matcher"
    test = "disco otb ROOT --tracker RUN"

    model: str = setting("track/disco", f"network: {', '.join(_MODELS)}")
    pretrained: str | None = setting(None, "file of weights to start from, of a ResNet-50 or of a tracker")
    stages: int | None = setting(
        None, "last stages of the network that learn (default 4; paper: 1, then more, then all)"
    )
    pairs: int | None = setting(None, "another number of pairs of views of an epoch")
    shift: float | None = setting(None, "pixels of a view by which the object is moved, at most (default 32; paper: 4)")
    zoom: float | None = setting(None, "octaves by which it is resized, at most (default 0.6; paper: 0.07)")
    scale_weight: float = setting(0.5, "of the loss of scales, for networks that have them")
    holdout: float = setting(0.1, "share of the videos that is kept for validation")
    recipe: str = setting("small", "schedule: small (6 epochs on the last stages) or paper (50, stage after stage)")
    epochs: int | None = setting(None, "another number of epochs; the schedule is stretched to it")
    batch: int | None = setting(None, "another number of pairs of a step")
    accumulate: int = setting(1, "parts of a batch computed one after the other, where memory is short")
    learning_rate: float | None = setting(None, "another one, at its largest")
    weight_decay: float | None = setting(None, "another one")
    ema: float = setting(0.0, "decay of a moving average of the weights, such as 0.999, which is then tested")
    precision: str = setting("32", "of the arithmetic: 32, 16 or bf16 (mixed with 32, for GPUs)")
    limit: int | None = setting(None, "videos at most, for trials")
    seed: int = setting(0, "of weights, order and augmentation")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("batch", 2), ("accumulate", 1), ("stages", 1), ("pairs", 2)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{_option(name)} must be at least {least}, got {value}")
        for name in ("holdout", "ema"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"--{name} must be from 0 to below 1, got {value}")
        for name in ("learning_rate", "weight_decay", "scale_weight"):
            if (value := getattr(self, name)) is not None and not 0 <= value < float("inf"):
                raise ValueError(f"--{_option(name)} must be a number from 0 on, got {value}")
        for name, most in (("shift", _FARTHEST), ("zoom", 2)):
            if (value := getattr(self, name)) is not None and not 0 <= value <= most:
                raise ValueError(f"--{name} must be from 0 to {most}, got {value}")

    @property
    def full_recipe(self) -> Recipe:
        recipe = dataclasses.replace(
            super().full_recipe, average=self.ema, precision=self.precision, accumulate=self.accumulate
        )
        given = {name: getattr(self, name) for name in ("batch", "learning_rate", "weight_decay")}
        return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})

    @property
    def course(self) -> UnfreezingSchedule:
        """The course of the recipe as this run has it."""
        course = _COURSES[self.recipe]
        given = {name: value for name in ("pairs", "shift", "zoom") if (value := getattr(self, name)) is not None}
        if self.stages is not None:
            given["opening"] = ((0.0, self.stages),)
        return course._replace(**given)

    def open_stages(self, epoch: int) -> int:
        """How many of the last stages learn in an epoch, counted from 0."""
        done = (epoch + 1) / self.full_recipe.epochs + 1e-9
        return max(count for part, count in self.course.opening if part <= done)

    @property
    def triplets(self) -> bool:
        """Whether places are compared by triplets."""
        return self.model == "track/trisiam"

    @property
    def folder(self) -> str:
        return f"{self.model.replace('/', '-')}-{self.recipe}-{self.seed}"

    def lesson(self, data: Path, *, cache: Path | None = None, progress: Progress | None = None) -> TrainingData:
        if cache is not None:
            raise ValueError("--cache keeps the decoded pictures of stl10 --format folder")
        videos = otb.read_sequences(data)
        random.Random(0).shuffle(videos)
        videos = videos[: self.limit]
        held = round(self.holdout * len(videos))
        if self.holdout and not 0 < held < len(videos):
            raise ValueError(
                f"--holdout {self.holdout} of {len(videos)} videos keeps {held} for validation: "
                "there must be one at least, and one to train on; --holdout 0 keeps none"
            )
        facts = {
            "name": data.resolve().name,
            "videos": len(videos),
            "frames": sum(len(video.frames) for video in videos),
            "boxes": _checksum(videos),
        }
        validation = CropPairDataset(videos[:held], min(_HELD, self.course.pairs), self.course, 0) if held else None
        return TrainingData(
            CropPairDataset(videos[held:], self.course.pairs, self.course, self.seed), validation, facts
        )

    def origin(self) -> dict[str, Any]:
        return {"weights": "" if self.pretrained is None else read_checkpoint(self.pretrained).sha256}

    def network(self, facts: Mapping[str, Any]) -> nn.Module:
        return create_model(self.model)

    def untrained(self, facts: Mapping[str, Any]) -> nn.Module:
        if self.pretrained is None:
            return self.network(facts)
        return create_model(self.model, pretrained=self.pretrained, sha256=facts["weights"])

    def exam(self, data: Path, facts: Mapping[str, Any], *, limit: int | None, outside: int) -> Evaluation:
        raise ValueError(f"a tracker is tested on videos, by {self.test}")


class CropPairDataset(Dataset):
    """Pairs of views of 255 pixels a side: every video as often as any other, every pair drawn anew every epoch.

    Args:
        videos: That pairs are cut from.
        count: Pairs of an epoch.
        course: How far objects are moved and resized.
        seed: Of what is drawn.
    """

    pixels = 2 * INSTANCE**2

    def __init__(self, videos: Sequence[otb.Sequence], count: int, course: UnfreezingSchedule, seed: int) -> None:
        self.videos, self.count, self.course, self.seed = videos, count, course, seed
        self.order = functools.lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        with one_thread():
            return torch.stack([cut_pair(*self._drawn(row, epoch)) for row in rows])  # [B, 6, 255, 255]

    def answers(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Shifts in pixels, right and down, and octaves: [B, 3]."""
        pairs = [self._drawn(row, epoch)[1] for row in rows]
        return torch.tensor([[*pair.shift, pair.octaves] for pair in pairs])

    def _drawn(self, row: int, epoch: int) -> tuple[otb.Sequence, CropPair]:
        order = self.order(epoch)
        video = self.videos[order[row % len(order)]]
        seed = seed_of(self.seed, epoch, row)
        return video, draw_pair(video, seed, shift=self.course.shift, zoom=self.course.zoom)

    def _order(self, epoch: int) -> list[int]:
        """All videos, shuffled."""
        return random.Random(seed_of(self.seed, epoch)).sample(range(len(self.videos)), len(self.videos))


def _checksum(videos: Sequence[otb.Sequence]) -> str:
    state = hashlib.sha256()
    for video in videos:
        state.update(f"{video.name} {len(video.frames)}\n".encode())
        state.update(video.boxes.numpy().tobytes())
    return state.hexdigest()


def _option(name: str) -> str:
    return name.replace("_", "-")
