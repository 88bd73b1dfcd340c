"""Processes that start their jobs at the same time, with everything imported before."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Job = tuple[Callable[..., Any], tuple[Any, ...]]


class ProcessPool:
    """Processes that wait for jobs."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self.pipes = [parent for parent, _ in pairs]
        self.processes = [context.Process(target=_serve, args=(child,), daemon=True) for _, child in pairs]
        for process, (_, child) in zip(self.processes, pairs, strict=True):
            process.start()
            child.close()  # so that the pipe ends with the process
        for pipe in self.pipes:
            pipe.recv()

    def __call__(self, *jobs: Job) -> list[Any]:
        """Run jobs concurrently, each in its own process; return what they return."""
        pipes = self.pipes[: len(jobs)]
        for pipe, job in zip(pipes, jobs, strict=True):
            pipe.send(job)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        results, errors = zip(*(pipe.recv() for pipe in pipes), strict=True)
        assert not any(errors), "\n".join(errors)
        return list(results)

    def all(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run the same job in all processes."""
        return self(*[(function, arguments)] * len(self.processes))

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def _serve(pipe: Connection) -> None:
    import torch

    import scale_disco.tasks.runs.loop  # noqa: F401 - Lightning takes seconds

    torch.set_num_threads(1)
    pipe.send("started")
    while (job := pipe.recv()) is not None:
        pipe.send("ready")
        pipe.recv()
        function, arguments = job
        try:
            pipe.send((function(*arguments), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))


def disco(*arguments: object) -> tuple[int, str]:
    """Run `disco` in this process; return its exit code and standard error."""
    from scale_disco.cli import main

    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        code = main([*map(str, arguments), "--quiet"])
    return code, stderr.getvalue()
