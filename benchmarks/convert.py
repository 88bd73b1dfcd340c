"""What converting a network takes, and what the converted network costs: writes results/convert.md.

Weights are random: they do not change the cost.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from scale_disco import bake, to_scale_equivariant
from scale_disco.convert.layers import PLAIN, FoldedConv
from scale_disco.convert.surgery import replace_modules
from scale_disco.files import written_atomically
from scale_disco.models import create_model
from scale_disco.tasks.bench.timing import Cost, Step, lower_bound_step, measure
from scale_disco.tasks.io.report import provenance, table

OURS, BAKED, BARE, OTHERS, ORIGINAL = "converted", "baked", "bare", "others", "original"
SIDE = 224


class Ready(nn.Module):
    """In the place of a layer: what it gave the first time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.output: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.output is None:
            self.output = self.layer(x)
        return self.output


def without_convolutions(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy of a network with the results of its convolutions at hand, to time everything else."""
    others = replace_modules(copy.deepcopy(net), lambda part: isinstance(part, (*PLAIN, FoldedConv)), Ready)
    for part in others.modules():
        if isinstance(part, nn.ReLU):
            part.inplace = False  # or it would change what is at hand
    with torch.no_grad():
        others(x)
    return others


def forward(net: nn.Module, x: Tensor) -> Step:
    def step() -> None:
        with torch.no_grad():
            net(x)

    return step


def seconds(make: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        make()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def over_parts(cost: dict[str, Cost], name: str) -> str:
    """Time relative to plain `F.conv2d` calls and other layers together, in each round."""
    parts = [bare + rest for bare, rest in zip(cost[BARE].seconds, cost[OTHERS].seconds, strict=True)]
    low, median, high = statistics.quantiles([a / b for a, b in zip(cost[name].seconds, parts, strict=True)], n=4)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def ratio(mine: Cost, other: Cost) -> str:
    median, low, high = mine.ratio(other)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "resnet50"], metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], metavar="B")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("results/convert.md"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for name in given.networks:
        net = create_model(f"{name}/cnn").eval()
        converted = to_scale_equivariant(net)
        took = seconds(lambda net=net: to_scale_equivariant(net), 5)
        for batch in given.batches:
            print(f"{name}, batch {batch}", flush=True)
            x = torch.randn(batch, 3, SIDE, SIDE)
            steps = {
                OURS: forward(converted, x),
                BAKED: forward(bake(converted), x),
                BARE: lower_bound_step(converted, x, backward=False),
                OTHERS: forward(without_convolutions(converted, x), x),
                ORIGINAL: forward(net, x),
            }
            cost = measure(steps, repeats=given.repeats)
            rows.append(
                [
                    f"{name}, B{batch}",
                    f"{took:.1f}",
                    over_parts(cost, OURS),
                    over_parts(cost, BAKED),
                    ratio(cost[OURS], cost[ORIGINAL]),
                    f"{cost[OURS].flops / 1e9:.1f}",
                    f"{cost[ORIGINAL].flops / 1e9:.1f}",
                ]
            )
    header = ["", "s to convert", "forward / parts", "baked / parts", "forward / original", "GFLOP", "GFLOP original"]
    command = f"python benchmarks/convert.py --repeats {given.repeats} --threads {given.threads}"
    text = f"""# Converted networks: time

`to_scale_equivariant(net)` at scales 1, sqrt 2 and 2, {SIDE}x{SIDE} images, forward only, in evaluation mode. *Parts*
are plain `F.conv2d` calls with the stencils of the converted network, on ready kernels and inputs, and all its other
layers, timed separately: about the lower bound. A forward pass adds the copy that stacks the scales into one batch,
and a check whether the weights have changed since the kernels were computed; `bake` needs neither, and folds norms.
Every contender runs once per round, in changing order; medians of the rounds' ratios, quartiles in brackets. Below 1,
the parts took longer apart than together. GFLOP by torch's counter, including the computation of the kernels.

{provenance(command)}

{table(header, rows, markdown=True)}
"""
    with written_atomically(given.output) as draft:
        draft.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
