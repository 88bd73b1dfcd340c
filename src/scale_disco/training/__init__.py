"""The training loop, on Lightning. Needs the extra `train`."""

from __future__ import annotations

from .mnist_scale import MnistScale
from .scene import Scene
from .settings import Settings
from .stl10 import Stl10
from .tracker import Tracker

# A new experiment joins by its settings here.
EXPERIMENTS: dict[str, type[Settings]] = {one.experiment: one for one in (MnistScale, Stl10, Tracker, Scene)}
