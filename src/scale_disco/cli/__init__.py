"""The command `disco`: one module per command, each with `add` (its arguments) and `run`."""

from __future__ import annotations

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

# A new command joins by its module's name here.
_GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "start": (quickstart,),
    "kernels": (basis, equivariance, bench),
    "experiments": (data, train, test, table),
    "tracking": (track, otb),
    "scenes": (scene,),
    "shell": (completion,),
}

_ENDS = """\
`disco COMMAND --help` shows the options of a command, with examples.
exit codes: 0 done, 1 an error that you can mend, 2 a wrong call, 70 a bug of ours, 130 stopped by Ctrl-C,
141 the reader of the output went away, 143 stopped by kill, 129 by the end of the terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `disco`; the exit code, as `disco --help` explains it."""
    try:
        code = _call(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        _leave_output()
        return 141
    except OSError as error:
        if not _is_of_output(error):
            raise
        _leave_output()
        print(f"disco: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1


def _is_of_output(error: Exception) -> bool:
    """Whether standard output goes to a disk that is full; errors of files name them."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def _leave_output() -> None:
    """Let nothing be left to flush at the end of the process."""
    with suppress(OSError, ValueError):  # under test there is no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _call(words: list[str]) -> int:
    """Understand the call, and run the command."""
    parser, commands = parsers()
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words and not words[0].startswith("-") and words[0] not in commands:
        near = difflib.get_close_matches(words[0], commands, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"disco: no command {words[0]!r}{hint}; see disco --help")
    try:
        options, unknown = parser.parse_known_args(words or ["--help"])
    except SystemExit as end:  # after --help and --version
        return int(end.code or 0)
    if unknown or options.command is None:
        commands.get(options.command, parser).refuse(unknown or words)
    options.call, options.parsers = shlex.join(["disco", *words]), commands
    return _run(options)


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser of `disco`, and those of its commands by name."""
    parser = Parser(
        prog="disco",
        usage="disco COMMAND [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_ENDS,
    )
    parser.add_argument("--version", action="version", version=f"scale-disco {__version__}")
    commands: Any = parser.add_subparsers(dest="command", prog="disco", metavar="COMMAND", help=argparse.SUPPRESS)
    lines = ["Discrete scale convolutions for PyTorch."]
    for job, modules in _GROUPS.items():
        lines.append(f"\n{job}:")
        for module in modules:
            before = set(commands.choices)
            module.add(commands)
            lines += [
                f"  {name:13} {one.description.partition('.')[0]}"
                for name, one in commands.choices.items()
                if name not in before
            ]
    parser.description = "\n".join(lines)
    return parser, commands.choices


def _run(options: argparse.Namespace) -> int:
    """Run a command; what goes wrong is one line, or a traceback if that was asked for."""

    def failed(message: str) -> None:
        said = " ".join(message.split()).removeprefix(f"{options.command}: ")
        print(f"disco {options.command}: {said}", file=sys.stderr)

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
        if options.debug or _is_of_output(error):
            raise
        if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").partition(".")[0])):
            failed(f'it needs {error.name}: pip install "scale-disco[{extra}]"')
        elif isinstance(error, OSError) and error.filename is not None and error.strerror:
            failed(f"{error.filename}: {error.strerror}")
        elif isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
            failed("out of memory: try smaller settings; --debug shows where")
        elif isinstance(error, (ValueError, TypeError, OSError, ImportError)):
            failed(str(error))
        else:
            failed(f"a bug: {type(error).__name__}: {error}; run it again with --debug and report what it shows")
            return 70
        return 1
    return 0


_NO_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory")

# Which extra holds a package, for those that are imported without words of their own.
_EXTRAS = {
    **dict.fromkeys(("lightning", "torchmetrics", "rich", "tensorboard", "yaml"), "train"),
    **dict.fromkeys(("matplotlib", "PIL"), "plot"),
    **dict.fromkeys(("mlxtend", "sklearn"), "demo"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "huggingface_hub": "hub",
    "av": "video",
}
