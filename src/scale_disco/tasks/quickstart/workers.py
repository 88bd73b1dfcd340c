"""Worker processes that train and test networks, one thread each."""

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
from ..mnist_scale.options import MnistScaleOptions
from ..runs.record import RECORD


class TrainingTask(NamedTuple):
    """A network to train and test."""

    options: MnistScaleOptions
    data: Path
    run: Path
    device: str


def has_record(run: Path) -> bool:
    """Whether a folder has a run to resume."""
    return (run / RECORD).is_file()


@contextmanager
def workers(count: int, tasks: list[TrainingTask]) -> Iterator[Iterator[Path | None]]:
    """Start workers; the iterator yields finished runs, and None while waiting.

    Workers are killed when the context ends; a run resumes from its last epoch. They also end with the parent process,
    even if it is killed.
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
                    raise ChildProcessError("a training process was killed, possibly out of memory") from None
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
    """Train and test until the queue has no more tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    from ..runs.evaluate import evaluate
    from ..runs.loop import train

    while (task := todo.get()) is not None:
        options, data, run, device = task
        try:
            train(options, data=data, out=run, resume=has_record(run), device=device, say=lambda _: None, bar=False)
            evaluate(run, data=data, device=device)
        except Exception as error:  # the parent process prints it
            done.put((run, f"training {options.model}: {type(error).__name__}: {reason(error)}"))
        else:
            done.put((run, None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
