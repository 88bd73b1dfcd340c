"""Which conversion of a pretrained ResNet-50 recognizes images of other sizes: writes results/pretrained_sizes.md.

Features of the frozen network, and a head that is trained on images of one size: STL-10 at 1/4 to 4 times that
size, KTH-TIPS at other distances of the camera. Features are stored in a folder, so that a run that was stopped goes
on. Run it with OMP_NUM_THREADS=1: about 98 TFLOP.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from scale_disco import Scales, bake, to_scale_equivariant
from scale_disco.files import check_writable, written_atomically
from scale_disco.models.resnet import CAFFE, cnn, is_stride_first
from scale_disco.nn import ScaleDecision
from scale_disco.resampling import pyramid, resample
from scale_disco.tasks.generalization.materials import read_kth_tips
from scale_disco.tasks.io.arrays import cached_tensors
from scale_disco.tasks.io.figures import check_figure, finish, new_figure, save_figure
from scale_disco.tasks.io.images import find_images, read_image
from scale_disco.tasks.io.report import binomial_std, provenance, table
from scale_disco.tasks.io.weights import PIXELS, file_sha256

# Scales are named by their exponents: scale sqrt(2)^k.
STEP = 2**0.5
ALL, AUGMENTED, THREE = tuple(range(-4, 5)), tuple(range(-2, 3)), (0, 1, 2)
SIZES = (1 / 4, 1 / 2, 1, 2, 4)  # of STL-10, over the training size
SIDES = {"stl10": 96, "kth": 160}  # of training images
CLASSES, CHANNELS, DISTANCES = 10, 2048, 9
BATCH = 4 * 192**2  # pixels
CHUNK = 5  # images of a class in a file of features
DECAYS = (1, 1e-1, 1e-2, 1e-3, 1e-4)  # weights of the squared norm of the head, over two
Features = dict[int, Tensor]  # exponent -> [N, 2048]


class Contender(NamedTuple):
    """What a head is trained on and what it decides from; `exponents` at test time are those that an image allows."""

    grid: str = "decimated"  # "decimated", "full", or "resized" to the training size
    trained: tuple[int, ...] = (0,)
    reduce: str = "none"  # "mean": of features; "none": every scale is an example; "decision": loss of `ScaleDecision`
    tested: tuple[int, ...] = (0,)
    combine: str = "logsumexp"  # of the logits at test time

    @property
    def head(self) -> tuple[str, tuple[int, ...], str]:
        return "decimated" if self.grid == "resized" else self.grid, self.trained, self.reduce

    def examples(self, features: Features) -> Tensor:
        """Features that a head is trained on, [M, S, C] of unit norm."""
        x = torch.stack([features[k] for k in self.trained], 1)
        x = x.mean(1, keepdim=True) if self.reduce == "mean" else x
        return _unit(x.flatten(0, 1)[:, None] if self.reduce == "none" else x)

    def predict(self, features: Features, weight: Tensor, bias: Tensor) -> Tensor:
        x = torch.stack([features[k] for k in self.tested if k in features], 1)
        x = x.mean(1, keepdim=True) if self.reduce == "mean" else x
        return ScaleDecision(self.combine)((_unit(x) @ weight.T + bias).movedim(1, 2)).argmax(1)


PLAIN, AUGMENT, RESIZED = "plain", "plain + augmentation", "plain, image resized to the training size"
DECIMATED, FULL = "decimated, decisions", "full grid, decisions"
MEAN = "decimated, mean of features"
MORE, BOTH = f"{DECIMATED}, more scales", "image pyramid + augmentation, mean of logits, more scales"
CONTENDERS = {
    PLAIN: Contender(),
    RESIZED: Contender("resized"),
    AUGMENT: Contender(trained=AUGMENTED),
    "image pyramid, mean of logits": Contender(tested=THREE, combine="mean"),
    "image pyramid, mean of logits, more scales": Contender(tested=ALL, combine="mean"),
    "image pyramid, max of logits": Contender(tested=THREE, combine="max"),
    "image pyramid, max of logits, more scales": Contender(tested=ALL, combine="max"),
    BOTH: Contender(trained=AUGMENTED, tested=ALL, combine="mean"),
    MEAN: Contender(trained=THREE, reduce="mean", tested=THREE),
    f"{MEAN}, more scales": Contender(trained=THREE, reduce="mean", tested=ALL),
    DECIMATED: Contender(trained=THREE, reduce="decision", tested=THREE),
    MORE: Contender(trained=THREE, reduce="decision", tested=ALL),
    "full grid, mean of features": Contender("full", THREE, "mean", THREE),
    FULL: Contender("full", THREE, "decision", THREE),
}
PLOTTED = (PLAIN, RESIZED, AUGMENT, "image pyramid, mean of logits", BOTH, DECIMATED, MORE, FULL)
PAIRS = (
    (AUGMENT, PLAIN),
    (AUGMENT, RESIZED),
    (BOTH, AUGMENT),
    (DECIMATED, PLAIN),
    (MORE, DECIMATED),
    (f"{MEAN}, more scales", MEAN),
    (MORE, f"{MEAN}, more scales"),
    (MORE, AUGMENT),
    (MORE, RESIZED),
    (MORE, BOTH),
    (FULL, DECIMATED),
    ("full grid, mean of features", MEAN),
    (FULL, AUGMENT),
)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.double().clamp(min=0).sqrt(), dim=-1)


def allowed(side: float, trained: int) -> tuple[int, ...]:
    """Exponents of the scales at which an image is seen: it is enlarged to at most twice the side of training images,
    and shrunk to at least a quarter of it, if not by the scales of training.
    """
    sides = {k: side / STEP**k for k in ALL}
    return tuple(k for k in ALL if k in THREE or trained / 4 - 1 < sides[k] < (2 * trained + 1 if k < 0 else side))


class Networks:
    """The frozen network and its conversion to the full grid: images [B, 3, H, W] -> features [B, S, 2048]."""

    def __init__(self, weights: Path) -> None:
        self.sha256 = file_sha256(weights)
        self.plain = cnn("resnet50", pretrained=weights, stride_first=is_stride_first(self.sha256)).eval()
        self.plain.fc = nn.Identity()
        self.plain.requires_grad_(False)
        mean, std = (torch.tensor(x) for x in PIXELS["caffe" if self.sha256 in CAFFE else "imagenet"])
        self.bgr, self.mean, self.std = self.sha256 in CAFFE, mean[:, None, None], std[:, None, None]
        scales = [STEP**k for k in THREE]
        full = to_scale_equivariant(self.plain, scales, project=None, pooling="growing", antialias=True)
        self.full = bake(full.eval())

    def pixels(self, image: Tensor) -> Tensor:
        x = (image.float() - self.mean) / self.std
        return x.flip(0) if self.bgr else x

    def features(self, grid: str, images: Tensor, exponents: Sequence[int], trained: int) -> Tensor:
        with torch.inference_mode():
            if grid == "full":
                return self.full(images).movedim(1, 2)
            if grid == "resized":
                levels = [resample(images, trained / images.shape[-1], antialias=True)]
            else:
                levels = pyramid(images, Scales.geometric(STEP, len(exponents), start=STEP ** exponents[0]))
            return torch.stack([self.plain(level) for level in levels], 1)

    def check(self, images: Tensor) -> None:
        """Raise an error unless the levels are what the network converted to the decimated grid computes."""
        scales = Scales.geometric(STEP, len(AUGMENTED), start=STEP ** AUGMENTED[0])
        converted = to_scale_equivariant(self.plain, scales, grid="decimated", project=None)
        expected = converted(images).movedim(1, 2)
        levels, full = (self.features(grid, images, AUGMENTED, 0) for grid in ("decimated", "full"))
        torch.testing.assert_close(levels, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(full[:, 0], levels[:, AUGMENTED.index(0)], rtol=1e-4, atol=1e-4)

    @cache  # noqa: B019
    def flops(self, grid: str, exponents: tuple[int, ...], side: int, trained: int) -> int:
        image = torch.zeros(1, 3, side, side)
        with FlopCounterMode(display=False) as counter:
            self.features(grid, image, exponents, trained)
        return counter.get_total_flops()


class Job(NamedTuple):
    """Features to compute: of the images of a chunk, on one grid."""

    data: str  # "stl10" or "kth"
    part: str
    chunk: int
    grid: str
    size: float

    @property
    def exponents(self) -> tuple[int, ...]:
        side = SIDES[self.data]
        return {"full": THREE, "resized": (0,)}.get(self.grid) or allowed(side * self.size, side)


class Extraction:
    """Reads images, and computes and stores the features of all jobs."""

    def __init__(self, networks: Networks, stl10: Path, kth_tips: Path, folder: Path) -> None:
        self.networks, self.stl10, self.folder = networks, stl10, folder
        self.materials = read_kth_tips(kth_tips, SIDES["kth"])
        self.computed: dict[Job, Tensor] = {}

    @cache  # noqa: B019
    def images(self, data: str, part: str, chunk: int) -> list[Tensor]:
        """Images of a chunk in order of class, and for KTH-TIPS of distance within it; its chunks are conditions."""
        if data == "kth":
            chosen = (self.materials.conditions == chunk).nonzero()[0]
            order = sorted(chosen, key=lambda i: (self.materials.labels[i], self.materials.distances[i]))
            return [self.materials.images[i] for i in order]
        folders = sorted(path for path in (self.stl10 / part).iterdir() if path.is_dir())
        paths = [path for folder in folders for path in find_images(folder)[CHUNK * chunk : CHUNK * (chunk + 1)]]
        return [read_image(path) for path in paths]

    def run(self, jobs: Iterable[Job]) -> None:
        def compute(job: Job) -> dict[str, Tensor]:
            nonlocal computing
            computing = True
            pixels = [self.networks.pixels(image)[None] for image in self.images(job.data, job.part, job.chunk)]
            if job.size != 1:
                pixels = [resample(x, job.size, antialias=True) for x in pixels]
            side = SIDES[job.data]
            batches = [list(same) for _, same in itertools.groupby(pixels, lambda x: x.shape)]
            batches = [torch.cat(same).split(max(1, BATCH // same[0][0, 0].numel())) for same in batches]
            rows = [self.networks.features(job.grid, x, job.exponents, side) for each in batches for x in each]
            return {"features": torch.cat(rows).contiguous()}

        def work(job: Job) -> float:
            side = SIDES[job.data]
            count = 9 * CLASSES if job.data == "kth" else CHUNK * CLASSES
            return count * self.networks.flops(job.grid, job.exponents, round(side * job.size), side) / 1e12

        todo = sorted(set(jobs), key=lambda job: (work(job), job))
        left, done, start = sum(map(work, todo)), 0.0, time.monotonic()
        for job in todo:
            content = hashlib.sha256(b"".join(x.numpy().tobytes() for x in self.images(job.data, job.part, job.chunk)))
            computing, key = False, (tuple(job), job.exponents, self.networks.sha256, content.hexdigest())
            shape = (None, len(job.exponents), CHANNELS)
            tensors = cached_tensors(self.folder, "sizes", key, {"features": shape}, partial(compute, job))
            self.computed[job], left = tensors["features"], left - work(job)
            if computing:
                done, minutes = done + work(job), (time.monotonic() - start) / 60
                line = f"  {' '.join(map(str, job))}: {minutes:.1f} minutes, {done:.2f} TFLOP done, {left:.2f} to go"
                print(f"{line} in about {minutes / done * left:.0f} minutes", file=sys.stderr, flush=True)

    def features(self, data: str, part: str, chunks: Iterable[int], grid: str, size: float = 1) -> Features:
        jobs = [Job(data, part, chunk, grid, size) for chunk in chunks]
        x = torch.cat([self.computed[job] for job in jobs])
        return dict(zip(jobs[0].exponents, x.unbind(1), strict=True))


def train_head(x: Tensor, labels: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Logistic regression on features [M, S, C]; every scale decides, with the loss of `ScaleDecision`."""
    span = torch.linalg.qr(x.flatten(0, 1).T)[0]  # [C, R]: the optimum is in the span of the examples
    inside, labels = x @ span, labels.repeat_interleave(len(x) // len(labels))
    weight = torch.zeros(CLASSES, span.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(CLASSES, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        log_probabilities = ScaleDecision()((inside @ weight.T + bias).movedim(1, 2))
        loss = F.nll_loss(log_probabilities, labels) + decay / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return (weight @ span.T).detach(), bias.detach()


def train_heads(features: Callable[[str], Features], labels: Tensor) -> dict[Any, list[tuple[Tensor, Tensor]]]:
    """Heads by what they are trained on, one per weight decay."""
    contenders = {each.head: each for each in CONTENDERS.values()}
    return {
        key: [train_head(each.examples(features(key[0])), labels, decay) for decay in DECAYS]
        for key, each in contenders.items()
    }


def best(heads: Sequence[tuple[Tensor, Tensor]], right: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the head that is best on validation images, with the larger weight decay among equals."""
    counts = [int(right(*head).sum()) for head in heads]
    return heads[counts.index(max(counts))]


def evaluate_stl10(extraction: Extraction, chunks: Mapping[str, range]) -> tuple[dict[str, Tensor], str]:
    """Return which images are classified correctly, [sizes, images], and a table of accuracy at every weight decay."""
    labels = {part: torch.arange(CLASSES).repeat_interleave(CHUNK).repeat(len(own)) for part, own in chunks.items()}
    heads = train_heads(lambda grid: extraction.features("stl10", "train", chunks["train"], grid), labels["train"])

    def right(each: Contender, part: str, *head: Tensor) -> Tensor:
        folder = "test" if part == "test" else "train"
        features = (extraction.features("stl10", folder, chunks[part], each.grid, size) for size in SIZES)
        return torch.stack([each.predict(x, *head) == labels[part] for x in features])

    chosen = {
        name: right(each, "test", *best(heads[each.head], partial(right, each, "validation")))
        for name, each in CONTENDERS.items()
    }
    rows = []
    for name, each in CONTENDERS.items():
        means = torch.stack([right(each, "test", *head).double().mean() for head in heads[each.head]])
        rows.append([name, *percent(means), *percent(chosen[name].double().mean()[None])])
    header = ["STL-10, mean over sizes", *(f"decay {decay:g}" for decay in DECAYS), "chosen"]
    return chosen, table(header, rows, markdown=True)


def evaluate_kth(extraction: Extraction, conditions: Sequence[int]) -> dict[str, Tensor]:
    """Return the accuracy of every image, [training distances, test distances, conditions * materials].

    Conditions are divided into three groups, for training, validation and test; the mean of all orders.
    """
    groups = [list(map(int, group)) for group in np.array_split(sorted(conditions), 3)]
    count = CLASSES * len(groups[0])  # images of a group at one distance
    labels = torch.arange(CLASSES).repeat(len(groups[0]))
    names = [name for name, each in CONTENDERS.items() if each.grid != "resized"]
    accuracy = {name: torch.zeros(DISTANCES, DISTANCES, 3 * count) for name in names}

    def right(each: Contender, group: int, *head: Tensor) -> Tensor:
        predicted = each.predict(extraction.features("kth", "", groups[group], each.grid), *head)
        return (predicted.unflatten(0, (count, DISTANCES)) == labels[:, None]).T

    for train, distance in itertools.product(range(3), range(DISTANCES)):
        features = {grid: extraction.features("kth", "", groups[train], grid) for grid in ("decimated", "full")}
        near = {grid: {k: x[distance::DISTANCES] for k, x in each.items()} for grid, each in features.items()}
        heads = train_heads(near.__getitem__, labels)
        for name, (validation, test) in itertools.product(names, itertools.permutations({0, 1, 2} - {train})):
            each = CONTENDERS[name]
            tested = right(each, test, *best(heads[each.head], partial(right, each, validation)))
            accuracy[name][distance, :, test * count : (test + 1) * count] += tested / 2  # of two orders
        print(f"  KTH-TIPS: group {train + 1} of 3, distance {distance + 1} of 9", file=sys.stderr, flush=True)
    return accuracy


def percent(values: Tensor) -> list[str]:
    return [f"{100 * value:.1f}" for value in values.tolist()]


def accuracy_tables(networks: Networks, stl10: dict[str, Tensor], kth: dict[str, Tensor]) -> list[str]:
    def cost(each: Contender, data: str, size: float) -> str:
        trained = SIDES[data]
        side = round(trained * size)
        exponents = tuple(k for k in each.tested if k in allowed(side, trained))
        plain = networks.flops("decimated", (0,), trained, trained)
        return f"{networks.flops(each.grid, exponents, side, trained) / plain:.2f}"

    rows = []
    for name, right in stl10.items():
        costs = [cost(CONTENDERS[name], "stl10", size) for size in (1, SIZES[-1])]
        rows.append([name, *percent(torch.stack([right.double().mean(), *right.double().mean(1)])), *costs])
    header = ["STL-10", "mean", *(f"size {size:g}" for size in SIZES), "cost at 1", f"at {SIZES[-1]:g}"]
    tables = [table(header, rows, markdown=True)]
    rows = []
    for name, each in kth.items():
        values = percent(torch.stack([each.mean(), *each.mean((1, 2))]))
        rows.append([name, *values, cost(CONTENDERS[name], "kth", 1)])
    header = ["KTH-TIPS", "mean", *(f"trained at {k + 1}" for k in range(DISTANCES)), "cost"]
    return [*tables, table(header, rows, markdown=True)]


def difference(x: Tensor, y: Tensor) -> str:
    """Paired difference in points, with its standard error over images."""
    each = 100 * (x.double() - y.double()).flatten(0, -2).mean(0)  # of every image
    return f"{each.mean():+.1f} ± {each.std() / math.sqrt(len(each)):.1f}"


def comparisons(stl10: dict[str, Tensor], kth: dict[str, Tensor]) -> str:
    """Differences of all pairs, by size."""
    rows = []
    for name, other in PAIRS:
        x, y = stl10[name], stl10[other]
        smaller, larger = (slice(0, 2), slice(3, 5))
        cells = [difference(x[part], y[part]) for part in (slice(None), smaller, slice(2, 3), larger)]
        cells.append(difference(kth[name], kth[other]) if {name, other} <= kth.keys() else "")
        rows.append([f"{name} - {other}", *cells])
    header = ["", "STL-10", "sizes 1/4, 1/2", "size 1", "sizes 2, 4", "KTH-TIPS"]
    return table(header, rows, markdown=True)


def draw(stl10: dict[str, Tensor], kth: dict[str, Tensor], path: Path) -> None:
    figure = new_figure(11, 4.8)
    left, right = figure.subplots(1, 2)
    shifts = range(1 - DISTANCES, DISTANCES)  # the training distance minus that of the test: nearer is larger
    for index, name in enumerate(PLOTTED):
        style: dict[str, Any] = {"color": f"C{index}", "marker": "o", "ms": 4, "label": name}
        left.plot(SIZES, 100 * stl10[name].double().mean(1), **style)
        if name in kth:
            means = kth[name].mean(2)  # [training, test]
            values = [100 * means.diagonal(-shift).mean() for shift in shifts]
            right.plot([2 ** (shift / 4) for shift in shifts], values, **style)
    left.set_ylabel("accuracy, %")
    for axis, title in ((left, "STL-10, whole images"), (right, "KTH-TIPS, real distances")):
        axis.set(xscale="log", xlabel="size over that in training")
        axis.set_xticks(SIZES, [f"{size:g}" for size in SIZES])
        axis.minorticks_off()
        finish(axis, title)
        axis.get_legend().remove()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stl10", type=Path, help="folder with train/ and test/, each with a folder of every class")
    parser.add_argument("kth_tips", type=Path, help="folder of KTH-TIPS")
    parser.add_argument("weights", type=Path, help="file of ResNet-50's weights")
    parser.add_argument("--train", type=int, default=25, help="training images of a class")
    parser.add_argument("--validation", type=int, default=5, help="further images of train/ for validation")
    parser.add_argument("--test", type=int, default=15, help="test images of a class")
    parser.add_argument("--conditions", type=int, nargs="+", default=[1, 2, 4, 5, 7, 8], help="of KTH-TIPS")
    parser.add_argument("--cache", type=Path, required=True, help="folder that stores features")
    parser.add_argument("--output", type=Path, default=Path("results/pretrained_sizes.md"))
    parser.add_argument("--plot", type=Path, default=Path("docs/pretrained_sizes.png"))
    given = parser.parse_args()
    check_writable(given.output)
    check_figure(given.plot)
    networks = Networks(given.weights)
    extraction = Extraction(networks, given.stl10, given.kth_tips, given.cache)
    networks.check(torch.cat([networks.pixels(x)[None] for x in extraction.images("stl10", "train", 0)[:2]]))
    if len(given.conditions) % 3:
        raise SystemExit("pretrained_sizes: the conditions of KTH-TIPS must be divisible by 3")
    train, validation, test = (math.ceil(count / CHUNK) for count in (given.train, given.validation, given.test))
    chunks = {"train": range(train), "validation": range(train, train + validation), "test": range(test)}
    grids = ("decimated", "full")
    jobs = [Job("stl10", "train", chunk, grid, 1) for chunk in chunks["train"] for grid in grids]
    for part, folder in (("validation", "train"), ("test", "test")):
        sets = itertools.product(chunks[part], (*grids, "resized"), SIZES)
        jobs += [Job("stl10", folder, *each) for each in sets]
    jobs += [Job("kth", "", condition, grid, 1) for condition in given.conditions for grid in grids]
    extraction.run(jobs)
    (stl10, decays), kth = evaluate_stl10(extraction, chunks), evaluate_kth(extraction, given.conditions)
    draw(stl10, kth, given.plot)
    accuracy = accuracy_tables(networks, stl10, kth)
    command = "OMP_NUM_THREADS=1 python benchmarks/pretrained_sizes.py STL10_PART KTH_TIPS RESNET50 --cache CACHE"
    settings = {"train": train, "validation": validation, "test": test}
    command += "".join(f" --{name} {CHUNK * count}" for name, count in settings.items())

    def gain(name: str, other: str) -> str:
        points = difference(stl10[name], stl10[other])
        return f"{points} points on STL-10, {difference(kth[name], kth[other])} on KTH-TIPS"

    text = TEMPLATE.format(
        provenance=provenance(command + " --conditions " + " ".join(map(str, given.conditions))),
        augment=gain(AUGMENT, PLAIN),
        more=gain(MORE, DECIMATED),
        over_augment=gain(MORE, AUGMENT),
        mean=gain(f"{MEAN}, more scales", MEAN),
        full=gain(FULL, DECIMATED),
        full_mean=gain("full grid, mean of features", MEAN),
        resized=difference(stl10[MORE], stl10[RESIZED]),
        small=difference(stl10[MORE][:2], stl10[AUGMENT][:2]),
        large=difference(stl10[MORE][3:], stl10[AUGMENT][3:]),
        near=difference(kth[MORE][:5], kth[AUGMENT][:5]),
        far=difference(kth[MORE][5:], kth[AUGMENT][5:]),
        three=gain(DECIMATED, PLAIN),
        three_same=difference(stl10[DECIMATED][2:3], stl10[PLAIN][2:3]),
        plot=given.plot.name,
        stl10=accuracy[0],
        kth=accuracy[1],
        pairs=comparisons(stl10, kth),
        decays=decays,
        **{part: CLASSES * CHUNK * len(own) for part, own in chunks.items()},
        std=100 * binomial_std(len(stl10[PLAIN][0]) // 2, len(stl10[PLAIN][0])),
        conditions=len(given.conditions),
        images=DISTANCES * CLASSES * len(given.conditions),
    )
    with written_atomically(given.output) as draft:
        draft.write_text(text)
    print(text)


TEMPLATE = """\
# A pretrained network on images of other sizes

Features of ResNet-50 with its ImageNet weights, frozen, and a classifier trained on them with images of one size.
Which way of seeing several scales recognizes the same classes at other sizes? Costs are FLOPs relative to the plain
network at the size in training, by torch's counter; resampling counts.

{provenance}

![Accuracy over the size](../docs/{plot})

## Summary

- **If the whole image changes size, resize it to the size in training.** On STL-10 this has the best mean over
  sizes, at the cost of the plain network; decisions at many scales differ from it by {resized} points. It is no
  help where only the objects change size, as on KTH-TIPS.
- **Scale augmentation costs nothing at test time** and helps on KTH-TIPS. Over plain features: {augment}. On STL-10
  its gain is within the uncertainty of the weight decay (last table). At sizes 1 to 4 of STL-10 no contender is
  clearly better than plain features.
- **For images or objects smaller than in training, decide at many scales on the decimated grid**, scales below 1
  included. Over augmentation: {over_augment}. By size: {small} points at sizes 1/4 and 1/2, {large} at sizes 2 and
  4 of STL-10; {near} when trained at the five nearest distances of KTH-TIPS, so that most test images are smaller,
  {far} when trained at the four farthest. It costs many times the plain network. An image pyramid with as many
  scales and a classifier trained with augmentation is as good on KTH-TIPS, best for what is larger there, and
  within the uncertainty of the weight decay on STL-10.
- **The default scales 1, sqrt 2, 2 alone are not enough.** They only shrink the image. Decisions over plain
  features: {three}; at the size of the training images of STL-10 {three_same} points, since images of 68 and 48
  pixels are recognized worse. More scales at test time, with the same weights, over these: {more}.
- **The mean of features gains from more scales as well** ({mean}). Features projected by the mean are nearly as
  good as decisions for this frozen network.
- **The full grid is no better than the decimated one for a class per image**, at 3.5 to 3.9 times its cost.
  Decisions: {full}. Means of features: {full_mean}; at equal weight decay, on STL-10, at most 1.6 apart. The
  decimated grid with more scales is above both. What the full grid has is maps of all scales at full resolution.

## STL-10: whole images resampled

4,001 STL-10 images, own split (not STL-10's test set): {train} training images of 96 pixels, {test} test images.
They are resampled as a whole to 1/4 to 4 times the size in training (bicubic, antialiased; 24 to 384 pixels), so
sizes above 1 have no more detail than size 1. The network recognizes them better all the same: it was pretrained
with images of 224 pixels. Accuracy in percent; the standard error of an entry is up to
{std:.1f} points, of the mean less. *Resized to the training size* undoes the resampling up to lost detail: it is
what to do if the whole image has another size, and no help if only the objects in it do.

{stl10}

## KTH-TIPS: real distances

Ten materials photographed from nine distances over two octaves, trained on one distance and tested on all: {images}
gray images cut to 160 pixels, {conditions} conditions (pose and light), in three groups to train on, to choose
hyper-parameters on, and to test on; the mean of all six orders. Accuracy in percent, mean over test distances, by
the distance in training (1 is the nearest). Features are those of the last stage; heads on the second stage that
slide along the scale axis are better here ([generalization.md](generalization.md)).

{kth}

## Differences

Pairs were chosen with the tables at hand. In points, in the same images: mean over test images of the difference,
with its standard error. For KTH-TIPS an image is a material in a condition, with all pairs of distances. Images of
one material are not independent, so that the error for other materials is larger.

{pairs}

## Weight decay

Validation images are few, and the choice of the weight decay moves a mean by up to about four points, which the
standard errors above do not contain. Accuracy on test images at every weight decay:

{decays}

## Method

- Features are the spatial means of the last stage (2,048), square root, unit norm. The classifier is logistic
  regression; every contender has its weight decay, from 1 to 1e-4, chosen on validation images at all test sizes
  ({validation} further images for STL-10). All contenders were decided before the test images were evaluated; a
  second evaluation has a range of weight decays that is extended upward, since validation had chosen its end for
  several contenders.
- *Augmentation*: trained at scales 1/2 to 2 in steps of sqrt 2. All others are trained on images of one size.
- *Image pyramid*: the plain classifier on the image at scales 1, sqrt 2 and 2 (shrunk by these).
- *Decimated*: `to_scale_equivariant(..., grid="decimated")` with scales 1, sqrt 2, 2. Its features at each scale
  are those of the plain network on levels of `pyramid`, which the benchmark verifies. *Mean of features* averages
  them over scales in front of the classifier; *decisions* classify at every scale, trained with the loss of
  `ScaleDecision` (`project="decision"`).
- *More scales*: the same weights with scales 1/4 to 4 at test time, except those that would enlarge the image to
  more than twice the size in training or shrink it to less than a quarter (if they are not in training). So the
  scales depend on the size of the image: at size 4 they are 1 to 4, at size 1/4 they are 1/4 to 2.
- *Full grid*: `grid="full"`, `pooling="growing"`, `antialias=True`, scales 1, sqrt 2, 2.
"""


if __name__ == "__main__":
    main()
