"""CLI conventions: options, errors, progress and signals that all commands share."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
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

import torch

from ...files import check_writable, write
from ...scales import Scales
from .figures import check_figure, save_figure
from .report import environment, provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line that points to --help."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` instead of exiting."""
        raise UsageError(f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help")

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Raise `UsageError` for unknown arguments, with the closest known option."""
        known = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1)
        self.error(f"unknown argument {unknown[0]}" + (f", did you mean {near[0]}?" if near else ""))


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command with its summary, examples and the options of every command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    common = parser.add_argument_group("options of every command")
    common.add_argument("--json", action="store_true", help="print one JSON document")
    common.add_argument("--quiet", action="store_true", help="suppress progress and messages")
    common.add_argument("--threads", type=int, metavar="N", help="number of CPU threads (default: torch's)")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_seed(parser: argparse._ActionsContainer, what: str) -> None:
    """Add --seed."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=f"random seed for {what} (default 0)")


def add_device(parser: argparse._ActionsContainer, default: str = "cpu") -> None:
    """Add --device, read by `chosen_device`."""
    more = ", or auto for the fastest available" if default == "auto" else ""
    device = parser.add_argument(
        "--device", default=default, help=f"where to compute: cpu, cuda, cuda:1, mps{more} (default {default})"
    )
    suggest(device, ["cpu", "cuda", "mps", *(["auto"] if more else [])])


def add_out(parser: argparse._ActionsContainer, what: str, *names: str, folder: bool = False, **about: Any) -> None:
    """Add --out, the main output of a command; `names` are aliases."""
    metavar = "DIR" if folder else "FILE"
    parser.add_argument("--out", *names, type=Path, metavar=metavar, help=f"write {what}", **about)


def add_report(parser: argparse._ActionsContainer) -> None:
    """Add --out for `write_report`."""
    add_out(parser, "a report: JSON if the name ends in .json, Markdown otherwise")


def add_plot(parser: argparse._ActionsContainer, what: str) -> None:
    """Add --plot, the file of a figure."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"save a plot of {what} (.png, .svg or .pdf)")


def suggest(action: argparse.Action, words: Iterable[str], *, folders: bool = False) -> None:
    """Let shells complete an option with these words, and with folders; other values stay valid."""
    action.suggestions, action.folders = list(words), folders  # type: ignore[attr-defined]


@contextmanager
def signal_handler(signals: Iterable[str], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals inside the context, as far as the system has them and they are not ignored."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in signals if hasattr(signal, name)]
        previous = {
            number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) != signal.SIG_IGN
        }
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
def command_context(options: argparse.Namespace) -> Iterator[None]:
    """Apply the options of every command, and restore the previous state afterwards.

    SIGTERM and SIGHUP raise `Stopped`, a KeyboardInterrupt, so that they clean up as Ctrl-C does.
    """
    global _quiet
    if options.threads is not None and options.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {options.threads}")
    seed = getattr(options, "seed", 0)
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be from 0 to 2^32 - 1, got {seed}")
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
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    return names + [f"xpu:{index}" for index in range(torch.xpu.device_count())]


def chosen_device(options: argparse.Namespace) -> torch.device:
    """Return the device of --device; raise an error if this machine does not have it."""
    name, available = options.device, devices()
    if name not in available and name not in {device.split(":")[0] for device in available}:
        raise ValueError(f"device {name!r} is not available; available: {', '.join(available)}")
    return torch.device(name)


def show(options: argparse.Namespace, document: Any, text: str) -> None:
    """Print a result: the document if --json is given, else the text."""
    print(json.dumps(document) if options.json else text, flush=True)


def check_outputs(options: argparse.Namespace) -> None:
    """Raise an error before the work if --out or --plot cannot be written."""
    if getattr(options, "plot", None):
        check_figure(options.plot)
    if options.out:
        check_writable(options.out)


def write_plot(options: argparse.Namespace, figure: Callable[[], Figure]) -> None:
    """Write the figure to --plot, if given."""
    if options.plot:
        save_figure(figure(), options.plot)
        say(f"wrote {options.plot}")


def write_report(path: Path, title: str, text: str, document: dict[str, Any], *, command: str) -> None:
    """Write a result with its provenance: JSON if the file name ends in .json, Markdown otherwise."""
    if path.suffix == ".json":
        content = json.dumps({"command": command} | environment() | document, indent=1)
    else:
        content = f"# {title}\n\n{provenance(command)}\n\n{text}"
    write(path, f"{content}\n".encode())
    say(f"wrote {path}")


def add_operator(parser: argparse._ActionsContainer) -> None:
    """Add the options of the rescaling operator."""
    mode = parser.add_argument(
        "--mode", default="cubic", help="interpolation: nearest, nearest-exact, linear or cubic (default cubic)"
    )
    suggest(mode, ["nearest", "nearest-exact", "linear", "cubic"])
    parser.add_argument("--antialias", action="store_true", help="rescale with antialiasing")


def add_scales(parser: argparse._ActionsContainer) -> None:
    """Add the options that `chosen_scales` reads."""
    parser.add_argument(
        "--scales", type=number, nargs="+", metavar="S", help="scales in ascending order (default 1 2^0.5 2)"
    )
    parser.add_argument("--step", type=number, help="ratio between neighboring scales, instead of --scales")
    parser.add_argument("--count", type=int, help="number of scales, with --step")


def chosen_scales(options: argparse.Namespace) -> Scales:
    """Return the scales given by the options of `add_scales`."""
    if (options.step is None) != (options.count is None):
        raise ValueError("--step and --count must be used together")
    if options.step is not None:
        if options.scales:
            raise ValueError("pass either --scales or --step with --count, not both")
        return Scales.geometric(options.step, options.count)
    return Scales(options.scales or (1, 2**0.5, 2))


def number(text: str) -> float:
    """Parse a number, a fraction or a power: 1.5, 3/2, 2^0.5, 2^(1/3)."""
    decimal = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
    match = re.fullmatch(rf"{decimal}(?:/{decimal})?(?:(?:\^|\*\*)\(?{decimal}(?:/{decimal})?\)?)?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a number such as 1.5, 3/2, 2^0.5 or 2^(1/3), got {text!r}")
    top, bottom, power, root = (float(part) if part else 1.0 for part in match.groups())
    try:
        value = float((top / bottom) ** (power / root))
    except (ZeroDivisionError, OverflowError):
        value = math.inf
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def border(text: str) -> float:
    """Parse a border: pixels, or a fraction of the side."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        message = f"expected pixels such as 3 or a fraction of the side such as 0.25, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


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

    def __enter__(self) -> Progress:
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


def is_quiet() -> bool:
    """Whether --quiet is given."""
    return _quiet


def say(message: str) -> None:
    """Print a message to standard error, unless --quiet is given."""
    if not _quiet:
        print(message, file=sys.stderr)
