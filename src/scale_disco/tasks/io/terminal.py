"""CLI conventions: options, errors, progress and signals that all commands share."""

import json
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ...files import check_writable, write
from ...scales import Scales
from ..options import CommandOptions, ScalesOptions
from .figures import Figure, check_figure, save_figure

if TYPE_CHECKING:
    import torch

_BAR = 24  # characters of a progress bar
PROGRESS_DELAY = 2.0  # seconds before progress is shown

_quiet = False  # --quiet of the running command


class UsageError(Exception):
    """Raised for an invalid command line; the message is shown as it is."""


class Stopped(KeyboardInterrupt):
    """Raised when a signal stops the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def signal_handler(signals: Iterable[str], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals inside the context, as far as the system has them and they are not ignored."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in signals if hasattr(signal, name)):
            if signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)  # None: not installed by Python


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


@contextmanager
def _no_lost_interrupt() -> Iterator[None]:
    """Send an interrupt again if Python drops it, as it does in finalizers and callbacks of weak references."""
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if isinstance(error, KeyboardInterrupt):
            number = error.number if isinstance(error, Stopped) else signal.SIGINT
            timer = threading.Timer(0.05, signal.raise_signal, [number])  # the callback has returned by then
            timer.daemon = True
            timer.start()
        else:
            previous(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous


@contextmanager
def command_context(options: CommandOptions) -> Iterator[None]:
    """Apply the options of every command, and restore the previous state afterwards.

    SIGTERM and SIGHUP raise `Stopped`, a KeyboardInterrupt, so that they clean up as Ctrl-C does.
    """
    global _quiet
    import torch

    quiet, threads = _quiet, torch.get_num_threads()
    _quiet = options.quiet
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        with _no_lost_interrupt(), signal_handler(("SIGTERM", "SIGHUP"), _stop), warnings.catch_warnings():
            if options.quiet:
                warnings.simplefilter("ignore")
            warnings.showwarning = lambda message, *_, **__: say(str(message))  # one line, without the source line
            yield
    finally:
        _quiet = quiet
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def devices() -> list[str]:
    """Return the names of the available devices."""
    import torch

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    return names + [f"xpu:{index}" for index in range(torch.xpu.device_count())]


def chosen_device(name: str) -> "torch.device":
    """Return the device of --device; raise an error if this machine does not have it."""
    import torch

    available = devices()
    if name not in available and name not in {device.split(":")[0] for device in available}:
        raise ValueError(f"device {name!r} is not available; available: {', '.join(available)}")
    return torch.device(name)


def show(options: CommandOptions, document: Any, text: str) -> None:
    """Print a result: the document if --json is given, else the text."""
    print(json.dumps(document) if options.json else text, flush=True)


def check_outputs(out: Path | None, *figures: Path | None) -> None:
    """Raise an error before the work if --out or the files of figures cannot be written."""
    for figure in filter(None, figures):
        check_figure(figure)
    if out:
        check_writable(out)


def write_plot(path: Path | None, figure: Callable[[], Figure]) -> None:
    """Write the figure to a file such as that of --plot, if given."""
    if path:
        save_figure(figure(), path)
        say(f"wrote {path}")


def write_report(path: Path | None, title: str, text: str, document: dict[str, Any], *, command: str) -> None:
    """Write a result with its provenance to --out, if given: JSON if the name ends in .json, Markdown otherwise."""
    from .report import environment, provenance

    if path is None:
        return
    if path.suffix == ".json":
        content = json.dumps({"command": command} | environment() | document, indent=1)
    else:
        content = f"# {title}\n\n{provenance(command)}\n\n{text}"
    write(path, f"{content}\n".encode())
    say(f"wrote {path}")


def chosen_scales(options: ScalesOptions) -> Scales:
    """Return the chosen scales."""
    if (options.step is None) != (options.count is None):
        raise ValueError("--step and --count must be used together")
    if options.step is not None and options.count is not None:
        if options.scales:
            raise ValueError("pass either --scales or --step with --count, not both")
        return Scales.geometric(options.step, options.count)
    return Scales(options.scales or (1, 2**0.5, 2))


class Progress:
    """Progress line on standard error with the time left, shown after `PROGRESS_DELAY` seconds.

    Call it with the number of steps done and their total; without calls it shows the elapsed time.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.monotonic()
        self.fraction = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        if not _quiet:
            self.thread.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.fraction = done / total

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _show(self) -> None:
        terminal = sys.stderr.isatty()
        wait = PROGRESS_DELAY
        while not self.stop.wait(wait):
            wait = 0.5 if terminal else 10.0
            elapsed = time.monotonic() - self.start
            line = f"{elapsed:.0f} s"
            if self.fraction:
                bar = f"{'█' * round(_BAR * self.fraction):░<{_BAR}} " if terminal else ""
                left = elapsed / self.fraction - elapsed
                line = f"{bar}{self.fraction:.0%}, {line}, {left:.0f} s left"
            line = f"{self.label}: {line}"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def say(message: str) -> None:
    """Print a message to standard error, unless --quiet is given."""
    if not _quiet:
        print(message, file=sys.stderr)
