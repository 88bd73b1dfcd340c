"""Training a network in a folder, from which it can go on after the end of any epoch."""

from __future__ import annotations

import copy
import csv
import dataclasses
import datetime
import functools
import io
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from safetensors.torch import save
from torch import nn

from ...files import is_draft, locked, make_folder, reason, write, written_atomically
from ..io.report import machine, versions
from .batches import Batch, evaluation_batches, training_batches
from .experiments import TRAINING_MODULES
from .modules import TrainingModule
from .options import Progress, RunOptions, TrainingData
from .recipe import Recipe
from .record import (
    BEST,
    EPOCHS,
    LAST,
    RECORD,
    check_experiment,
    read_checkpoint,
    read_record,
    settings_of,
    write_record,
)

_PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}  # in Lightning's words


def train(
    settings: RunOptions,
    *,
    data: Path,
    out: Path,
    resume: bool = False,
    device: torch.device | str = "auto",
    devices: int = 1,
    nodes: int = 1,
    channels_last: bool = False,
    cache: Path | None = None,
    say: Any = print,
    bar: bool = True,
    reading: AbstractContextManager[Progress | None] | None = None,
) -> dict[str, Any]:
    """Train in the folder `out`, anew or from where it stopped; the record of the run.

    Args:
        settings: What is trained, and how.
        data: Folder of the data.
        out: Folder of the run.
        resume: Go on with the run in `out`.
        device: A device, a kind of devices, or "auto": the fastest there is.
        devices: Processes or GPUs that share every batch.
        nodes: Machines, each with so many devices.
        channels_last: Keep the channels of a pixel side by side, which newer GPUs like.
        cache: File that keeps decoded images.
        say: Called with a line for the user after every epoch.
        bar: Show a progress bar, at a terminal.
        reading: Entered while data are read; shows how far that is.
    """
    for name, value in (("devices", devices), ("nodes", nodes)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    where = _where(torch.device(device) if device != "auto" else None, devices) | {"num_nodes": nodes}
    first = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", 0)))) == 0
    record = _opened(out, settings) if resume else _new_record(settings, data)
    if record["status"] == "finished":
        say(f"{out}: finished already after {len(record['epochs'])} epochs")
        return record
    if first and not resume:
        _check_free(out)
    recipe = settings.full_recipe
    _check_precision(recipe, where)
    with reading or nullcontext() as progress:
        lesson = settings.lesson(data, cache=cache, progress=progress)
    if "facts" not in record:
        record["facts"] = lesson.facts | settings.origin()
    if record["facts"] != record["facts"] | lesson.facts:
        raise ValueError(f"--resume: {out} was started with other images than those in {data}")
    record["data"] = str(data.resolve())
    recipe.steps(len(lesson.train), devices * nodes)  # refuses what cannot be shared
    diary = _CheckpointCallback(out, record, recipe, say)
    torch.manual_seed(settings.seed)
    begun = (out / LAST).is_file()
    network = settings.network(record["facts"]) if begun else settings.untrained(record["facts"])
    fit = functools.partial(_fit, settings, lesson, network, diary, where, devices * nodes, channels_last, bar)
    if not first:
        return fit()
    make_folder(out)
    with locked(out):
        if not resume:
            _check_free(out)  # another process may have come and gone while data were read
            write_record(out, record)
        return fit()


def _where(device: torch.device | None, devices: int) -> dict[str, Any]:
    """A device in Lightning's words."""
    if device is None:
        return {"accelerator": "auto", "devices": devices}
    if device.index is None or device.type == "cpu":
        return {"accelerator": device.type, "devices": devices}
    if devices > 1:
        raise ValueError(f"--device {device} is one: give --device {device.type} with --devices {devices}")
    return {"accelerator": device.type, "devices": [device.index]}


def _check_precision(recipe: Recipe, where: dict[str, Any]) -> None:
    if recipe.precision == "16" and _on_cpu(where):
        raise ValueError("--precision 16 needs a GPU; 32 and bf16 are for every device")


def _on_cpu(where: dict[str, Any]) -> bool:
    others = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
    return where["accelerator"] == "cpu" or not others


def _fit(
    settings: RunOptions,
    lesson: TrainingData,
    network: nn.Module,
    diary: _CheckpointCallback,
    where: dict[str, Any],
    processes: int,
    channels_last: bool,
    bar: bool,
) -> dict[str, Any]:
    """Train from the last checkpoint of the folder if it has one."""
    last = diary.out / LAST if (diary.out / LAST).is_file() else None
    recipe = settings.full_recipe
    steps = recipe.steps(len(lesson.train), processes)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network.to(memory_format=layout)  # type: ignore[call-overload]
    module: TrainingModule = TRAINING_MODULES[settings.learner](network, settings, steps=steps)
    if last is not None:
        _check_weights(last, module)
    bar = bar and sys.stdout.isatty()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with _quiet():
        trainer = L.Trainer(
            max_epochs=recipe.epochs,
            **where,
            precision=_PRECISIONS[recipe.precision],  # type: ignore[arg-type]
            accumulate_grad_batches=recipe.accumulate,
            gradient_clip_val=recipe.clip,
            strategy=_strategy(module) if processes > 1 else "auto",
            use_distributed_sampler=False,
            deterministic=True if _on_cpu(where) else "warn",  # GPUs lack some algorithms
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if lesson.validation else 0,
            enable_model_summary=False,
            enable_progress_bar=bar,
            logger=TensorBoardLogger(diary.out, name="", version="tensorboard"),
            log_every_n_steps=min(10, steps * recipe.accumulate),
            callbacks=[diary, *([_Bar()] if bar else [])],
            plugins=[_Writer()],
        )
        try:
            if last is None:
                module.prepare(lesson.train)
            trainer.fit(
                module,
                datamodule=_Batches(lesson, settings, layout),
                ckpt_path=last,
                weights_only=True,
            )
        except SystemExit as error:  # Lightning ends the process on Ctrl-C
            raise diary.stopped or error from None
        finally:
            torch.use_deterministic_algorithms(deterministic)
    return diary.record


class _Batches(L.LightningDataModule):
    def __init__(self, lesson: TrainingData, settings: RunOptions, layout: torch.memory_format) -> None:
        super().__init__()
        self.lesson, self.settings, self.layout = lesson, settings, layout

    @property
    def _share(self) -> dict[str, Any]:
        trainer = self.trainer
        assert trainer is not None
        pin = trainer.strategy.root_device.type == "cuda"
        return {"rank": trainer.global_rank, "world": trainer.world_size, "pin": pin}

    def train_dataloader(self) -> Any:
        recipe, seed = self.settings.full_recipe, self.settings.seed
        return training_batches(self.lesson.train, recipe.batch, seed=seed, parts=recipe.accumulate, **self._share)

    def val_dataloader(self) -> Any:
        shown = self.lesson.validation
        assert shown is not None
        return evaluation_batches(shown, **self._share)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        trainer = self.trainer
        assert trainer is not None
        shown = self.lesson.train if trainer.training else self.lesson.validation
        assert shown is not None
        images = shown.prepared(batch.images, batch.rows, trainer.current_epoch)
        return batch._replace(images=images.contiguous(memory_format=self.layout))


class _Writer(TorchCheckpointIO):
    """Checkpoints written whole or not at all, beside the file that they replace."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        packed = io.BytesIO()
        torch.save(checkpoint, packed)
        write(Path(path), packed.getvalue())


class _Bar(RichProgressBar):
    """Lightning's progress bar, with epochs counted from one and errors in per cent."""

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        error = trainer.callback_metrics.get("validation error")
        return {} if error is None else {"validation error": f"{float(error):.2%}"}

    def _get_train_description(self, current_epoch: int) -> str:
        described = f"Epoch {current_epoch + 1}/{self.trainer.max_epochs}"
        return described.ljust(len(self.validation_description))


class _CheckpointCallback(Checkpoint):
    """At the end of every epoch: the best weights, the state to go on from, the record, a line to the user."""

    def __init__(self, out: Path, record: dict[str, Any], recipe: Recipe, say: Any) -> None:
        self.out, self.record, self.recipe, self.say = out, record, recipe, say
        self.rows: list[dict[str, Any]] = []
        self.start = time.monotonic()
        self.stopped: KeyboardInterrupt | None = None
        self.on_sigterm = signal.getsignal(signal.SIGTERM)

    @property
    def state_key(self) -> str:
        """Part of the checkpoint format: runs of version 0.1.0 hold their epochs under this key."""
        return "_Diary"

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt):
            self.stopped = exception

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():  # Lightning may wait for other processes for ever
            signal.signal(signal.SIGTERM, self.on_sigterm or signal.SIG_DFL)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = time.monotonic()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        pl_module.check_weights()
        metrics = trainer.callback_metrics
        error = float(metrics["validation error"]) if "validation error" in metrics else None
        better = error is not None and error < min((row["validation error"] for row in self.rows), default=2.0)
        self.rows.append(
            {
                "epoch": trainer.current_epoch + 1,
                "training loss": float(metrics["training loss"]),
                "validation error": error,
                "learning rate": float(trainer.optimizers[0].param_groups[0]["lr"]),
                "seconds": round(time.monotonic() - self.start, 3),
            }
        )
        if better and trainer.is_global_zero:
            state = {name: tensor.contiguous() for name, tensor in pl_module.tested.state_dict().items()}
            write(self.out / BEST, save(state, {"epoch": str(trainer.current_epoch + 1)}))
        trainer.save_checkpoint(self.out / LAST)  # all processes take part
        if trainer.is_global_zero:
            self._note()
            self._tell()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.rows and trainer.is_global_zero:  # a kill may have come between the checkpoint and the record
            self._note()

    def _note(self) -> None:
        rows, epochs = self.rows, self.recipe.epochs
        self.record["epochs"] = rows
        self.record["results"] = {"training loss": rows[-1]["training loss"]}
        if rows[0]["validation error"] is not None:
            best = min(rows, key=lambda row: row["validation error"])
            self.record["results"] |= {"best epoch": best["epoch"], "validation error": best["validation error"]}
        if len(rows) == epochs:
            self.record["status"] = "finished"
            self.record["finished"] = _now()
        write_record(self.out, self.record)
        with written_atomically(self.out / EPOCHS) as draft, draft.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def _tell(self) -> None:
        row, epochs = self.rows[-1], self.recipe.epochs
        words = [f"epoch {row['epoch']} of {epochs}: loss {row['training loss']:.4f}"]
        if row["validation error"] is not None:
            best = min(each["validation error"] for each in self.rows)
            words.append(f"validation error {row['validation error']:.2%} (best {best:.2%})")
        words.append(f"{row['seconds']:.0f} s")
        if left := row["seconds"] * (epochs - len(self.rows)):
            words.append(f"{_duration(left)} left")
        self.say(", ".join(words))


def _new_record(settings: RunOptions, data: Path) -> dict[str, Any]:
    return {
        "status": "running",
        "experiment": settings.experiment,
        "settings": settings.as_dict(),
        "recipe": dataclasses.asdict(settings.full_recipe),
        "data": str(data.resolve()),
        "versions": {**versions(), "lightning": L.__version__},
        "machine": machine(),
        "started": _now(),
        "epochs": [],
        "results": {},
    }


def _check_free(out: Path) -> None:
    if out.is_dir() and not all(map(is_draft, out.iterdir())):  # of a process that was killed at its first word
        what = "holds a run already: add --resume to go on with it" if (out / RECORD).is_file() else "is not empty"
        raise FileExistsError(f"{out} {what}, or choose another folder with --out")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {out}")


def _opened(out: Path, settings: RunOptions) -> dict[str, Any]:
    """The record of a run that is to go on, if its settings are the same."""
    record = read_record(out)
    check_experiment(out, record, settings.experiment)
    before = settings_of(record)
    others = [
        f"--{name.replace('_', '-')} {was}, got {now}"
        for name, now in settings.as_dict().items()
        if (was := getattr(before, name)) != now
    ]
    if others:
        raise ValueError(f"--resume: {out} was started with {'; '.join(others)}")
    return record


def _check_weights(path: Path, module: TrainingModule) -> None:
    """Refuse a checkpoint that this module could not go on from."""
    state = read_checkpoint(path)["state_dict"]
    try:
        copy.deepcopy(module).load_state_dict(state)
    except Exception as error:  # whatever foreign values make torch raise
        raise ValueError(f"{path}: damaged, or of another network ({reason(error)})") from error


def _strategy(module: TrainingModule) -> DDPStrategy:
    unused = any(name.rpartition(".")[2] == "unused" for name, _ in module.network.named_parameters())
    return DDPStrategy(find_unused_parameters=unused or module.waiting)


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's remarks on hardware and advice on loaders kept off the terminal."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")  # no validation
            warnings.filterwarnings("ignore", ".*in eval mode at the start of training.*")  # frozen stages of trackers
            warnings.filterwarnings("ignore", ".*LeafSpec.*")  # Lightning's imports
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
