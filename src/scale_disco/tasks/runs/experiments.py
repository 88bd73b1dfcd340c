"""The experiments by name, imported when asked for. A new one joins here by its module and class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .groups import RunGroup
    from .options import RunOptions


class _Imported(Mapping[str, Any]):
    """Objects by name, each imported from "module:object" when it is first asked for."""

    def __init__(self, **places: str) -> None:
        self._places = {name.replace("_", "-"): place for name, place in places.items()}

    def __getitem__(self, name: str) -> Any:
        module, attribute = self._places[name].split(":")
        return getattr(import_module(f"...{module}", __name__), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


EXPERIMENTS: Mapping[str, type[RunOptions]] = _Imported(
    mnist_scale="mnist_scale.training:MnistScaleOptions",
    stl10="stl10.training:Stl10Options",
    tracker="tracking.training:TrackerOptions",
    scene="scene.training:SceneOptions",
)
TABLES: Mapping[str, type[RunGroup]] = _Imported(
    mnist_scale="mnist_scale.table:Table1", stl10="stl10.table:Tables2And3"
)
TRAINING_MODULES: Mapping[str, Any] = _Imported(
    classifier="runs.modules:ClassifierModule",
    matcher="tracking.losses:TrackerModule",
    contrast="scene.losses:ReadoutModule",
)
