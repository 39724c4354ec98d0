"""Every visible command of `foveate`, by its full name."""

from collections.abc import Iterator
from typing import Any

import typer.main

from foveate.cli import app


def list_commands() -> Iterator[tuple[str, Any]]:
    """Every visible command with its full name, e.g. "foveate count"."""
    waiting: list[tuple[str, Any]] = [("foveate", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        if not command.hidden:
            yield name, command
            subcommands = getattr(command, "commands", {})
            waiting += [(f"{name} {word}", subcommand) for word, subcommand in subcommands.items()]


COMMANDS = dict(list_commands())
