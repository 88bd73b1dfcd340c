"""Where small work is done: on the CPU, whatever device a network is being built on, and by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Make new tensors on the CPU, also within `with torch.device("meta")` and the like."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return run


_ALONE = threading.RLock()  # else one caller could restore the single thread of another


@contextmanager
def one_thread() -> Iterator[None]:
    """Many small operations: waiting for a second thread costs up to 30 times the work on a busy machine."""
    with _ALONE:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
