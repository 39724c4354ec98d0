"""`foveate doctor`: check everything that the gateway needs."""

import sys
from typing import Annotated

import typer

from foveate.cli import console
from foveate.cli.exit_codes import SOME_FAILED, report_errors
from foveate.cli.options import ConfigFile, find_config_file


def command(
    config: ConfigFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not contact upstreams; check only this machine and the store.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the configuration, the store, the upstreams and this machine, and show how to fix problems.

    It changes nothing and sends only requests that cost nothing. The exit code is 1 if a check failed.

    Example: foveate doctor --offline
    """
    with report_errors(as_json=json):
        from foveate.cli.doctor_output import findings_lines
        from foveate.doctor.findings import Level, findings_object

        with console.show_progress("checking"):
            import asyncio

            from foveate.doctor.run import run_doctor

            findings = asyncio.run(run_doctor(find_config_file(config), checks_upstreams=not offline))
        if json:
            console.print_object(findings_object(findings))
        else:
            console.print_lines(findings_lines(findings, console.display_for(sys.stdout)))
        if any(finding.level is Level.FAILED for finding in findings):
            raise typer.Exit(SOME_FAILED)
