"""Evaluate trackers on zooming sequences and on OTB, and time them: writes results/tracking.md.

Networks come from two runs of `disco train tracker` with the same settings, of track/siamfc+ and track/disco. Boxes are
kept in --results: a call that was stopped goes on, and `--only` lets several processes share the work.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from scale_disco.files import write
from scale_disco.models import create_model
from scale_disco.tasks.bench.timing import on_reference
from scale_disco.tasks.io.figures import save_figure
from scale_disco.tasks.io.images import load_frame
from scale_disco.tasks.io.report import provenance, table
from scale_disco.tasks.runs.evaluate import trained
from scale_disco.tasks.tracking.data.sequences import Sequence as Video
from scale_disco.tasks.tracking.data.sequences import read_sequences
from scale_disco.tasks.tracking.evaluation import Score, mean_score, run, score, varies_in_scale
from scale_disco.tasks.tracking.plots import plot_sizes, plot_success
from scale_disco.tasks.tracking.tracker import MOTIONS, SiameseTracker, StaticBoxTracker, Tracker

STATIC, TRUTH = "static-box baseline", "truth"
SHOWN = {"zoom": 1, "otb": 2}  # videos whose sizes are drawn: those that change most
# Name of a row: whose weights, network, mode, motion.
ROWS: dict[str, tuple[str, str, str, str]] = {
    "SiamFC+, size fixed": ("siamfc", "siamfc+", "fixed", "default"),
    "SiamFC+, three crops": ("siamfc", "siamfc+", "pyramid", "default"),
    "SiamFC+, three crops, OTB-2015's motion": ("siamfc", "siamfc+", "pyramid", "siamfc+-otb2015"),
    "DISCO, one crop": ("disco", "disco", "axis", "axis"),
    "DISCO, one crop, weights of SiamFC+": ("siamfc", "disco", "axis", "axis"),
}
ONLY_ON = {  # to save hours
    "DISCO, one crop, weights of SiamFC+": "zoom",
    "SiamFC+, three crops": "zoom",
}
TRAINED = """\
Both networks start from the same ImageNet weights (a ResNet-50 of Caffe) and see the same pairs of crops, from {} of
`disco data zoom --pictures MASTERS --out ZOOM`. MASTERS were 34 photos and 300 small images of scenes; objects
and backgrounds of the test are from images that are not in training. Images of roads, and those of a set of rooms, were
kept together in one folder each; that of roads was named such that it falls into training, before any tracker had run,
since it would have filled the test. SiamFC+ has two published sets of motion hyper-parameters. The damping of changes
of size by similarity in DISCO was chosen by looking at four of the zooming and four of the real sequences below;
nothing else was."""
SPEED_FRAMES = 12  # of each of three videos


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    wanted = [name for name in (STATIC, *ROWS) if not options.only or name in options.only]
    parts = []
    shown: dict[str, dict[str, list[float]]] = {}
    for title, root in (("zoom", options.zoom), ("otb", options.otb)):
        if options.only and options.on not in (None, title):
            continue
        videos = read_sequences(root)
        names = [name for name in wanted if ONLY_ON.get(name, title) == title]
        all_scores = {name: evaluated(options, name, title, videos) for name in names}
        if options.only:
            continue
        parts.append(zoom_part(all_scores, videos) if title == "zoom" else otb_part(all_scores, videos))
        draw(all_scores, title, options.figures)
        shown |= sizes(options, title, videos)
    if options.only:
        return
    save_figure(plot_sizes(shown, TRUTH, "DISCO, one crop"), options.figures / "tracking_sizes.png")
    parts.insert(0, speed_part(options))
    call = "python benchmarks/tracking.py " + " ".join(
        f"--{name} {place}"
        for name, place in (("zoom", "ZOOM/test"), ("otb", "OTB"), ("siamfc", "runs/siamfc+"), ("disco", "runs/disco"))
    )
    call += f" --weights RESNET50 --threads {options.threads}"
    text = "\n\n".join(["# Trackers", provenance(call), training_part(options), *parts])
    write(options.out, f"{text}\n".encode())
    print(text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoom", type=Path, required=True, help="test part of `disco data zoom`")
    parser.add_argument("--otb", type=Path, required=True, help="folder with sequences of OTB")
    parser.add_argument("--siamfc", type=Path, required=True, help="run of `disco train tracker --model track/siamfc+`")
    parser.add_argument("--disco", type=Path, required=True, help="run of `disco train tracker --model track/disco`")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights that both runs started from")
    parser.add_argument("--results", type=Path, default=Path("runs/tracking"), help="where boxes are kept")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="track for these rows and stop; see ROWS")
    parser.add_argument("--on", choices=["zoom", "otb"], help="with --only: on these videos alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--figures", "--pictures", type=Path, default=Path("docs"), help="folder of the success plots")
    parser.add_argument("--out", type=Path, default=Path("results/tracking.md"))
    return parser.parse_args()


def opened(options: argparse.Namespace, name: str) -> tuple[Tracker, str]:
    """A tracker, and what tells it from others."""
    if name == STATIC:
        return StaticBoxTracker(), name
    whose, network, mode, motion = ROWS[name]
    if whose == network.rstrip("+"):
        net, source = trained(getattr(options, whose)), getattr(options, whose) / "last.ckpt"
    else:
        net, source = (
            create_model(f"track/{network}", pretrained=getattr(options, whose) / "last.ckpt"),
            options.siamfc / "last.ckpt",
        )
    checksum = hashlib.sha256(source.read_bytes()).hexdigest()
    return SiameseTracker(net, mode, MOTIONS[motion]), f"{name} {MOTIONS[motion]} {checksum}"


def evaluated(options: argparse.Namespace, name: str, title: str, videos: Sequence[Video]) -> dict[str, Score]:
    """Figures of a tracker on every video."""
    tracker, fingerprint = opened(options, name)
    results = run(
        tracker, videos, folder_of(options, name, title), fingerprint=fingerprint, progress=Ticker(f"{name} on {title}")
    )
    return {video.name: score(results[video.name], video) for video in videos}


def folder_of(options: argparse.Namespace, name: str, title: str) -> Path:
    return options.results / title / name.replace(" ", "-").replace(",", "")


class Ticker:
    """A line on standard error every half minute, with the time left."""

    def __init__(self, label: str) -> None:
        self.label, self.start, self.said = label, time.monotonic(), time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.said > 30 or done == total:
            self.said = now
            left = (now - self.start) / done * (total - done)
            print(f"{self.label}: {done} of {total} frames, {left:.0f} s left", file=sys.stderr, flush=True)


def over(all_scores: dict[str, Score], videos: Sequence[Video], chosen: Callable[[Video], bool]) -> Score:
    return mean_score([all_scores[video.name] for video in videos if chosen(video)])


def zoom_part(all_scores: dict[str, dict[str, Score]], videos: Sequence[Video]) -> str:
    kinds = {
        "static": lambda video: video.name.startswith("static"),
        "zooming": lambda video: video.name.startswith(("walk", "step")),
        "distractor": lambda video: video.name.startswith("distractor"),
    }
    header = ["tracker", *(f"AUC, {kind}" for kind in kinds), *(f"scale error, {kind}" for kind in kinds), "precision"]
    rows = []
    for name, scores in all_scores.items():
        parts = [over(scores, videos, chosen) for chosen in kinds.values()]
        cells = [f"{score.auc:.3f}" for score in parts] + [f"{score.scale_error:.3f}" for score in parts]
        rows.append([name, *cells, f"{over(scores, videos, lambda _: True).precision_20:.3f}"])
    counts = ", ".join(f"{sum(map(chosen, videos))} {kind}" for kind, chosen in kinds.items())
    frames = sum(len(video.frames) for video in videos)
    return (
        f"## Zooming sequences\n\n{len(videos)} held-out synthetic sequences ({counts}), {frames} frames, with "
        "textures not used in training. Scale error: mean |log2| of the ratio of estimated to true sqrt(w h), in "
        "octaves. "
        "Precision: fraction of frames whose center is at most 20 pixels off.\n\n" + table(header, rows, markdown=True)
    )


def otb_part(all_scores: dict[str, dict[str, Score]], videos: Sequence[Video]) -> str:
    groups = {"all": lambda _: True, "scale variation": varies_in_scale}
    header = ["tracker", "AUC", "precision", "scale error", "AUC, scale variation", "scale error, scale variation"]
    rows = []
    for name, scores in all_scores.items():
        every, varying = (over(scores, videos, chosen) for chosen in groups.values())
        cells = [every.auc, every.precision_20, every.scale_error, varying.auc, varying.scale_error]
        rows.append([name, *(f"{cell:.3f}" for cell in cells)])
    each = [
        [name, *(f"{score.auc:.2f} / {score.scale_error:.2f}" for score in scores.values())]
        for name, scores in all_scores.items()
    ]
    names = ", ".join(video.name for video in videos)
    return (
        f"## Real sequences of OTB\n\n{len(videos)} sequences of OTB-2013 ({names}), "
        f"{sum(len(video.frames) for video in videos)} frames, {sum(map(varies_in_scale, videos))} of the sequences "
        "with OTB's attribute scale variation. Ten of 51 targets, chosen for the size of their files: not an "
        "OTB-2013 score, and not comparable with the paper's 0.68 (DISCO), 0.68 (SE-SiamFC+) and 0.67 (SiamFC+), "
        f"whose networks were trained on GOT-10k.\n\n{table(header, rows, markdown=True)}\n\n"
        "AUC and scale error of each sequence:\n\n" + table(["tracker", *all_scores[STATIC]], each, markdown=True)
    )


class AsAuthors(SiameseTracker):
    """All crops of a frame in one batch, as in the authors' code."""

    def _features(self, views: Tensor) -> Tensor:
        return self.network.embed(views)


def speed_part(options: argparse.Namespace) -> str:
    """Milliseconds per frame, trackers in turns on the same frames."""
    dense = AsAuthors(create_model("track/se-siamfc+", pretrained=options.weights), "pyramid")
    dense.network.features = on_reference(create_model("track/se-siamfc+", pretrained=options.weights).eval().features)
    plus, disco = (create_model(f"track/{name}", pretrained=options.weights) for name in ("siamfc+", "disco"))
    hermite = create_model("track/se-siamfc+", pretrained=options.weights)
    trackers = {
        "SiamFC+, three crops": SiameseTracker(plus, "pyramid"),
        "SE-SiamFC+, dense kernels, three crops": dense,
        "SE-SiamFC+, ours, three crops": SiameseTracker(hermite, "pyramid"),
        "DISCO, three crops": SiameseTracker(disco, "pyramid"),
        "DISCO, one crop": SiameseTracker(disco, "axis"),
        "SiamFC+, size fixed": SiameseTracker(plus, "fixed"),
    }
    times: dict[str, list[float]] = {name: [] for name in trackers}
    for video in read_sequences(options.otb)[:: max(1, len(read_sequences(options.otb)) // 3)][:3]:
        frames = [load_frame(path) for path in video.frames[: SPEED_FRAMES + 1]]
        for tracker in trackers.values():
            tracker.init(frames[0], tuple(video.boxes[0].tolist()))
        for frame in frames[1:]:
            for name, tracker in trackers.items():
                start = time.perf_counter()
                tracker.update(frame)
                times[name].append(time.perf_counter() - start)
    first = times["SiamFC+, three crops"]
    paper = {"SiamFC+, three crops": "56", "SE-SiamFC+, dense kernels, three crops": "14", "DISCO, three crops": "28"}
    rows = []
    for name, seconds in times.items():
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(first, seconds, strict=True)], n=4)
        fps = 1 / statistics.median(seconds)
        rows.append([name, f"{fps:.1f}", f"{ratio:.2f} ({low:.2f}-{high:.2f})", paper.get(name, "")])
    faster = [
        a / b for a, b in zip(times["SE-SiamFC+, dense kernels, three crops"], times["DISCO, three crops"], strict=True)
    ]
    low, ratio, high = statistics.quantiles(faster, n=4)
    header = ["tracker", "frames per second", "relative to SiamFC+ (quartiles)", "paper's frames per second"]
    return (
        f"## Speed\n\n{len(first)} frames of three sequences, every tracker in turn on each frame, {options.threads} "
        "threads; medians, and ratios per frame. Without reading images or the first frame. SE-SiamFC+ on "
        "dense kernels runs as in the authors' code, with kernels computed every time, separate "
        "norms and a batch of crops; others "
        f"are baked. The paper's: a GTX 1080 Ti.\n\n{table(header, rows, markdown=True)}\n\n"
        f"DISCO with three crops is {ratio:.2f} ({low:.2f}-{high:.2f}) times as fast as SE-SiamFC+ on dense kernels "
        "(the paper: 2)."
    )


def training_part(options: argparse.Namespace) -> str:
    from scale_disco.tasks.runs.record import options_of, read_record

    lines = []
    for run_folder in (options.siamfc, options.disco):
        record = read_record(run_folder)
        seconds = sum(row["seconds"] for row in record["epochs"])
        errors = [row["validation error"] for row in record["epochs"]]
        lines.append(
            f"- `{options_of(record).command.replace(str(options.weights), 'RESNET50')} --data ZOOM/train`: "
            f"{seconds / 60:.0f} minutes next to other work ({record['machine']}); fraction of validation "
            "pairs missed by more than one cell: "
            f"{errors[0]:.0%} after the first epoch, {errors[-1]:.0%} after the last"
        )
    return "\n\n".join(["## Training", TRAINED.format(counted(options.zoom.parent / "train")), "\n".join(lines)])


def counted(root: Path) -> str:
    videos = read_sequences(root)
    return f"{len(videos)} sequences ({sum(len(video.frames) for video in videos):,} frames)"


def sizes(options: argparse.Namespace, title: str, videos: Sequence[Video]) -> dict[str, dict[str, list[float]]]:
    """The scale of boxes over the frames of the videos that change most in size: true, and of two trackers."""
    spread = sorted(videos, key=lambda video: -float(side(video.boxes).max() / side(video.boxes).min()))
    chosen = [video for video in spread if not video.name.startswith("distractor")][: SHOWN[title]]
    drawn: dict[str, dict[str, list[float]]] = {}
    for video in chosen:
        drawn[video.name] = {TRUTH: side(video.boxes).tolist()}
        for name in ("SiamFC+, three crops, OTB-2015's motion", "DISCO, one crop"):
            tracker, fingerprint = opened(options, name)
            result = run(tracker, [video], folder_of(options, name, title), fingerprint=fingerprint)
            drawn[video.name][name] = side(result[video.name].boxes).tolist()
    return drawn


def side(boxes: Tensor) -> Tensor:
    return boxes[:, 2:].prod(1).sqrt()


def draw(all_scores: dict[str, dict[str, Score]], title: str, folder: Path) -> None:
    means = {name: mean_score(list(scores.values())) for name, scores in all_scores.items()}
    curves = {name: (score.success.tolist(), score.precision.tolist()) for name, score in means.items()}
    what = {"zoom": "Held-out zooming sequences", "otb": "Ten sequences of OTB-2013"}[title]
    save_figure(plot_success(curves, "DISCO, one crop", what), folder / f"tracking_{title}.png")


if __name__ == "__main__":
    main()
