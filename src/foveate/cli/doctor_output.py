"""Findings of `foveate doctor` as a table."""

from collections.abc import Iterator, Sequence

from foveate.cli.shared.console import Display
from foveate.cli.shared.tables import Cell, Column, Fit, Styled, format_table, style_text
from foveate.doctor.findings import Finding, Level

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "red"}


def findings_lines(findings: Sequence[Finding], display: Display) -> Iterator[str]:
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
