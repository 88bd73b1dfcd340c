"""Cost of a network at S scales on both grids, relative to the network at one scale: writes results/grids.md.

Weights are random: they do not change the cost. Scales are at steps of sqrt 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from scale_disco import Scales, to_scale_equivariant
from scale_disco.files import written_atomically
from scale_disco.models import create_model, default_options
from scale_disco.tasks.bench.timing import Cost, Step, measure
from scale_disco.tasks.io.report import provenance, table

ONE, FULL, DECIMATED = "one scale", "full", "decimated"


def step(net: nn.Module, images: torch.Tensor, *, backward: bool) -> Step:
    """A forward pass in evaluation mode, or a training step without the optimizer."""
    net.train(backward)

    def forward() -> None:
        with torch.no_grad():
            net(images)

    def forward_backward() -> None:
        net(images).square().sum().backward()
        net.zero_grad()

    return forward_backward if backward else forward


def row(cost: dict[str, Cost], name: str) -> list[str]:
    median, low, high = cost[name].ratio(cost[ONE])
    flops, memory = (getattr(cost[name], key) / getattr(cost[ONE], key) for key in ("flops", "peak"))
    return [f"{median:.2f} ({low:.2f}-{high:.2f})", f"{flops:.2f}", f"{memory:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", metavar="NAME")
    parser.add_argument("--counts", nargs="+", type=int, default=[3, 5, 7, 9], metavar="S")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--full-up-to", type=int, default=3, metavar="S", help="more scales on the decimated grid only")
    parser.add_argument("--output", type=Path, default=Path("results/grids.md"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    name = f"{given.network}/cnn"
    network = create_model(name, **{"classes": 10} if "classes" in default_options(name) else {})
    channels = next(part.in_channels for part in network.modules() if isinstance(part, nn.Conv2d))
    images = torch.randn(given.batch, channels, given.side, given.side)
    rows = []
    for count in given.counts:
        scales = Scales.geometric(2**0.5, count)
        for backward in (False, True):
            nets: dict[str, nn.Module] = {ONE: network}
            nets[DECIMATED] = to_scale_equivariant(network, scales, grid="decimated", project="decision")
            if count <= given.full_up_to:
                nets[FULL] = to_scale_equivariant(network, scales, project="decision", pooling="as-is")
            steps = {name: step(net, images, backward=backward) for name, net in nets.items()}
            cost = measure(steps, repeats=given.repeats)
            kind = "training step" if backward else "forward"
            full = row(cost, FULL) if FULL in cost else ["", "", ""]
            rows.append([kind, str(count), *row(cost, DECIMATED), *full])
            print(*rows[-1], sep=" | ", flush=True)
    rows.sort(key=lambda entry: entry[0])
    header = ["", "scales", "decimated: time", "FLOP", "memory", "full: time", "FLOP", "memory"]
    command = f"python benchmarks/grids.py --network {given.network} --batch {given.batch} --side {given.side}"
    command += f" --repeats {given.repeats} --threads {given.threads}"
    name = given.network
    text = f"""# Cost of scales on both grids

`to_scale_equivariant(net, Scales.geometric(2**0.5, S), grid=..., project="decision", pooling="as-is")`, {name},
{given.batch} images of {given.side}x{given.side} pixels: time, floating-point operations and peak memory, relative to
the network at one scale in the same run. Networks run in turns and changing order; medians of the rounds' ratios,
quartiles in brackets. A training step is forward and backward in training mode, with batch norms that share their
statistics over scales. On the decimated grid the pixels of all scales are at most twice those of the image.

{provenance(command)}

{table(header, rows, markdown=True)}
"""
    with written_atomically(given.output) as draft:
        draft.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
