"""Processes that begin at the same moment, with everything imported before."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Job = tuple[Callable[..., Any], tuple[Any, ...]]


class Crew:
    """Processes that wait for work."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self.pipes = [mine for mine, _ in pairs]
        self.processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pairs]
        for process, (_, theirs) in zip(self.processes, pairs, strict=True):
            process.start()
            theirs.close()  # so that the end of a process is the end of its pipe
        for pipe in self.pipes:
            pipe.recv()

    def __call__(self, *jobs: Job) -> list[Any]:
        """What functions give, each in a process of its own and all begun at once."""
        pipes = self.pipes[: len(jobs)]
        for pipe, job in zip(pipes, jobs, strict=True):
            pipe.send(job)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        found, failed = zip(*(pipe.recv() for pipe in pipes), strict=True)
        assert not any(failed), "\n".join(failed)
        return list(found)

    def all(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The same in all processes at once."""
        return self(*[(function, arguments)] * len(self.processes))

    def end(self) -> None:
        """Let the processes go."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def _serve(pipe: Connection) -> None:
    import torch

    import scale_disco.tasks.runs.loop  # noqa: F401 - Lightning takes seconds

    torch.set_num_threads(1)
    pipe.send("here")
    while (job := pipe.recv()) is not None:
        pipe.send("ready")
        pipe.recv()
        function, arguments = job
        try:
            pipe.send((function(*arguments), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))


def disco(*words: object) -> tuple[int, str]:
    """Call the command: its exit code, and what it says to standard error."""
    from scale_disco.cli import main

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main([*map(str, words), "--quiet"])
    return code, said.getvalue()
