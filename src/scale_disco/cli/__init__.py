"""The command `disco`: one module per command, each with `add` (its arguments) and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from . import basis, bench, data, equivariance, table, test, train
from .terminal import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `disco`; the exit code is 0, 1 for an error that the user can mend, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="disco", description="Discrete scale convolutions for PyTorch.")
    parser.add_argument("--version", action="version", version=f"scale-disco {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (basis, equivariance, bench, data, train, test, table):
        module.add(commands)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        options.run(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        if options.debug:
            raise
        print(f"disco {options.command}: {error}", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"disco {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\ndisco {options.command}: stopped", file=sys.stderr)
        return 130
    return 0
