"""What all commands share: their manners on the command line and at the terminal."""

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
from typing import Any, NoReturn

import torch

from ...files import write
from ...scales import Scales
from .report import machine, provenance, today, versions

_BAR = 24  # characters of a progress bar
PROGRESS_DELAY = 2.0  # seconds after which a waiting user sees progress

_quiet = False  # whether the command that runs was asked to be


class UsageError(Exception):
    """A call that cannot be understood; its words are complete."""


class Stopped(KeyboardInterrupt):
    """A command was ended by a signal, of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Parser(argparse.ArgumentParser):
    """Arguments whose errors are one line that says where help is."""

    def error(self, message: str) -> NoReturn:
        """End the call as a wrong one."""
        raise UsageError(f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help")

    def refuse(self, unknown: list[str]) -> NoReturn:
        """End a call with arguments that the command does not have."""
        known = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1)
        self.error(f"unknown argument {unknown[0]}" + (f", did you mean {near[0]}?" if near else ""))


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, examples: str
) -> argparse.ArgumentParser:
    """A command with its summary, its examples and the options that all commands have."""
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
    common.add_argument("--quiet", action="store_true", help="no progress and no remarks, errors only")
    common.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch (default: its own choice)")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_seed(parser: argparse._ActionsContainer, what: str) -> None:
    """--seed, for what is random in a command."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=f"seed of {what} (default 0)")


def add_device(parser: argparse._ActionsContainer, default: str = "cpu") -> None:
    """--device, where a command computes; `chosen_device` reads it."""
    more = ", or auto: the fastest there is" if default == "auto" else ""
    device = parser.add_argument(
        "--device", default=default, help=f"where to compute: cpu, cuda, cuda:1, mps{more} (default {default})"
    )
    suggest(device, ["cpu", "cuda", "mps", *(["auto"] if more else [])])


def add_out(parser: argparse._ActionsContainer, what: str, *names: str, folder: bool = False, **about: Any) -> None:
    """--out, where the main product of a command goes; `names` are other names of the option."""
    metavar = "DIR" if folder else "FILE"
    parser.add_argument("--out", *names, type=Path, metavar=metavar, help=f"write {what}", **about)


def add_report(parser: argparse._ActionsContainer) -> None:
    """--out for a report, which `write_report` writes."""
    add_out(parser, "a report: Markdown, or JSON if the name ends in .json")


def add_plot(parser: argparse._ActionsContainer, what: str = "") -> None:
    """--plot, where a picture goes."""
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"draw {what}{' ' if what else ''}into a file (.png, .svg or .pdf)"
    )


def suggest(action: argparse.Action, words: Iterable[str], *, folders: bool = False) -> None:
    """Words that a shell offers for an option, which takes others as well; and folders, if it takes these."""
    action.suggestions, action.folders = list(words), folders  # type: ignore[attr-defined]


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


@contextmanager
def signal_handler(signals: Iterable[str], by: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a function when one of these signals comes, if the system has it and it is not ignored."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in signals if hasattr(signal, name)]
        before = {one: signal.signal(one, by) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)  # None: not one of Python's


@contextmanager
def command_context(options: argparse.Namespace) -> Iterator[None]:
    """Run a command as the options of every command ask for; what they change is restored afterwards.

    What ends a process elsewhere, a kill or the end of its terminal, is as Ctrl-C: nothing half-done is left.
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
        with signal_handler(("SIGTERM", "SIGHUP"), _stop), warnings.catch_warnings():
            if options.quiet:
                warnings.simplefilter("ignore")
            warnings.showwarning = lambda message, *_, **__: say(str(message))  # a line, without where in the code
            yield
    finally:
        _quiet = quiet
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def devices() -> list[str]:
    """The devices of this machine, by the names that --device takes."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    names += ["mps"] if torch.backends.mps.is_available() else []
    return names + [f"xpu:{index}" for index in range(torch.xpu.device_count())]


def chosen_device(options: argparse.Namespace) -> torch.device:
    """The device that --device names, if this machine has it."""
    name, there = options.device, devices()
    if name not in there and name not in {device.split(":")[0] for device in there}:
        raise ValueError(f"--device must be one that this machine has ({', '.join(there)}), got {name!r}")
    return torch.device(name)


def show(options: argparse.Namespace, document: Any, text: str) -> None:
    """Print a result: as text, or as JSON if that was asked for."""
    print(json.dumps(document) if options.json else text, flush=True)


def write_report(path: Path, title: str, text: str, document: dict[str, Any], *, command: str) -> None:
    """Write a result with where it comes from: JSON if the name of the file says so, Markdown otherwise."""
    if path.suffix == ".json":
        source = {"command": command, "versions": versions(), "machine": machine(), "date": today()}
        content = json.dumps(source | document, indent=1)
    else:
        content = f"# {title}\n\n{provenance(command)}\n\n{text}"
    write(path, f"{content}\n".encode())
    say(f"written {path}")


def add_operator(parser: argparse._ActionsContainer) -> None:
    """The arguments that choose the rescaling operator."""
    mode = parser.add_argument(
        "--mode", default="cubic", help="interpolation: nearest, nearest-exact, linear, cubic (default)"
    )
    suggest(mode, ["nearest", "nearest-exact", "linear", "cubic"])
    parser.add_argument("--antialias", action="store_true", help="rescale with antialiasing")


def add_scales(parser: argparse._ActionsContainer) -> None:
    """The arguments that choose the scales."""
    parser.add_argument(
        "--scales", type=number, nargs="+", metavar="S", help="ascending scales, such as 1 2^0.5 2 (the default)"
    )
    parser.add_argument("--step", type=number, help="instead of --scales: ratio between neighbouring scales")
    parser.add_argument("--count", type=int, help="with --step: number of scales")


def chosen_scales(options: argparse.Namespace) -> Scales:
    """The scales that the arguments of `add_scales` ask for."""
    if (options.step is None) != (options.count is None):
        raise ValueError("--step and --count go together")
    if options.step is not None:
        if options.scales:
            raise ValueError("give either --scales or --step with --count, not both")
        return Scales.geometric(options.step, options.count)
    return Scales(options.scales or (1, 2**0.5, 2))


def number(text: str) -> float:
    """A number, a fraction or a power: 1.5, 3/2, 2^0.5, 2^(1/3)."""
    plain = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
    match = re.fullmatch(rf"{plain}(?:/{plain})?(?:(?:\^|\*\*)\(?{plain}(?:/{plain})?\)?)?", text.strip())
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
    """Pixels, or a part of the side."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected pixels such as 3 or a part of the side such as 0.25, got {text!r}"
        ) from None


class Progress:
    """A line on standard error with the time left, for work that takes longer than the user's patience.

    Call it with what is done so far; where nothing can be counted, it shows the time that has passed.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.start = time.monotonic()
        self.part = 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        if not _quiet:
            self.thread.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.part = done / total

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
            left = f", {elapsed / self.part - elapsed:.0f} s left" if self.part else ""
            part = f"{self.part:.0%}, " if self.part else ""
            if terminal and self.part:
                part = f"{'█' * round(_BAR * self.part):░<{_BAR}} {part}"
            line = f"{self.label}: {part}{elapsed:.0f} s{left}"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def is_quiet() -> bool:
    """Whether the user asked for quiet."""
    return _quiet


def say(message: str) -> None:
    """A remark beside the output, unless the user asked for quiet."""
    if not _quiet:
        print(message, file=sys.stderr)
