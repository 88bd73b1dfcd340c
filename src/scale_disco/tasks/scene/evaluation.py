"""How well estimators tell how large things look: on resized copies of pictures, on slanted planes, beside depth.

Networks are slow and read-outs are fast. Estimators whose networks have one mark share what it sees of a picture, and
a folder keeps that, so that a stopped evaluation goes on where it was.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ...files import make_folder, plain, reason, write
from .copies import Copies, ImageSource, Sizes, read_copies
from .depth import DepthPair
from .field import Field, cell_field
from .networks import ScaleEstimator
from .planes import Rendered

KINDS = ("photograph", "noise", "leaves")  # of textures on planes
_KNOWN = 3  # pixels with a true value that a cell needs
_CELLS = 3  # of different truth that a correlation needs
_BINS = 12  # of a curve

Compare = Callable[[Tensor, Tensor], Tensor]
Estimators = Mapping[str, ScaleEstimator]


class Ratio(NamedTuple):
    """How well the ratio of two copies' sizes is told, over all pairs of copies of a picture at one window.

    Attributes:
        error: Mean of |log2| of predicted over true ratio.
        constant: The error of whoever says that all copies have one size.
        correlation: Of predicted with true log2 of the ratio, after Pearson.
        slope: Of predicted over true by least squares through zero.
        pairs: How many there are.
        curve: Means of true and predicted octaves over pairs of about the same truth.
    """

    error: float
    constant: float
    correlation: float
    slope: float
    pairs: int
    curve: list[tuple[float, float]]


def ratio_figures(compare: Compare, copies: Sequence[Copies]) -> Ratio:
    """Figures of a comparison of profiles, such as `Readout.compare`, on copies of pictures."""
    both = [_compared(compare, one) for one in copies]
    predicted, true = (torch.cat(parts).double() for parts in zip(*both, strict=True))
    return Ratio(
        error=float((predicted - true).abs().mean()),
        constant=float(true.abs().mean()),
        correlation=_correlation(predicted, true),
        slope=float((predicted * true).sum() / true.square().sum()),
        pairs=len(true),
        curve=_curve(predicted, true),
    )


def _compared(compare: Compare, copies: Copies) -> tuple[Tensor, Tensor]:
    """Predicted and true octaves of all pairs of copies of a picture, [P] each."""
    kinds, windows = copies.profiles.shape[:2]
    first, other = torch.triu_indices(kinds, kinds, 1)
    profiles = copies.profiles.float()
    with torch.inference_mode():
        predicted = compare(profiles[first].flatten(0, 1), profiles[other].flatten(0, 1)).cpu()
    true = copies.octaves[first] - copies.octaves[other]
    return predicted, true.repeat_interleave(windows)


def _curve(predicted: Tensor, true: Tensor) -> list[tuple[float, float]]:
    parts = true.argsort().chunk(_BINS)
    return [(float(true[part].mean()), float(predicted[part].mean())) for part in parts]


class LabeledScene(NamedTuple):
    """A picture, uint8 [3, H, W], with something true of its pixels that grows with scale, [H, W], NaN if unknown."""

    name: str
    kind: str
    image: Tensor
    octaves: Tensor

    @classmethod
    def of_plane(cls, name: str, plane: Rendered) -> LabeledScene:
        """A textured plane with the magnification of its texture."""
        kind = next((kind for kind in KINDS[1:] if name.startswith(f"{kind}-")), KINDS[0])
        return cls(name, kind, *plane)

    @classmethod
    def of_depth(cls, pair: DepthPair) -> LabeledScene:
        """A photograph with nearness: things twice as near look an octave larger, if they are the same."""
        return cls(pair.name, "depth", pair.image, -pair.meters.log2())


class Agreement(NamedTuple):
    """How well the field of a picture agrees with the truth.

    Attributes:
        name: Of the picture.
        kind: Of the picture.
        spearman: Rank correlation over cells; zero for a field that is the same everywhere.
        slope: Octaves of the field for an octave of the truth, by least squares.
        cells: That have a truth.
    """

    name: str
    kind: str
    spearman: float
    slope: float
    cells: int


def agreement(field: Field, scene: LabeledScene, cell: int) -> Agreement:
    """Compare a field of cells with the median of what is true of their pixels, where that is known of some."""
    truth = by_cell(scene.octaves, cell)
    known = truth.isfinite()
    predicted, true = field.octaves[known].double(), truth[known].double()
    different = len(set(true.tolist()))
    if different < _CELLS:
        raise ValueError(
            f"scene: {scene.name}: the truth has {different} values in cells of {cell} pixels, needs {_CELLS} at least"
        )
    centred = true - true.mean()
    slope = float((predicted * centred).sum() / centred.square().sum())
    return Agreement(scene.name, scene.kind, spearman(predicted, true), slope, int(known.sum()))


def by_cell(values: Tensor, cell: int) -> Tensor:
    """Medians of the known values of pixels [H, W] over cells, [h, w]; NaN where too few are known. None is made up."""
    height, width = values.shape
    whole = F.pad(values, (0, -width % cell, 0, -height % cell), value=math.nan)
    pixels = whole.unfold(0, cell, cell).unfold(1, cell, cell).flatten(2)
    return pixels.nanmedian(2).values.where(pixels.isfinite().sum(2) >= _KNOWN, math.nan)


def spearman(one: Tensor, other: Tensor) -> float:
    """Rank correlation of values [N]; zero if one of them is constant.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 10.0, 1000.0, 100.0]))
        0.8
    """
    return round(_correlation(_ranks(one), _ranks(other)), 12)


def _ranks(values: Tensor) -> Tensor:
    """Places of values in their order, the mean of them for equal values."""
    values = values.contiguous()
    order = values.sort().values
    return (torch.searchsorted(order, values) + torch.searchsorted(order, values, right=True)).double() / 2


def _correlation(one: Tensor, other: Tensor) -> float:
    one, other = one.double() - one.double().mean(), other.double() - other.double().mean()
    both = one.norm() * other.norm()
    return float((one * other).sum() / both) if both > 0 else 0.0


def scene_figures(
    estimators: Estimators,
    scenes: Iterable[LabeledScene],
    *,
    cache: Path | None = None,
    progress: Callable[[LabeledScene], None] | None = None,
) -> dict[str, list[Agreement]]:
    """How well fields agree with the truth, by estimator and picture.

    Fields are those of `disco scene` before they are enlarged: answers of windows, blended, one for every cell.

    Args:
        estimators: By name.
        scenes: Read one at a time.
        cache: Folder that keeps what networks see of the windows of a picture.
        progress: Called with every picture that is done.
    """
    if cache is not None:
        make_folder(cache)
    found: dict[str, list[Agreement]] = {name: [] for name in estimators}
    for scene in scenes:
        for group in by_network(estimators).values():
            profiles = window_profiles(next(iter(group.values())), scene.image, cache)
            for name, estimator in group.items():
                field = cell_field(_Pooled(estimator, profiles), scene.image)
                found[name].append(agreement(field, scene, estimator.cell))
        if progress is not None:
            progress(scene)
    return found


def by_network(estimators: Estimators) -> dict[str, dict[str, ScaleEstimator]]:
    """Estimators in groups that share what their network sees, by its mark."""
    groups: dict[str, dict[str, ScaleEstimator]] = {}
    for name, estimator in estimators.items():
        groups.setdefault(str(estimator.backbone.mark), {})[name] = estimator
    return groups


def window_profiles(estimator: ScaleEstimator, image: Tensor, cache: Path | None = None) -> Tensor:
    """What the network of an estimator sees of all windows of a picture that its field is made of, float16 [N, C, S].

    Args:
        estimator: Its read-out does not matter.
        image: uint8 [3, H, W].
        cache: Folder that keeps it.
    """
    if cache is None:
        return _seen(estimator, image)
    content = hashlib.sha256(image.numpy().tobytes()).hexdigest()
    facts = (estimator.backbone.mark, estimator.cell, estimator.window, tuple(image.shape), content)
    path = cache / f"windows-{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.safetensors"
    if path.is_file():
        try:
            profiles = load_file(path)["profiles"]
            if profiles.ndim != 3:
                raise ValueError("it holds no profiles [N, C, S]")
            return profiles
        except Exception as error:  # whatever a damaged file makes safetensors raise
            raise ValueError(f"{path}: damaged; delete it to see the picture anew ({plain(reason(error))})") from error
    profiles = _seen(estimator, image)
    write(path, save({"profiles": profiles}))
    return profiles


def _seen(estimator: ScaleEstimator, image: Tensor) -> Tensor:
    watch = _Watch(estimator)
    cell_field(watch, image.to(device_of(estimator)))
    return watch.profiles.cpu().half()


class _Watch:
    """An estimator that keeps the profiles which it should read."""

    profiles: Tensor

    def __init__(self, estimator: ScaleEstimator) -> None:
        self.cell, self.window, self.reach = estimator.cell, estimator.window, estimator.reach
        self.maps = estimator.maps

    def read(self, profiles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        self.profiles = profiles
        return torch.zeros(len(profiles)), torch.zeros(len(profiles))


class _Pooled:
    """An estimator that reads profiles of one picture, which its network has seen before, instead of maps."""

    def __init__(self, estimator: ScaleEstimator, profiles: Tensor) -> None:
        self.cell, self.window, self.reach = estimator.cell, estimator.window, estimator.reach
        self.estimator, self.profiles = estimator, profiles

    def maps(self, images: Tensor) -> Tensor:
        """Blank ones."""
        return images.new_zeros(1, 1, 1, *(math.ceil(length / self.cell) for length in images.shape[2:]))

    def read(self, profiles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return self.estimator.read(self.profiles.float().to(device_of(self.estimator)), weights)


def plane_figures(
    estimators: Estimators, planes: Iterable[tuple[str, Rendered]], **options: Any
) -> dict[str, list[Agreement]]:
    """Agreement with the magnification of textures on planes, as `scene.planes.planes` gives them."""
    return scene_figures(estimators, (LabeledScene.of_plane(*plane) for plane in planes), **options)


def depth_figures(estimators: Estimators, pairs: Iterable[DepthPair], **options: Any) -> dict[str, list[Agreement]]:
    """Agreement with nearness, minus log2 of depth. Large things that are far away speak against it."""
    return scene_figures(estimators, map(LabeledScene.of_depth, pairs), **options)


def copy_figures(
    estimators: Estimators,
    pictures: Sequence[ImageSource],
    sizes: Sizes,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Ratio]:
    """How well ratios of sizes are told, by estimator.

    Args:
        estimators: By name.
        pictures: That no estimator was trained on.
        sizes: How copies are drawn.
        cache: Folder that keeps what networks see of the copies of a picture.
        progress: Called with the mark of a network for every picture that it has seen.
    """
    found = {}
    for mark, group in by_network(estimators).items():
        network = _Elsewhere(next(iter(group.values())))
        step = None if progress is None else partial(_told, progress, mark)
        copies = read_copies(network, pictures, sizes, cache=cache, progress=step)
        for name, estimator in group.items():
            found[name] = ratio_figures(_compare(estimator), copies)
    return {name: found[name] for name in estimators}


def _told(progress: Callable[[str], None], mark: str, done: int, total: int) -> None:
    progress(mark)


def _compare(estimator: ScaleEstimator) -> Compare:
    """The comparison of an estimator for profiles on the CPU."""
    device = device_of(estimator)
    return lambda one, other: estimator.readout.compare(one.to(device), other.to(device))


class _Elsewhere:
    """The network of an estimator for images on the CPU, wherever it is itself."""

    def __init__(self, estimator: ScaleEstimator) -> None:
        self.mark: str = str(estimator.backbone.mark)
        self.network, self.device = estimator.backbone, device_of(estimator)

    def __call__(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network(images.to(self.device))
        return maps.cpu()


def device_of(module: nn.Module) -> torch.device:
    """Where a read-out or an estimator is."""
    return next(tensor.device for tensor in (*module.parameters(), *module.buffers()))


class Figures(NamedTuple):
    """Of an estimator, with None or nothing where it was not measured."""

    ratio: Ratio | None
    planes: Sequence[Agreement] = ()
    depth: Sequence[Agreement] = ()

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "ratio": self.ratio and self.ratio._asdict(),
            "planes": _summary(self.planes) if self.planes else None,
            "depth": _summary(self.depth) if self.depth else None,
        }


def median(agreements: Sequence[Agreement], kind: str | None = None) -> float | None:
    """Of the rank correlations of pictures, or of those of a kind; None if there are none."""
    chosen = [one.spearman for one in agreements if kind in (None, one.kind)]
    return statistics.median(chosen) if chosen else None


def median_slope(agreements: Sequence[Agreement]) -> float | None:
    """Of the slopes in pictures; None if there are none."""
    return statistics.median(one.slope for one in agreements) if agreements else None


def _summary(agreements: Sequence[Agreement]) -> dict[str, Any]:
    kinds = dict.fromkeys(one.kind for one in agreements)
    return {
        "median": median(agreements),
        "by kind": {kind: median(agreements, kind) for kind in kinds},
        "slope": median_slope(agreements),
        "each": [one._asdict() for one in agreements],
    }
