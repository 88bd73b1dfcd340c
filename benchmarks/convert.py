"""What converting a network takes, and what the converted network costs: writes results/convert.md.

With --sizes, measures the sizes of baked networks and of ONNX files instead, and writes that section only.

Weights are random: they do not change the cost.
"""

from __future__ import annotations

import argparse
import copy
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from scale_disco import bake, to_scale_equivariant
from scale_disco.convert.layers import PLAIN, FoldedConv
from scale_disco.convert.surgery import replace_modules
from scale_disco.export import export_onnx
from scale_disco.files import written_atomically
from scale_disco.models import create_model
from scale_disco.tasks.bench.timing import Cost, Step, lower_bound_step, measure
from scale_disco.tasks.io.report import provenance, table

OURS, BAKED, BARE, OTHERS, ORIGINAL = "converted", "baked", "bare", "others", "original"
SIDE = 224
SIZES = "\n## Sizes of files\n"
SCALE_SETS = {"1, sqrt 2, 2": (1, 2**0.5, 2), "1, 2, 4": (1, 2, 4)}


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


def saved(net: nn.Module, dtype: torch.dtype = torch.float32) -> str:
    """MB of a network's file in this precision."""
    file = io.BytesIO()
    torch.save(copy.deepcopy(net).to(dtype).state_dict(), file)
    return f"{file.tell() / 1e6:.1f}"


def exported(net: nn.Module, *, compact: bool) -> str:
    """MB of a network's ONNX file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        example = torch.randn(1, 3, 64, 64)
        export_onnx(net, example, path, compact=compact, progress=lambda step: print(step, flush=True))
        return f"{path.stat().st_size / 1e6:.1f}"


def sizes(networks: Sequence[str]) -> str:
    rows = []
    for name in networks:
        net = create_model(f"{name}/cnn").eval()
        for scales, factors in SCALE_SETS.items():
            converted = to_scale_equivariant(net, factors)
            baked = bake(converted)
            whole = [saved(net), saved(converted), saved(baked)]
            whole += [saved(bake(converted, compact=True)), saved(baked, torch.float16)]
            files = [exported(converted, compact=compact) for compact in (False, True)]
            rows.append([f"{name}, scales {scales}", *whole, *files])
    header = ["MB", "network", "converted", "baked", "baked, compact", "baked, float16", "ONNX", "ONNX, compact"]
    return f"""{SIZES}
*Network*, *converted* and *baked*: the `state_dict` in a file of `torch.save`. *ONNX*: `export_onnx(net, ...)`;
*compact*: with `compact=True`, as for `bake`. Weights are random and do not change the sizes. Scales
that are multiples of each other share one kernel, dilated, in every file: at scales 1, 2, 4 each kernel is there
once. Scale sqrt 2 has its own kernels, 7x7 for 3x3 and 11x11 for 7x7, which are computed from the same weights: all
of the growth is theirs. The converted network does not contain them, and a compact ONNX file has the weights and the
stencils, which onnxruntime multiplies when it loads the file.

{provenance(f"python benchmarks/convert.py --sizes --networks {' '.join(networks)}")}

{table(header, rows, markdown=True)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "resnet50"], metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], metavar="B")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("results/convert.md"))
    parser.add_argument("--sizes", action="store_true", help="measure sizes of files instead of times")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    times, heading, files = given.output.read_text().partition(SIZES) if given.output.exists() else ("", "", "")
    if given.sizes:
        write(given.output, times + sizes(given.networks))
        return
    rows = []
    for name in given.networks:
        net = create_model(f"{name}/cnn").eval()
        convert = partial(to_scale_equivariant, net, pooling="as-is", reduce="max")
        converted, took = convert(), seconds(convert, 5)
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
    how = 'pooling="as-is", reduce="max"'
    text = f"""# Converted networks

## Time

`to_scale_equivariant(net, {how})` at scales 1, sqrt 2 and 2, {SIDE}x{SIDE} images, forward
only, in evaluation mode. *Parts* are plain `F.conv2d` calls with the stencils of the converted network, on ready
kernels and inputs, and all its other layers,
timed separately: about the lower bound. A forward pass adds the copy that stacks the scales into one batch,
and a check whether the weights have changed since the kernels were computed; `bake` needs neither, and folds norms.
Every contender runs once per round, in changing order; medians of the rounds' ratios, quartiles in brackets. Below 1,
the parts took longer apart than together. GFLOP by torch's counter, including the computation of the kernels.

{provenance(command)}

{table(header, rows, markdown=True)}
"""
    write(given.output, text + heading + files)


def write(path: Path, text: str) -> None:
    with written_atomically(path) as draft:
        draft.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
