"""Runs beside the paper's tables."""

from __future__ import annotations

from .group import Group
from .mnist_scale import Table1
from .stl10 import Tables2And3

# By experiment.
TABLES: dict[str, type[Group]] = {one.settings.experiment: one for one in (Table1, Tables2And3)}
