"""Trackers and their evaluation."""
