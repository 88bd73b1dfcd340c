"""What all commands share: their manners on the command line and at the terminal."""

from __future__ import annotations

import argparse
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..scales import Scales

PATIENCE = 2.0  # seconds after which a waiting user sees progress


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, examples: str
) -> argparse.ArgumentParser:
    """A command with its summary, examples and --debug."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_operator(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose the rescaling operator."""
    parser.add_argument(
        "--mode", default="cubic", help="interpolation: nearest, nearest-exact, linear, cubic (default)"
    )
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


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """The arguments that choose how results are shown."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw into a file (.png, .svg or .pdf)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


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


class UsageError(Exception):
    """Arguments that cannot be read, where argparse does not read them."""


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
        self.thread.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        self.part = done / total

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _show(self) -> None:
        terminal = sys.stderr.isatty()
        wait = PATIENCE
        while not self.stop.wait(wait):
            wait = 0.5 if terminal else 10.0
            elapsed = time.monotonic() - self.start
            left = f", {elapsed / self.part - elapsed:.0f} s left" if self.part else ""
            line = (
                f"{self.label}: {self.part:.0%}, {elapsed:.0f} s{left}"
                if self.part
                else f"{self.label}: {elapsed:.0f} s"
            )
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def say(message: str) -> None:
    """A remark beside the output."""
    print(message, file=sys.stderr)
