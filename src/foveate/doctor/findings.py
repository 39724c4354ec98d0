"""What the doctor finds: one line each, ok, a warning or failed, and what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


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
