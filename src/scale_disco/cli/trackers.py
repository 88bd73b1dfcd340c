"""What commands that track share: which tracker, with which weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..tracking import FrozenTracker, Tracker

FROZEN = "frozen"


def add_tracker(parser: argparse.ArgumentParser) -> None:
    """The options that choose a tracker."""
    parser.add_argument(
        "--tracker",
        metavar="RUN",
        default=FROZEN,
        help="folder of a run of `disco train tracker`, or frozen: the first box for ever (default)",
    )


def open_tracker(options: argparse.Namespace) -> Tracker:
    """The tracker that was chosen."""
    if options.tracker != FROZEN:
        raise FileNotFoundError(f"--tracker must be {FROZEN} or the folder of a run, got {options.tracker}")
    return FrozenTracker()


def tracker_name(options: argparse.Namespace) -> str:
    """A name for the tracker that was chosen."""
    return Path(options.tracker).name
