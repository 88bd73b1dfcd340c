"""How well maps of a frozen network move along the scales, stage by stage, and what a scale field costs.

Prints tables for results/scene.md; those of the readouts are printed by `disco test scene`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_disco import Scales, resample, to_scale_equivariant
from scale_disco.files import written_atomically
from scale_disco.tasks.io.images import find_images, read_image
from scale_disco.tasks.io.report import provenance, table
from scale_disco.tasks.scene.field import scale_field
from scale_disco.tasks.scene.networks import SCALES, Backbone, Stages, create

CHOICES = {
    "as-is: the plain conversion": {},
    "growing max pools": {"pooling": "growing"},
    "stencils and images for shrinking with a filter": {"antialias": True},
    "both (the backbone `shift`)": {"pooling": "growing", "antialias": True},
}
STEPS = (1, 2, 3, 4)  # of the scales, a quarter of an octave each
GRID = (3, 4)  # windows of an image


class Taps(torch.nn.Module):
    """Maps after the first pool, the first stage and the second."""

    def __init__(self, stages: Any) -> None:
        super().__init__()
        self.stages = stages

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stages = self.stages
        pooled = stages.maxpool(stages.relu(stages.bn1(stages.conv1(x))))
        first = stages.layer1(pooled)
        return pooled, first, stages.layer2(first)


def taps(pretrained: str, **options: Any) -> torch.nn.Module:
    """The stages of the backbone before its conversion, converted with these options."""
    plain = Taps(Stages.load(pretrained)[0]).eval().requires_grad_(False)
    for part in plain.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.padding_mode = "reflect" if part.kernel_size[0] > 1 else "zeros"
    return to_scale_equivariant(plain, SCALES, example=torch.zeros(1, 3, 64, 64), project=None, **options)


def windows(net: torch.nn.Module, normal: Backbone, image: Tensor) -> list[Tensor]:
    """Means of maps over windows of an image, [N, C, S] for every tap."""
    x = (image - normal.mean) / normal.deviation
    with torch.inference_mode():
        maps = net(x)
    count = len(SCALES)
    return [
        F.adaptive_avg_pool2d(response[0].transpose(0, 1), GRID)
        .permute(2, 3, 1, 0)
        .reshape(-1, response.shape[1], count)
        for response in maps
    ]


def shift_errors(net: torch.nn.Module, normal: Backbone, images: list[Tensor]) -> list[list[float]]:
    """For every tap and step: distance of profiles from those of the shrunk image, in stds of a channel."""
    errors: list[list[list[float]]] = [[[] for _ in STEPS] for _ in range(3)]
    for image in images:
        whole = windows(net, normal, image)
        for column, step in enumerate(STEPS):
            small = windows(net, normal, resample(image, SCALES[0] / SCALES[step], antialias=True))
            for tap, (large, little) in enumerate(zip(whole, small, strict=True)):
                std = large.std(0).mean(1, keepdim=True) + 1e-6
                off = (little[..., : len(SCALES) - step] - large[..., step:]).abs() / std
                errors[tap][column].append(off.mean().item())
    return [[statistics.fmean(values) for values in row] for row in errors]


def peak() -> float:
    """Gigabytes that this process had at most since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e6


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def field_costs(pretrained: str, photo: Path, sides: list[int], repeats: int) -> list[list[str]]:
    """Seconds and memory of the scale field of one photo in several sizes, every size once per round."""
    estimator = create("shift", pretrained=pretrained)
    whole = read_image(photo).float()[None]
    shapes = [(side, side * 3 // 4) for side in sides]
    images = [F.interpolate(whole, (height, width), mode="area")[0] for width, height in shapes]
    times: list[list[float]] = [[] for _ in shapes]
    peaks = [0.0] * len(shapes)
    scale_field(estimator, images[0])  # kernels are made once
    for _ in range(repeats):
        for number, image in enumerate(images):
            reset_peak()
            start = time.perf_counter()
            scale_field(estimator, image)
            times[number].append(time.perf_counter() - start)
            peaks[number] = max(peaks[number], peak())
    medians = [statistics.median(some) for some in times]
    each = [median / (width * height) for median, (width, height) in zip(medians, shapes, strict=True)]
    return [
        [f"{width} x {height}", f"{median:.1f}", f"{ratio / each[0]:.2f}", f"{most:.1f}"]
        for (width, height), median, ratio, most in zip(shapes, medians, each, peaks, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos")
    parser.add_argument("--pretrained", required=True, help="weights of a ResNet-50")
    parser.add_argument("--count", type=int, default=6, help="number of photos, spread over the folder")
    parser.add_argument("--sides", nargs="+", type=int, default=[320, 640, 1280], help="widths, three quarters high")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, required=True, help="write the tables into this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    paths = find_images(given.photos)
    chosen = [paths[number] for number in np.linspace(0, len(paths) - 1, given.count).round().astype(int)]
    images = [read_image(path, 640).float()[None] for path in chosen]
    normal = Backbone(pretrained=given.pretrained)
    rows = []
    for name, options in CHOICES.items():
        print(name, flush=True)
        for tap, row in zip(
            ("first pool", "stage 1", "stage 2"),
            shift_errors(taps(given.pretrained, **options), normal, images),
            strict=True,
        ):
            rows.append([f"{name}, {tap}", *(f"{value:.2f}" for value in row)])
    octaves = Scales([SCALES[step] for step in STEPS])
    header = ["", *(f"shrunk by {scale:.2f}" for scale in octaves)]
    costs = field_costs(given.pretrained, chosen[0], given.sides, given.repeats)
    command = (
        f"python benchmarks/scene.py --photos PHOTOS --pretrained RESNET50 --count {given.count} "
        f"--repeats {given.repeats} --threads {given.threads} --output FILE"
    )
    text = f"""{provenance(command)}

## Error by stage

{table(header, rows, markdown=True)}

## Time and memory

{table(["image", "s", "s per pixel, relative to the first", "peak GB"], costs, markdown=True)}
"""
    with written_atomically(given.output) as draft:
        draft.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
