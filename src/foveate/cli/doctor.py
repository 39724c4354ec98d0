"""`foveate doctor`: check everything that the gateway needs."""

import sys
from typing import Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import SOME_FAILED, report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file


def command(
    config: ConfigFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Skip the checks that contact providers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Check the configuration, database, providers and this machine, and show how to fix problems.

    The command changes nothing and sends only free requests. The exit code is 1 if a check failed.

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
