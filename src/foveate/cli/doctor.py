"""`foveate doctor`: check everything that the gateway needs."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.console import Display
from foveate.cli.shared.errors import SOME_FAILED, report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.shared.tables import Cell, Column, Fit, Styled, format_table, style_text

if TYPE_CHECKING:
    from foveate.doctor.findings import Finding

_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}  # by Level


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


def findings_lines(findings: "Sequence[Finding]", display: Display) -> Iterator[str]:
    from foveate.doctor.findings import Level

    rows: list[tuple[Cell, ...]] = []
    for finding in findings:
        message = f"{finding.name}: {finding.message}" if finding.name else finding.message
        rows.append((Styled(finding.level, _STYLES[finding.level]), finding.check, " ".join(message.split())))
        if finding.advice:
            rows.append(("", "", Styled(f"-> {' '.join(finding.advice.split())}", "dim")))
    yield from format_table((Column(), Column(), Column(fit=Fit.WRAP)), rows, display)
    counts = [(level, sum(finding.level is level for finding in findings)) for level in Level]
    summary = ", ".join(
        f"{count} {level}{'s' * (level is Level.WARNING and count > 1)}"
        for level, count in counts
        if count or level is not Level.WARNING
    )
    yield style_text(summary, "bold", display)
