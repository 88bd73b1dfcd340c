"""`disco otb`: one-pass evaluation of a tracker on OTB, or on any videos in its layout."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ....files import check_writable
from ...io.figures import check_figure, save_figure
from ...io.report import table
from ...io.terminal import Progress, add_command, add_plot, add_report, say, show, write_report
from ..data.otb_lists import LISTS, TIGER1_OMITTED
from ..data.sequences import Sequence, find_sequences, read_sequences
from ..evaluation import Score, overall, scale_rule, score
from ..evaluation import run as track_all
from ..plots import plot_success
from ..results import Result, read_results
from .options import add_tracker, open_tracker, tracker_fingerprint, tracker_name

_EXAMPLES = """\
  disco otb data/otb --tracker frozen
  disco otb data/otb --list OTB2013 --tracker runs/tracker-disco --out otb.md
  disco otb data/otb --sequences CarScale Singer1 --tracker runs/tracker-disco
  disco otb data/otb --list OTB100 --compare others/SiamFC others/KCF --plot success.png

Finished sequences are kept in RESULTS/TRACKER and not tracked again; other toolkits read these files.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    otb = add_command(commands, "otb", run, "evaluate a tracker on OTB, or on videos in its layout", _EXAMPLES)
    otb.add_argument(
        "root", type=Path, metavar="ROOT", help="folder with videos: NAME/img and NAME/groundtruth_rect.txt"
    )
    add_tracker(otb)
    chosen = otb.add_mutually_exclusive_group()
    chosen.add_argument(
        "--list", choices=LISTS, help="the targets of a benchmark, all of them (default: what is there)"
    )
    chosen.add_argument("--sequences", nargs="+", metavar="NAME", help="these sequences only")
    otb.add_argument(
        "--allow-missing", action="store_true", help="with --list: go on where targets are missing, and say so"
    )
    otb.add_argument(
        "--tiger1-late",
        action="store_true",
        help="leave out the first five frames of Tiger1, as SiamDW and pytracking do (got10k and OTB count them)",
    )
    otb.add_argument(
        "--results",
        type=Path,
        default=Path("runs/otb"),
        metavar="DIR",
        help="folder for the boxes that are found, in a folder for each tracker (default runs/otb)",
    )
    otb.add_argument(
        "--compare", type=Path, nargs="+", default=[], metavar="DIR", help="folders with results of other trackers"
    )
    add_report(otb)
    add_plot(otb, "success and precision")


def run(options: argparse.Namespace) -> None:
    """Track, and print and draw the figures."""
    if options.plot:
        check_figure(options.plot)
    if options.out:
        check_writable(options.out)
    sequences, remark = _chosen(options)
    name = tracker_name(options)
    others = {label: read_results(folder, sequences) for label, folder in _labels(options.compare, name).items()}
    tracker = open_tracker(options)
    with Progress(f"{name} on {_count(sequences)}") as progress:
        results = track_all(
            tracker, sequences, options.results / name, fingerprint=tracker_fingerprint(options), progress=progress
        )
    found = {label: _Figures.of(one, sequences) for label, one in {name: results, **others}.items()}
    document = {
        "tracker": name,
        "list": options.list,
        "remark": remark,
        "scale variation": scale_rule(sequences),
        "sequences": {sequence: one.document() for sequence, one in found[name].each.items()},
        "overall": found[name].document(),
        "compared": {label: found[label].document() for label in others},
    }
    about = _about(name, found[name], sequences, options.root) + ([remark] if remark else [])
    tables = [_sequence_table(found[name]), *([_tracker_table(found)] if others else [])]
    show(options, document, "\n\n".join([*(table(*one) for one in tables), "\n".join(about)]))
    if options.out:
        text = "\n\n".join([f"{'. '.join(about)}.", *(table(*one, markdown=True) for one in tables)])
        title = f"{name} on {_count(sequences)} of {options.list or options.root.resolve().name}"
        write_report(options.out, title, text, document, command=options.call)
    if options.plot:
        curves = {label: (one.all.success.tolist(), one.all.precision.tolist()) for label, one in found.items()}
        save_figure(plot_success(curves, name, f"{_count(sequences)}, one pass"), options.plot)
        say(f"drawn {options.plot}")


class _Figures(NamedTuple):
    """Of a tracker: on each sequence, and over groups of them with how many these are."""

    each: dict[str, Score]
    groups: dict[str, tuple[int, Score]]

    @classmethod
    def of(cls, results: dict[str, Result], sequences: list[Sequence]) -> _Figures:
        each = {sequence.name: score(results[sequence.name], sequence) for sequence in sequences}
        return cls(each, overall(each, sequences))

    @property
    def all(self) -> Score:
        return self.groups["all"][1]

    def document(self) -> dict[str, Any]:
        return {group: {"sequences": count} | one.document(curves=True) for group, (count, one) in self.groups.items()}


def _chosen(options: argparse.Namespace) -> tuple[list[Sequence], str]:
    """The sequences that were asked for, and what has to be said of them."""
    if options.allow_missing and not options.list:
        raise ValueError("--allow-missing goes with --list")
    names = list(find_sequences(options.root))
    wanted = LISTS[options.list] if options.list else list(dict.fromkeys(options.sequences or names))
    there = {sequence.name: sequence for sequence in read_sequences(options.root, wanted)}
    if options.tiger1_late and (tiger := there.get("Tiger1")):
        late = slice(TIGER1_OMITTED, None)
        there["Tiger1"] = replace(tiger, frames=tiger.frames[late], boxes=tiger.boxes[late])
    missing = [name for name in wanted if name not in there]
    found = [there[name] for name in wanted if name in there]
    if not missing:
        return found, ""
    if not options.list:
        near = difflib.get_close_matches(missing[0], names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"--sequences: no {missing[0]} in {options.root}, {hint}")
    part = f"{len(found)} of {len(wanted)} targets of {options.list}"
    verdict = f"not an {options.list.replace('OTB', 'OTB-')} score"
    if not found or not options.allow_missing:
        hint = f"; give --allow-missing to go on, which is {verdict}" if found else ""
        raise ValueError(f"{options.root} has {part}, without {', '.join(missing)}{hint}")
    return found, f"{part}: {verdict}"


def _labels(folders: Iterable[Path], name: str) -> dict[str, Path]:
    """Folders of other trackers by their names, or by their whole paths where names are taken."""
    labels: dict[str, Path] = {}
    for folder in folders:
        short = folder.resolve().name
        labels[str(folder) if short == name or short in labels else short] = folder
    return labels


def _sequence_table(figures: _Figures) -> tuple[list[str], list[list[str]]]:
    rows = [[name, *_cells(one)] for name, one in figures.each.items()]
    rows += [[f"{name} ({count})", *_cells(one)] for name, (count, one) in figures.groups.items()]
    return ["sequence", "frames", "AUC", "precision", "scale error", "FPS"], rows


def _cells(one: Score) -> list[str]:
    return [str(one.frames), f"{one.auc:.3f}", f"{one.precision_20:.3f}", f"{one.scale_error:.3f}", _speed(one.fps)]


def _tracker_table(found: dict[str, _Figures]) -> tuple[list[str], list[list[str]]]:
    """Trackers beside each other, the best first."""
    groups = [group for group in next(iter(found.values())).groups if group != "all"]
    rows = []
    for label, figures in sorted(found.items(), key=lambda pair: -pair[1].all.auc):
        one = figures.all
        parts = [f"{figures.groups[group][1].auc:.3f}" for group in groups]
        cells = [f"{one.auc:.3f}", *parts, f"{one.precision_20:.3f}", f"{one.success_rate:.3f}"]
        rows.append([label, *cells, f"{one.scale_error:.3f}", _speed(one.fps)])
    names = [f"AUC, {group}" for group in groups]
    return ["tracker", "AUC", *names, "precision", "success rate", "scale error", "FPS"], rows


def _about(name: str, figures: _Figures, sequences: list[Sequence], root: Path) -> list[str]:
    one = figures.all
    return [
        f"{name} on {_count(sequences)} of {root}: AUC {one.auc:.3f}, precision at 20 pixels {one.precision_20:.3f}, "
        f"success rate at 0.5 {one.success_rate:.3f}, mean |log2 scale error| {one.scale_error:.3f}",
        f"FPS without reading images: {_speed(one.fps)} as frames over time, "
        f"{_speed(one.frame_fps)} as the mean of 1 / time of frames",
        f"scale variation: {scale_rule(sequences)}",
    ]


def _speed(fps: float | None) -> str:
    return "-" if fps is None else f"{fps:.1f}" if fps < 100 else f"{fps:.0f}"


def _count(sequences: list[Sequence]) -> str:
    return f"{len(sequences)} sequence{'s' if len(sequences) > 1 else ''}"
