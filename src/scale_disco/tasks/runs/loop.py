"""The training loop: train a network in a folder, and resume it after any epoch."""

import copy
import datetime
import io
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from safetensors.torch import save

from ...files import is_draft, locked, make_folder, reason, write
from ..io.progress import Progress
from ..io.report import machine, versions, write_csv
from ..options import flag
from .batches import Batch, evaluation_batches, training_batches
from .experiments import EXPERIMENTS, TrainingData, import_object
from .modules import TrainingModule
from .options import RunOptions
from .record import BEST, EPOCHS, LAST, METADATA, RECORD, options_of, read_checkpoint, read_record, write_record

LINE_SECONDS = 30.0  # between lines of progress without a terminal
_PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}  # in Lightning's words


def train(
    options: RunOptions,
    *,
    data: Path,
    out: Path,
    resume: bool = False,
    device: torch.device | str = "auto",
    devices: int = 1,
    nodes: int = 1,
    channels_last: bool = False,
    cache: Path | None = None,
    say: Callable[[str], Any] = print,
    bar: bool = True,
    reading: AbstractContextManager[Progress | None] | None = None,
) -> dict[str, Any]:
    """Train in the folder `out`, or resume the run in it; return the record of the run.

    Args:
        options: What is trained, and how.
        data: Folder of the data.
        out: Folder of the run.
        resume: Resume the run in `out`.
        device: A device, a type of devices, or "auto": the fastest available.
        devices: Number of GPUs or CPU processes per node; each batch is split across them.
        nodes: Number of nodes, each with `devices` devices.
        channels_last: Use the channels_last memory format, which is faster on newer GPUs.
        cache: File of decoded images, or folder of scale profiles.
        say: Logging callback, called with one line per epoch.
        bar: Show a progress bar, at a terminal.
        reading: Entered while data are read; shows the progress.
    """
    for name, value in (("devices", devices), ("nodes", nodes)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    placement = _placement(torch.device(device) if device != "auto" else None, devices) | {"num_nodes": nodes}
    is_first = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", 0)))) == 0
    record = _resumed_record(out, options) if resume else _new_record(options, data)
    if record["status"] == "finished":
        say(f"{out}: already finished after {len(record['epochs'])} epochs")
        return record
    if is_first and not resume:
        _check_free(out)
    recipe, experiment = options.full_recipe, EXPERIMENTS[options.experiment]
    if recipe.precision == "16" and _on_cpu(placement):
        raise ValueError("--precision 16 needs a GPU; 32 and bf16 run on every device")
    if cache is not None and not options.caches:
        raise ValueError("--cache is only supported by stl10 --format folder and by scene")
    with reading or nullcontext() as progress:
        caching = {"cache": cache, "progress": progress} if options.caches else {}
        training_data = experiment.make_data(options, data, **caching)
    if METADATA not in record:
        record[METADATA] = training_data.metadata | experiment.initial_metadata(options)
    if record[METADATA] != record[METADATA] | training_data.metadata:
        raise ValueError(f"--resume: {out} was started with other images than those in {data}")
    record["data"] = str(data.resolve())
    steps = recipe.steps(len(training_data.train), devices * nodes)
    torch.manual_seed(options.seed)
    make_model = experiment.make_model
    if experiment.make_initial_model is not None and not (out / LAST).is_file():
        make_model = experiment.make_initial_model
    network = make_model(options, record[METADATA])
    with ExitStack() as stack:
        if is_first:
            make_folder(out)
            stack.enter_context(locked(out))
            if not resume:
                _check_free(out)  # another process may have used the folder while data were read
                write_record(out, record)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        network.to(memory_format=layout)  # type: ignore[call-overload]
        module = import_object(experiment.training_module)(network, options, steps=steps)
        if devices * nodes > 1:
            unused = any(name.rpartition(".")[2] == "unused" for name, _ in network.named_parameters())
            placement["strategy"] = DDPStrategy(find_unused_parameters=unused or module.unfreezes)
        checkpoints = _CheckpointCallback(out, record, lambda rows: say(_epoch_line(rows, recipe.epochs)))
        batches = _Batches(training_data, options, layout)
        _fit(module, batches, checkpoints, _Bar() if bar and sys.stdout.isatty() else _StepLines(say), placement)
    return record


def _placement(device: torch.device | None, devices: int) -> dict[str, Any]:
    """Return Lightning's arguments for a device."""
    if device is None or device.index is None or device.type == "cpu":
        return {"accelerator": "auto" if device is None else device.type, "devices": devices}
    if devices > 1:
        raise ValueError(f"--device {device} is a single device; use --device {device.type} with --devices {devices}")
    return {"accelerator": device.type, "devices": [device.index]}


def _on_cpu(placement: dict[str, Any]) -> bool:
    others = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
    return placement["accelerator"] == "cpu" or not others


class _Batches(L.LightningDataModule):
    trainer: L.Trainer

    def __init__(self, data: TrainingData, options: RunOptions, layout: torch.memory_format) -> None:
        super().__init__()
        self.data, self.options, self.layout = data, options, layout

    @property
    def _process(self) -> dict[str, Any]:
        pin = self.trainer.strategy.root_device.type == "cuda"
        return {"rank": self.trainer.global_rank, "world": self.trainer.world_size, "pin": pin}

    def train_dataloader(self) -> Any:
        recipe, seed = self.options.full_recipe, self.options.seed
        return training_batches(self.data.train, recipe.batch, seed=seed, parts=recipe.accumulate, **self._process)

    def val_dataloader(self) -> Any:
        assert self.data.validation is not None
        return evaluation_batches(self.data.validation, **self._process)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        dataset = self.data.train if self.trainer.training else self.data.validation
        assert dataset is not None
        images = dataset.transform(batch.images, batch.rows, self.trainer.current_epoch)
        return batch._replace(images=images.contiguous(memory_format=self.layout))


class _AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        packed = io.BytesIO()
        torch.save(checkpoint, packed)
        write(Path(path), packed.getvalue())


class _Bar(RichProgressBar):
    """Lightning's progress bar, with epochs counted from one and errors in percent."""

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        error = trainer.callback_metrics.get("validation error")
        return {} if error is None else {"validation error": f"{float(error):.2%}"}

    def _get_train_description(self, current_epoch: int) -> str:
        return f"Epoch {current_epoch + 1}/{self.trainer.max_epochs}".ljust(len(self.validation_description))


class _SignalCallback(L.Callback):
    """Leave SIGTERM to the handler of the caller, and turn the exit of Lightning on Ctrl-C into KeyboardInterrupt."""

    def __init__(self) -> None:
        self.on_sigterm = signal.getsignal(signal.SIGTERM)
        self.interrupt: KeyboardInterrupt | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():  # Lightning's may wait for other processes forever
            signal.signal(signal.SIGTERM, self.on_sigterm or signal.SIG_DFL)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt):
            self.interrupt = exception

    @contextmanager
    def reraised(self) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            raise self.interrupt or error from None


class _CheckpointCallback(Checkpoint):
    """At the end of every epoch, save the best weights, the checkpoint and the record, and then call `log`."""

    def __init__(self, out: Path, record: dict[str, Any], log: Callable[[list[dict[str, Any]]], None]) -> None:
        self.out, self.record, self.log_epoch = out, record, log
        self.rows: list[dict[str, Any]] = []
        self.start = time.monotonic()

    @property
    def state_key(self) -> str:
        """Part of the checkpoint format: checkpoints store their epochs under this key."""
        return "_Diary"

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.rows and trainer.is_global_zero:  # the process may have been killed between checkpoint and record
            self._write_record(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = time.monotonic()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        pl_module.check_weights()
        metrics = trainer.callback_metrics
        error = float(metrics["validation error"]) if "validation error" in metrics else None
        is_best = error is not None and error < min((row["validation error"] for row in self.rows), default=2.0)
        self.rows.append(
            {
                "epoch": trainer.current_epoch + 1,
                "training loss": float(metrics["training loss"]),
                "validation error": error,
                "learning rate": float(trainer.optimizers[0].param_groups[0]["lr"]),
                "seconds": round(time.monotonic() - self.start, 3),
            }
        )
        if is_best and trainer.is_global_zero:
            state = {name: tensor.contiguous() for name, tensor in pl_module.tested.state_dict().items()}
            write(self.out / BEST, save(state, {"epoch": str(trainer.current_epoch + 1)}))
        trainer.save_checkpoint(self.out / LAST)  # all processes take part
        if trainer.is_global_zero:
            self._write_record(trainer)
            self.log_epoch(self.rows)

    def _write_record(self, trainer: L.Trainer) -> None:
        rows = self.rows
        self.record["epochs"] = rows
        self.record["results"] = {"training loss": rows[-1]["training loss"]}
        if rows[0]["validation error"] is not None:
            best = min(rows, key=lambda row: row["validation error"])
            self.record["results"] |= {"best epoch": best["epoch"], "validation error": best["validation error"]}
        if len(rows) == trainer.max_epochs:
            self.record["status"] = "finished"
            self.record["finished"] = _now()
        write_record(self.out, self.record)
        write_csv(self.out / EPOCHS, rows)


class _StepLines(L.Callback):
    """Without a progress bar, call `log` with a line every `LINE_SECONDS` within an epoch."""

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.log_line = log
        self.start = self.last = time.monotonic()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = self.last = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        now, done, total = time.monotonic(), args[-1] + 1, int(trainer.num_training_batches)
        if now - self.last >= LINE_SECONDS and done < total and trainer.is_global_zero:
            self.last, left = now, (now - self.start) / done * (total - done)
            epoch = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
            self.log_line(f"{epoch}: step {done} of {total}, {_seconds(left)} left in this epoch")


def _fit(
    module: TrainingModule, batches: _Batches, checkpoints: _CheckpointCallback, progress: L.Callback, placement: Any
) -> None:
    """Train, from the last checkpoint of the folder if it has one."""
    last = checkpoints.out / LAST if (checkpoints.out / LAST).is_file() else None
    if last is not None:
        _check_weights(last, module)
    recipe, signals = module.recipe, _SignalCallback()
    with _lightning_contained(), signals.reraised():
        trainer = L.Trainer(
            max_epochs=recipe.epochs,
            **placement,
            precision=_PRECISIONS[recipe.precision],  # type: ignore[arg-type]
            accumulate_grad_batches=recipe.accumulate,
            gradient_clip_val=recipe.clip,
            use_distributed_sampler=False,
            deterministic=True if _on_cpu(placement) else "warn",  # GPUs lack some algorithms
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if batches.data.validation else 0,
            enable_model_summary=False,
            enable_progress_bar=isinstance(progress, _Bar),
            logger=TensorBoardLogger(checkpoints.out, name="", version="tensorboard"),
            log_every_n_steps=min(10, module.steps * recipe.accumulate),
            callbacks=[checkpoints, signals, progress],
            plugins=[_AtomicCheckpointIO()],
        )
        if last is None:
            module.prepare(batches.data.train)
        trainer.fit(module, datamodule=batches, ckpt_path=last, weights_only=True)


def _epoch_line(rows: list[dict[str, Any]], epochs: int) -> str:
    """Return the line for the user after an epoch."""
    row = rows[-1]
    parts = [f"epoch {row['epoch']} of {epochs}: loss {row['training loss']:.4f}"]
    if row["validation error"] is not None:
        best = min(each["validation error"] for each in rows)
        parts.append(f"validation error {row['validation error']:.2%} (best {best:.2%})")
    parts.append(f"{row['seconds']:.0f} s")
    if left := row["seconds"] * (epochs - len(rows)):
        parts.append(f"{_seconds(left)} left")
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _new_record(options: RunOptions, data: Path) -> dict[str, Any]:
    return {
        "status": "running",
        "experiment": options.experiment,
        "settings": options.as_dict(),
        "recipe": options.full_recipe.as_dict(),
        "data": str(data.resolve()),
        "versions": {**versions(), "lightning": L.__version__},
        "machine": machine(),
        "started": _now(),
        "epochs": [],
        "results": {},
    }


def _resumed_record(out: Path, options: RunOptions) -> dict[str, Any]:
    """Return the record of a run, if it has the same options."""
    record = read_record(out, options.experiment)
    recorded = options_of(record).as_dict()
    changed = [name for name, value in options.as_dict().items() if recorded[name] != value]
    if changed:
        others = "; ".join(f"{flag(name)} {recorded[name]}, got {getattr(options, name)}" for name in changed)
        raise ValueError(f"--resume: {out} was started with {others}")
    return record


def _check_free(out: Path) -> None:
    if out.is_dir() and not all(map(is_draft, out.iterdir())):  # a killed process may have left drafts
        what = "already holds a run: add --resume to resume it" if (out / RECORD).is_file() else "is not empty"
        raise FileExistsError(f"{out} {what}, or choose another folder with --out")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {out}")


def _check_weights(path: Path, module: TrainingModule) -> None:
    """Refuse a checkpoint that does not fit the module; both copies of it are freed before the training."""
    state = read_checkpoint(path)["state_dict"]
    try:
        copy.deepcopy(module).load_state_dict(state)
    except Exception as error:  # whatever malformed values make torch raise
        raise ValueError(f"{path}: damaged, or of another network ({reason(error)})") from error


@contextmanager
def _lightning_contained() -> Iterator[None]:
    """Suppress Lightning's info logs and harmless warnings; restore torch's deterministic flag, which it sets."""
    deterministic = torch.are_deterministic_algorithms_enabled()
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
        torch.use_deterministic_algorithms(deterministic)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
