"""Trackers, and how good they are."""

from __future__ import annotations

from .tracker import Found, FrozenTracker, Tracker

__all__ = ["Found", "FrozenTracker", "Tracker"]
