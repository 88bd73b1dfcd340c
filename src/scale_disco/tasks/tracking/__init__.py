"""Trackers and their evaluation."""

from __future__ import annotations

from .tracker import MODES, MOTIONS, MotionParameters, SiameseTracker, StaticBoxTracker, TrackedBox, Tracker

__all__ = ["MODES", "MOTIONS", "MotionParameters", "SiameseTracker", "StaticBoxTracker", "TrackedBox", "Tracker"]
