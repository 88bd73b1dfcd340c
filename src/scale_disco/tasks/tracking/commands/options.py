"""What commands that track share: which tracker, with which weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ....models import create_model, list_models
from ...io.terminal import add_device, chosen_device, suggest
from ...io.weights import fingerprint
from .. import MODES, MOTIONS, SiameseTracker, StaticBoxTracker, Tracker
from ..networks import Siamese

FROZEN = "frozen"


def add_tracker(parser: argparse.ArgumentParser) -> None:
    """The options that choose a tracker."""
    group = parser.add_argument_group("the tracker")
    names = list_models("track")
    suggest(
        group.add_argument(
            "--tracker",
            default=FROZEN,
            help=f"folder of a run of `disco train tracker`; a network with --weights: {', '.join(names)}; "
            "or frozen: the first box for ever (default)",
        ),
        [*names, FROZEN],
        folders=True,
    )
    group.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="of a network by name: weights of a ResNet-50, of SiamDW, of SE-SiamFC, or of a run (its last.ckpt)",
    )
    group.add_argument(
        "--mode",
        choices=MODES,
        help="how a change of size is found: axis (in one view, by networks with scales; their default), pyramid (in "
        "three views, as in the authors' code; the default of others) or fixed (not at all)",
    )
    group.add_argument("--motion", choices=MOTIONS, help="what is expected of the object (default: that of the mode)")
    add_device(group)


def open_tracker(options: argparse.Namespace) -> Tracker:
    """The tracker that was chosen."""
    device = chosen_device(options)
    if options.tracker == FROZEN:
        for name in ("weights", "mode", "motion"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} is of a network, got --tracker {FROZEN}")
        return StaticBoxTracker()
    motion = None if options.motion is None else MOTIONS[options.motion]
    return SiameseTracker(_network(options).to(device), options.mode, motion)


def tracker_name(options: argparse.Namespace) -> str:
    """A name for the tracker that was chosen."""
    words = [Path(options.tracker).resolve().name if Path(options.tracker).is_dir() else Path(options.tracker).name]
    return "-".join([*words, *(word for word in (options.mode, options.motion) if word)])


def tracker_fingerprint(options: argparse.Namespace) -> str:
    """Return what tells a tracker from others: the options that chose it, and checksums of its weights."""
    folder = Path(options.tracker)
    checksums = fingerprint(folder if folder.is_dir() else None, options.weights)
    parts = {
        "network": None if folder.is_dir() else options.tracker,  # a run may be moved
        "mode": options.mode,
        "motion": options.motion,
        "weights": [checksum[:16] for checksum in checksums],
    }
    return json.dumps({name: part for name, part in parts.items() if part})


def _network(options: argparse.Namespace) -> Siamese:
    names = list_models("track")
    if options.tracker in names:
        if options.weights is None:
            raise ValueError(f"--tracker {options.tracker} needs --weights, or give the folder of a run")
        network: Any = create_model(options.tracker, pretrained=options.weights)
    else:
        if not Path(options.tracker).is_dir():
            raise FileNotFoundError(
                f"--tracker must be the folder of a run, {FROZEN}, or one of {', '.join(names)}; got {options.tracker}"
            )
        if options.weights is not None:
            raise ValueError(f"--weights is of a network by name ({', '.join(names)}), got --tracker {options.tracker}")
        from ...runs.evaluate import trained

        network = trained(Path(options.tracker))
    if not isinstance(network, Siamese):
        raise ValueError(f"--tracker {options.tracker} is a run that trained no tracker")
    return network
