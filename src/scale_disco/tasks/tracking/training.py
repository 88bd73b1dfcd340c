"""Training of trackers on pairs of crops from videos, in the layouts of OTB and GOT-10k."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...basis.discrete import one_thread
from ...models import create_model, list_models
from ...models.checkpoints import read_checkpoint
from ..runs.batches import Dataset, combined_seed
from ..runs.experiments import Experiment, TrainingData
from ..runs.options import NON_NEGATIVE, NetworkOptions, at_least, between, option
from ..runs.recipe import Recipe
from .data import sequences as otb
from .data.pairs import CropPair, cut_pair, draw_pair
from .networks import INSTANCE

_VALIDATION_PAIRS = 64  # at most
_MAX_SHIFT = 64  # pixels from the center to the last cell of a score map
_MODELS = list_models("track")


class UnfreezingSchedule(NamedTuple):
    """What a recipe has for trackers alone: pairs, their augmentation, and when stages of the network are trained."""

    pairs: int
    shift: float
    zoom: float
    trained_stages: tuple[tuple[float, int], ...]  # after which fraction of the epochs, how many of the last stages
    norms: bool  # whether batch norms of these update their statistics
    calibrate: bool  # whether scores are scaled to logits before the first step


RECIPES = {
    "small": Recipe(6, 8, 3e-4, "cosine", weights="last", clip=10.0),
    "paper": Recipe(50, 24, 1e-2, "logarithmic", "momentum", weight_decay=1e-4, weights="last", clip=10.0),
}
_STAGES = ((0.0, 1), (0.1, 2), (0.2, 3), (0.3, 4), (0.5, 5), (0.6, 6), (0.7, 8))
_UNFREEZING = {
    "small": UnfreezingSchedule(160, 32.0, 0.6, ((0.0, 4),), norms=False, calibrate=True),
    "paper": UnfreezingSchedule(450_000, 4.0, 0.07, _STAGES, norms=True, calibrate=False),
}


@dataclass(frozen=True)
class TrackerOptions(NetworkOptions):
    """Options of a run on pairs of crops from videos."""

    experiment = "tracker"
    recipes = RECIPES
    named = ("model", "recipe", "seed")

    model: str = option("track/disco", f"network: {', '.join(_MODELS)}", choices=_MODELS)
    recipe: str = option("small", "small (6 epochs, last stages) or paper (50, stage after stage)", choices=RECIPES)
    pretrained: str | None = option(None, "file of weights to start from, of a ResNet-50 or of a tracker")
    stages: int | None = option(None, "last stages that are trained (default 4; paper: 1 to all)", rule=at_least(1))
    pairs: int | None = option(None, "pairs of crops per epoch", rule=at_least(2))
    shift: float | None = option(
        None, "maximum shift of the object in a crop, in pixels (default 32; paper: 4)", rule=between(0, _MAX_SHIFT)
    )
    zoom: float | None = option(None, "maximum zoom in octaves (default 0.6; paper: 0.07)", rule=between(0, 2))
    scale_weight: float = option(0.5, "weight of the scale loss, for networks with scales", rule=NON_NEGATIVE)

    @property
    def unfreezing(self) -> UnfreezingSchedule:
        """The unfreezing schedule of the recipe, with the values that other options override."""
        overrides = {name: value for name in ("pairs", "shift", "zoom") if (value := getattr(self, name)) is not None}
        if self.stages is not None:
            overrides["trained_stages"] = ((0.0, self.stages),)
        return _UNFREEZING[self.recipe]._replace(**overrides)

    def trained_stages(self, epoch: int) -> int:
        """Return how many of the last stages are trained in an epoch, counted from 0."""
        progress = (epoch + 1) / self.full_recipe.epochs + 1e-9
        return max(count for start, count in self.unfreezing.trained_stages if start <= progress)


def make_data(options: TrackerOptions, folder: Path) -> TrainingData:
    """Read the videos, some of them held out for validation."""
    videos = otb.read_sequences(folder)
    random.Random(0).shuffle(videos)
    videos = videos[: options.limit]
    count, schedule = options.holdout_count(len(videos), "videos"), options.unfreezing
    metadata = {
        "name": folder.resolve().name,
        "videos": len(videos),
        "frames": sum(len(video.frames) for video in videos),
        "boxes": _checksum(videos),
    }
    pairs = min(_VALIDATION_PAIRS, schedule.pairs)
    validation = CropPairDataset(videos[:count], pairs, schedule, 0) if count else None
    return TrainingData(CropPairDataset(videos[count:], schedule.pairs, schedule, options.seed), validation, metadata)


def make_model(options: TrackerOptions, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the network."""
    return create_model(options.model)


def make_initial_model(options: TrackerOptions, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the network with the weights of `--pretrained`."""
    return create_model(options.model, pretrained=options.pretrained, sha256=metadata["weights"] or None)


def initial_metadata(options: TrackerOptions) -> dict[str, Any]:
    """Return the checksum of the weights of `--pretrained`."""
    return {"weights": "" if options.pretrained is None else read_checkpoint(options.pretrained).sha256}


EXPERIMENT = Experiment(
    TrackerOptions,
    make_data,
    make_model,
    subject="objects",
    metadata={"name": str, "videos": int, "frames": int, "boxes": str, "weights": str},
    make_initial_model=make_initial_model,
    initial_metadata=initial_metadata,
    training_module="tracking.losses:TrackerModule",
    test_command="disco otb ROOT --tracker RUN",
)


class CropPairDataset(Dataset):
    """Pairs of crops of 255 pixels a side, drawn at random every epoch, from every video equally often."""

    pixels = 2 * INSTANCE**2

    def __init__(self, videos: Sequence[otb.Sequence], count: int, schedule: UnfreezingSchedule, seed: int) -> None:
        self.videos, self.count, self.schedule, self.seed = videos, count, schedule, seed
        self.order = functools.lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        with one_thread():
            return torch.stack([cut_pair(*self._draw(row, epoch)) for row in rows])  # [B, 6, 255, 255]

    def targets(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Return shifts in pixels, right and down, and octaves: [B, 3]."""
        pairs = [self._draw(row, epoch)[1] for row in rows]
        return torch.tensor([[*pair.shift, pair.octaves] for pair in pairs])

    def _draw(self, row: int, epoch: int) -> tuple[otb.Sequence, CropPair]:
        order = self.order(epoch)
        video = self.videos[order[row % len(order)]]
        seed = combined_seed(self.seed, epoch, row)
        return video, draw_pair(video, seed, shift=self.schedule.shift, zoom=self.schedule.zoom)

    def _order(self, epoch: int) -> list[int]:
        """Return all videos, shuffled."""
        return random.Random(combined_seed(self.seed, epoch)).sample(range(len(self.videos)), len(self.videos))


def _checksum(videos: Sequence[otb.Sequence]) -> str:
    state = hashlib.sha256()
    for video in videos:
        state.update(f"{video.name} {len(video.frames)}\n".encode())
        state.update(video.boxes.numpy().tobytes())
    return state.hexdigest()
