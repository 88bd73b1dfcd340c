"""Trackers, and how good they are."""

from __future__ import annotations

from .tracker import MODES, MOTIONS, Found, FrozenTracker, Motion, SiameseTracker, Tracker

__all__ = ["MODES", "MOTIONS", "Found", "FrozenTracker", "Motion", "SiameseTracker", "Tracker"]
