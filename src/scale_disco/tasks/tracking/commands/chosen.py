"""The tracker that the options of a command choose."""

import json
from pathlib import Path
from typing import Any

from ....models import create_model, list_models
from ....models.checkpoints import weight_file
from ...io.terminal import chosen_device
from ...io.weights import chosen_weights, fingerprint
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


def remarks(options: TrackerChoice) -> list[str]:
    """Return what a reader of the results should know about the tracker."""
    baseline = options.tracker in (STATIC_BOX, _OLD_NAME)
    return [f"{STATIC_BOX}: a baseline, which returns the first box in every frame"] if baseline else []


def tracker_name(options: TrackerChoice) -> str:
    """Return a name for the chosen tracker."""
    path = Path(options.tracker)
    name = (path.resolve() if path.is_dir() else path).name
    return "-".join([name, *(word for word in (options.mode, options.motion) if word)])


def tracker_fingerprint(options: TrackerChoice) -> str:
    """Return what identifies a tracker: the options that chose it, and checksums of its weights."""
    folder = Path(options.tracker)
    network = None if folder.is_dir() else _OLD_NAME if options.tracker == STATIC_BOX else options.tracker
    checksums = fingerprint(folder if folder.is_dir() else None, _weights(options))
    parts = {
        "network": network,  # not the folder of a run, which may be moved
        "mode": options.mode,
        "motion": options.motion,
        "weights": [checksum[:16] for checksum in checksums],
    }
    return json.dumps({name: part for name, part in parts.items() if part})


def _weights(options: TrackerChoice) -> Path | None:
    """Return the file of the weights of a network by name; None for a run, and for random weights."""
    weights = chosen_weights(options.pretrained, options.tracker)
    if weights is None and options.pretrained is None and options.tracker in list_models("track"):
        raise ValueError(f"--tracker {options.tracker} needs --pretrained, or give the folder of a run")
    return None if weights is None else weight_file(weights, "resnet50")


def _network(options: TrackerChoice) -> Siamese:
    names = list_models("track")
    if options.tracker in names:
        network: Any = create_model(options.tracker, pretrained=_weights(options))
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
