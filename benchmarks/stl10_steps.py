"""What a training step of the networks of Table 2 costs, as ratios to the ordinary one: a part of results/stl10.md.

Images and weights are random: they do not change the cost.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_disco import functional
from scale_disco.files import check_writable, written_atomically
from scale_disco.models import create_model
from scale_disco.tasks.bench.timing import Cost, Step, count_flops, measure, on_reference
from scale_disco.tasks.io.report import provenance, table
from scale_disco.tasks.io.terminal import Progress
from scale_disco.tasks.stl10.augment import Augmentation

# Seconds per epoch over those of WRN, from Table 2 of the paper.
PAPER = {
    "stl10/wrn": 1,
    "stl10/sicnn": 11,
    "stl10/si-convnet": 5.5,
    "stl10/dss": 4,
    "stl10/ss-cnn": 1.5,
    "stl10/sesn-hermite": 16.5,
    "stl10/disco": 5,
}
WRN, DISCO = "stl10/wrn", "stl10/disco"
DENSE = "stl10/disco, dense reference"
DIRECT = "stl10/disco, without Winograd"
AUGMENTATION = "augmentation"


def networks(**options: Any) -> dict[str, nn.Module]:
    """All seven, and DISCO as its authors run it: one convolution with kernels full of zeros for all scales."""
    made = {name: create_model(name, **options) for name in PAPER}
    return made | {DENSE: on_reference(made[DISCO])}


def training_step(net: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Forward and backward, without the update of the weights, which is the same for all."""

    def step() -> None:
        F.cross_entropy(net(images), labels).backward()
        net.zero_grad(set_to_none=True)

    return step


def directly(step: Step) -> Step:
    """The same step without Winograd convolution."""

    def run() -> None:
        with functional.direct():
            step()

    return run


def rounding(net: nn.Module, images: Tensor) -> float:
    """Relative change of the scores of a network by Winograd convolution."""
    net.eval()
    with torch.enable_grad():  # Winograd is used most in training
        scores = net(images)
        with functional.direct():
            plain = net(images)
    net.train()
    return float((scores - plain).norm() / plain.norm())


def augmentation(batch: int, side: int, device: torch.device) -> Step:
    """What happens to the images of a step before it."""
    augment = Augmentation((0.5,) * 3, (0.25,) * 3)
    images = torch.randint(256, (batch, 3, side, side), dtype=torch.uint8, device=device)

    def step() -> None:
        augment(images, range(batch), seed=0, epoch=0)

    return step


def forward_flops(side: int, **options: Any) -> dict[str, int]:
    """Operations of a forward pass of one image, counted where nothing is computed."""
    with torch.device("meta"), torch.no_grad():
        image = torch.empty(1, 3, side, side)
        return {name: count_flops(lambda net=net: net.eval()(image)) for name, net in networks(**options).items()}


def counted(steps: Mapping[str, Step], done: Callable[[], None]) -> dict[str, Step]:
    """The same steps, saying when each is done."""

    def told(step: Step) -> Step:
        def run() -> None:
            step()
            done()

        return run

    return {name: told(step) for name, step in steps.items()}


def ratio(cost: Cost, reference: Cost) -> str:
    median, low, high = cost.ratio(reference)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2, help="images per step (default 2)")
    parser.add_argument("--side", type=int, default=96, help="of the images (default 96)")
    parser.add_argument("--depth", type=int, default=16, help="of the networks (default 16)")
    parser.add_argument("--width", type=int, default=8, help="of the networks (default 8)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds, each network once a round (default 9)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="such as cuda (default cpu)")
    parser.add_argument("--out", type=Path, default=Path("stl10_steps.md"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    check_writable(given.out)
    flops = forward_flops(given.side, depth=given.depth, width=given.width)
    nets = networks(depth=given.depth, width=given.width)
    images = torch.randn(given.batch, 3, given.side, given.side, device=given.device)
    labels = torch.randint(10, (given.batch,), device=given.device)
    steps = {name: training_step(net.to(given.device), images, labels) for name, net in nets.items()}
    steps[DIRECT] = directly(steps[DISCO])
    steps[AUGMENTATION] = augmentation(given.batch, given.side, given.device)
    done, total = 0, (given.repeats + 2) * len(steps)  # two rounds count operations and bytes, and warm up
    with Progress("timing") as progress:

        def advance() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        cost = measure(counted(steps, advance), repeats=given.repeats, device=given.device)
    rows = [
        [
            name,
            f"{PAPER.get(name, '-')}",
            ratio(cost[name], cost[WRN]),
            f"{cost[name].median:.3g}",
            f"{flops[counted_as] / flops[WRN]:.2f}",
            f"{flops[counted_as] / 1e9:.1f}",
            f"{cost[name].peak / 1e6:.0f}",
        ]
        for name, counted_as in [*zip(nets, nets, strict=True), (DIRECT, DISCO)]
    ]
    header = ["", "time / WRN, paper", "time / WRN", "s", "operations / WRN", "GFLOP", "MB"]
    options = ("batch", "side", "depth", "width", "repeats", "threads", "device")
    command = " ".join(["python benchmarks/stl10_steps.py", *(f"--{name} {getattr(given, name)}" for name in options)])
    text = TEMPLATE.format(
        **vars(given),
        slower=ratio(cost[DISCO], cost[WRN]),
        faster=ratio(cost[DENSE], cost[DISCO]),
        tiles=ratio(cost[DIRECT], cost[DISCO]),
        rounding=f"{rounding(nets[DISCO], images):.1e}",
        waiting=f"{cost[AUGMENTATION].ratio(cost[WRN])[0]:.2%}",
        provenance=provenance(command),
        table=table(header, rows, markdown=True),
    )
    with written_atomically(given.out) as draft:
        draft.write_text(text)
    print(text)


TEMPLATE = """\
# Training steps of the networks of Table 2

WRN-{depth}-{width} and its relatives: forward and backward pass, in training mode with dropout. A step has {batch}
images of {side}x{side} pixels. Every network runs once per round, in changing order, and times are compared within a
round: medians of {repeats} rounds, quartiles in brackets. The paper's column is seconds per epoch, on a GPU, with its
authors' implementations. Operations are those of the forward pass of one image, by torch's counter; memory is what
torch allocates at the peak of a step beyond what was there before it. *Dense reference* is the same DISCO network in
the paper's packing: one convolution with zero-filled kernels for all scales.

- DISCO relative to WRN: {slower}
- Dense reference relative to DISCO: {faster}
- DISCO without Winograd relative to DISCO: {tiles}; Winograd changes its scores by a relative {rounding}
- Augmentation of the images of a step, relative to the step of WRN: {waiting}

{provenance}

{table}
"""


if __name__ == "__main__":
    main()
