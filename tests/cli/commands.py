"""All commands of `disco`, as tests need them."""

from __future__ import annotations

from scale_disco.cli.app import COMMANDS, Command

ALL: list[Command] = [
    command
    for group in COMMANDS.values()
    for entry in group.values()
    for command in ([entry] if isinstance(entry, Command) else entry.values())
]
BY_NAME = {" ".join(command.words): command for command in ALL}
