"""Findings of checks, and how checks are run."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`name` tells several findings of one check apart; `advice` says what to do."""

    check: str
    level: Level
    message: str
    name: str = ""
    advice: str = ""


Check = Callable[[], Awaitable[Sequence[Finding]]]


def ok_finding(check: str, message: str, name: str = "") -> Finding:
    return Finding(check=check, level=Level.OK, message=message, name=name)


def warning_finding(check: str, message: str, advice: str, name: str = "") -> Finding:
    return Finding(check=check, level=Level.WARNING, message=message, name=name, advice=advice)


def failed_finding(check: str, message: str, advice: str, name: str = "") -> Finding:
    return Finding(check=check, level=Level.FAILED, message=message, name=name, advice=advice)


async def run_checks(checks: Iterable[tuple[str, Check]], *, limit_seconds: float) -> list[Finding]:
    """Run checks concurrently. A check that fails or takes too long becomes a finding itself."""

    async def run_check(name: str, check: Check) -> Sequence[Finding]:
        try:
            async with asyncio.timeout(limit_seconds):
                return await check()
        except TimeoutError:
            return [
                failed_finding(
                    name,
                    f"the check did not finish within {limit_seconds:g} s",
                    "run it again when the machine is less busy",
                )
            ]
        except Exception as error:  # noqa: BLE001 - outermost border: a broken check must not hide the others
            return [
                failed_finding(
                    name,
                    f"the check crashed: {type(error).__name__}: {error}",
                    "this is a bug in Foveate: please report it",
                )
            ]

    found = await asyncio.gather(*(run_check(name, check) for name, check in checks))
    return [finding for findings in found for finding in findings]


def findings_object(findings: Sequence[Finding]) -> dict[str, object]:
    counts = {level.value: sum(finding.level is level for finding in findings) for level in Level}
    finding_objects = [
        {
            "check": finding.check,
            "name": finding.name,
            "level": finding.level,
            "said": finding.message,
            "advice": finding.advice,
        }
        for finding in findings
    ]
    return {"ok": not counts[Level.FAILED], "counts": counts, "findings": finding_objects}
