"""Evaluation of scale estimators: on resized copies of images, on slanted planes, and against depth.

Networks are slow and readouts are fast. Estimators whose networks have the same fingerprint share its scale profiles,
and a cache stores them, so that an interrupted evaluation resumes.
"""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..io.arrays import cached_tensors
from ..io.images import find_images, open_image, read_image
from .copies import Copies, ImageSource, Sizes, read_copies
from .field import Field, blended_field, window_profiles
from .networks import ScaleEstimator
from .planes import Rendered

KINDS = ("photograph", "noise", "leaves")  # of textures on planes
_MIN_PIXELS = 3  # known pixels that a cell needs
_MIN_VALUES = 3  # distinct true values that a correlation needs
_BINS = 12  # of a curve
_DEPTH = "_depth_mm.png"  # end of the name of a depth map

Compare = Callable[[Tensor, Tensor], Tensor]
Estimators = Mapping[str, ScaleEstimator]


class DepthPair(NamedTuple):
    """A photo, uint8 [3, H, W], and the distance along the optical axis in meters, float32 [H, W], NaN if unknown."""

    name: str
    image: Tensor
    meters: Tensor


def find_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the files of all pairs NAME.jpg and NAME_depth_mm.png in a folder and below it, sorted by name.

    The photo may have another format than JPEG. Images without depth are ignored.
    """
    paths = find_images(folder, recursive=True)
    photos = {path.with_suffix(""): path for path in paths if not path.name.endswith(_DEPTH)}
    pairs = {}
    for path in paths:
        if path.name.endswith(_DEPTH):
            stem = path.with_name(path.name.removesuffix(_DEPTH))
            if stem not in photos:
                raise FileNotFoundError(f"depth: {path} has no photo next to it, such as {stem.name}.jpg")
            pairs[stem.relative_to(folder).as_posix()] = photos[stem], path
    if not pairs:
        raise FileNotFoundError(f"depth: no pairs of NAME.jpg and NAME{_DEPTH} in {folder} and below it")
    return dict(sorted(pairs.items()))


def read_pair(name: str, photo: Path, depth: Path) -> DepthPair:
    """Read a pair of files; the depth is a 16-bit PNG in millimeters, 0 where it is unknown."""
    image, meters = read_image(photo), read_depth(depth)
    if image.shape[1:] != meters.shape:
        (height, width), (rows, columns) = image.shape[1:], meters.shape
        raise ValueError(f"depth: {depth} has {columns} x {rows} pixels, its photo {width} x {height}")
    return DepthPair(name, image, meters)


def read_depth(path: Path) -> Tensor:
    """Read depth in meters, float32 [H, W], NaN where the file has zeros."""
    with open_image(path, ("PNG",)) as image:
        if image.mode[0] != "I":
            raise ValueError(f"expected gray values of 16 bits, got mode {image.mode}")
        millimeters = np.asarray(image).astype(np.float32)
    meters = torch.from_numpy(millimeters) / 1000
    return meters.where(meters > 0, math.nan)


class Ratio(NamedTuple):
    """Errors of predicted size ratios, over all pairs of copies of an image at one window."""

    error: float  # mean |log2| of predicted over true ratio
    constant: float  # error of the prediction that all copies have the same size
    correlation: float  # Pearson correlation of predicted and true log2 ratio
    slope: float  # of predicted over true log2 ratio, by least squares through zero
    pairs: int
    curve: list[tuple[float, float]]  # means of true and predicted octaves over bins of the true ones


def ratio_figures(compare: Compare, copies: Sequence[Copies]) -> Ratio:
    """Evaluate a comparison of scale profiles, such as `Readout.compare`, on copies of images."""
    pairs = [_compared(compare, image) for image in copies]
    predicted, true = (torch.cat(parts).double() for parts in zip(*pairs, strict=True))
    return Ratio(
        error=float((predicted - true).abs().mean()),
        constant=float(true.abs().mean()),
        correlation=_correlation(predicted, true),
        slope=float((predicted * true).sum() / true.square().sum()),
        pairs=len(true),
        curve=[(float(true[rows].mean()), float(predicted[rows].mean())) for rows in true.argsort().chunk(_BINS)],
    )


def _compared(compare: Compare, copies: Copies) -> tuple[Tensor, Tensor]:
    """Return predicted and true octaves of all pairs of copies of an image, [P] each."""
    count, windows = copies.profiles.shape[:2]
    first, other = torch.triu_indices(count, count, 1)
    profiles = copies.profiles.float()
    with torch.inference_mode():
        predicted = compare(profiles[first].flatten(0, 1), profiles[other].flatten(0, 1)).cpu()
    true = copies.octaves[first] - copies.octaves[other]
    return predicted, true.repeat_interleave(windows)


class LabeledScene(NamedTuple):
    """An image, uint8 [3, H, W], with a ground truth that increases with apparent scale, [H, W], NaN if unknown."""

    name: str
    kind: str
    image: Tensor
    octaves: Tensor

    @classmethod
    def of_plane(cls, name: str, plane: Rendered) -> "LabeledScene":
        """Label a textured plane by the magnification of its texture."""
        kind = next((kind for kind in KINDS[1:] if name.startswith(f"{kind}-")), KINDS[0])
        return cls(name, kind, *plane)

    @classmethod
    def of_depth(cls, pair: DepthPair) -> "LabeledScene":
        """Label a photo by nearness, -log2(depth): the same object at half the distance is an octave larger."""
        return cls(pair.name, "depth", pair.image, -pair.meters.log2())


class Agreement(NamedTuple):
    """Agreement of the scale field of an image with the ground truth."""

    name: str
    kind: str
    spearman: float  # rank correlation over cells; zero for a constant field
    slope: float  # octaves of the field per octave of the ground truth, by least squares
    cells: int  # with a ground truth


def agreement(field: Field, scene: LabeledScene, cell: int) -> Agreement:
    """Compare a field of cells with the median of the ground truth in every cell."""
    truth = by_cell(scene.octaves, cell)
    known = truth.isfinite()
    predicted, true = field.octaves[known].double(), truth[known].double()
    values = len(set(true.tolist()))
    if values < _MIN_VALUES:
        got = f"the ground truth has {values} values in cells of {cell} pixels"
        raise ValueError(f"scene: {scene.name}: {got}, needs at least {_MIN_VALUES}")
    centered = true - true.mean()
    slope = float((predicted * centered).sum() / centered.square().sum())
    return Agreement(scene.name, scene.kind, spearman(predicted, true), slope, int(known.sum()))


def by_cell(values: Tensor, cell: int) -> Tensor:
    """Return the median of known values [H, W] in every cell, [h, w]; NaN where fewer than three are known."""
    height, width = values.shape
    whole = F.pad(values, (0, -width % cell, 0, -height % cell), value=math.nan)
    pixels = whole.unfold(0, cell, cell).unfold(1, cell, cell).flatten(2)
    return pixels.nanmedian(2).values.where(pixels.isfinite().sum(2) >= _MIN_PIXELS, math.nan)


def spearman(x: Tensor, y: Tensor) -> float:
    """Return the rank correlation of values [N]; zero if either is constant.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 10.0, 1000.0, 100.0]))
        0.8
    """
    return round(_correlation(_ranks(x), _ranks(y)), 12)


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks of values; ties get their mean rank."""
    values = values.contiguous()
    order = values.sort().values
    return (torch.searchsorted(order, values) + torch.searchsorted(order, values, right=True)).double() / 2


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    norms = x.norm() * y.norm()
    return float((x * y).sum() / norms) if norms > 0 else 0.0


def scene_figures(
    estimators: Estimators,
    scenes: Iterable[LabeledScene],
    *,
    cache: Path | None = None,
    progress: Callable[[LabeledScene], None] | None = None,
) -> dict[str, list[Agreement]]:
    """Return the agreement of scale fields with the ground truth, by estimator and image.

    Fields are those of `disco scene` at the resolution of cells. `progress` is called with every scene that is done.
    """
    agreements: dict[str, list[Agreement]] = {name: [] for name in estimators}
    for scene in scenes:
        for group in by_network(estimators).values():
            profiles = cached_profiles(next(iter(group.values())), scene.image, cache).float()
            for name, estimator in group.items():
                field = blended_field(estimator, scene.image, profiles.to(device_of(estimator)))
                agreements[name].append(agreement(field, scene, estimator.cell))
        if progress is not None:
            progress(scene)
    return agreements


def by_network(estimators: Estimators) -> dict[str, dict[str, ScaleEstimator]]:
    """Group estimators by the fingerprint of their network."""
    groups: dict[str, dict[str, ScaleEstimator]] = {}
    for name, estimator in estimators.items():
        groups.setdefault(str(estimator.backbone.fingerprint), {})[name] = estimator
    return groups


def cached_profiles(estimator: ScaleEstimator, image: Tensor, cache: Path | None = None) -> Tensor:
    """Return the scale profiles of all windows of an image uint8 [3, H, W], float16 [N, C, S]."""
    content = hashlib.sha256(image.numpy().tobytes()).hexdigest()
    key = (estimator.backbone.fingerprint, estimator.cell, estimator.window, tuple(image.shape), content)

    def compute() -> dict[str, Tensor]:
        return {"profiles": window_profiles(estimator, image.to(device_of(estimator))).cpu().half()}

    return cached_tensors(cache, "windows", key, {"profiles": (None, None, None)}, compute)["profiles"]


def copy_figures(
    estimators: Estimators,
    images: Sequence[ImageSource],
    sizes: Sizes,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Ratio]:
    """Return the errors of predicted size ratios on images that no estimator was trained on, by estimator.

    `progress` is called with the fingerprint of a network for every image that it has processed.
    """
    figures = {}
    for fingerprint, group in by_network(estimators).items():
        first = next(iter(group.values()))

        def step(done: int, total: int, fingerprint: str = fingerprint) -> None:
            if progress is not None:
                progress(fingerprint)

        copies = read_copies(first.backbone, images, sizes, device=device_of(first), cache=cache, progress=step)
        for name, estimator in group.items():
            figures[name] = ratio_figures(_compare(estimator), copies)
    return {name: figures[name] for name in estimators}


def _compare(estimator: ScaleEstimator) -> Compare:
    """Return the comparison of an estimator for profiles on the CPU."""
    device = device_of(estimator)
    return lambda profiles, others: estimator.readout.compare(profiles.to(device), others.to(device))


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module."""
    return next(tensor.device for tensor in (*module.parameters(), *module.buffers()))


class Figures(NamedTuple):
    """Results of an estimator; None or empty where it was not evaluated."""

    ratio: Ratio | None
    planes: Sequence[Agreement] = ()
    depth: Sequence[Agreement] = ()

    def document(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio and self.ratio._asdict(),
            "planes": _summary(self.planes) if self.planes else None,
            "depth": _summary(self.depth) if self.depth else None,
        }


def median(agreements: Sequence[Agreement], kind: str | None = None, figure: str = "spearman") -> float | None:
    """Return the median of a figure over images, of all or of one kind; None if there are none."""
    values = [getattr(image, figure) for image in agreements if kind in (None, image.kind)]
    return statistics.median(values) if values else None


def _summary(agreements: Sequence[Agreement]) -> dict[str, Any]:
    return {
        "median": median(agreements),
        "by kind": {kind: median(agreements, kind) for kind in dict.fromkeys(image.kind for image in agreements)},
        "slope": median(agreements, figure="slope"),
        "each": [image._asdict() for image in agreements],
    }
