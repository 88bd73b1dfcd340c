"""Training of readouts for scene geometry (Sec. 4.4): by how much copies of an image were resized."""

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models.checkpoints import PACKAGES
from ..io.weights import chosen_weights, file_sha256
from ..options import RANDOM
from ..runs.batches import Dataset, combined_seed
from ..runs.evaluate import trained
from ..runs.experiments import Experiment, Progress, TrainingData
from ..runs.record import METADATA, options_of, read_record
from .copies import Copies, CopyPairs, draw_pairs, find, read_copies
from .networks import CHANNELS, SCALES, UNTRAINED, Backbone, ScaleEstimator
from .options import SceneTrainOptions
from .readout import READOUTS, Readout

_VALIDATION_PAIRS = 1024  # at most


def make_data(
    options: SceneTrainOptions, folder: Path, *, cache: Path | None = None, progress: Progress | None = None
) -> TrainingData:
    """Return scale profiles of resized copies of the images in a folder, some of them held out for validation."""
    images = find(folder)
    random.Random(0).shuffle(images)
    images = images[: options.limit]
    count = options.holdout_count(len(images), "images")
    backbone = Backbone(options.backbone, pretrained=chosen_weights(options.pretrained, UNTRAINED))
    copies = read_copies(backbone, images, options.sizes, cache=cache, progress=progress)
    metadata = {
        "name": folder.resolve().name,
        "pictures": len(images),
        "content": hashlib.sha256("".join(image.fingerprint for image in images).encode()).hexdigest(),
        "weights": backbone.sha256 or "",
    }
    pairs = min(_VALIDATION_PAIRS, options.pairs)
    validation = ProfilePairDataset(copies[:count], pairs, 0, backbone.fingerprint) if count else None
    train = ProfilePairDataset(copies[count:], options.pairs, options.seed, backbone.fingerprint)
    return TrainingData(train, validation, metadata)


def make_model(options: SceneTrainOptions, metadata: Mapping[str, Any]) -> nn.Module:
    """Return the readout."""
    return READOUTS[options.model.removeprefix("scene/")](CHANNELS, SCALES)


EXPERIMENT = Experiment(
    SceneTrainOptions,
    make_data,
    make_model,
    subject="things",
    training_scales=(0.5, 2.0),
    metadata={"name": str, "pictures": int, "content": str, "weights": str},
    training_module="scene.losses:ReadoutModule",
    test_command="disco test scene RUN",
    cache_folder="profiles",
)


class ProfilePairDataset(Dataset):
    """Pairs of scale profiles of one window of an image in two copies, drawn at random every epoch."""

    pixels = 2 * CHANNELS * len(SCALES)

    def __init__(self, copies: Sequence[Copies], count: int, seed: int, fingerprint: str) -> None:
        self.copies, self.count, self.seed, self.fingerprint = copies, count, seed, fingerprint
        self.pairs = functools.lru_cache(maxsize=2)(self._pairs)

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Return the scale profiles of both copies, [B, 2, C, S]."""
        pairs = self.pairs(epoch)
        picked = ((self.copies[pairs.images[row]], pairs.copies[row], pairs.windows[row]) for row in rows)
        return torch.stack([image.profiles[both, window] for image, both, window in picked]).float()

    def targets(self, rows: Sequence[int], epoch: int) -> Tensor:
        """Return by how many octaves the first copy is larger, [B]."""
        pairs = self.pairs(epoch)
        octaves = torch.stack([self.copies[pairs.images[row]].octaves[pairs.copies[row]] for row in rows])
        return octaves[:, 0] - octaves[:, 1]

    def _pairs(self, epoch: int) -> CopyPairs:
        return draw_pairs(self.copies, self.count, np.random.default_rng(combined_seed(self.seed, epoch)))


def scene_estimator(run: Path, pretrained: str | None = None) -> ScaleEstimator:
    """Return the scale estimator of a run of `disco train scene`, in eval mode.

    The weights of its backbone must be those of the training (default: from where they were).
    """
    record = read_record(run)
    options = options_of(record)
    if not isinstance(options, SceneTrainOptions):
        raise ValueError(f"{run} is a run of {options.experiment}, not of scene")
    readout = trained(run)
    assert isinstance(readout, Readout)
    weights = chosen_weights(options.pretrained if pretrained is None else pretrained, UNTRAINED)
    sha256 = record[METADATA]["weights"] or None
    if sha256 is None:
        if pretrained not in (None, RANDOM):
            raise ValueError(f"scene: the backbone had random weights in training, got --pretrained {pretrained}")
        weights = None
    elif weights not in PACKAGES and not ((path := Path(str(weights))).is_file() and file_sha256(path) == sha256):
        raise FileNotFoundError(
            f"scene: {weights} is not the file of the network's weights; pass that as --pretrained (sha256 {sha256})"
        )
    return ScaleEstimator(Backbone(options.backbone, pretrained=weights, sha256=sha256), readout).eval()
