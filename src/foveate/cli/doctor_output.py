"""Findings of `foveate doctor` as text and as a JSON object."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from foveate.cli.console import Display
from foveate.doctor.findings import Finding, Level

_GAP = "  "
_COLOURS = {"ok": "32", "warning": "33", "failed": "31"}
_MIN_COLUMNS = 24


def findings_lines(findings: Sequence[Finding], display: Display) -> Iterator[str]:
    columns = max(display.columns, _MIN_COLUMNS)
    level_cells = max(len(level) for level in Level)
    check_cells = max((len(finding.check) for finding in findings), default=0)
    message_column = level_cells + check_cells + 2 * len(_GAP)
    if message_column > columns // 2:  # narrow terminal: put the message on its own line
        message_column = 4
    for finding in findings:
        level = _paint(f"{finding.level:<{level_cells}}", _COLOURS[finding.level], display)
        heading = f"{level}{_GAP}{finding.check:<{check_cells}}{_GAP}"
        message = f"{finding.name}: {finding.message}" if finding.name else finding.message
        wrapped = _wrap(display.escape(message), columns - message_column)
        if message_column == 4:
            yield heading.rstrip()
        else:
            first, *wrapped = wrapped
            yield heading + first
        yield from (" " * message_column + line for line in wrapped)
        if finding.advice:
            yield from (
                _paint(" " * message_column + line, "2", display)
                for line in _wrap(display.escape(f"-> {finding.advice}"), columns - message_column)
            )
    counts = [(level, sum(finding.level is level for finding in findings)) for level in Level]
    summary = ", ".join(f"{count} {level}" for level, count in counts if count or level is not Level.WARNING)
    yield _paint(summary, "1", display)


def _wrap(text: str, cells: int) -> list[str]:
    wrapped = [""]
    for word in text.split():
        if wrapped[-1] and cell_len(f"{wrapped[-1]} {word}") > cells:
            wrapped.append(word)
        else:
            wrapped[-1] = f"{wrapped[-1]} {word}".lstrip()
    return wrapped


def _paint(text: str, colour: str, display: Display) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if display.colours else text
