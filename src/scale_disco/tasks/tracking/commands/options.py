"""Options of commands that track: the tracker and its weights."""

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

STATIC_BOX = "static-box"
_OLD_NAME = "frozen"  # of the static-box baseline in version 0.1, still accepted


def add_tracker(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a tracker."""
    group = parser.add_argument_group("tracker")
    names = list_models("track")
    about = (
        f"run folder of `disco train tracker`; a network with --weights: {', '.join(names)}; "
        f"or {STATIC_BOX}: the first box in every frame, a baseline (default)"
    )
    tracker = group.add_argument("--tracker", default=STATIC_BOX, help=about)
    suggest(tracker, [*names, STATIC_BOX], folders=True)
    weights = "weights for a network by name: of a ResNet-50, of SiamDW, of SE-SiamFC, or of a run (its last.ckpt)"
    group.add_argument("--weights", type=Path, metavar="FILE", help=weights)
    mode = (
        "how the scale is estimated: axis (one crop, by networks with a scale axis; their default), pyramid "
        "(three crops, as in the authors' code; the default of other networks) or fixed (not at all)"
    )
    group.add_argument("--mode", choices=MODES, help=mode)
    group.add_argument("--motion", choices=MOTIONS, help="motion hyper-parameters (default: those of the mode)")
    add_device(group)


def open_tracker(options: argparse.Namespace) -> Tracker:
    """Return the chosen tracker."""
    device = chosen_device(options)
    if options.tracker in (STATIC_BOX, _OLD_NAME):
        for name in ("weights", "mode", "motion"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} needs a network, got --tracker {options.tracker}")
        return StaticBoxTracker()
    motion = None if options.motion is None else MOTIONS[options.motion]
    return SiameseTracker(_network(options).to(device), options.mode, motion)


def tracker_name(options: argparse.Namespace) -> str:
    """Return a name for the chosen tracker."""
    path = Path(options.tracker)
    name = (path.resolve() if path.is_dir() else path).name
    return "-".join([name, *(word for word in (options.mode, options.motion) if word)])


def tracker_fingerprint(options: argparse.Namespace) -> str:
    """Return what identifies a tracker: the options that chose it, and checksums of its weights."""
    folder = Path(options.tracker)
    network = None if folder.is_dir() else _OLD_NAME if options.tracker == STATIC_BOX else options.tracker
    checksums = fingerprint(folder if folder.is_dir() else None, options.weights)
    parts = {
        "network": network,  # not the folder of a run, which may be moved
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
    elif not Path(options.tracker).is_dir():
        choices = ", ".join([STATIC_BOX, *names])
        raise FileNotFoundError(f"--tracker must be a run folder or one of {choices}; got {options.tracker}")
    elif options.weights is not None:
        raise ValueError(f"--weights is for a network by name ({', '.join(names)}), got --tracker {options.tracker}")
    else:
        from ...runs.evaluate import trained

        network = trained(Path(options.tracker))
    if not isinstance(network, Siamese):
        raise ValueError(f"--tracker {options.tracker}: this run trained no tracker")
    return network
