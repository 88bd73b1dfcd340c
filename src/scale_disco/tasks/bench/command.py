"""`disco bench`: cost of layers and networks, compared with dense kernels, plain `F.conv2d` calls and plain layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...scales import Scales
from ..io import terminal
from ..io.progress import counter
from ..io.report import table, write_csv
from . import timing
from .options import PARTS, BenchOptions
from .plots import plot_growth

_COUNTS = range(1, 9)
_GRID_COUNTS = range(3, 10, 2)
_NETWORK: dict[str, Any] = {"batch": 8, "side": 64, "scales": Scales.geometric(2**0.5, 3)}
_LAYER: dict[str, Any] = {"batch": 8, "channels": (32, 32), "side": 56, "kernel_size": 3, "extent": 1}
_PASSES = {True: "forward and backward", False: "forward"}


@dataclass(frozen=True)
class Case:
    """Contenders that are timed in the same rounds: one or more rows of the report."""

    part: str
    backward: bool
    rows: Mapping[str, Callable[..., dict[str, timing.Step]]]  # makers of the contenders of a row

    def steps(self) -> dict[tuple[str, str], timing.Step]:
        """Return the contenders by row and name."""
        contenders = {row: make(backward=self.backward) for row, make in self.rows.items()}
        return {(row, name): step for row, steps in contenders.items() for name, step in steps.items()}


def run(options: BenchOptions) -> None:
    """Measure, print, write and draw."""
    device = terminal.chosen_device(options.device)
    cases = _cases(options)
    terminal.check_outputs(options.out, options.plot)
    terminal.check_outputs(options.csv)
    if options.plot and not any(case.part == "scales" for case in cases):
        raise ValueError("--plot draws the cost over the number of scales: leave out --only, or add scales to it")
    measured = _measure(cases, options.repeats, options.seed, device)
    rows = _rows(measured)
    document = {"threads": torch.get_num_threads(), "torch": torch.__version__, "costs": rows}
    terminal.show(options, document, f"{_report(measured)}\n\n{_HOW.translate(_PLAIN)}")
    if options.csv:
        write_csv(options.csv, rows)
        terminal.say(f"wrote {options.csv}")
    text = f"{_HOW}\n\n{_report(measured, markdown=True)}"
    terminal.write_report(options.out, "Speed and memory", text, document, command=options.call)
    terminal.write_plot(options.plot, lambda: plot_growth(_growth(measured)))


def _cases(options: BenchOptions) -> list[Case]:
    own = {name: getattr(options, name) for name in _LAYER if getattr(options, name) is not None}
    if options.model:
        for name in (*_LAYER, "only", "scales", "step", "count"):
            if name != "batch" and getattr(options, name) is not None:
                raise ValueError(f"--model times a whole network: leave out --{name.replace('_', '-')}")
        batch = own.get("batch", _LAYER["batch"])
        steps = partial(timing.model_steps, options.model, batch=batch)
        return [Case("network", backward, {f"{options.model}, B{batch}": steps}) for backward in _PASSES]
    if own or options.scales or options.step is not None or options.count is not None:
        if options.only:
            raise ValueError("--only selects built-in parts: leave it out with a custom layer")
        batch, channels, side, kernel_size, extent = (_LAYER | own).values()
        scales = terminal.chosen_scales(options)
        setting = timing.LayerSetting(batch, channels[0], channels[1], side, kernel_size, scales, extent)
        return [_layer(setting, backward) for backward in _PASSES]
    parts = options.only or PARTS
    cases = []
    for backward in _PASSES:
        if "layers" in parts:
            cases += [_layer(setting, backward) for setting in timing.SETTINGS]
        if "network" in parts:
            factors = ", ".join(f"{factor:.4g}" for factor in _NETWORK["scales"])
            name = f"six layers, B{_NETWORK['batch']}, {_NETWORK['side']}x{_NETWORK['side']}, {{{factors}}}"
            cases.append(Case("network", backward, {name: partial(timing.network_steps, **_NETWORK)}))
        if "grids" in parts:
            cases += [Case("grids", backward, {str(n): partial(timing.grid_steps, n)}) for n in _GRID_COUNTS]
    if "scales" in parts:
        rows = {str(n): partial(timing.layer_steps, timing.growth_setting(n)) for n in _COUNTS}
        cases.append(Case("scales", True, rows))
    return cases


def _layer(setting: timing.LayerSetting, backward: bool) -> Case:
    return Case("layers", backward, {str(setting): partial(timing.layer_steps, setting)})


Measured = list[tuple[Case, str, dict[str, timing.Cost]]]  # case, row, cost of every contender


def _measure(cases: list[Case], repeats: int, seed: int, device: torch.device) -> Measured:
    measured: Measured = []
    with terminal.Progress("timing") as progress:
        count = counter(progress, len(cases) * repeats)
        for case in cases:
            torch.manual_seed(seed)
            with device:  # layers and inputs are created there
                steps = case.steps()
            costs = timing.measure(steps, repeats=repeats, device=device, progress=lambda: count(1))
            for row in dict.fromkeys(row for row, _ in costs):
                measured.append((case, row, {name: cost for (r, name), cost in costs.items() if r == row}))
    return measured


def _report(measured: Measured, *, markdown: bool = False) -> str:
    parts = []
    for part, (title, about, make) in _SECTIONS.items():
        for backward, passes in _PASSES.items():
            chosen = {row: costs for case, row, costs in measured if (case.part, case.backward) == (part, backward)}
            if chosen:
                header, rows = make(chosen, backward)
                heading = f"## {title}, {passes}" if markdown else f"{title}, {passes}"
                parts.append(f"{heading}\n\n{about}{table(header, rows, markdown=markdown)}")
    return "\n\n".join(parts)


_PLAIN = str.maketrans("", "", "*`")  # for a terminal
_HOW = """\
Every contender runs once per round, in rotating order. Times are compared within a round; the table gives the median
ratio with the quartiles in parentheses. *Dense* is the paper's packing: one convolution with zero-filled kernels for
all scales. The *lower bound* is the plain `F.conv2d` calls with the same stencils that ours runs, on kernels and inputs
computed before; only kernels that ours runs by FFT can be faster. *S plain* is S ordinary convolutions with the kernel
of scale 1; for the network, the same network of ordinary layers on S times the batch. *Baked* is `bake(...)`, forward
only; for one layer it saves multiplying weights by stencils, which is below the noise, for a network also the norms.
Memory is the peak allocation of a step: ours holds its output, and the gradient of its input, as one tensor while their
parts still exist. GFLOP is from torch's counter, forward only: backward it miscounts grouped convolutions."""

_GROWTH_SETTING = str(timing.growth_setting(1)).removesuffix(", {1}")
_GROWTH = """\
The layer {setting} with 1 to 8 scales at steps of sqrt 2, all in the same rounds.
The first columns are times relative to those of the same contender at four scales."""

_GRIDS = """\
Six ordinary layers (B1, 128x128), converted to 3 to 9 scales at steps of sqrt 2: times, operations and memory relative
to the network at one scale."""


def _ratio(cost: timing.Cost, other: timing.Cost) -> str:
    median, low, high = cost.ratio(other)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


Table = tuple[list[str], list[list[str]]]  # header and rows


def _table(chosen: Mapping[str, Mapping[str, timing.Cost]], backward: bool) -> Table:
    rows = []
    for name, costs in chosen.items():
        ours = costs[timing.OURS]
        row = [name, f"{1e3 * ours.median:.3g}", _ratio(costs[timing.DENSE], ours)]
        row += [_ratio(ours, costs[timing.LOWER_BOUND]), _ratio(ours, costs[timing.PLAIN])]
        row += [] if backward else [_ratio(costs[timing.BAKED], ours)]
        row += [f"{costs[each].peak / 1e6:.3g}" for each in (timing.OURS, timing.LOWER_BOUND, timing.DENSE)]
        row += [] if backward else [f"{costs[each].flops / 1e9:.3g}" for each in (timing.OURS, timing.DENSE)]
        rows.append(row)
    header = ["", "ms", "dense / ours", "ours / lower bound", "ours / S plain"]
    header += [] if backward else ["baked / ours"]
    header += ["MB", "MB lower bound", "MB dense", *([] if backward else ["GFLOP", "GFLOP dense"])]
    return header, rows


def _growth(measured: Measured) -> dict[str, dict[int, float]]:
    """Return the median seconds of every contender by number of scales."""
    timed = {int(row): costs for case, row, costs in measured if case.part == "scales"}
    return {name: {count: costs[name].median for count, costs in timed.items()} for name in timed[_COUNTS[0]]}


def _growth_table(chosen: Mapping[str, Mapping[str, timing.Cost]], backward: bool) -> Table:
    four = chosen["4"]
    rows = []
    for count, costs in chosen.items():
        ratios = [_ratio(costs[name], four[name]) for name in (timing.OURS, timing.DENSE, timing.LOWER_BOUND)]
        peaks = [f"{costs[name].peak / 1e6:.3g}" for name in (timing.OURS, timing.DENSE)]
        rows.append([count, *ratios, _ratio(costs[timing.DENSE], costs[timing.OURS]), *peaks])
    header = ["scales", *(f"{name}, vs. 4 scales" for name in ("ours", "dense", "lower bound"))]
    header += ["dense / ours", "MB", "MB dense"]
    return header, rows


def _grid_table(chosen: Mapping[str, Mapping[str, timing.Cost]], backward: bool) -> Table:
    header, rows = ["scales"], [[count] for count in chosen]
    for grid in (timing.DECIMATED, timing.FULL):
        header += [grid, *([] if backward else ["GFLOP"]), "MB"]
        for row, costs in zip(rows, chosen.values(), strict=True):
            reference, cost = costs[timing.ONE_SCALE], costs[grid]
            row += [_ratio(cost, reference), *([] if backward else [f"{cost.flops / reference.flops:.2f}"])]
            row.append(f"{cost.peak / reference.peak:.2f}")
    return header, rows


_SECTIONS: dict[str, tuple[str, str, Callable[..., Table]]] = {  # by part: title, introduction, table
    "layers": ("Layers", "", _table),
    "network": ("A whole network", "", _table),
    "scales": ("Number of scales", f"{_GROWTH.format(setting=_GROWTH_SETTING)}\n\n", _growth_table),
    "grids": ("Both grids", f"{_GRIDS}\n\n", _grid_table),
}


def _rows(measured: Measured) -> list[dict[str, Any]]:
    return [
        {
            "part": case.part,
            "case": row,
            "pass": _PASSES[case.backward],
            "contender": name,
            "median seconds": cost.median,
            "fastest": min(cost.seconds),
            "slowest": max(cost.seconds),
            "ratio to ours": cost.ratio(costs[timing.OURS])[0] if timing.OURS in costs else None,
            "flops": cost.flops,
            "peak bytes": cost.peak,
        }
        for case, row, costs in measured
        for name, cost in costs.items()
    ]
