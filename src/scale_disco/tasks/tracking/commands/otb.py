"""`disco otb`: one-pass evaluation of a tracker on OTB, or on any videos in its layout."""

import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...io.report import table
from ...io.terminal import Progress, check_outputs, show, write_plot, write_report
from ...io.video import counted
from ..data.otb_lists import LISTS, TIGER1_OMITTED
from ..data.sequences import Sequence, find_sequences, read_sequences
from ..evaluation import Score, overall, scale_rule, score
from ..evaluation import run as track_all
from ..options import OtbOptions
from ..plots import plot_success
from ..results import Result, read_results
from .chosen import open_tracker, remarks, tracker_fingerprint, tracker_name


def run(options: OtbOptions) -> None:
    """Track, print the metrics and plot them."""
    check_outputs(options.out, options.plot)
    sequences, remark = _chosen(options)
    name, count = tracker_name(options), counted(len(sequences), "sequence")
    others = {label: read_results(folder, sequences) for label, folder in _labels(options.compare, name).items()}
    tracker = open_tracker(options)
    fingerprint, folder = tracker_fingerprint(options), options.results / name
    with Progress(f"{name} on {count}") as progress:
        results = track_all(tracker, sequences, folder, fingerprint=fingerprint, progress=progress)
    metrics = {label: _Metrics.of(each, sequences) for label, each in {name: results, **others}.items()}
    document = {
        "tracker": name,
        "list": options.list,
        "remark": remark,
        "scale variation": scale_rule(sequences),
        "sequences": {sequence: each.document() for sequence, each in metrics[name].sequences.items()},
        "overall": metrics[name].document(),
        "compared": {label: metrics[label].document() for label in others},
    }
    mean = metrics[name].all
    about = [
        f"{name} on {count} of {options.root}: AUC {mean.auc:.3f}, precision at 20 pixels {mean.precision_20:.3f}, "
        f"success rate at 0.5 {mean.success_rate:.3f}, mean |log2 scale error| {mean.scale_error:.3f}",
        f"FPS without reading images: {_speed(mean.fps)} as frames over time, "
        f"{_speed(mean.frame_fps)} as the mean of 1 / time per frame",
        f"scale variation: {scale_rule(sequences)}",
        *([remark] if remark else []),
        *remarks(options),
    ]
    tables = [_sequence_table(metrics[name]), *([_tracker_table(metrics)] if others else [])]
    show(options, document, "\n\n".join([*(table(*content) for content in tables), "\n".join(about)]))
    text = "\n\n".join([f"{'. '.join(about)}.", *(table(*content, markdown=True) for content in tables)])
    title = f"{name} on {count} of {options.list or options.root.resolve().name}"
    write_report(options.out, title, text, document, command=options.call)
    curves = {label: (each.all.success.tolist(), each.all.precision.tolist()) for label, each in metrics.items()}
    write_plot(options.plot, lambda: plot_success(curves, name, f"{count}, one pass"))


class _Metrics(NamedTuple):
    """Metrics of a tracker on each sequence, and means over groups of sequences with their number."""

    sequences: dict[str, Score]
    groups: dict[str, tuple[int, Score]]

    @classmethod
    def of(cls, results: dict[str, Result], sequences: list[Sequence]) -> "_Metrics":
        scores = {sequence.name: score(results[sequence.name], sequence) for sequence in sequences}
        return cls(scores, overall(scores, sequences))

    @property
    def all(self) -> Score:
        return self.groups["all"][1]

    def document(self) -> dict[str, Any]:
        groups = self.groups.items()
        return {group: {"sequences": count} | mean.document(curves=True) for group, (count, mean) in groups}


def _chosen(options: OtbOptions) -> tuple[list[Sequence], str]:
    """Return the chosen sequences, and a remark about missing ones."""
    names = list(find_sequences(options.root))
    wanted = LISTS[options.list] if options.list else list(dict.fromkeys(options.sequences or names))
    available = {sequence.name: sequence for sequence in read_sequences(options.root, wanted)}
    if options.tiger1_late and (tiger := available.get("Tiger1")):
        late = slice(TIGER1_OMITTED, None)
        available["Tiger1"] = replace(tiger, frames=tiger.frames[late], boxes=tiger.boxes[late])
    missing = [name for name in wanted if name not in available]
    sequences = [available[name] for name in wanted if name in available]
    if not missing:
        return sequences, ""
    if not options.list:
        near = difflib.get_close_matches(missing[0], names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"--sequences: no {missing[0]} in {options.root}, {hint}")
    part = f"{len(sequences)} of {len(wanted)} targets of {options.list}"
    verdict = f"not an {options.list.replace('OTB', 'OTB-')} score"
    if not sequences or not options.allow_missing:
        hint = f"; use --allow-missing to evaluate these, which is {verdict}" if sequences else ""
        raise ValueError(f"{options.root} has {part}, without {', '.join(missing)}{hint}")
    return sequences, f"{part}: {verdict}"


def _labels(folders: Iterable[Path], name: str) -> dict[str, Path]:
    """Return the folders of other trackers by name, or by path if the name is taken."""
    labels: dict[str, Path] = {}
    for folder in folders:
        short = folder.resolve().name
        labels[str(folder) if short == name or short in labels else short] = folder
    return labels


def _sequence_table(metrics: _Metrics) -> tuple[list[str], list[list[str]]]:
    scores = metrics.sequences | {f"{name} ({count})": mean for name, (count, mean) in metrics.groups.items()}
    rows = [
        [name, f"{row.frames}", f"{row.auc:.3f}", f"{row.precision_20:.3f}", f"{row.scale_error:.3f}", _speed(row.fps)]
        for name, row in scores.items()
    ]
    return ["sequence", "frames", "AUC", "precision", "scale error", "FPS"], rows


def _tracker_table(metrics: dict[str, _Metrics]) -> tuple[list[str], list[list[str]]]:
    """A row per tracker, the best first."""
    groups = [group for group in next(iter(metrics.values())).groups if group != "all"]
    rows = []
    for label, each in sorted(metrics.items(), key=lambda pair: -pair[1].all.auc):
        aucs = [each.all.auc, *(each.groups[group][1].auc for group in groups)]
        numbers = [*aucs, each.all.precision_20, each.all.success_rate, each.all.scale_error]
        rows.append([label, *(f"{number:.3f}" for number in numbers), _speed(each.all.fps)])
    names = [f"AUC, {group}" for group in groups]
    return ["tracker", "AUC", *names, "precision", "success rate", "scale error", "FPS"], rows


def _speed(fps: float | None) -> str:
    return "-" if fps is None else f"{fps:.1f}" if fps < 100 else f"{fps:.0f}"
