"""The command `disco`. Commands are declared in `app`, and imported when called."""

import errno
import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any

from cyclopts import App, CycloptsError
from cyclopts.config import Dict
from cyclopts.exceptions import MissingArgumentError, UnusedCliTokensError

from ..files import plain
from ..tasks.io.terminal import Stopped, UsageError, command_context
from .app import COMMANDS, Command, make_app
from .config import read_config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `disco` and return the exit code; `disco --help` lists the codes."""
    try:
        code = _call(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        if not _is_full_output(error):
            raise
        _discard_output()
        print(f"disco: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1


def _is_full_output(error: Exception) -> bool:
    """Whether standard output goes to a full disk; errors of other files have a file name."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def _discard_output() -> None:
    """Send buffered output to the null device, so that flushing it at exit does not fail."""
    with suppress(OSError, ValueError):  # tests replace standard output by a buffer without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _call(words: list[str]) -> int:
    """Parse the command line and run the command; an error is printed as one line, or as a traceback with --debug."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    common = list(takewhile(("--json", "--quiet", "--debug").__contains__, words))  # before the command
    words = [*words[len(common) :], *common]
    name, command = _named(words)
    call = shlex.join(["disco", *words])
    words, notes = command.current(words) if command else (words, [])
    _print_notes(notes, words)
    app = make_app()
    function, given = _parsed(app, name, words)
    if function is None:  # it was --help or --version
        return 0
    try:
        if config := given.get("config"):
            content = read_config(config, name.split()[-1])
            flags, notes = function.command.current([f"--{key}" for key in content])
            _print_notes(notes, words)
            content = {key.removeprefix("--"): value for key, value in zip(flags, content.values(), strict=True)}
            # Below the names of the command: cyclopts skips keys at the top that are commands too, such as `data`.
            first, second = function.command.words
            app.config = [Dict({first: {second: content}}, source=str(config))]
            function, given = _parsed(app, name, words, f" (in {config})")
        options = function.command.make(given, call)
        with command_context(options):
            resolve_name(f"{__name__.rpartition('.')[0]}.{options.entry}")(options)
        return 0
    except (UsageError, BrokenPipeError):
        raise
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            print(f"\n{name}: stopped", file=sys.stderr)
        return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)
    except Exception as error:
        if "--debug" in words or _is_full_output(error):
            raise
        message, code = _explained(error)
        line = " ".join(message.split()).removeprefix(f"{name.split()[-1]}: ")
        print(f"{name}: {line}", file=sys.stderr)
        return code


def _print_notes(notes: list[str], words: list[str]) -> None:
    if notes and "--quiet" not in words:
        print(*notes, sep="\n", file=sys.stderr)


def _named(words: list[str]) -> tuple[str, Command | None]:
    """Return the name of the command in a command line, such as "disco train stl10", and the command."""
    commands = {command.words: command for group in COMMANDS.values() for command in group}
    if command := commands.get(tuple(words[:2])) or commands.get(tuple(words[:1])):
        return command.name, command
    return f"disco {words[0]}" if words and words[0] in {first for first, *_ in commands} else "disco", None


def _parsed(app: App, name: str, words: list[str], where: str = "") -> tuple[Any, dict[str, Any]]:
    """Return the function of the command and its given arguments; None after --help and --version."""
    try:
        function, bound, _ = app.parse_args(words)
    except CycloptsError as error:
        raise UsageError(f"{name}: {_message(error)}; see {name} --help{where}") from error
    if hasattr(function, "command"):
        return function, dict(bound.arguments)
    from rich.console import Console

    width = shutil.get_terminal_size((100, 24)).columns
    page = io.StringIO()  # rich would exit at a closed pipe
    bound.arguments["console"] = Console(file=page, width=min(max(width, 80), 120))
    function(*bound.args, **bound.kwargs)
    print("\n".join(line.rstrip() for line in page.getvalue().splitlines()))
    return None, {}


def _message(error: CycloptsError) -> str:
    """Return the message of cyclopts in the style of ours."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {(error.unused_tokens or [''])[0]!r}"
    message = re.sub(r'^Command ".*?" parameter ', "", plain(error))
    message = message.partition(" Available commands")[0].rstrip(".").replace("[", "").replace("]", "")
    message = re.sub(r"[.] (\w)", lambda match: f", {match[1].lower()}", message)
    if isinstance(error, MissingArgumentError):
        message = re.sub("requires (an argument|at least 1 element, got 0)", "requires a value", message)
        return message.replace("positional arguments", "values")
    return f"{message[:1].lower()}{message[1:]}"


def _explained(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code for an error."""
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").partition(".")[0])):
        return f'{error.name} is required: pip install "scale-disco[{extra}]"', 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}", 1
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return "out of memory: reduce the batch or image size; --debug shows the traceback", 1
    if isinstance(error, (ValueError, TypeError, OSError, ImportError)):
        return str(error), 1
    return f"internal error: {type(error).__name__}: {error}; run with --debug and report the traceback", 70


_NO_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory")

# The extra of a package, for imports without an error message of their own.
_EXTRAS = {
    **dict.fromkeys(("lightning", "torchmetrics", "tensorboard", "yaml"), "train"),
    **dict.fromkeys(("matplotlib", "PIL"), "plot"),
    **dict.fromkeys(("mlxtend", "sklearn"), "demo"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "skimage": "generalization",
    "huggingface_hub": "hub",
    "av": "video",
}
