"""Small computations run on the CPU, whatever device a network is built on, and in one thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.RLock()  # otherwise one caller could restore the single thread of another


@contextmanager
def on_cpu() -> Iterator[None]:
    """Create new tensors on the CPU, also within `with torch.device("meta")`; a decorator as well."""
    with torch.device("cpu"):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run many small operations in one thread; on a busy machine a second one makes them up to 30 times slower."""
    with _LOCK:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
