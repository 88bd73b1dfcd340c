"""Classifiers of scale profiles that differ in what they do with the scale axis.

All are trained on profiles [N, C, S] of images of one distance, and predict the class of images of others. A window of
`extent` neighboring scales at every shift along the axis is what they compare; scales past the ends are masked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol

import torch
from torch import Tensor

_OCTAVES = 1.0  # of scale augmentation and of the shifts at test time, each way


def unit_profiles(profiles: Tensor) -> Tensor:
    """Return the square roots of profiles [N, C, S], with unit norm at every scale."""
    return torch.nn.functional.normalize(profiles.clamp(min=0).sqrt(), dim=1)


class Head(Protocol):
    """A classifier of scale profiles."""

    def scores(self, train: Tensor, labels: Tensor, test: Tensor, classes: int) -> Tensor:
        """Train on unit profiles [M, C, S] and labels [M]; return the scores of others, [N, C, S] -> [N, K]."""


@dataclass(frozen=True)
class RidgeHead:
    """Ridge regression on windows of the scale axis, one-hot targets; the scores of all shifts are combined.

    Args:
        reference: Index of scale 1.
        extent: Scales of a window, centered at its shift.
        shifts: Largest shift at test time, in scales, each way.
        augment: Largest shift of the windows in training: scale augmentation by exact rescaling.
        combine: "max" of the scores over shifts, or "logsumexp", the logarithm of the mean of their probabilities.
        project: "mean" or "max" over all scales up to `shifts` before the classifier, instead of windows.
        ridge: Weight of the squared norm, relative to the mean squared norm of the windows.
        temperature: Divides scores before probabilities.
    """

    reference: int
    extent: int = 1
    shifts: int = 0
    augment: int = 0
    combine: str = "max"
    project: str | None = None
    ridge: float = 0.1
    temperature: float = 0.1

    def scores(self, train: Tensor, labels: Tensor, test: Tensor, classes: int) -> Tensor:
        seen = torch.stack([window for window, mask in self._windows(train, self.augment) if mask.all()], 1)
        inputs, targets = seen.flatten(0, 1), torch.nn.functional.one_hot(labels, classes).to(seen.dtype)
        mean, weight, bias = _ridge(inputs, targets.repeat_interleave(seen.shape[1], 0), self.ridge)
        # Scales past an end say nothing: the others stand for them.
        windows = self._windows(test, 0 if self.project else self.shifts)
        shown = [(window - mean) * (mask / mask.mean()) for window, mask in windows]
        scores = torch.stack(shown, 1) @ weight + bias  # [N, shifts, K]
        if self.combine == "max":
            return scores.amax(1)
        return (scores / self.temperature).log_softmax(-1).logsumexp(1)

    def _windows(self, profiles: Tensor, reach: int) -> list[tuple[Tensor, Tensor]]:
        """Return windows [N, C * extent] with at least half of their scales, and masks [C * extent], at all shifts."""
        windows = []
        for shift in range(-reach, reach + 1):
            extent = self.extent if self.project is None else 2 * self.shifts + 1
            first = self.reference + shift - extent // 2
            inside = profiles[:, :, max(0, first) : max(0, first + extent)]
            before, count = max(0, -first), inside.shape[2]
            if 2 * count < extent:
                continue
            if self.project is not None:
                reduced = inside.mean(2) if self.project == "mean" else inside.amax(2)
                windows.append((torch.nn.functional.normalize(reduced, dim=1), torch.ones(reduced.shape[1])))
                continue
            ends = before, extent - before - count
            mask = torch.nn.functional.pad(torch.ones_like(inside[0]), ends)
            windows.append((torch.nn.functional.pad(inside, ends).flatten(1), mask.flatten()))
        return windows


@dataclass(frozen=True)
class NeighborHead:
    """1-nearest neighbor over shifts: the distance of two profiles is the smallest over all shifts of one of them.

    Args:
        reference: Index of scale 1.
        extent: Scales around it that are compared; fewer where a shift moves some of them past the ends.
        shifts: Largest shift, in scales, each way; 0 compares profiles as they are.
        least: Scales that a shift must leave to be compared.
    """

    reference: int
    extent: int = 1
    shifts: int = 0
    least: int = 1

    def scores(self, train: Tensor, labels: Tensor, test: Tensor, classes: int) -> Tensor:
        scores = torch.full((len(test), classes), -torch.inf, dtype=train.dtype)
        return scores.scatter_reduce(1, labels.expand(len(test), -1), self.similarity(test, train), "amax")

    def similarity(self, test: Tensor, train: Tensor) -> Tensor:
        """Return the largest mean product of two profiles over all shifts, [N, C, S], [M, C, S] -> [N, M]."""
        count, radius = train.shape[2], self.extent // 2
        template = [k for k in range(self.reference - radius, self.reference + radius + 1) if 0 <= k < count]
        products = torch.einsum("ncs,mct->stnm", test, train)
        similarity = torch.full((len(test), len(train)), -torch.inf, dtype=train.dtype)
        for shift in range(-self.shifts, self.shifts + 1):
            pairs = [products[k + shift, k] for k in template if 0 <= k + shift < count]
            if len(pairs) >= self.least:
                similarity = torch.maximum(similarity, torch.stack(pairs).mean(0))
        return similarity


@dataclass(frozen=True)
class KernelHead(NeighborHead):
    """Kernel ridge regression with the similarity over shifts, `exp((similarity - 1) / width)`, as the kernel."""

    width: float = 0.1
    ridge: float = 0.1

    def scores(self, train: Tensor, labels: Tensor, test: Tensor, classes: int) -> Tensor:
        gram = ((self.similarity(train, train) - 1) / self.width).exp()
        gram = (gram + gram.T) / 2  # templates may be shorter than what they are compared with
        targets = torch.nn.functional.one_hot(labels, classes).to(gram.dtype)
        center = targets.mean(0)
        solved = torch.linalg.solve(gram + self.ridge * torch.eye(len(gram), dtype=gram.dtype), targets - center)
        scores: Tensor = ((self.similarity(test, train) - 1) / self.width).exp() @ solved + center
        return scores


def heads(reference: int, octave: int) -> dict[str, list[Head]]:
    """Return all classifiers by name, each with the hyper-parameters to choose from.

    Args:
        reference: Index of scale 1.
        octave: Scales per octave.
    """
    reach = round(_OCTAVES * octave)
    ridges = {"ridge": (0.01, 0.1, 1.0)}
    extents = {"extent": (octave + 1, 2 * octave + 1)}
    slid = {**extents, **ridges, "augment": (reach // 2, reach)}
    plain = RidgeHead(reference)
    augmented = replace(plain, augment=reach)
    near = {"extent": (2 * octave + 1, 6 * octave + 1), "shifts": (reach, 2 * reach)}
    kernel = {"width": (0.02, 0.05, 0.1, 0.2), "ridge": (0.03, 0.3)}
    return {
        "plain": _grid(plain, ridges),
        "plain + augmentation": _grid(augmented, ridges),
        "mean over scales": _grid(replace(plain, project="mean", shifts=reach), ridges),
        "mean over scales + augmentation": _grid(replace(augmented, project="mean", shifts=reach), ridges),
        "max over scales": _grid(replace(plain, project="max", shifts=reach), ridges),
        "max over scales + augmentation": _grid(replace(augmented, project="max", shifts=reach), ridges),
        "pyramid": _decisions(replace(plain, shifts=reach), ridges),
        "decisions at every scale + augmentation": _decisions(replace(augmented, shifts=reach), ridges),
        "window slid along the scales": _decisions(replace(plain, shifts=2 * reach), {**extents, **ridges}),
        "window slid along the scales + augmentation": _decisions(replace(augmented, shifts=reach), slid),
        "1-nearest neighbor": [NeighborHead(reference)],
        "1-nearest neighbor over shifts": _grid(NeighborHead(reference, least=octave // 2 + 1), near),
        "kernel ridge": _grid(KernelHead(reference), kernel),
        "kernel ridge over shifts": _grid(KernelHead(reference, least=octave // 2 + 1), {**near, **kernel}),
    }


def _decisions(head: RidgeHead, values: Mapping[str, Sequence[Any]]) -> list[Head]:
    probabilities = {"combine": ("logsumexp",), "temperature": (0.05, 0.2)}
    return _grid(head, values) + _grid(head, {**probabilities, **values})


def _grid(head: Any, values: Mapping[str, Sequence[Any]]) -> list[Head]:
    return [replace(head, **dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]


def _ridge(inputs: Tensor, targets: Tensor, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [F], weights [F, K] and biases [K] of ridge regression, solved in the smaller of its two forms."""
    mean, target_mean = inputs.mean(0), targets.mean(0)
    centered, targets = inputs - mean, targets - target_mean
    penalty = ridge * centered.square().sum(1).mean()
    samples, features = centered.shape
    if samples <= features:
        gram = centered @ centered.T + penalty * torch.eye(samples, dtype=inputs.dtype)
        weight = centered.T @ torch.linalg.solve(gram, targets)
    else:
        gram = centered.T @ centered + penalty * torch.eye(features, dtype=inputs.dtype)
        weight = torch.linalg.solve(gram, centered.T @ targets)
    return mean, weight, target_mean
