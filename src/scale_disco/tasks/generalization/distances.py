"""Training on images of one distance, testing on all nine: accuracy of every classifier of scale profiles."""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...scales import Scales
from ..io.arrays import checksum
from ..io.progress import Progress, counter
from ..io.report import table
from .heads import Head, heads, unit_profiles
from .materials import DISTANCES, STEP, Materials, read_kth_tips
from .profiles import PretrainedStages, cached_profiles

REFERENCE, OCTAVE = 4, 4  # index of scale 1, and scales per octave
SCALES = Scales.geometric(STEP, 13, start=STEP**-REFERENCE)  # 1/2 to 4


class DistanceResult(NamedTuple):
    """Accuracy of a classifier, [training distances, test distances] with values from 0 to 1, and over how many."""

    accuracy: np.ndarray
    images: int  # of every entry


def read_profiles(
    folder: Path,
    pretrained: str | os.PathLike[str],
    *,
    side: int = 160,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Materials, Tensor]:
    """Return the images of KTH-TIPS and the scale profiles of the features of a ResNet-50, [N, C, S].

    Args:
        folder: KTH-TIPS, with a subfolder of each material.
        pretrained: A file of weights with torchvision's names, such as ImageNet's, or "torchvision" or "timm".
        side: Images are center-cropped to so many pixels.
        cache: Folder that stores the profiles.
        progress: Called with the number of images done and in total.
    """
    data = read_kth_tips(folder, side)
    network = PretrainedStages(pretrained)
    key = checksum(image.numpy() for image in data.images)
    return data, cached_profiles(network, data.images, SCALES, key=key, cache=cache, progress=progress)


def distance_table(results: Mapping[str, DistanceResult]) -> str:
    """Return the mean accuracy over test distances by training distance as Markdown, in percent."""
    header = ["classifier", "mean", *(f"trained at {distance}" for distance in DISTANCES)]
    rows = [
        [name, *(f"{100 * value:.1f}" for value in (result.accuracy.mean(), *result.accuracy.mean(1)))]
        for name, result in results.items()
    ]
    return table(header, rows, markdown=True)


def evaluate_heads(
    profiles: Tensor,
    labels: np.ndarray,
    distances: np.ndarray,
    conditions: np.ndarray,
    choices: Mapping[str, Sequence[Head]] | None = None,
    progress: Progress | None = None,
) -> dict[str, DistanceResult]:
    """Return the accuracy of every classifier, by default of all `heads`.

    Conditions are divided into three groups: one to train on, one to choose the hyper-parameters on, and one to test
    on; all six orders are averaged. Hyper-parameters are chosen for every order and training distance on images of all
    distances in the second group.
    """
    choices = heads(REFERENCE, OCTAVE) if choices is None else choices
    groups = np.array_split(np.unique(conditions), 3)
    if min(map(len, groups)) == 0:
        raise ValueError(f"kth-tips: at least three conditions are needed, got {len(np.unique(conditions))}")
    units, targets = unit_profiles(profiles), torch.from_numpy(labels.astype(np.int64))
    classes = int(labels.max()) + 1
    correct = {name: np.zeros((len(DISTANCES), len(DISTANCES))) for name in choices}
    total = np.zeros(len(DISTANCES))
    count = counter(progress, math.factorial(len(groups)) * len(DISTANCES))

    def tested(candidates: Sequence[Head], train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Return which test images are classified correctly by the candidate that is best on the validation images."""
        shown = np.concatenate([validation, test])
        best, chosen = -1, np.zeros(0, bool)
        for head in candidates:
            scores = head.scores(units[train], targets[train], units[shown], classes)
            right = (scores.argmax(1) == targets[shown]).numpy()
            if (count := int(right[: len(validation)].sum())) > best:
                best, chosen = count, right[len(validation) :]
        return chosen

    for first, second, third in permutations(groups):
        validation, test = (np.flatnonzero(np.isin(conditions, group)) for group in (second, third))
        total += [np.sum(distances[test] == distance) for distance in DISTANCES]
        for row, distance in enumerate(DISTANCES):
            train = np.flatnonzero(np.isin(conditions, first) & (distances == distance))
            for name, candidates in choices.items():
                right = tested(candidates, train, validation, test)
                correct[name][row] += [right[distances[test] == each].sum() for each in DISTANCES]
            count(1)
    return {name: DistanceResult(counts / total, int(total[0])) for name, counts in correct.items()}
