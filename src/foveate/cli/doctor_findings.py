"""What the doctor finds: one line each, ok, a warning or failed, and what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len

from foveate.cli.screen import Look

_GAP = "  "
_COLOURS = {"ok": "32", "warning": "33", "failed": "31"}
_LEAST_COLUMNS = 24


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
    said: str
    name: str = ""
    advice: str = ""


Check = Callable[[], Awaitable[Sequence[Finding]]]


def ok(check: str, said: str, name: str = "") -> Finding:
    """All is well with it."""
    return Finding(check=check, level=Level.OK, said=said, name=name)


def warning(check: str, said: str, advice: str, name: str = "") -> Finding:
    """It works, and should be looked at."""
    return Finding(check=check, level=Level.WARNING, said=said, name=name, advice=advice)


def failed(check: str, said: str, advice: str, name: str = "") -> Finding:
    """It does not work."""
    return Finding(check=check, level=Level.FAILED, said=said, name=name, advice=advice)


async def looked_into(checks: Iterable[tuple[str, Check]], *, limit_seconds: float) -> list[Finding]:
    """What all checks find, made side by side; one that takes too long, or breaks, is a finding itself."""

    async def one(name: str, check: Check) -> Sequence[Finding]:
        try:
            async with asyncio.timeout(limit_seconds):
                return await check()
        except TimeoutError:
            return [
                failed(name, f"no answer within {limit_seconds:g} s", "see whether the machine is overloaded")
            ]
        except Exception as error:  # noqa: BLE001 - a border: one check that breaks must not hide the others
            return [
                failed(
                    name, f"{type(error).__name__}: {error}", "this is a fault of the check: please report it"
                )
            ]

    found = await asyncio.gather(*(one(name, check) for name, check in checks))
    return [finding for findings in found for finding in findings]


def as_object(findings: Sequence[Finding]) -> dict[str, object]:
    """All of it as JSON can say it."""
    counts = {level.value: sum(one.level is level for one in findings) for level in Level}
    listed = [
        {"check": one.check, "name": one.name, "level": one.level, "said": one.said, "advice": one.advice}
        for one in findings
    ]
    return {"ok": not counts[Level.FAILED], "counts": counts, "findings": listed}


def lines(findings: Sequence[Finding], look: Look) -> Iterator[str]:
    """A line for each finding, what to do below it, and at the end how many of each there are."""
    columns = max(look.columns, _LEAST_COLUMNS)
    level_cells = max(len(level) for level in Level)
    check_cells = max((len(one.check) for one in findings), default=0)
    lead = level_cells + check_cells + 2 * len(_GAP)
    if lead > columns // 2:  # a narrow terminal: what is said stands below
        lead = 4
    for one in findings:
        level = _painted(f"{one.level:<{level_cells}}", _COLOURS[one.level], look)
        heading = f"{level}{_GAP}{one.check:<{check_cells}}{_GAP}"
        said = f"{one.name}: {one.said}" if one.name else one.said
        wrapped = _wrapped(look.plain(said), columns - lead)
        if lead == 4:
            yield heading.rstrip()
        else:
            first, *wrapped = wrapped
            yield heading + first
        yield from (" " * lead + line for line in wrapped)
        if one.advice:
            yield from (
                _painted(" " * lead + line, "2", look)
                for line in _wrapped(look.plain(f"-> {one.advice}"), columns - lead)
            )
    counts = [(level, sum(one.level is level for one in findings)) for level in Level]
    told = ", ".join(f"{count} {level}" for level, count in counts if count or level is not Level.WARNING)
    yield _painted(told, "1", look)


def _wrapped(text: str, cells: int) -> list[str]:
    found = [""]
    for word in text.split():
        if found[-1] and cell_len(f"{found[-1]} {word}") > cells:
            found.append(word)
        else:
            found[-1] = f"{found[-1]} {word}".lstrip()
    return found


def _painted(text: str, colour: str, look: Look) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if look.colours else text
