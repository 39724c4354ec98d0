"""`foveate doctor`: whether all that the gateway needs is there and well, and what to do where it is not."""

import sys
from typing import Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import SOME_FAILED, telling
from foveate.cli.usual import ConfigFile


def command(
    config: ConfigFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no upstream: look only at this machine and the store.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at everything that the gateway needs: each line is ok, a warning or failed, with what to do.

    Nothing is changed, and nothing is asked that costs money. Ends with code 1 where something failed.

    Example: foveate doctor --offline
    """
    with telling(as_json=json):
        from foveate.cli.doctor_findings import Level, as_object, lines

        with screen.patience("looking"):
            import asyncio

            from foveate.cli.doctor_looking import looked

            findings = asyncio.run(looked(config, asks=not offline))
        if json:
            screen.print_object(as_object(findings))
        else:
            screen.print_lines(lines(findings, screen.look(sys.stdout)))
        if any(one.level is Level.FAILED for one in findings):
            raise typer.Exit(SOME_FAILED)
