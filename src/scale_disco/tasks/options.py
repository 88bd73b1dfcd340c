"""Options of commands and training runs: frozen dataclasses, whose fields are the options of the command line.

Declarations import nothing heavy, so that help and usage errors need no torch. `cli.app` turns them into commands.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_type_hints

from ..files import plain


class Rule(NamedTuple):
    """Values that an option accepts, with their description for the error message."""

    accepts: Callable[[Any], bool]
    description: str


def at_least(minimum: int) -> Rule:
    """Return the rule of a lower bound."""
    return Rule(lambda value: value >= minimum, f"at least {minimum}")


def between(low: float, high: float, description: str | None = None) -> Rule:
    """Return the rule of a closed interval."""
    return Rule(lambda value: low <= value <= high, description or f"from {low} to {high}")


FRACTION = Rule(lambda value: 0 <= value < 1, "from 0 to below 1")
NON_NEGATIVE = Rule(lambda value: 0 <= value < inf, "finite and at least 0")
SEED = between(0, 2**32 - 1, "from 0 to 2^32 - 1")
FILE, FOLDER, FILE_OR_FOLDER = "file", "folder", "file or folder"  # what an input must be
WEIGHTS = "file of weights"
RANDOM = "random"  # as a file of weights: none


def option(
    default: Any,
    about: str,
    *,
    choices: Iterable[str] = (),
    rule: Rule | None = None,
    exists: str = "",
    parse: Callable[[str], Any] | None = None,
    positional: bool = False,
) -> Any:
    """Return a field of options.

    Args:
        default: Value if it is not given; None is always accepted.
        about: Its help.
        choices: Names that it accepts.
        rule: Values that it accepts; of lists, each of their items.
        exists: What the path must be: `FILE`, `FOLDER`, `FILE_OR_FOLDER` or `WEIGHTS`.
        parse: Converts a word of the command line, with ValueError for invalid ones.
        positional: Whether it is given without a flag.
    """
    choices = tuple(choices)
    if choices:
        rule = Rule(choices.__contains__, f"one of {', '.join(choices)}")
    metadata = {"help": about, "choices": choices, "rule": rule, "exists": exists, "parse": parse}
    return field(default=default, metadata=metadata | {"positional": positional})


def argument(about: str, **details: Any) -> Any:
    """Return a required field, which is given without a flag."""
    return option(dataclasses.MISSING, about, positional=True, **details)


def flag(name: str) -> str:
    """Return the command-line flag of an option."""
    return f"--{name.replace('_', '-')}"


def check_values(fields: Mapping[str, dataclasses.Field[Any]], values: Mapping[str, Any], *, files: bool) -> None:
    """Raise ValueError for values that break their rule, and FileNotFoundError for missing inputs, if `files`."""
    for name, value in values.items():
        about = fields[name].metadata
        rule, exists, shown = about["rule"], about["exists"], name.upper() if about["positional"] else flag(name)
        for item in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            if rule is not None and not rule.accepts(item):
                raise ValueError(f"{shown} must be {rule.description}, got {plain(repr(value))}")
            if files and exists and not _EXISTS[exists](Path(item)):
                raise FileNotFoundError(f"{shown}: no {exists} {item}{_HINTS.get(exists, '')}")


@dataclass(frozen=True)
class CheckedOptions:
    """Options that check themselves."""

    checks_files: ClassVar[bool] = True  # whether inputs must exist

    def __post_init__(self) -> None:
        """Raise an error for invalid values."""
        values = {name: getattr(self, name) for name in self.fields()}
        check_values(self.fields(), values, files=self.checks_files)

    @classmethod
    @cache
    def fields(cls) -> Mapping[str, dataclasses.Field[Any]]:
        """Return the fields that are options, by name."""
        return {each.name: each for each in dataclasses.fields(cls) if "help" in each.metadata}

    @classmethod
    @cache
    def types(cls) -> dict[str, Any]:
        """Return the types by name, such as `int | None`."""
        hints = get_type_hints(cls)
        return {name: hints[name] for name in cls.fields()}


_HINTS = {WEIGHTS: "; torchvision or timm download them, random are none"}
_EXISTS: dict[str, Callable[[Path], bool]] = {
    **{FILE: Path.is_file, FOLDER: Path.is_dir, FILE_OR_FOLDER: Path.exists},
    WEIGHTS: lambda path: str(path) in ("torchvision", "timm", RANDOM) or path.is_file(),
}


@dataclass(frozen=True, kw_only=True)
class CommandOptions(CheckedOptions):
    """Options of every command. The first line of a subclass's docstring is its summary."""

    entry: ClassVar[str]  # "module:function" of `scale_disco`, imported when the command is called; takes the options
    examples: ClassVar[str]  # lines of the help, and notes below them
    former: ClassVar[Mapping[str, str]] = {}  # former spellings of options, still accepted, and the present ones

    json: bool = option(False, "print one JSON document")
    quiet: bool = option(False, "suppress progress and messages")
    threads: int | None = option(None, "number of CPU threads (default: torch's)", rule=at_least(1))
    debug: bool = option(False, "show the traceback of an error")
    call: str = "disco"  # the command line


COMMON = tuple(CommandOptions.fields())


def seed_option(what: str) -> Any:
    """Return the field of --seed."""
    return option(0, f"random seed for {what}", rule=SEED)


def device_option(default: str = "cpu") -> Any:
    """Return the field of --device, read by `terminal.chosen_device`."""
    more = ", or auto for the fastest available" if default == "auto" else ""
    return option(default, f"where to compute: cpu, cuda, cuda:1, mps{more}")


def report_option() -> Any:
    """Return the field of --out for `terminal.write_report`."""
    return option(None, "write a report: JSON if the name ends in .json, Markdown otherwise")


def plot_option(what: str) -> Any:
    """Return the field of --plot, the file of a figure."""
    return option(None, f"save a plot of {what} (.png, .svg or .pdf)")


def number(text: str) -> float:
    """Parse a number, a fraction or a power: 1.5, 3/2, 2^0.5, 2^(1/3)."""
    decimal = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
    match = re.fullmatch(rf"{decimal}(?:/{decimal})?(?:(?:\^|\*\*)\(?{decimal}(?:/{decimal})?\)?)?", text.strip())
    if match is None:
        raise ValueError(f"expected a number such as 1.5, 3/2, 2^0.5 or 2^(1/3), got {text!r}")
    top, bottom, power, root = (float(part) if part else 1.0 for part in match.groups())
    try:
        value = float((top / bottom) ** (power / root))
    except (ZeroDivisionError, OverflowError):
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class ScalesOptions(CommandOptions):
    """Options that `terminal.chosen_scales` reads."""

    scales: tuple[float, ...] | None = option(None, "scales in ascending order (default: 1 2^0.5 2)", parse=number)
    step: float | None = option(None, "ratio between neighboring scales, instead of --scales", parse=number)
    count: int | None = option(None, "number of scales, with --step")


_MODES = ("nearest", "nearest-exact", "linear", "cubic")


@dataclass(frozen=True, kw_only=True)
class OperatorOptions(CommandOptions):
    """Options of the rescaling operator."""

    mode: str = option("cubic", "interpolation", choices=_MODES)
    antialias: bool = option(False, "rescale with antialiasing")
