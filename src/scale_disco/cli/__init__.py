"""The command `disco`: every command is a module with `add` (its arguments) and `run`."""

import argparse
import difflib
import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from .. import __version__
from ..tasks.bench import command as bench
from ..tasks.equivariance import command as equivariance
from ..tasks.io.terminal import Parser, Stopped, UsageError, command_context
from ..tasks.quickstart import command as quickstart
from ..tasks.scene.commands import scene
from ..tasks.tracking.commands import otb, track
from . import basis, completion, data, table, test, train

# A new command joins by its module here.
_GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "start": (quickstart,),
    "kernels": (basis, equivariance, bench),
    "experiments": (data, train, test, table),
    "tracking": (track, otb),
    "scenes": (scene,),
    "shell": (completion,),
}

_EPILOG = """\
`disco COMMAND --help` shows the options of a command, with examples.
exit codes: 0 success, 1 error, 2 invalid usage, 70 internal error (please report it), 129 hangup (SIGHUP),
130 interrupted (Ctrl-C), 141 closed pipe (SIGPIPE), 143 terminated (SIGTERM)."""


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
    """Parse the command line and run the command."""
    parser, commands = parsers()
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words and not words[0].startswith("-") and words[0] not in commands:
        near = difflib.get_close_matches(words[0], commands, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"disco: unknown command {words[0]!r}{hint}; see disco --help")
    try:
        options, unknown = parser.parse_known_args(words or ["--help"])
    except SystemExit as end:  # after --help and --version
        return int(end.code or 0)
    if unknown or options.command is None:
        commands.get(options.command, parser).refuse(unknown or words)
    options.call, options.parsers = shlex.join(["disco", *words]), commands
    return _run(options)


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of `disco` and those of its commands by name."""
    parser = Parser(
        prog="disco",
        usage="disco COMMAND [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"scale-disco {__version__}")
    commands: Any = parser.add_subparsers(dest="command", prog="disco", metavar="COMMAND", help=argparse.SUPPRESS)
    lines = ["Discrete scale convolutions for PyTorch."]
    for group, modules in _GROUPS.items():
        lines.append(f"\n{group}:")
        for module in modules:
            module.add(commands)
            name, command = list(commands.choices.items())[-1]
            lines.append(f"  {name:13} {command.description.partition('.')[0]}")
    parser.description = "\n".join(lines)
    return parser, commands.choices


def _run(options: argparse.Namespace) -> int:
    """Run a command; an error is printed as one line, or as a traceback with --debug."""

    def fail(message: str, code: int = 1) -> int:
        line = " ".join(message.split()).removeprefix(f"{options.command}: ")
        print(f"disco {options.command}: {line}", file=sys.stderr)
        return code

    try:
        with command_context(options):
            options.run(options)
    except (UsageError, BrokenPipeError):
        raise
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            print(f"\ndisco {options.command}: stopped", file=sys.stderr)
        return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)
    except Exception as error:
        if options.debug or _is_full_output(error):
            raise
        if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").partition(".")[0])):
            return fail(f'{error.name} is required: pip install "scale-disco[{extra}]"')
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            return fail(f"{error.filename}: {error.strerror}")
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
            return fail("out of memory: reduce the batch or image size; --debug shows the traceback")
        if isinstance(error, (ValueError, TypeError, OSError, ImportError)):
            return fail(str(error))
        return fail(f"internal error: {type(error).__name__}: {error}; run with --debug and report the traceback", 70)
    return 0


_NO_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory")

# The extra of a package, for imports without an error message of their own.
_EXTRAS = {
    **dict.fromkeys(("lightning", "torchmetrics", "rich", "tensorboard", "yaml"), "train"),
    **dict.fromkeys(("matplotlib", "PIL"), "plot"),
    **dict.fromkeys(("mlxtend", "sklearn"), "demo"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "huggingface_hub": "hub",
    "av": "video",
}
