"""Relative scale of real photos from known distances (KTH-TIPS) and of resized photos; prints results/compare.md.

python benchmarks/compare.py KTH_TIPS --photos PHOTOS --pretrained RESNET50 --out results/compare.md
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from scale_disco.files import written_atomically
from scale_disco.tasks.generalization.materials import DISTANCES, STEP, read_kth_tips
from scale_disco.tasks.io.figures import OTHERS, OURS, Figure, finish, new_figure, save_figure
from scale_disco.tasks.io.images import center_crop, find_images, luma, read_image, to_image, to_tensor
from scale_disco.tasks.io.report import provenance, table
from scale_disco.tasks.scene.classical import Laplacian
from scale_disco.tasks.scene.compare import ImageProfile, compare_profiles, image_profiles, relative_scale
from scale_disco.tasks.scene.evaluation import spearman
from scale_disco.tasks.scene.networks import ScaleEstimator, create
from scale_disco.tasks.scene.readout import joint_octaves
from scale_disco.tasks.scene.training import scene_estimator

TUNING = ("aluminium_foil", "corduroy", "cracker", "sponge", "styrofoam"), (1, 4, 7)  # materials, conditions
TRUTH = -np.log2(STEP) * (np.array(DISTANCES) - 1)  # octaves of each distance over the nearest
ALL_PAIRS = np.triu_indices(len(DISTANCES), 1)
JOINT, TWO = "relative_scale, nine images", "relative_scale, two images at a time"
FACTORS = [2 ** (k / 2) for k in range(-4, 5) if k]
ANGLES, RADII = 180, 256  # of a log-polar spectrum
LOG_POLAR = "log-polar phase correlation"
Images = Sequence[Tensor]
Results = dict[str, tuple[np.ndarray, np.ndarray]]  # octaves [N] and those of all pairs [N, N], by method


def spectrum(image: Tensor) -> Tensor:
    """Log-polar magnitudes of frequencies from 1/64 to 1/2 per pixel, [angles, radii]: Fourier-Mellin matching."""
    side = min(image.shape[1:])
    gray = luma(center_crop(image, side).float())[0]
    window = torch.hann_window(side, periodic=False)
    magnitude = torch.fft.fftshift(torch.fft.fft2((gray - gray.mean()) * window[:, None] * window)).abs()
    angles = torch.arange(ANGLES) * torch.pi / ANGLES
    radii = 0.5 * 2 ** (-5 * (1 - (torch.arange(RADII) + 0.5) / RADII))  # cycles per pixel
    # pixel k of n has the frequency (k - n // 2) / n; grid_sample counts from -1 to 1
    places = (torch.stack([radii * angles[:, None].cos(), radii * angles[:, None].sin()], -1) * side + side // 2) + 0.5
    sampled = F.grid_sample(magnitude[None, None], (2 * places / side - 1)[None], align_corners=False)[0, 0]
    return (sampled * radii).log1p()


def log_polar(a: Tensor, b: Tensor) -> float:
    """Octaves of the first image over the second, from their log-polar spectra: the peak of the phase correlation."""
    window = torch.hann_window(RADII)
    spectra = [torch.fft.fft2((each - each.mean()) * window, s=(ANGLES, 2 * RADII)) for each in (a, b)]
    cross = spectra[0].conj() * spectra[1]
    peaks = torch.fft.ifft2(cross / cross.abs().clamp_min(1e-9)).real.amax(0)  # over rotations
    best = int(peaks.argmax())
    before, at, after = (float(peaks[(best + off) % (2 * RADII)]) for off in (-1, 0, 1))
    off = (after - before) / (2 * max(2 * at - before - after, 1e-9))
    shift = best + min(max(off, -0.5), 0.5)
    return 5 * (shift if best < RADII else shift - 2 * RADII) / RADII


def of_log_polar(images: Images) -> tuple[np.ndarray, np.ndarray]:
    spectra = [spectrum(image) for image in images]
    pairs = torch.zeros(len(images), len(images), dtype=torch.float64)
    for i, j in zip(*np.triu_indices(len(images), 1), strict=True):
        pairs[i, j] = log_polar(spectra[i], spectra[j])
    pairs = pairs - pairs.T
    return joint_octaves(pairs, 1.0 - torch.eye(len(pairs), dtype=torch.float64)).numpy(), pairs.numpy()


@torch.inference_mode()
def of_estimators(estimators: dict[str, ScaleEstimator], images: Images) -> Results:
    """Octaves of images and of all their pairs by readouts of whole images; each network sees an image once."""
    profiles: dict[str, Tensor] = {}
    results = {}
    for name, estimator in estimators.items():
        network = str(estimator.backbone.fingerprint)
        if network not in profiles:
            profiles[network] = torch.stack([estimator.maps(image[None].float())[0].mean((2, 3)) for image in images])
        octaves = estimator.read(profiles[network]).octaves.double().numpy()
        results[name] = octaves, octaves[:, None] - octaves
    return results


def of_two(profiles: Sequence[ImageProfile]) -> tuple[np.ndarray, np.ndarray]:
    """Octaves of every pair of images, each compared by itself, and their uncertainty."""
    count = len(profiles)
    pairs, uncertainty = np.zeros((2, count, count))
    for i, j in zip(*np.triu_indices(count, 1), strict=True):
        result = compare_profiles([profiles[j], profiles[i]])
        pairs[i, j], uncertainty[i, j] = result.octaves[1], result.uncertainty[1]
    return pairs - pairs.T, uncertainty + uncertainty.T


class Sequences:
    """The results of a method: octaves [9] and pairs [9, 9] of every material and condition."""

    def __init__(self) -> None:
        self.octaves: dict[tuple[str, int], np.ndarray] = {}
        self.pairs: dict[tuple[str, int], np.ndarray] = {}

    def add(self, key: tuple[str, int], octaves: np.ndarray, pairs: np.ndarray) -> None:
        self.octaves[key], self.pairs[key] = octaves, pairs

    def slope(self, key: tuple[str, int]) -> float:
        return float(np.polyfit(TRUTH, self.octaves[key], 1)[0])

    def errors(self, key: tuple[str, int]) -> np.ndarray:
        """Absolute errors of all 36 pairs."""
        return np.abs(self.pairs[key] - (TRUTH[:, None] - TRUTH))[ALL_PAIRS]

    def row(self, name: str, keys: Sequence[tuple[str, int]]) -> list[str]:
        ranks = [spearman(torch.from_numpy(self.octaves[key]), torch.from_numpy(TRUTH)) for key in keys]
        slopes = {material: self.material(material, keys)[0] for material in dict.fromkeys(key[0] for key in keys)}
        worst = min(slopes, key=lambda material: slopes[material])
        errors = np.concatenate([self.errors(key) for key in keys])
        cells = [f"{statistics.median(ranks):.3f}", f"{statistics.fmean(map(self.slope, keys)):.2f}"]
        return [name, *cells, f"{errors.mean():.3f}", f"{np.median(errors):.3f}", f"{slopes[worst]:.2f} ({worst})"]

    def material(self, name: str, keys: Sequence[tuple[str, int]]) -> tuple[float, float, float]:
        """Mean slope over conditions, mean error, and that without the nearest distance."""
        own = [key for key in keys if key[0] == name]
        far = ALL_PAIRS[0] > 0
        slope = statistics.fmean(map(self.slope, own))
        errors = np.stack([self.errors(key) for key in own])
        return slope, float(errors.mean()), float(errors[:, far].mean())


def coverage(errors: np.ndarray, uncertainty: np.ndarray) -> list[str]:
    """Fractions of errors within one and two standard errors, the median uncertainty, and the rank correlation."""
    rank = spearman(torch.from_numpy(errors), torch.from_numpy(uncertainty))
    within = [f"{100 * (errors <= k * uncertainty).mean():.0f}" for k in (1, 2)]
    return [str(len(errors)), *within, f"{np.median(uncertainty):.2f}", f"{rank:.2f}"]


def resized(image: Tensor, factor: float) -> Tensor:
    """A photo resized by Pillow's Lanczos filter."""
    pillow = to_image(image)
    size = [round(side * factor) for side in pillow.size]
    return to_tensor(pillow.resize((size[0], size[1]), Image.Resampling.LANCZOS))


Two = Callable[[Tensor, Tensor], float]  # octaves of the second image over the first


def copies_table(methods: dict[str, Two], photos: Images) -> str:
    """Errors of the relative scale of a photo and its copy, by the factor."""
    rows = []
    for name, method in methods.items():
        errors = np.zeros((len(photos), len(FACTORS)))
        for row, photo in enumerate(photos):
            for column, factor in enumerate(FACTORS):
                copy = resized(photo, factor)
                errors[row, column] = abs(method(photo, copy) - np.log2(copy.shape[1] / photo.shape[1]))
        cells = [f"{value:.3f}" for value in (*errors.mean(0), errors.mean(), errors.max())]
        rows.append([name, *cells])
    return table(["", *(f"{factor:.2f}" for factor in FACTORS), "mean", "largest"], rows, markdown=True)


def zoom_table(methods: dict[str, Two], photos: Images, side: int = 224) -> str:
    """Errors for views of the same size: the middle of a photo, and of the photo shrunk by the factor."""
    rows = []
    large = [photo for photo in photos if min(photo.shape[1:]) >= 2 * side]
    for name, method in methods.items():
        cells = []
        for factor in (2**0.5, 2):
            errors = [
                method(center_crop(resized(photo, 1 / factor), side), center_crop(photo, side)) - np.log2(factor)
                for photo in large
            ]
            cells += [f"{np.abs(errors).mean():.2f}", f"{np.median(np.abs(errors)):.2f}"]
        rows.append([name, *cells])
    header = [f"{len(large)} photos", "1.41: mean", "median", "2.00: mean", "median"]
    return table(header, rows, markdown=True)


def figure_of(ours: Sequences, results: dict[str, Sequences], keys: Sequence[tuple[str, int]]) -> Figure:
    """Measured over true octaves by material, and the error of every method."""
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    materials = list(dict.fromkeys(key[0] for key in keys))
    centered = TRUTH - TRUTH.mean()
    left.plot(centered, centered, color="black", lw=5, alpha=0.15)
    colors = [f"C{index}" for index in range(10)]
    for color, material in zip(colors, materials, strict=True):
        curves = np.array([ours.octaves[key] for key in keys if key[0] == material])
        curves = curves - curves.mean(1, keepdims=True)
        left.plot(centered, curves.mean(0), marker="o", ms=3, lw=1.4, color=color, label=material.replace("_", " "))
    left.set(xlabel="true octaves, from the distance", ylabel="measured octaves", aspect="equal")
    finish(left, "ten materials from nine distances, six conditions each")
    left.legend(frameon=False, fontsize=7)
    names = list(results)[::-1]
    errors = [float(np.concatenate([results[name].errors(key) for key in keys]).mean()) for name in names]
    right.barh(names, errors, color=[OURS if name in (JOINT, TWO) else OTHERS for name in names])
    for row, value in enumerate(errors):
        right.text(value + 0.01, row, f"{value:.2f}", va="center", fontsize=8)
    right.tick_params(axis="y", labelsize=8)
    right.set(xlabel="mean |error| of all pairs, octaves")
    finish(right)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kth-tips", type=Path, help="folder of KTH-TIPS")
    parser.add_argument("--photos", type=Path, nargs="+", default=[], help="folders or files of photos to be resized")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="runs of disco train scene, to compare with")
    parser.add_argument("--cache", type=Path, help="folder for what is measured, to resume from")
    parser.add_argument("--pretrained", help="weights of a ResNet-50")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, required=True, help="write the tables into this file")
    parser.add_argument("--plot", type=Path, help="save a plot")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    estimator = create("shift", pretrained=options.pretrained)
    parts, names = [], []
    if options.kth_tips:
        names.append("--kth-tips KTH_TIPS" + "".join([" --runs", *(f" {run.name}" for run in options.runs)]))
        parts += _on_materials(options, estimator)
    if options.photos:
        names.append("--photos PHOTOS")
        parts.append(_on_photos(options.photos, estimator))
    command = f"python benchmarks/compare.py {' '.join(names)} --pretrained RESNET50 --threads {options.threads}"
    text = "\n\n".join([provenance(command), *parts])
    with written_atomically(options.out) as draft:
        draft.write_text(f"{text}\n")
    print(text)


def measured(images: Images, estimator: ScaleEstimator, estimators: dict[str, ScaleEstimator]) -> dict[str, Any]:
    """Octaves by all methods, the uncertainty of pairs, and how long nine images take."""
    start = time.process_time()
    profiles = image_profiles(images, estimator)
    joint = compare_profiles(profiles).octaves.numpy()
    seconds = time.process_time() - start
    pairs, uncertainty = of_two(profiles)
    results = {
        JOINT: (joint, joint[:, None] - joint),
        TWO: (pairs.mean(1), pairs),
        **of_estimators(estimators, images),
        LOG_POLAR: of_log_polar(images),
    }
    return {"results": results, "uncertainty": uncertainty, "seconds": seconds}


def _on_materials(options: argparse.Namespace, estimator: ScaleEstimator) -> list[str]:
    """The sections about real distances, and the plot."""
    data = read_kth_tips(options.kth_tips, side=1024)  # whole images
    estimators = {
        "shift, nine images": estimator,
        **{f"{run.name}, trained": scene_estimator(run, options.pretrained) for run in options.runs},
        "Laplacian, mean": Laplacian("mean"),
        "Laplacian, largest": Laplacian("largest"),
    }
    results = {name: Sequences() for name in (JOINT, TWO, *estimators, LOG_POLAR)}
    uncertainty, seconds = {}, []
    keys = [(material, int(condition)) for material in data.classes for condition in np.unique(data.conditions)]
    for key in keys:
        chosen = (data.labels == data.classes.index(key[0])) & (data.conditions == key[1])
        order = sorted(np.flatnonzero(chosen), key=lambda index: data.distances[index])
        file = options.cache and options.cache / f"{key[0]}-{key[1]}.pt"
        if file and file.is_file():
            values = torch.load(file, weights_only=False)
        else:
            values = measured([data.images[index] for index in order], estimator, estimators)
            if file:
                with written_atomically(file) as draft:
                    torch.save(values, draft)
        for name, figures in values["results"].items():
            results[name].add(key, *figures)
        uncertainty[key] = values["uncertainty"]
        seconds.append(values["seconds"])
        print(*key, *(f"{name} {each.errors(key).mean():.3f}" for name, each in results.items()), flush=True)
    tuning = [key for key in keys if key[0] in TUNING[0] and key[1] in TUNING[1]]
    held_out = [key for key in keys if key[0] not in TUNING[0]]
    header = ["", "Spearman", "slope", "error", "median error", "least slope"]
    tables = {
        f"All {len(keys)} sequences": keys,
        f"The five materials that nothing was chosen on, {len(held_out)} sequences": held_out,
        f"The tuning data, {len(tuning)} sequences": tuning,
    }
    parts = []
    for title, some in tables.items():
        rows = [each.row(name, some) for name, each in results.items()]
        parts.append(f"### {title}\n\n{table(header, rows, markdown=True)}")
    rows = []
    for material in data.classes:
        cells = [f"{value:.2f}" for value in results[JOINT].material(material, keys)]
        rows.append([material + (" (tuning)" if material in TUNING[0] else ""), *cells])
    parts.append(f"### By material\n\n{table(['', 'slope', 'error', 'without distance 1'], rows, markdown=True)}")
    rows = []
    for name, some in {"held-out materials": held_out, "all": keys}.items():
        values = [np.concatenate([each[key] for key in some]) for each in _pairs(results[TWO], uncertainty, keys)]
        rows.append([name, *coverage(*values)])
    header = ["two images at a time", "pairs", "within 1, %", "within 2, %", "median, octaves", "rank correlation"]
    parts.append(f"### Uncertainty\n\n{table(header, rows, markdown=True)}")
    parts.append(f"Nine images of 200 x 200 pixels take {statistics.median(seconds):.1f} s of processor time.")
    if options.plot:
        save_figure(figure_of(results[JOINT], results, keys), options.plot)
    return parts


def _pairs(
    two: Sequences, uncertainty: dict[tuple[str, int], np.ndarray], keys: Sequence[tuple[str, int]]
) -> tuple[dict[tuple[str, int], np.ndarray], dict[tuple[str, int], np.ndarray]]:
    """Errors and uncertainties of all pairs of every sequence."""
    return {key: two.errors(key) for key in keys}, {key: uncertainty[key][ALL_PAIRS] for key in keys}


def _on_photos(sources: Sequence[Path], estimator: ScaleEstimator) -> str:
    paths = [path for source in sources for path in (find_images(source) if source.is_dir() else [source])]
    photos = [read_image(path, 1024) for path in paths]
    laplacian = {"Laplacian, mean": Laplacian("mean")}
    methods: dict[str, Two] = {
        "relative_scale": lambda a, b: float(relative_scale([a, b], estimator).octaves[1]),
        "Laplacian, mean": lambda a, b: float(of_estimators(laplacian, [a, b])["Laplacian, mean"][1][1, 0]),
        LOG_POLAR: lambda a, b: log_polar(spectrum(b), spectrum(a)),
    }
    crops = [center_crop(photo, 256) for photo in photos]
    copied = copies_table(methods, crops)
    zoomed = zoom_table(methods, photos)
    return f"### {len(photos)} photos and their copies\n\n{copied}\n\n### Views of the same size\n\n{zoomed}"


if __name__ == "__main__":
    main()
