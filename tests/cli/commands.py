"""All commands of `disco`, as tests need them."""

from __future__ import annotations

from scale_disco.cli.app import COMMANDS, Command

ALL: list[Command] = [command for group in COMMANDS.values() for command in group]
BY_NAME = {" ".join(command.words): command for command in ALL}
