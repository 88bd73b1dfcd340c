"""Processes that train and test networks, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...files import reason
from ..mnist_scale.training import MnistScaleOptions
from ..runs.record import RECORD


class TrainingTask(NamedTuple):
    """A network to be trained and tested in a folder."""

    settings: MnistScaleOptions
    data: Path
    run: Path
    device: str


def has_record(run: Path) -> bool:
    """Whether a folder holds a run, which can go on."""
    return (run / RECORD).is_file()


@contextmanager
def workers(count: int, tasks: list[TrainingTask]) -> Iterator[Iterator[Path | None]]:
    """Processes of one thread each that train and test; gives the runs as they are done, and None while waiting.

    They are killed at the end, also in the middle: a run goes on from its last epoch. They end with the process that
    started them, however that ends.
    """
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    todo: Any = context.Queue()
    done: Any = context.Queue()
    for task in (*tasks, *[None] * count):
        todo.put(task)
    processes = [context.Process(target=_work, args=(todo, done), daemon=True) for _ in range(count)]

    def results() -> Iterator[Path | None]:
        while True:
            try:
                run, error = done.get(timeout=0.5)
            except queue.Empty:
                if any(process.exitcode for process in processes):
                    raise ChildProcessError("a training process was killed: was memory short?") from None
                yield None
                continue
            if error is not None:
                raise ValueError(error)
            yield run

    try:
        for process in processes:
            process.start()
        yield results()
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _work(todo: Any, done: Any) -> None:
    """What a process does: train and test until nothing is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    from ..runs.evaluate import evaluate
    from ..runs.loop import train

    while (task := todo.get()) is not None:
        settings, data, run, device = task
        try:
            train(settings, data=data, out=run, resume=has_record(run), device=device, say=_nothing, bar=False)
            evaluate(run, data=data, device=device)
        except Exception as error:  # of any kind: the other process shows it
            done.put((run, f"training {settings.model}: {type(error).__name__}: {reason(error)}"))
        else:
            done.put((run, None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _nothing(line: str) -> None:
    """Say nothing: the process that waits shows the progress of all."""
