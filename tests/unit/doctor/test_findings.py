"""Running checks and collecting their findings."""

import asyncio
from collections.abc import Sequence

from foveate.doctor.findings import (
    Finding,
    Level,
    failed_finding,
    findings_object,
    ok_finding,
    run_checks,
    warning_finding,
)

FINDINGS = [
    ok_finding("store", "there"),
    warning_finding("port", "taken", "take another"),
    failed_finding("config", "prot", "port?", "x"),
]


async def test_a_check_that_fails_or_hangs_does_not_hide_the_others() -> None:
    async def succeed() -> Sequence[Finding]:
        return [ok_finding("fine", "is")]

    async def fail() -> Sequence[Finding]:
        raise RuntimeError("oh")

    async def hang() -> Sequence[Finding]:
        await asyncio.sleep(60)
        return []

    findings = await run_checks([("a", hang), ("b", fail), ("c", succeed)], limit_seconds=0.05)

    assert [(finding.check, finding.level) for finding in findings] == [
        ("a", Level.FAILED),
        ("b", Level.FAILED),
        ("fine", Level.OK),
    ]
    assert "did not finish within 0.05 s" in findings[0].message
    assert "RuntimeError: oh" in findings[1].message


def test_the_findings_object_has_all_findings() -> None:
    result = findings_object(FINDINGS)

    assert (result["ok"], result["counts"]) == (False, {"ok": 1, "warning": 1, "failed": 1})
    assert findings_object(FINDINGS[:2])["ok"] is True
