"""The experiments of `disco train`, `disco test` and `disco table`, imported lazily. Register new ones here."""

from collections import UserDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from ...scales import Scales
from ..io.progress import Progress as Progress
from ..io.report import binomial_std
from .batches import Dataset, LabeledDataset
from .options import RunOptions

if TYPE_CHECKING:
    from .tables import RunGroup


class TrainingData(NamedTuple):
    """Data of a run."""

    train: Dataset
    validation: Dataset | None
    metadata: dict[str, Any]  # about the data; the network and its evaluation depend on it


@dataclass(frozen=True)
class ScaleBin:
    """Errors on images of a range of scales."""

    kind: str
    low: float
    high: float
    images: int
    errors: int

    @property
    def error(self) -> float:
        """Fraction of the images that are misclassified."""
        return self.errors / self.images

    @property
    def std(self) -> float:
        """Binomial standard deviation of the error."""
        return binomial_std(self.errors, self.images)


def range_label(low: float, high: float) -> str:
    """Return the label of a range of scales.

    Example:
        >>> range_label(0.3, 0.4), range_label(2**0.5, 2**0.5)
        ('0.3 to 0.4', '1.414')
    """
    return f"{round(low, 3):g}" if low == high else f"{low:g} to {high:g}"


def scales_label(scales: Scales) -> str:
    """Return the label of a set of scales at test time.

    Example:
        >>> scales_label(Scales.geometric(2, 3, start=0.5))
        '3 scales from 0.5'
    """
    return f"{len(scales)} scales from {scales[0]:.3g}"


class Evaluation(NamedTuple):
    """Test sets of a classifier, and how its errors are summarized."""

    sets: dict[str, LabeledDataset]  # "test", and others
    total: int  # images of the whole test set
    classes: int
    same_data: bool  # whether the images belong to the data that the network was trained on
    cache_key: str  # differs for other images
    bins: Callable[[str, np.ndarray], list[ScaleBin]]  # from the name of a set and its errors, bool
    equivariance_error: Callable[[nn.Module], float | None]
    # Sets that are tested with another form of the network, such as more scales: how it is made.
    variants: Mapping[str, Callable[[nn.Module], nn.Module]] = MappingProxyType({})


@dataclass(frozen=True)
class Experiment:
    """An experiment: its options, and the functions that take them."""

    options: type[RunOptions]
    make_data: Callable[..., TrainingData]  # (options, folder), and see `RunOptions.caches`
    make_model: Callable[[Any, Mapping[str, Any]], nn.Module]  # (options, metadata)
    make_evaluation: Callable[..., Evaluation] | None = None  # (options, folder, metadata, *, limit, outside)
    subject: str = "images"  # what is tested at several scales
    training_scales: tuple[float, float] = (1.0, 1.0)  # lowest and highest; options may have `training_sizes` instead
    metadata: Mapping[str, Any] = field(default_factory=dict)  # types of the metadata of a run by name
    # Where training starts from other weights than `make_model` draws: the network, and metadata of a new run.
    make_initial_model: Callable[[Any, Mapping[str, Any]], nn.Module] | None = None
    initial_metadata: Callable[[Any], dict[str, Any]] = lambda options: {}
    training_module: str = "runs.modules:ClassifierModule"
    test_command: str = "disco test RUN"
    cache_folder: str | None = None  # next to runs; the default cache
    rescalable: Collection[str] = ()  # models that `make_evaluation` can test with other scales: test_scales, enlarge


def import_object(path: str) -> Any:
    """Import an object of `scale_disco.tasks` by "module:object"."""
    return resolve_name(f"{__package__.rpartition('.')[0]}.{path}")


class _LazyRegistry(UserDict[str, Any]):
    """Objects by name, each imported when asked for."""

    def __getitem__(self, name: str) -> Any:
        return import_object(self.data[name])


EXPERIMENTS: Mapping[str, Experiment] = _LazyRegistry(
    {
        "mnist-scale": "mnist_scale.training:EXPERIMENT",
        "stl10": "stl10.training:EXPERIMENT",
        "tracker": "tracking.training:EXPERIMENT",
        "scene": "scene.training:EXPERIMENT",
        "generalization": "generalization.training:EXPERIMENT",
    }
)
TABLES: Mapping[str, "type[RunGroup]"] = _LazyRegistry(
    {
        "mnist-scale": "mnist_scale.table:Table1",
        "stl10": "stl10.table:Tables2And3",
        "generalization": "generalization.table:SizeTable",
    }
)
