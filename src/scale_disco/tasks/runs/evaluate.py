"""Evaluation of a trained network: test images, and images smaller and larger than any in training."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ...files import plain, read_bytes, reason, write
from ...models.checkpoints import check_fit
from ..io.arrays import parse_npz, write_npz
from ..io.progress import Progress, counter
from ..io.report import environment
from ..io.weights import file_sha256
from .batches import LabeledDataset, evaluation_batch_size
from .experiments import EXPERIMENTS, Evaluation, ScaleBin
from .record import BEST, LAST, METADATA, PREDICTIONS, TESTED, options_of, read_checkpoint, read_record, read_tested

_BATCH = 125  # maximum number of images
_MAX_BYTES = 1 << 26  # of a prediction cache
_SAVE_INTERVAL = 20.0  # seconds


def evaluate(
    run: Path,
    *,
    data: Path | None = None,
    checkpoint: str | None = None,
    limit: int | None = None,
    outside: int = 2000,
    test_scales: int | None = None,
    enlarge: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Test a run, or resume its test.

    The result is written to `test.json` in the folder of the run if the run is finished, the test covers the whole
    test set of its data with the weights that the recipe names, and no earlier test had more images.

    Args:
        run: Folder of the run.
        data: Folder of the data (default: the one of the training).
        checkpoint: "best" or "last" weights (default: the recipe's).
        limit: Maximum number of test images (default: all).
        outside: Maximum number of images smaller, and larger, than those in training.
        test_scales: Test with so many scales from 1 up as well, with the same weights.
        enlarge: Number of scales below 1 in that test, for networks on the decimated grid.
        device: Where the network runs.
        progress: Called with the pixels done and the total.
    """
    record = read_record(run)
    options, metadata = options_of(record), record.get(METADATA, {})
    weights = options.full_recipe.weights
    checkpoint = checkpoint or weights
    network = trained(run, checkpoint)
    fingerprint = file_sha256(_weights(run, checkpoint))
    experiment = EXPERIMENTS[options.experiment]
    if experiment.make_evaluation is None:
        raise ValueError(f"{options.experiment} runs are evaluated with {experiment.test_command}")
    folder = data or Path(record["data"])
    other_scales = {} if test_scales is None else {"test_scales": test_scales, "enlarge": enlarge}
    if other_scales and options.model not in experiment.rescalable:
        raise ValueError(f"--test-scales: {options.model} has no set of scales that could be changed")
    evaluation = experiment.make_evaluation(options, folder, metadata, limit=limit, outside=outside, **other_scales)
    start = time.monotonic()
    cache = _PredictionCache(run / PREDICTIONS[checkpoint], fingerprint + evaluation.cache_key, evaluation.classes)
    networks = {name: evaluation.variants.get(name, nn.Identity())(network).to(device) for name in evaluation.sets}
    predictions = _predict(networks, evaluation.sets, cache, device, progress)
    errors = {name: predictions[name] != dataset.labels for name, dataset in evaluation.sets.items()}
    result = {
        "experiment": options.experiment,
        "settings": options.as_dict(),
        "checkpoint": checkpoint,
        "epochs": len(record["epochs"]),
        "complete": record["status"] == "finished" and evaluation.same_data and len(errors["test"]) == evaluation.total,
        "images": len(errors["test"]),
        "errors": int(errors["test"].sum()),
        "by scale": [asdict(scale_bin) for name in errors for scale_bin in evaluation.bins(name, errors[name])],
        "equivariance error": evaluation.equivariance_error(network.cpu()),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "seconds": round(time.monotonic() - start, 1),
        **environment(),
    }
    result["not recorded"] = _reason_not_to_record(run, record["status"], evaluation, result, weights)
    if result["not recorded"] is None:
        write(run / TESTED, f"{json.dumps(result, indent=1)}\n".encode())
    return result


def _reason_not_to_record(run: Path, status: str, evaluation: Evaluation, result: Any, weights: str) -> str | None:
    if status != "finished":
        return "the run is not finished"
    if not evaluation.same_data:
        return "these are not the test images of the data that the run was trained on"
    if not result["complete"]:
        return f"the test set has {evaluation.total} images"
    if result["checkpoint"] != weights:
        return f"the recipe evaluates the {weights} checkpoint"
    try:
        tested = read_tested(run) or {"by scale": []}
    except ValueError:  # a damaged file is overwritten
        return None
    before, now = (sum(row["images"] for row in each["by scale"]) for each in (tested, result))
    return "an earlier test had more images" if before > now else None


def trained(run: Path, checkpoint: str | None = None) -> nn.Module:
    """Return the network of a run in eval mode, without gradients; `checkpoint` is as in `evaluate`."""
    record = read_record(run)
    options, metadata = options_of(record), record.get(METADATA, {})
    path = _weights(run, checkpoint or options.full_recipe.weights)
    whole = read_checkpoint(path)["state_dict"] if path.name == LAST else None
    prefix = "average.module." if options.full_recipe.average else "network."
    make_model = EXPERIMENTS[options.experiment].make_model
    try:
        if whole is None:
            state = load_file(path)
        else:
            state = {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}
        with torch.device("meta"):  # malicious options could ask for more than the memory holds
            check_fit(make_model(options, metadata), state)
        network = make_model(options, metadata)
        network.load_state_dict(state)
    except Exception as error:  # whatever a malformed file makes readers and load_state_dict raise
        raise ValueError(f"{path}: damaged, or not of {options.model} ({plain(reason(error))})") from error
    return network.eval().requires_grad_(False)


def _weights(run: Path, checkpoint: str) -> Path:
    """Return the file of the weights."""
    names = {"best": BEST, "last": LAST}
    if checkpoint not in names:
        raise ValueError(f"--checkpoint must be best or last, got {checkpoint!r}")
    path = run / names[checkpoint]
    if not path.is_file():
        if checkpoint == "best" and any(row["validation error"] is None for row in read_record(run)["epochs"]):
            raise ValueError(f"{run}: no {path.name}: without a validation set (--holdout 0) use --checkpoint last")
        raise FileNotFoundError(f"{run}: no {path.name} yet: no epoch is finished; continue the training with --resume")
    return path


def bins_of(result: dict[str, Any]) -> list[ScaleBin]:
    """Return the errors over the scale, ascending, from a result of `evaluate`."""
    return sorted((ScaleBin(**row) for row in result["by scale"]), key=lambda scale_bin: scale_bin.low)


def _predict(
    networks: dict[str, nn.Module],
    sets: dict[str, LabeledDataset],
    cache: "_PredictionCache",
    device: torch.device | str,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Return the class that the network of each set predicts for every image; from the cache where it is known."""
    cached = cache.read()
    for name, dataset in sets.items():
        known = cached.get(name, np.empty(0, cache.dtype))
        missing = max(len(dataset) - len(known), 0)
        cached[name] = np.concatenate([known, np.full(missing, cache.unknown, cache.dtype)])
    predictions = {name: cached[name][: len(dataset)] for name, dataset in sets.items()}  # views
    todo = [
        (name, rows)
        for name, dataset in sets.items()
        for rows in _chunks(dataset)
        if (predictions[name][rows] == cache.unknown).any()
    ]
    count = counter(progress, sum(len(rows) * sets[name].pixels for name, rows in todo))
    saved = time.monotonic()
    for name, rows in todo:
        dataset = sets[name]
        with torch.inference_mode():
            logits = networks[name](dataset.transform(dataset.read(rows, 0).to(device), rows, 0))
            if not logits.isfinite().all():  # the argmax of NaN could be right by chance
                raise ValueError(f"{cache.path.parent}: the network returns NaN or infinity; train it again")
            predictions[name][rows] = logits.argmax(1).cpu().numpy()
        count(len(rows) * dataset.pixels)
        if time.monotonic() - saved > _SAVE_INTERVAL:
            cache.write(cached)
            saved = time.monotonic()
    cache.write(cached)
    return predictions


def _chunks(dataset: LabeledDataset) -> list[range]:
    """Return the rows of every batch."""
    size, count = evaluation_batch_size(dataset, _BATCH), len(dataset)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


class _PredictionCache:
    """The file of the predictions of one network on one set of images."""

    def __init__(self, path: Path, key: str, classes: int) -> None:
        self.path, self.key, self.classes = path, key.encode(), classes
        self.dtype = np.min_scalar_type(classes)
        self.unknown = np.iinfo(self.dtype).max  # stands for a prediction that is still to be made

    def write(self, predictions: dict[str, np.ndarray]) -> None:
        write_npz(self.path, {"weights": np.frombuffer(self.key, np.uint8), **predictions})

    def read(self) -> dict[str, np.ndarray]:
        """Return predictions of earlier calls with the same weights and images."""
        try:
            cached = parse_npz(read_bytes(self.path, _MAX_BYTES), _MAX_BYTES)
            if cached.pop("weights").tobytes() != self.key:
                return {}
        except FileNotFoundError:
            return {}
        except Exception as error:  # a damaged zip file makes zipfile and zlib raise a dozen types
            raise ValueError(f"{self.path}: damaged; delete it to test again ({plain(reason(error))})") from error
        for name, labels in cached.items():
            valid = labels.dtype == self.dtype and ((labels < self.classes) | (labels == self.unknown)).all()
            if not valid or labels.ndim != 1:
                what = f"{plain(name)} has invalid class indices"
                raise ValueError(f"{self.path}: damaged; delete it to test again ({what})")
        return cached
