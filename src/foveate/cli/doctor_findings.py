"""What the doctor finds: one line each, ok, a warning or failed, and what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len

from foveate.cli.screen import Display

_GAP = "  "
_COLOURS = {"ok": "32", "warning": "33", "failed": "31"}
_MIN_COLUMNS = 24


class Level(StrEnum):
    """How it stands with something."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at (`check`, and of several `name`), how it stands, and what to do if it is not well."""

    check: str
    level: Level
    message: str
    name: str = ""
    advice: str = ""


Check = Callable[[], Awaitable[Sequence[Finding]]]


def ok_finding(check: str, message: str, name: str = "") -> Finding:
    """All is well with it."""
    return Finding(check=check, level=Level.OK, message=message, name=name)


def warning_finding(check: str, message: str, advice: str, name: str = "") -> Finding:
    """It works, and should be looked at."""
    return Finding(check=check, level=Level.WARNING, message=message, name=name, advice=advice)


def failed_finding(check: str, message: str, advice: str, name: str = "") -> Finding:
    """It does not work."""
    return Finding(check=check, level=Level.FAILED, message=message, name=name, advice=advice)


async def run_checks(checks: Iterable[tuple[str, Check]], *, limit_seconds: float) -> list[Finding]:
    """What all checks find, made side by side; one that takes too long, or breaks, is a finding itself."""

    async def one(name: str, check: Check) -> Sequence[Finding]:
        try:
            async with asyncio.timeout(limit_seconds):
                return await check()
        except TimeoutError:
            return [
                failed_finding(
                    name, f"no answer within {limit_seconds:g} s", "see whether the machine is overloaded"
                )
            ]
        except Exception as error:  # noqa: BLE001 - a border: one check that breaks must not hide the others
            return [
                failed_finding(
                    name, f"{type(error).__name__}: {error}", "this is a fault of the check: please report it"
                )
            ]

    found = await asyncio.gather(*(one(name, check) for name, check in checks))
    return [finding for findings in found for finding in findings]


def findings_object(findings: Sequence[Finding]) -> dict[str, object]:
    """All of it as JSON can say it."""
    counts = {level.value: sum(finding.level is level for finding in findings) for level in Level}
    listed = [
        {
            "check": finding.check,
            "name": finding.name,
            "level": finding.level,
            "said": finding.message,
            "advice": finding.advice,
        }
        for finding in findings
    ]
    return {"ok": not counts[Level.FAILED], "counts": counts, "findings": listed}


def findings_lines(findings: Sequence[Finding], display: Display) -> Iterator[str]:
    """A line for each finding, what to do below it, and at the end how many of each there are."""
    columns = max(display.columns, _MIN_COLUMNS)
    level_cells = max(len(level) for level in Level)
    check_cells = max((len(finding.check) for finding in findings), default=0)
    lead = level_cells + check_cells + 2 * len(_GAP)
    if lead > columns // 2:  # a narrow terminal: what is said stands below
        lead = 4
    for finding in findings:
        level = _paint(f"{finding.level:<{level_cells}}", _COLOURS[finding.level], display)
        heading = f"{level}{_GAP}{finding.check:<{check_cells}}{_GAP}"
        message = f"{finding.name}: {finding.message}" if finding.name else finding.message
        wrapped = _wrap(display.escape(message), columns - lead)
        if lead == 4:
            yield heading.rstrip()
        else:
            first, *wrapped = wrapped
            yield heading + first
        yield from (" " * lead + line for line in wrapped)
        if finding.advice:
            yield from (
                _paint(" " * lead + line, "2", display)
                for line in _wrap(display.escape(f"-> {finding.advice}"), columns - lead)
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
