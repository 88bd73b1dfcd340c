"""Training of trackers on pairs of crops from videos, in the layouts of OTB and GOT-10k."""

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...basis.discrete import one_thread
from ...models import create_model
from ...models.checkpoints import read_checkpoint, weight_file
from ..io.weights import chosen_weights
from ..runs.batches import Dataset, combined_seed
from ..runs.experiments import Experiment, TrainingData
from .data import sequences as otb
from .data.pairs import CropPair, cut_pair, draw_pair
from .networks import INSTANCE
from .options import TrackerOptions, UnfreezingSchedule

_VALIDATION_PAIRS = 64  # at most


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
    weights = chosen_weights(options.pretrained, options.model)
    return create_model(options.model, pretrained=weights, sha256=metadata["weights"] or None)


def initial_metadata(options: TrackerOptions) -> dict[str, Any]:
    """Return the checksum of the weights of `--pretrained`."""
    weights = chosen_weights(options.pretrained, options.model)
    return {"weights": "" if weights is None else read_checkpoint(weight_file(weights, "resnet50")).sha256}


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
        return torch.tensor([[*pair.shift, pair.octaves] for _, pair in (self._draw(row, epoch) for row in rows)])

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
