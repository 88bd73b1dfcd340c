"""The tracker that the options of a command choose."""

import json
from pathlib import Path
from typing import Any

from ....models import create_model, list_models
from ....models.checkpoints import weight_file
from ...io.terminal import chosen_device
from ...io.weights import fingerprint
from ..networks import Siamese
from ..options import MOTIONS, STATIC_BOX, TrackerChoice
from ..tracker import SiameseTracker, StaticBoxTracker, Tracker

_OLD_NAME = "frozen"  # of the static-box baseline in version 0.1, still accepted


def open_tracker(options: TrackerChoice) -> Tracker:
    """Return the chosen tracker."""
    device = chosen_device(options.device)
    if options.tracker in (STATIC_BOX, _OLD_NAME):
        for name in ("pretrained", "mode", "motion"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} needs a network, got --tracker {options.tracker}")
        return StaticBoxTracker()
    motion = None if options.motion is None else MOTIONS[options.motion]
    return SiameseTracker(_network(options).to(device), options.mode, motion)


def tracker_name(options: TrackerChoice) -> str:
    """Return a name for the chosen tracker."""
    path = Path(options.tracker)
    name = (path.resolve() if path.is_dir() else path).name
    return "-".join([name, *(word for word in (options.mode, options.motion) if word)])


def tracker_fingerprint(options: TrackerChoice) -> str:
    """Return what identifies a tracker: the options that chose it, and checksums of its weights."""
    folder = Path(options.tracker)
    network = None if folder.is_dir() else _OLD_NAME if options.tracker == STATIC_BOX else options.tracker
    weights = options.pretrained and weight_file(options.pretrained, "resnet50")
    parts = {
        "network": network,  # not the folder of a run, which may be moved
        "mode": options.mode,
        "motion": options.motion,
        "weights": [sha256[:16] for sha256 in fingerprint(folder if folder.is_dir() else None, weights or None)],
    }
    return json.dumps({name: part for name, part in parts.items() if part})


def _network(options: TrackerChoice) -> Siamese:
    names = list_models("track")
    if options.tracker in names:
        if options.pretrained is None:
            raise ValueError(f"--tracker {options.tracker} needs --pretrained, or give the folder of a run")
        network: Any = create_model(options.tracker, pretrained=options.pretrained)
    elif not Path(options.tracker).is_dir():
        choices = ", ".join([STATIC_BOX, *names])
        raise FileNotFoundError(f"--tracker must be a run folder or one of {choices}; got {options.tracker}")
    elif options.pretrained is not None:
        raise ValueError(f"--pretrained is for a network by name ({', '.join(names)}), got --tracker {options.tracker}")
    else:
        from ...runs.evaluate import trained

        network = trained(Path(options.tracker))
    if not isinstance(network, Siamese):
        raise ValueError(f"--tracker {options.tracker}: this run trained no tracker")
    return network
