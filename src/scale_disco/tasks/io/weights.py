"""Pretrained weights of other networks: what pixels they expect, and their kernels on a basis."""

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ...basis import Basis
from ...models.packaged import cards, packaged_weights
from ..options import RANDOM

# How pixels from 0 to 255 become what a network was trained on: minus the first, over the second.
PIXELS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "caffe": ((123.68, 116.779, 103.939), (1.0, 1.0, 1.0)),  # in the order BGR
    "raw": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
_FIT = 1e-6  # singular values below so much of the largest are none
_FILES = (".safetensors", ".ckpt")  # weight files of a run


def chosen_weights(given: str | None, model: str) -> str | Path | None:
    """Return the weights of a model that --pretrained chooses; by default those that come with the package.

    None stands for random weights: `RANDOM`, or if none come with the package.
    """
    if given is None:
        return packaged_weights(model) if model in cards() else None
    return None if given == RANDOM else given


def fingerprint(run: Path | None, weights: Path | None = None) -> list[str]:
    """Return the SHA-256 checksums of the weight files in a run folder, by name, and of a separate file after them."""
    paths = [] if run is None else sorted(path for path in run.iterdir() if path.suffix in _FILES)
    return [file_sha256(path) for path in [*paths, *([weights] if weights else [])]]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fit_kernels(kernels: Tensor, basis: Basis) -> Tensor:
    """Weights whose kernels at the smallest scale of a basis are nearest to given ones, [C', C, k, k] -> [C', C, F].

    Of all such weights they are the smallest: where the functions of the smallest scale are not independent, others
    would be as near, but arbitrary at larger scales.
    """
    functions = basis.stencils[0].functions
    around = (kernels.shape[-1] - functions.shape[-1]) // 2
    matrix = F.pad(functions, [around] * 4).flatten(1)  # [F, k * k]; a negative margin cuts
    fitted: Tensor = kernels.to(torch.float64).flatten(2) @ torch.linalg.pinv(matrix, rtol=_FIT)
    return fitted.to(torch.float32)
